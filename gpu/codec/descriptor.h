// CodecDescriptor: how the payload of a page is packed. Its 8-byte id (first 8 bytes of SHA-256 of
// the canonical form) is in every page header; the full form lives in a small durable table, so
// that any page can be decoded as long as its descriptor and rotation set are known. Any thread.
#ifndef CRUMB_GPU_CODEC_DESCRIPTOR_H_
#define CRUMB_GPU_CODEC_DESCRIPTOR_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "cachesvc/base/hash.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

enum class CodecKind : uint8_t {
  kRaw = 0,
  kCrumbInt2 = 1,
  kCrumbK3V2 = 2,
  kCrumbInt4 = 3,
  kOscarInt2 = 4,
  kHadamardInt2 = 5,
  kNaiveInt2 = 6,
  kInt4 = 7,  // no rotation
  kHadamardInt4 = 8,
};
enum class ClipMethod : uint8_t { kNone = 0, kSort = 1, kBisect = 2 };
enum class Centring : uint8_t {
  kNone = 0,
  kStaticMean = 1,
  kPageMean = 2
};  // kPageMean: page or static per row
enum class MetaForm : uint8_t {
  kNone = 0,
  kBf16 = 1,
  kFp32 = 2,
  kByte = 3
};  // kByte: crumb's S8, Z8
enum class Packing : uint8_t { kNone = 0, kPlanar = 1, kInterleaved = 2 };
enum class Effort : uint8_t {
  kDraft = 0,
  kNormal = 1,
  kBest = 2
};  // encoder only: not in the descriptor

const char* ToString(CodecKind kind);  // "raw", "crumb-int2", "oscar-int2", ...
absl::StatusOr<CodecKind> ParseCodecKind(std::string_view text);
const char* ToString(Effort effort);
absl::StatusOr<Effort> ParseEffort(std::string_view text);
Precision PrecisionOf(CodecKind kind);

struct CodecDescriptor {
  CodecKind kind = CodecKind::kRaw;
  uint16_t version = 1;
  // Content hash of the set; zero = Hadamard or none, by kind. oscar-int2 needs one; crumb takes
  // one where it exists; hadamard-* and naive kinds name one only for its static mean.
  Sha256 rotation_set{};
  uint32_t group = 0;   // elements per scale; 0 = the whole row
  float clip_k = 0.0f;  // 0 = no clip
  float clip_v = 0.0f;
  ClipMethod clip_method = ClipMethod::kNone;
  Centring centring = Centring::kNone;
  MetaForm meta = MetaForm::kNone;
  Packing packing = Packing::kNone;
  bool lloyd_max = false;  // oscar-int2: imported pages only; decoded, never encoded again

  // INVALID_ARGUMENT names the field that is out of range or means nothing for this kind: one
  // packing has one descriptor. Canonical forms are only made of, and read into, checked ones.
  absl::Status Check() const;
  // Fixed-order little-endian TLV, docs/format.md. REQUIRES: Check() is OK.
  std::string Canonical() const;
  static absl::StatusOr<CodecDescriptor> FromCanonical(Bytes canonical);
  uint64_t id() const;

  // The published settings of each kind: crumb-* page mean, byte metadata; oscar-int2 clip
  // 0.96/0.92 by sort and BF16 metadata; the others no clip and BF16 metadata. Kinds that use no
  // set ignore `rotation_set`.
  static CodecDescriptor Default(CodecKind kind, const Sha256& rotation_set);
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_DESCRIPTOR_H_
