// Raw rows from a worker's memory to the operands of the rotation. A warp gathers its own 16 rows
// into shared memory (16 bytes at a time where they are aligned) and needs nobody else. Device
// code. WHY not the copy engine, a row at a time: its instruction takes addresses of the whole
// warp, so that sixteen rows are a loop, which costs more than it saves.
#ifndef CRUMB_GPU_CODEC_CUDA_GATHER_CUH_
#define CRUMB_GPU_CODEC_CUDA_GATHER_CUH_

#include "gpu/codec/cuda_rows.cuh"
#include "gpu/codec/cuda_tile.cuh"
#include "gpu/codec/cuda_tuning.h"

namespace crumb::cuda {

// A row takes 16 bytes more than it has, so that eight rows of one chunk lie in different banks.
template <int kDim>
inline constexpr uint32_t kGatherPitch = kDim * 2 + 16;
template <int kDim>
inline constexpr uint32_t kGatherBytes = kCudaRowsPerWarp* kGatherPitch<kDim>;  // of a warp

// The next tile of one warp on its way into shared memory.
template <int kDim>
class Gather {
 public:
  __device__ explicit Gather(uint32_t at) : at_(at) {}

  // Once, before the first Start; the warp alone.
  __device__ void Prepare() const {
    for (uint32_t i = 4 * Lane(); i < kGatherBytes<kDim>; i += 128) {
      asm volatile("st.shared.b32 [%0], 0;" ::"r"(at_ + i) : "memory");
    }
    __syncwarp();
  }

  // Starts the copies of a tile. Rows that do not exist keep what their place holds: nobody looks
  // at what becomes of them. REQUIRES: the tile before was taken.
  __device__ void Start(const CudaBatch& batch, const RowWalk& walk, const WarpRows& rows) const {
    const uint32_t left = rows.tokens > rows.first ? rows.tokens - rows.first : 0;
    if (batch.straight != 0 && batch.aligned != 0) {
      StartCopies(walk, rows, left);
    } else {
      StartSlowly(walk, rows, left < kCudaRowsPerWarp ? left : kCudaRowsPerWarp);
    }
    CopyAsyncCommit();
  }

  // The same of the first tile of a walk, where it has one.
  __device__ void StartFirst(const CudaBatch& batch, const RowWalk& walk) const {
    if (walk.count() != 0) {
      walk.LookUp(0);
      Start(batch, walk, walk.Rows(0));
    } else {
      CopyAsyncCommit();
    }
  }

  // What was started has arrived.
  __device__ static void Wait() {
    CopyAsyncWaitFor<0>();
    __syncwarp();
  }

  // The operands of the product, after Wait.
  __device__ void Take(uint32_t (&a)[kDim / 16][4]) const {
    const uint32_t from = at_ + (Lane() & 15) * kGatherPitch<kDim> + Lane() / 16 * 16;
#pragma unroll
    for (uint32_t s = 0; s < kDim / 16; ++s) {
      LoadMatrix(from + 32 * s, a[s]);
    }
  }

  // The rows as they are, for codecs that do not rotate: element `at` of a lane is the one that
  // `at` of a rotated row would be. Pairs of rows g (low) and g + 8 (high).
  template <int kPlanes>
  __device__ void TakeRows(bool interleaved, uint32_t (&y)[kDim / 4]) const {
    const uint32_t from = at_ + LaneRow() * kGatherPitch<kDim>;
#pragma unroll
    for (uint32_t at = 0; at < kDim / 4; ++at) {
      const uint32_t column = ColumnOf<kDim, kPlanes>(at, interleaved);
      uint16_t low, high;
      asm volatile("ld.shared.b16 %0, [%1];" : "=h"(low) : "r"(from + 2 * column));
      asm volatile("ld.shared.b16 %0, [%1];"
                   : "=h"(high)
                   : "r"(from + 8 * kGatherPitch<kDim> + 2 * column));
      y[at] = static_cast<uint32_t>(high) << 16 | low;
    }
  }

 private:
  __device__ __forceinline__ void StartCopies(const RowWalk& walk, const WarpRows& rows,
                                              uint32_t left) const {
    constexpr uint32_t kChunks = kDim / 8, kRowsAtOnce = 32 / kChunks;
    const uint32_t own = Lane() / kChunks, chunk = Lane() % kChunks;
    const uint32_t to = at_ + own * kGatherPitch<kDim> + 16 * chunk;
    const uint8_t* from = walk.RawRow(rows, own) + 16 * chunk;
    const uint64_t step = walk.RowStep() * kRowsAtOnce;
    if (left >= kCudaRowsPerWarp) {
#pragma unroll
      for (uint32_t i = 0; i < kCudaRowsPerWarp / kRowsAtOnce; ++i) {
        CopyAsync16(to + i * (kRowsAtOnce * kGatherPitch<kDim>), from);
        from += step;
      }
      return;
    }
#pragma unroll 1
    for (uint32_t i = 0; own + i < left; i += kRowsAtOnce) {
      CopyAsync16(to + i * kGatherPitch<kDim>, from);
      from += step;
    }
  }

  // Rows of several slots, and such as do not lie at multiples of 16 bytes: element by element.
  __device__ __forceinline__ void StartSlowly(const RowWalk& walk, const WarpRows& rows,
                                              uint32_t count) const {
#pragma unroll 1
    for (uint32_t row = 0; row < count; ++row) {
      const uint8_t* from = walk.RawRow(rows, row);
      const uint32_t to = at_ + row * kGatherPitch<kDim>;
      for (uint32_t i = Lane(); i < kDim; i += 32) {
        const uint16_t value = __ldcg(reinterpret_cast<const uint16_t*>(from) + i);
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(to + 2 * i), "h"(value) : "memory");
      }
    }
  }

  const uint32_t at_;
};

// Whether a row has a NaN or an infinity: reads it again, a quarter by each lane of the row.
template <int kDim>
__device__ __noinline__ bool RowHasNonFinite(const uint8_t* row) {
  bool bad = false;
  for (uint32_t i = LaneColumn(); i < kDim; i += 4) {
    const uint16_t bits = __ldcg(reinterpret_cast<const uint16_t*>(row) + i);
    bad |= (bits & 0x7f80u) == 0x7f80u;
  }
  bad |= __shfl_xor_sync(0xffffffffu, static_cast<int>(bad), 1) != 0;
  bad |= __shfl_xor_sync(0xffffffffu, static_cast<int>(bad), 2) != 0;
  return bad;
}

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_GATHER_CUH_
