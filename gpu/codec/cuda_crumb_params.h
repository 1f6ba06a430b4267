// What the crumb encoders are told beyond the batch, and how their shared memory is cut. Plain
// structures; host and device.
#ifndef CRUMB_GPU_CODEC_CUDA_CRUMB_PARAMS_H_
#define CRUMB_GPU_CODEC_CUDA_CRUMB_PARAMS_H_

#include <cstdint>

namespace crumb {

// Of one launch.
struct CudaCrumbSearch {
  uint32_t units;        // heads of pages: pages times the heads of all entries
  float gamma;           // share of the gain correction that K gets
  uint8_t effort;        // Effort
  uint8_t flags_static;  // rows of K that have no page mean carry the flag of the static one
};

inline constexpr uint32_t kCrumbRows = 32;   // of a warp: one for each lane
inline constexpr uint32_t kCrumbBlock = 16;  // elements whose feedback goes one by one

// A head's metric in device memory, one section after the other: L in the order of a tensor core's
// operand, FP16, block (k, b) of rows k and columns b at CrumbOperand, with ones on the diagonal; L
// below the diagonal inside of blocks, FP32, row i of a block padded to a multiple of four; D,
// FP32, the largest 1.
inline constexpr uint32_t kCrumbOperandBytes = 512;
inline constexpr uint32_t kCrumbTriangleFloats = 144;
// First float of row i, 1 to 15. WHY no loop over the rows before: kernels need a constant.
constexpr uint32_t CrumbTriangleRow(uint32_t i) {
  const uint32_t fours = (i - 1) / 4, rest = (i - 1) % 4;
  return 8 * fours * (fours + 1) + 4 * rest * (fours + 1);
}
static_assert(CrumbTriangleRow(16) == kCrumbTriangleFloats);
constexpr uint32_t CrumbOperand(uint32_t blocks, uint32_t k, uint32_t b) {  // k >= b
  return (b * blocks - b * (b + 1) / 2 + k) * kCrumbOperandBytes;
}
constexpr uint32_t CrumbLowerBytes(uint32_t dim) {
  const uint32_t blocks = dim / kCrumbBlock;
  return blocks * (blocks + 1) / 2 * kCrumbOperandBytes;
}
constexpr uint32_t CrumbTriangleBytes(uint32_t dim) {
  return dim / kCrumbBlock * kCrumbTriangleFloats * 4;
}
constexpr uint32_t CrumbMetricBytes(uint32_t dim) {
  return CrumbLowerBytes(dim) + CrumbTriangleBytes(dim) + 4 * dim;
}

// Rows that wait to be tried with the static mean.
inline constexpr uint32_t kCrumbRetries = 2 * kCrumbRows;
inline constexpr uint32_t kCrumbRetryBytes = 12;

// Bytes within a warp's share. Rows are 16 bytes longer than they are, so that eight of them start
// in different banks. kSearch: with error feedback.
template <uint32_t kDim, uint32_t kBits, bool kSearch>
struct CrumbShare {
  static constexpr uint32_t kCodeBytes = kBits == 3 ? kDim / 4 + kDim / 8 : kDim * kBits / 8;
  static constexpr uint32_t kCodePitch =
      (kCodeBytes + 15) / 16 * 16 + (kCodeBytes % 32 == 0 ? 16 : 0);
  static constexpr uint32_t kRowPitch = kDim * 2 + 16;
  // Errors that were made, FP16, block b at byte 32 (b + 1). Sums of block b pass through bytes 32
  // b to 32 b + 63, where no errors are yet. Rows start 32 bytes apart in the banks, so every
  // second four of them have their 16-byte chunks swapped in pairs.
  static constexpr uint32_t kErrorPitch = kDim * 2 + 32;
  static constexpr uint32_t kErrors = kCrumbRows * kRowPitch;
  static constexpr uint32_t kCodes = kErrors + (kSearch ? kCrumbRows * kErrorPitch : 0);
  static constexpr uint32_t kBase = kCodes + kCrumbRows * kCodePitch;
  static constexpr uint32_t kRetries = kBase + 4 * kDim;
  static constexpr uint32_t kRowErrors = kRetries + kCrumbRetries * kCrumbRetryBytes;
  // For each row of a page its metric and its plain error.
  static constexpr uint32_t Bytes(uint32_t page_tokens) {
    return kRowErrors + (8 * page_tokens + 15) / 16 * 16;
  }
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CUDA_CRUMB_PARAMS_H_
