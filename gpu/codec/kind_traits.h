// What each CodecKind is: bits, family of quantiser and rotation. Internal to gpu/codec; one table,
// so that no switch over kinds is repeated. Any thread.
#ifndef CRUMB_GPU_CODEC_KIND_TRAITS_H_
#define CRUMB_GPU_CODEC_KIND_TRAITS_H_

#include <cstdint>

#include "gpu/codec/descriptor.h"

namespace crumb {

enum class CodecFamily : uint8_t {
  kRaw,     // bytes as put
  kCrumb,   // 8-bit metadata, means, metric feedback
  kAffine,  // OSCAR's quantiser: floating-point scale and zero per group
};
enum class RotationUse : uint8_t { kNone, kHadamard, kSet, kSetOrHadamard };

struct KindTraits {
  const char* name;
  Precision precision;
  CodecFamily family;
  RotationUse rotation;
  uint32_t bits_k;
  uint32_t bits_v;
};

inline constexpr int kCodecKindCount = 9;

// REQUIRES: kind is one of the enumerators.
const KindTraits& TraitsOf(CodecKind kind);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_KIND_TRAITS_H_
