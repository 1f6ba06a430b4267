// Decoded rows on their way to a worker's memory. A warp writes its own 16 rows to shared memory
// and stores whole rows from there: straight from its registers it would touch half a line of eight
// rows at a time. WHY not the copy engine: see cuda_gather.cuh. Device code.
#ifndef CRUMB_GPU_CODEC_CUDA_SCATTER_CUH_
#define CRUMB_GPU_CODEC_CUDA_SCATTER_CUH_

#include "gpu/codec/cuda_rows.cuh"
#include "gpu/codec/cuda_tile.cuh"

namespace crumb::cuda {

// Columns that are staged at once, and bytes from row to row: a row takes 64 bytes more than it
// has, so that two rows of four chunks lie in different banks.
template <int kDim>
inline constexpr uint32_t kScatterColumns = kDim < 128 ? kDim : 128;
template <int kDim>
inline constexpr uint32_t kScatterPitch = kScatterColumns<kDim> * 2 + 64;
template <int kDim>
inline constexpr uint32_t kScatterBytes = kCudaRowsPerWarp* kScatterPitch<kDim>;  // of a warp

// The stage of one warp.
template <int kDim>
class Scatter {
 public:
  static constexpr uint32_t kColumns = kScatterColumns<kDim>;

  __device__ explicit Scatter(uint32_t at) : at_(at) {}

  // Where byte `at` of a row of the stage lies, of row g + 8 * half.
  __device__ uint32_t At(int half, uint32_t at) const {
    return at_ + (LaneRow() + 8 * half) * kScatterPitch<kDim> + at;
  }

  // kWords words to neighbouring elements. REQUIRES: their place is a multiple of its size.
  template <int kWords>
  __device__ static void Put(uint32_t at, const uint32_t* words) {
    if constexpr (kWords == 4) {
      ToShared(at, make_uint4(words[0], words[1], words[2], words[3]));
    } else {
      ToShared(at, make_uint2(words[0], words[1]));
    }
  }
  __device__ static void PutElement(uint32_t at, uint32_t value) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"(static_cast<uint16_t>(value)) : "memory");
  }

  // Columns first_column, + kColumns of the rows that exist go to where they belong. Afterwards the
  // stage may be written again.
  __device__ void Store(const CudaBatch& batch, const RowWalk& walk, const WarpRows& rows,
                        uint32_t first_column) const {
    const uint32_t left = rows.tokens > rows.first ? rows.tokens - rows.first : 0;
    __syncwarp();
    if (batch.aligned == 0) {
      StoreSlowly(walk, rows, left, first_column);
    } else if (batch.straight != 0 && left >= kCudaRowsPerWarp) {
      StoreWhole(walk, rows, first_column);
    } else {
      StoreRows(walk, rows, left, first_column);
    }
    __syncwarp();
  }

 private:
  static constexpr uint32_t kChunks = kColumns / 8, kRowsAtOnce = 32 / kChunks;

  // All rows, of one slot: 16 bytes by each lane, whole rows side by side.
  __device__ __forceinline__ void StoreWhole(const RowWalk& walk, const WarpRows& rows,
                                             uint32_t first_column) const {
    const uint32_t own = Lane() / kChunks, chunk = Lane() % kChunks;
    const uint32_t from = at_ + own * kScatterPitch<kDim> + 16 * chunk;
    uint8_t* to = walk.RawRow(rows, own) + 2 * first_column + 16 * chunk;
    const uint64_t step = walk.RowStep() * kRowsAtOnce;
#pragma unroll
    for (uint32_t i = 0; i < kCudaRowsPerWarp / kRowsAtOnce; ++i) {
      __stcs(reinterpret_cast<uint4*>(to),
             FromShared<uint4>(from + i * (kRowsAtOnce * kScatterPitch<kDim>)));
      to += step;
    }
  }
  __device__ __forceinline__ void StoreRows(const RowWalk& walk, const WarpRows& rows,
                                            uint32_t left, uint32_t first_column) const {
    const uint32_t own = Lane() / kChunks, chunk = Lane() % kChunks;
    const uint32_t count = left < kCudaRowsPerWarp ? left : kCudaRowsPerWarp;
#pragma unroll 1
    for (uint32_t row = own; row < count; row += kRowsAtOnce) {
      __stcs(reinterpret_cast<uint4*>(walk.RawRow(rows, row) + 2 * first_column) + chunk,
             FromShared<uint4>(at_ + row * kScatterPitch<kDim> + 16 * chunk));
    }
  }

  // Rows that do not lie at multiples of 16 bytes: element by element.
  __device__ __forceinline__ void StoreSlowly(const RowWalk& walk, const WarpRows& rows,
                                              uint32_t left, uint32_t first_column) const {
    const uint32_t count = left < kCudaRowsPerWarp ? left : kCudaRowsPerWarp;
#pragma unroll 1
    for (uint32_t row = 0; row < count; ++row) {
      auto* to = reinterpret_cast<uint16_t*>(walk.RawRow(rows, row)) + first_column;
      for (uint32_t i = Lane(); i < kColumns; i += 32) {
        uint16_t value;
        asm volatile("ld.shared.b16 %0, [%1];"
                     : "=h"(value)
                     : "r"(at_ + row * kScatterPitch<kDim> + 2 * i)
                     : "memory");
        to[i] = value;
      }
    }
  }

  const uint32_t at_;
};

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_SCATTER_CUH_
