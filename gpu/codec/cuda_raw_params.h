// What the kernel that moves raw pages is told, and where each piece of a page lies. The host fills
// the table once per codec and the rest per launch; nothing is checked on the device, so every
// value comes from checked code. Plain functions, the same on the host and on the device.
#ifndef CRUMB_GPU_CODEC_CUDA_RAW_PARAMS_H_
#define CRUMB_GPU_CODEC_CUDA_RAW_PARAMS_H_

#include <cstdint>

#include "gpu/codec/cuda_params.h"

namespace crumb {

inline constexpr uint32_t kCudaRawThreads = 256;
inline constexpr uint32_t kCudaRawUnits = 4;  // of a thread, loaded before the first is stored
inline constexpr uint32_t kCudaRawChunk = kCudaRawThreads * kCudaRawUnits;  // units of a block
// Blocks per multiprocessor: enough bytes in flight for the device's memory, and three quarters of
// the threads stay for others while a page crosses PCIe.
inline constexpr uint32_t kCudaRawBlocks = 2;

// Division by a number that is known before: n / d for n < 2^31, without a division.
struct CudaDivider {
  uint32_t factor;
  uint32_t shift;
};
// WHY exact: factor = (2^shift + e) / d with 0 <= e < d <= 2^(shift - 31), so n e < 2^shift.
constexpr CudaDivider CudaDividerOf(uint32_t d) {
  uint32_t shift = 31;
  while ((uint64_t{1} << (shift - 31)) < d) ++shift;
  return {static_cast<uint32_t>(((uint64_t{1} << shift) + d - 1) / d), shift};
}
constexpr uint32_t CudaDivide(uint32_t n, CudaDivider divider) {
  return static_cast<uint32_t>(uint64_t{n} * divider.factor >> divider.shift);
}

// A tensor that has elements. Units: kCudaRaw's pieces of a row, 2, 4 or 16 bytes for all tensors.
struct CudaRawTensor {
  uint32_t first;        // unit of the payload
  uint32_t units;        // heads * page_tokens * row_units
  uint32_t chunk_first;  // of the page's chunks; none holds units of two tensors
  uint32_t place;        // in the worker's table, which has no tensors without elements
  uint32_t row_units;
  CudaDivider by_row_units;
};

struct CudaRawMove {
  const CudaRawTensor* tensors;  // by chunk_first
  uint32_t tensor_count;
  uint32_t chunks;  // of a page
  const CudaPlace* places;
  const CudaPage* pages;
  const uint32_t* slots;
  uint32_t page_count;
  uint32_t page_tokens;
  uint32_t tokens_per_slot;
  CudaDivider by_page_tokens;
  CudaDivider by_slot_tokens;
};

// The last tensor that begins at or before a chunk.
constexpr uint32_t CudaRawTensorOf(const CudaRawMove& move, uint32_t chunk) {
  uint32_t low = 0;
  uint32_t high = move.tensor_count;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (move.tensors[middle].chunk_first <= chunk ? low : high) = middle;
  }
  return low;
}

struct CudaRawUnit {
  uint64_t row = 0;   // address in the worker's memory, if `there`
  uint32_t unit = 0;  // within the row
  bool there = false;
};

// Unit `index` of a tensor of a page.
constexpr CudaRawUnit CudaRawUnitOf(const CudaRawMove& move, const CudaRawTensor& tensor,
                                    const CudaPage& page, uint32_t index) {
  const uint32_t row = CudaDivide(index, tensor.by_row_units);
  const uint32_t head = CudaDivide(row, move.by_page_tokens);
  const uint32_t token = row - head * move.page_tokens;
  CudaRawUnit out;
  out.unit = index - row * tensor.row_units;
  out.there = token < page.tokens;
  if (!out.there) return out;
  const CudaPlace& place = move.places[tensor.place];
  const uint32_t group = CudaDivide(token, move.by_slot_tokens);
  out.row = place.address + move.slots[page.slots_first + group] * place.slot_stride +
            (token - group * move.tokens_per_slot) * place.token_stride + head * place.head_stride;
  return out;
}

struct CudaRawLaunch {
  CudaRawMove move = {};
  uint32_t unit_bytes = 0;  // 2, 4 or 16
  bool aligned = false;     // the worker's rows too start at multiples of unit_bytes
  bool encode = false;      // worker to payload, with zeros for rows that are not there
  uint32_t multiprocessors = 0;
  void* stream = nullptr;  // cudaStream_t
};

// A cudaError_t; 0: launched. REQUIRES: a table and pages that were checked, page_count >= 1.
int LaunchRawMove(const CudaRawLaunch& launch);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CUDA_RAW_PARAMS_H_
