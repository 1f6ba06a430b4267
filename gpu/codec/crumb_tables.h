// The numbers of codec `crumb`, version 1: row scales S8 -> FP32 and the form of zeros Z8.
// Constants of the format; they never change. Any thread.
#ifndef CRUMB_GPU_CODEC_CRUMB_TABLES_H_
#define CRUMB_GPU_CODEC_CRUMB_TABLES_H_

#include <array>
#include <cstdint>

namespace crumb {

// kCrumbScale[i] = 2^((i - 160) / 16), computed in double and rounded once to FP32.
extern const std::array<float, 256> kCrumbScale;
inline constexpr int kCrumbScaleBias = 160;
inline constexpr int kCrumbScaleSteps = 16;  // per octave

// Z8: bit 7 says that the row of K uses the static mean alone; bits 0-6 are the zero.
inline constexpr uint8_t kCrumbStaticFlag = 0x80;
inline constexpr uint8_t kCrumbZeroMask = 0x7f;
inline constexpr int kCrumbZeroBias = 64;

// Levels and zeros of one bit width: z = mid + ((Z8 & 127) - 64) * step. All values are exact.
struct CrumbGrid {
  uint32_t bits;
  float top;   // 2^bits - 1, the largest code
  float mid;   // top / 2
  float step;  // 2^(bits - 2) / 32
};
constexpr CrumbGrid CrumbGridOf(uint32_t bits) {
  const auto levels = static_cast<float>(1u << bits);
  return {bits, levels - 1.0f, (levels - 1.0f) / 2.0f, levels / 128.0f};
}

inline float CrumbZero(const CrumbGrid& grid, uint8_t z8) {
  const int offset = (z8 & kCrumbZeroMask) - kCrumbZeroBias;
  return grid.mid + static_cast<float>(offset) * grid.step;
}

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CRUMB_TABLES_H_
