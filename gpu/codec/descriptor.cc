// Names, checks and the canonical form of codec descriptors. Control path; any thread.
#include "gpu/codec/descriptor.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/check.h"
#include "gpu/codec/kind_traits.h"

namespace crumb {
namespace {

constexpr uint32_t kMagic = 0x44435243;  // "CRCD"
constexpr uint16_t kFormVersion = 1;
constexpr uint16_t kCodecVersion = 1;
constexpr uint32_t kGroupMax = 1u << 20;

enum Tag : uint16_t {
  kTagKind = 1,
  kTagVersion,
  kTagRotationSet,
  kTagGroup,
  kTagClipK,
  kTagClipV,
  kTagClipMethod,
  kTagCentring,
  kTagMeta,
  kTagPacking,
  kTagLloydMax,
};

constexpr KindTraits kTraits[kCodecKindCount] = {
    {"raw", Precision::kRaw, CodecFamily::kRaw, RotationUse::kNone, 0, 0},
    {"crumb-int2", Precision::kInt2, CodecFamily::kCrumb, RotationUse::kSetOrHadamard, 2, 2},
    {"crumb-k3v2", Precision::kK3V2, CodecFamily::kCrumb, RotationUse::kSetOrHadamard, 3, 2},
    {"crumb-int4", Precision::kInt4, CodecFamily::kCrumb, RotationUse::kSetOrHadamard, 4, 4},
    {"oscar-int2", Precision::kInt2, CodecFamily::kAffine, RotationUse::kSet, 2, 2},
    {"hadamard-int2", Precision::kInt2, CodecFamily::kAffine, RotationUse::kHadamard, 2, 2},
    {"naive-int2", Precision::kInt2, CodecFamily::kAffine, RotationUse::kNone, 2, 2},
    {"int4", Precision::kInt4, CodecFamily::kAffine, RotationUse::kNone, 4, 4},
    {"hadamard-int4", Precision::kInt4, CodecFamily::kAffine, RotationUse::kHadamard, 4, 4},
};

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("codec descriptor: ", parts...));
}

bool IsZero(const Sha256& hash) { return hash == Sha256{}; }

absl::Status CheckRatio(const char* field, float ratio) {
  // A negative zero would give one meaning two canonical forms.
  if (!(ratio >= 0.0f && ratio <= 1.0f) || std::signbit(ratio)) {
    return Bad(field, " is ", ratio, "; 0 (no clip) to 1");
  }
  return absl::OkStatus();
}

absl::Status CheckRaw(const CodecDescriptor& d) {
  const bool plain = IsZero(d.rotation_set) && d.group == 0 && d.clip_k == 0.0f &&
                     d.clip_v == 0.0f && d.clip_method == ClipMethod::kNone &&
                     d.centring == Centring::kNone && d.meta == MetaForm::kNone &&
                     d.packing == Packing::kNone && !d.lloyd_max;
  return plain ? absl::OkStatus() : Bad("raw takes no settings");
}

absl::Status CheckCrumb(const CodecDescriptor& d, const char* name) {
  if (d.group != 0) return Bad(name, " has one scale per row: group must be 0");
  if (d.clip_method != ClipMethod::kNone) return Bad(name, " does not clip: clip_method none");
  if (d.meta != MetaForm::kByte) return Bad(name, " has 8-bit metadata: meta must be byte");
  if (d.packing != Packing::kPlanar) return Bad(name, " is packed planar");
  if (d.lloyd_max) return Bad("lloyd_max belongs to oscar-int2");
  return absl::OkStatus();
}

absl::Status CheckAffine(const CodecDescriptor& d, const KindTraits& traits) {
  if (d.group > kGroupMax) return Bad("group is ", d.group, "; at most ", kGroupMax);
  if (d.meta != MetaForm::kBf16 && d.meta != MetaForm::kFp32) {
    return Bad(traits.name, " has BF16 or FP32 metadata");
  }
  if (d.packing == Packing::kNone) return Bad(traits.name, " needs a packing");
  if (d.centring == Centring::kPageMean) return Bad("the page mean belongs to the crumb kinds");
  if (d.lloyd_max && (d.kind != CodecKind::kOscarInt2 || d.group != 0)) {
    return Bad("lloyd_max belongs to oscar-int2 with one group per row");
  }
  const bool uses_set = traits.rotation == RotationUse::kSet || d.centring == Centring::kStaticMean;
  if (uses_set && IsZero(d.rotation_set)) {
    return Bad(traits.name, " with these settings needs a rotation set; import one, or use ",
               "hadamard-int2 without centring");
  }
  if (!uses_set && !IsZero(d.rotation_set)) {
    return Bad(traits.name, " uses nothing of a rotation set: rotation_set must be zero");
  }
  return absl::OkStatus();
}

class FormReader {
 public:
  explicit FormReader(Bytes data) : in_(data) {}

  void Preamble() {
    const auto magic = in_.Read<uint32_t>();
    const auto version = in_.Read<uint16_t>();
    const auto zero = in_.Read<uint16_t>();
    if (magic != kMagic || version != kFormVersion || zero != 0) Fail("preamble");
  }
  template <typename T>
  T Value(Tag tag, const char* name) {
    const auto found = in_.Read<uint16_t>();
    const auto zero = in_.Read<uint16_t>();
    const auto size = in_.Read<uint32_t>();
    T out{};
    if (found != tag || zero != 0 || size != sizeof(T)) Fail(name);
    const Bytes value = in_.ReadBytes(failed_ == nullptr ? sizeof(T) : 0);
    if (!in_.ok()) Fail(name);
    if (failed_ == nullptr) std::memcpy(&out, value.data(), sizeof(T));
    return out;
  }
  template <typename E>
  E Enum(Tag tag, const char* name, E last) {
    const auto value = Value<uint8_t>(tag, name);
    if (value > static_cast<uint8_t>(last)) Fail(name);
    return failed_ == nullptr ? static_cast<E>(value) : E{};
  }
  bool Flag(Tag tag, const char* name) {
    const auto value = Value<uint8_t>(tag, name);
    if (value > 1) Fail(name);
    return value == 1;
  }
  absl::Status Finish() {
    if (failed_ == nullptr && !in_.done()) Fail("end");
    if (failed_ == nullptr) return absl::OkStatus();
    return Bad("canonical form is malformed or of a newer version at field \"", failed_, "\"");
  }

 private:
  void Fail(const char* name) {
    if (failed_ == nullptr) failed_ = name;
  }
  ByteReader in_;
  const char* failed_ = nullptr;
};

template <typename T>
void Put(ByteWriter& out, Tag tag, const T& value) {
  out.Write(static_cast<uint16_t>(tag));
  out.Write(uint16_t{0});
  out.Write(static_cast<uint32_t>(sizeof(T)));
  out.WriteBytes({reinterpret_cast<const uint8_t*>(&value), sizeof(T)});
}

}  // namespace

const KindTraits& TraitsOf(CodecKind kind) {
  const auto index = static_cast<size_t>(kind);
  CRUMB_CHECK(index < kCodecKindCount);
  return kTraits[index];
}

const char* ToString(CodecKind kind) {
  const auto index = static_cast<size_t>(kind);
  return index < kCodecKindCount ? kTraits[index].name : "unknown";
}

absl::StatusOr<CodecKind> ParseCodecKind(std::string_view text) {
  std::string known;
  for (int i = 0; i < kCodecKindCount; ++i) {
    if (text == kTraits[i].name) return static_cast<CodecKind>(i);
    absl::StrAppend(&known, i == 0 ? "" : ", ", kTraits[i].name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown codec \"", std::string(text), "\"; one of ", known));
}

const char* ToString(Effort effort) {
  switch (effort) {
    case Effort::kDraft:
      return "draft";
    case Effort::kNormal:
      return "normal";
    case Effort::kBest:
      return "best";
  }
  return "unknown";
}

absl::StatusOr<Effort> ParseEffort(std::string_view text) {
  for (const Effort effort : {Effort::kDraft, Effort::kNormal, Effort::kBest}) {
    if (text == ToString(effort)) return effort;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown effort \"", std::string(text), "\"; one of draft, normal, best"));
}

Precision PrecisionOf(CodecKind kind) { return TraitsOf(kind).precision; }

absl::Status CodecDescriptor::Check() const {
  if (kind > CodecKind::kHadamardInt4) return Bad("unknown kind ", static_cast<int>(kind));
  if (version != kCodecVersion) {
    return Bad("version ", version, " of ", ToString(kind), " is unknown; this build reads ",
               kCodecVersion);
  }
  if (clip_method > ClipMethod::kBisect) return Bad("unknown clip_method");
  if (centring > Centring::kPageMean) return Bad("unknown centring");
  if (meta > MetaForm::kByte) {
    return Bad("unknown metadata form; FP16 is not supported (it overflows on constant rows): use ",
               "BF16 or FP32");
  }
  if (packing > Packing::kInterleaved) return Bad("unknown packing");
  CRUMB_TRY(CheckRatio("clip_k", clip_k));
  CRUMB_TRY(CheckRatio("clip_v", clip_v));
  const bool clips = clip_k != 0.0f || clip_v != 0.0f;
  if (clips != (clip_method != ClipMethod::kNone)) {
    return Bad("clip ratios and clip_method must both be set or both be none");
  }
  const KindTraits& traits = TraitsOf(kind);
  switch (traits.family) {
    case CodecFamily::kRaw:
      return CheckRaw(*this);
    case CodecFamily::kCrumb:
      return CheckCrumb(*this, traits.name);
    case CodecFamily::kAffine:
      return CheckAffine(*this, traits);
  }
  return Bad("unknown kind");
}

std::string CodecDescriptor::Canonical() const {
  CRUMB_CHECK(Check().ok());
  ByteWriter out;
  out.Write(kMagic);
  out.Write(kFormVersion);
  out.Write(uint16_t{0});
  Put(out, kTagKind, static_cast<uint8_t>(kind));
  Put(out, kTagVersion, version);
  Put(out, kTagRotationSet, rotation_set);
  Put(out, kTagGroup, group);
  Put(out, kTagClipK, clip_k);
  Put(out, kTagClipV, clip_v);
  Put(out, kTagClipMethod, static_cast<uint8_t>(clip_method));
  Put(out, kTagCentring, static_cast<uint8_t>(centring));
  Put(out, kTagMeta, static_cast<uint8_t>(meta));
  Put(out, kTagPacking, static_cast<uint8_t>(packing));
  Put(out, kTagLloydMax, static_cast<uint8_t>(lloyd_max ? 1 : 0));
  return std::move(out.str());
}

absl::StatusOr<CodecDescriptor> CodecDescriptor::FromCanonical(Bytes canonical) {
  FormReader in(canonical);
  in.Preamble();
  CodecDescriptor d;
  d.kind = in.Enum(kTagKind, "kind", CodecKind::kHadamardInt4);
  d.version = in.Value<uint16_t>(kTagVersion, "version");
  d.rotation_set = in.Value<Sha256>(kTagRotationSet, "rotation_set");
  d.group = in.Value<uint32_t>(kTagGroup, "group");
  d.clip_k = in.Value<float>(kTagClipK, "clip_k");
  d.clip_v = in.Value<float>(kTagClipV, "clip_v");
  d.clip_method = in.Enum(kTagClipMethod, "clip_method", ClipMethod::kBisect);
  d.centring = in.Enum(kTagCentring, "centring", Centring::kPageMean);
  d.meta = in.Enum(kTagMeta, "meta", MetaForm::kByte);
  d.packing = in.Enum(kTagPacking, "packing", Packing::kInterleaved);
  d.lloyd_max = in.Flag(kTagLloydMax, "lloyd_max");
  CRUMB_TRY(in.Finish());
  CRUMB_TRY(d.Check());
  return d;
}

uint64_t CodecDescriptor::id() const {
  const Sha256 hash = Sha256Of(AsBytes(Canonical()));
  uint64_t value;
  std::memcpy(&value, hash.data(), sizeof(value));
  return value;
}

CodecDescriptor CodecDescriptor::Default(CodecKind kind, const Sha256& rotation_set) {
  CodecDescriptor d;
  d.kind = kind;
  switch (TraitsOf(kind).family) {
    case CodecFamily::kRaw:
      break;
    case CodecFamily::kCrumb:
      d.rotation_set = rotation_set;
      d.centring = Centring::kPageMean;
      d.meta = MetaForm::kByte;
      d.packing = Packing::kPlanar;
      break;
    case CodecFamily::kAffine:
      d.meta = MetaForm::kBf16;
      d.packing = Packing::kPlanar;
      break;
  }
  if (kind == CodecKind::kOscarInt2) {
    d.rotation_set = rotation_set;
    d.clip_k = 0.96f;
    d.clip_v = 0.92f;
    d.clip_method = ClipMethod::kSort;
  }
  return d;
}

}  // namespace crumb
