// Rotations as tensor cores read them: [n][k] in BF16, rows of 128 bytes (64 k) with their 16-byte
// chunks swapped by row (the 128-byte swizzle), one block per 64 k, one pass per 128 columns. The
// order of k and n is such that a lane's packed bytes are its operand and its results are 16
// contiguous bytes of a row. Host code; pure functions; any thread.
#ifndef CRUMB_GPU_CODEC_CUDA_IMAGE_H_
#define CRUMB_GPU_CODEC_CUDA_IMAGE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gpu/codec/pack.h"

namespace crumb {

// Head dims that kernels exist for.
constexpr bool CudaDim(uint32_t dim) { return dim == 64 || dim == 128 || dim == 256; }

// The element of a row that is i-th (0-3) of lane column c (0-3) in step s of the contraction
// (dim / 16 steps), for codes packed like that.
uint32_t CudaCodeColumn(const PackForm& form, uint32_t s, uint32_t c, uint32_t i);

// The element of a decoded row that column n of the product is.
uint32_t CudaRowColumn(uint32_t n);

// The inverse rotation for codes packed in this form: x[o] = sum over j of y[j] R[o][j].
// R row-major, dim x dim; each value rounded to BF16.
std::vector<uint16_t> CudaDecodeImage(const PackForm& form, absl::Span<const float> rotation);

// The rotation of rows in their own order: y[j] = sum over i of x[i] R[i][j], a lane's columns
// being the codes of whole bytes.
std::vector<uint16_t> CudaEncodeImage(const PackForm& form, absl::Span<const float> rotation);

// The same columns in the order of mma.m16n8k16's second operand: for every eight columns and two
// steps of 16 a lane's 16 bytes, lane 4 n + c holding rows 2 c, 2 c + 1, 2 c + 8, 2 c + 9 of column
// n in each step.
std::vector<uint16_t> CudaOperandImage(const PackForm& form, absl::Span<const float> rotation);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CUDA_IMAGE_H_
