// Writer and bounded reader of an identity's canonical form. Control path; any thread.
#include "cachesvc/base/identity_form.h"

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"

namespace crumb {
namespace {

constexpr uint32_t kMagic = 0x44495243;  // "CRID"
constexpr uint16_t kVersion = 1;

enum Tag : uint16_t {
  kModel = 1,
  kRevision,
  kWeightsDtype,
  kRopeKind,
  kRopeTheta,
  kRopeFactor,
  kRopeOriginalPositions,
  kRopeExtra,
  kKBeforeRope,
  kDtype,
  kPageTokens,
  kNameSpace,
  kGroups,
  kHeadGroups,
  kPartLayerCounts,
};

class FormWriter {
 public:
  FormWriter() {
    out_.Write(kMagic);
    out_.Write(kVersion);
    out_.Write(uint16_t{0});
  }
  void Text(Tag tag, std::string_view value) {
    out_.Write(static_cast<uint16_t>(tag));
    out_.Write(uint16_t{0});
    out_.Write(static_cast<uint32_t>(value.size()));
    out_.WriteBytes(AsBytes(value));
  }
  template <typename T>
  void Number(Tag tag, T value) {
    Text(tag, {reinterpret_cast<const char*>(&value), sizeof(value)});
  }
  std::string Take() { return std::move(out_.str()); }

 private:
  ByteWriter out_;
};

std::string GroupsValue(const std::vector<AttentionGroup>& groups) {
  ByteWriter out;
  out.Write(static_cast<uint32_t>(groups.size()));
  for (const AttentionGroup& group : groups) {
    out.Write(static_cast<uint32_t>(group.kind));
    out.Write(group.kv_heads);
    out.Write(group.k_dim);
    out.Write(group.v_dim);
    out.Write(group.window);
    out.Write(static_cast<uint32_t>(group.layer_ids.size()));
    for (uint32_t id : group.layer_ids) out.Write(id);
  }
  return std::move(out.str());
}

std::string CountsValue(const std::vector<uint32_t>& counts) {
  ByteWriter out;
  for (uint32_t count : counts) out.Write(count);
  return std::move(out.str());
}

// Reads records in order; after the first failure every value is empty or zero.
class FormReader {
 public:
  explicit FormReader(Bytes data) : in_(data) {}

  Bytes Value(Tag tag, const char* name, size_t size_max) {
    const auto found = in_.Read<uint16_t>();
    const auto zero = in_.Read<uint16_t>();
    const auto size = in_.Read<uint32_t>();
    if (found != tag || zero != 0 || size > size_max) Fail(name);
    const Bytes value = in_.ReadBytes(failed_ == nullptr ? size : 0);
    if (!in_.ok()) Fail(name);
    return failed_ == nullptr ? value : Bytes();
  }
  std::string Text(Tag tag, const char* name) {
    const Bytes value = Value(tag, name, kNameBytesMax);
    return {reinterpret_cast<const char*>(value.data()), value.size()};
  }
  template <typename T>
  T Number(Tag tag, const char* name) {
    const Bytes value = Value(tag, name, sizeof(T));
    T out{};
    if (value.size() == sizeof(T)) {
      std::memcpy(&out, value.data(), sizeof(T));
    } else {
      Fail(name);
    }
    return out;
  }
  void Fail(const char* name) {
    if (failed_ == nullptr) failed_ = name;
  }
  absl::Status Finish() {
    if (failed_ == nullptr && !in_.done()) Fail("end");
    if (failed_ == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("identity: canonical form is malformed at field \"", failed_, "\""));
  }

 private:
  ByteReader in_;
  const char* failed_ = nullptr;
};

// False if the value does not hold exactly what its counts say.
bool ReadGroups(Bytes value, std::vector<AttentionGroup>* groups) {
  ByteReader in(value);
  const auto count = in.Read<uint32_t>();
  if (count > kLayersMax) return false;
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    AttentionGroup group;
    const auto kind = in.Read<uint32_t>();
    if (kind > static_cast<uint32_t>(AttentionKind::kMla)) return false;
    group.kind = static_cast<AttentionKind>(kind);
    group.kv_heads = in.Read<uint32_t>();
    group.k_dim = in.Read<uint32_t>();
    group.v_dim = in.Read<uint32_t>();
    group.window = in.Read<uint32_t>();
    const auto layers = in.Read<uint32_t>();
    if (layers > kLayersMax) return false;
    for (uint32_t j = 0; j < layers && in.ok(); ++j) group.layer_ids.push_back(in.Read<uint32_t>());
    groups->push_back(std::move(group));
  }
  return in.done();
}

bool ReadCounts(Bytes value, std::vector<uint32_t>* counts) {
  ByteReader in(value);
  while (in.remaining() >= sizeof(uint32_t)) counts->push_back(in.Read<uint32_t>());
  return in.done();
}

}  // namespace

std::string CanonicalForm(const Identity& identity) {
  FormWriter out;
  out.Text(kModel, identity.model);
  out.Text(kRevision, identity.revision);
  out.Text(kWeightsDtype, identity.weights_dtype);
  out.Text(kRopeKind, identity.rope.kind);
  out.Number(kRopeTheta, identity.rope.theta);
  out.Number(kRopeFactor, identity.rope.factor);
  out.Number(kRopeOriginalPositions, identity.rope.original_positions);
  out.Text(kRopeExtra, identity.rope.extra);
  out.Number(kKBeforeRope, static_cast<uint8_t>(identity.k_before_rope));
  out.Number(kDtype, static_cast<uint8_t>(identity.dtype));
  out.Number(kPageTokens, identity.page_tokens);
  out.Text(kNameSpace, identity.name_space);
  out.Text(kGroups, GroupsValue(identity.groups));
  out.Number(kHeadGroups, identity.head_groups);
  out.Text(kPartLayerCounts, CountsValue(identity.part_layer_counts));
  return out.Take();
}

absl::StatusOr<Identity> ParseCanonicalForm(Bytes canonical) {
  if (canonical.size() > kCanonicalBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "identity: canonical form has ", canonical.size(), " bytes; at most ", kCanonicalBytesMax));
  }
  ByteReader head(canonical);
  if (head.Read<uint32_t>() != kMagic || head.Read<uint16_t>() != kVersion ||
      head.Read<uint16_t>() != 0) {
    return absl::InvalidArgumentError("identity: not a canonical form of version 1");
  }
  FormReader in(canonical.subspan(canonical.size() - head.remaining()));
  Identity out;
  out.model = in.Text(kModel, "model");
  out.revision = in.Text(kRevision, "revision");
  out.weights_dtype = in.Text(kWeightsDtype, "weights_dtype");
  out.rope.kind = in.Text(kRopeKind, "rope.kind");
  out.rope.theta = in.Number<double>(kRopeTheta, "rope.theta");
  out.rope.factor = in.Number<double>(kRopeFactor, "rope.factor");
  out.rope.original_positions =
      in.Number<uint64_t>(kRopeOriginalPositions, "rope.original_positions");
  out.rope.extra = in.Text(kRopeExtra, "rope.extra");
  const auto k_before_rope = in.Number<uint8_t>(kKBeforeRope, "k_before_rope");
  if (k_before_rope > 1) in.Fail("k_before_rope");
  out.k_before_rope = k_before_rope == 1;
  const auto dtype = in.Number<uint8_t>(kDtype, "dtype");
  if (dtype > static_cast<uint8_t>(RawDtype::kOpaque)) in.Fail("dtype");
  out.dtype = static_cast<RawDtype>(dtype);
  out.page_tokens = in.Number<uint32_t>(kPageTokens, "page_tokens");
  out.name_space = in.Text(kNameSpace, "name_space");
  if (!ReadGroups(in.Value(kGroups, "groups", kCanonicalBytesMax), &out.groups)) in.Fail("groups");
  out.head_groups = in.Number<uint32_t>(kHeadGroups, "head_groups");
  const Bytes counts = in.Value(kPartLayerCounts, "part_layer_counts", kPartsMax * 4);
  if (!ReadCounts(counts, &out.part_layer_counts)) in.Fail("part_layer_counts");
  CRUMB_TRY(in.Finish());
  return out;
}

}  // namespace crumb
