// Orders of rotation images. Any thread.
#include "gpu/codec/cuda_image.h"

#include <algorithm>

#include "cachesvc/base/check.h"
#include "gpu/codec/bf16.h"

namespace crumb {
namespace {

constexpr uint32_t kBlockK = 64;  // of one 128-byte row
constexpr uint32_t kPassN = 128;  // columns of one pass
constexpr uint32_t kChunk = 8;    // BF16 values in 16 bytes

// Index of (n, k) in an image.
uint32_t ImageIndex(uint32_t dim, uint32_t n, uint32_t k) {
  const uint32_t pass_n = std::min(dim, kPassN);
  const uint32_t block = pass_n * kBlockK;
  const uint32_t row = n % pass_n;
  const uint32_t chunk = k % kBlockK / kChunk ^ row % 8;
  return (n / pass_n * (dim / kBlockK) + k / kBlockK) * block + row * kBlockK + chunk * kChunk +
         k % kChunk;
}

}  // namespace

uint32_t CudaCodeColumn(const PackForm& form, uint32_t s, uint32_t c, uint32_t i) {
  const uint32_t planes = form.bits == 4 ? 2 : 4;  // codes in a byte
  const uint32_t words = form.dim / planes / 16;   // of a lane
  const uint32_t plane = s / words, word = s % words;
  if (form.packing == Packing::kInterleaved) {
    return (c * words * 4 + word * 4 + i) * planes + plane;
  }
  return plane * (form.dim / planes) + c * words * 4 + word * 4 + i;
}

uint32_t CudaRowColumn(uint32_t n) {
  const uint32_t t = n / 8, c = n / 2 % 4;
  return t / 4 * 32 + 8 * c + 2 * (t % 4) + n % 2;
}

std::vector<uint16_t> CudaDecodeImage(const PackForm& form, absl::Span<const float> rotation) {
  const uint32_t dim = form.dim;
  CRUMB_CHECK(CudaDim(dim) && rotation.size() == size_t{dim} * dim);
  std::vector<uint16_t> image(size_t{dim} * dim);
  for (uint32_t n = 0; n < dim; ++n) {
    for (uint32_t k = 0; k < dim; ++k) {
      // Element kk of a step is held by lane column (kk % 8) / 2, in two pairs.
      const uint32_t kk = k % 16;
      const uint32_t column = CudaCodeColumn(form, k / 16, kk % 8 / 2, 2 * (kk / 8) + kk % 2);
      image[ImageIndex(dim, n, k)] = FloatToBf16(rotation[size_t{CudaRowColumn(n)} * dim + column]);
    }
  }
  return image;
}

namespace {

// The lane column holds two columns of every eight, in the order of its codes.
uint32_t EncodeColumn(const PackForm& form, uint32_t n) {
  const uint32_t at = 2 * (n / 8) + n % 2;
  return CudaCodeColumn(form, at / 4, n % 8 / 2, at % 4);
}

}  // namespace

std::vector<uint16_t> CudaEncodeImage(const PackForm& form, absl::Span<const float> rotation) {
  const uint32_t dim = form.dim;
  CRUMB_CHECK(CudaDim(dim) && rotation.size() == size_t{dim} * dim);
  std::vector<uint16_t> image(size_t{dim} * dim);
  for (uint32_t n = 0; n < dim; ++n) {
    const uint32_t column = EncodeColumn(form, n);
    for (uint32_t k = 0; k < dim; ++k) {
      image[ImageIndex(dim, n, k)] = FloatToBf16(rotation[size_t{k} * dim + column]);
    }
  }
  return image;
}

std::vector<uint16_t> CudaOperandImage(const PackForm& form, absl::Span<const float> rotation) {
  const uint32_t dim = form.dim;
  CRUMB_CHECK(CudaDim(dim) && rotation.size() == size_t{dim} * dim);
  std::vector<uint16_t> image(size_t{dim} * dim);
  size_t at = 0;
  for (uint32_t columns = 0; columns < dim; columns += 8) {
    for (uint32_t steps = 0; steps < dim; steps += 32) {
      for (uint32_t lane = 0; lane < 32; ++lane) {
        const uint32_t column = EncodeColumn(form, columns + lane / 4);
        for (uint32_t i = 0; i < 8; ++i) {
          const uint32_t row = steps + 16 * (i / 4) + 8 * (i / 2 % 2) + 2 * (lane % 4) + i % 2;
          image[at++] = FloatToBf16(rotation[size_t{row} * dim + column]);
        }
      }
    }
  }
  return image;
}

}  // namespace crumb
