// BF16 as the upper half of an IEEE single. Rounding is to nearest, ties to even, and saturates:
// a finite value past the largest BF16 becomes that, so that finite input never turns into an
// infinity. Pure functions; any thread.
#ifndef CRUMB_GPU_CODEC_BF16_H_
#define CRUMB_GPU_CODEC_BF16_H_

#include <bit>
#include <cstdint>

namespace crumb {

inline constexpr uint16_t kBf16MaxBits = 0x7f7f;
inline constexpr double kFloatMax = 3.4028234663852886e38;

inline float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// NaN stays NaN; an infinity saturates like any other large value.
inline uint16_t FloatToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t rounded = (magnitude + 0x7fffu + ((magnitude >> 16) & 1u)) >> 16;
  const uint32_t finite = rounded < kBf16MaxBits ? rounded : uint32_t{kBf16MaxBits};
  const uint32_t result = magnitude > 0x7f800000u ? 0x7fc0u : finite;
  return static_cast<uint16_t>(sign | result);
}

inline float RoundToBf16(float value) { return Bf16ToFloat(FloatToBf16(value)); }

// FP32 nearest to `value`, saturating at the largest finite one.
inline float DoubleToFloat(double value) {
  const double low = value < -kFloatMax ? -kFloatMax : value;
  return static_cast<float>(low > kFloatMax ? kFloatMax : low);
}

// Rounds to FP32, then to BF16: the order that the format fixes for sums kept in double.
inline float RoundSumToBf16(double value) { return RoundToBf16(DoubleToFloat(value)); }

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_BF16_H_
