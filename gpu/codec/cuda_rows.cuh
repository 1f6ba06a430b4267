// Which rows of which page a warp has in a tile, and where they lie. Finding that takes divisions
// and two loads that wait for each other (the page, then its slots), so a warp does it for 16 tiles
// at once, one per lane, and keeps what it found in shared memory. Device code of the kernels.
#ifndef CRUMB_GPU_CODEC_CUDA_ROWS_CUH_
#define CRUMB_GPU_CODEC_CUDA_ROWS_CUH_

#include <cstddef>
#include <cstring>

#include "gpu/codec/cuda_params.h"

namespace crumb::cuda {

__device__ __forceinline__ uint32_t Lane() { return threadIdx.x & 31; }
// The same, read anew: what is made of it is not kept over a loop, in local memory.
__device__ __forceinline__ uint32_t LaneNow() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread & 31;
}
__device__ __forceinline__ uint32_t LaneRow() { return (threadIdx.x & 31) >> 2; }  // g
__device__ __forceinline__ uint32_t LaneColumn() { return threadIdx.x & 3; }       // c
__device__ __forceinline__ uint32_t WarpOfTile() { return (threadIdx.x >> 5) & 3; }
// The same value in all lanes, and known to be: else the compiler serialises warpgroup products.
__device__ __forceinline__ uint32_t TileOfBlock() {
  return __shfl_sync(0xffffffffu, threadIdx.x >> 7, 0);
}
// Which element of a row the `at`-th of a lane is, as codes of kPlanes to a byte lie.
template <uint32_t kDim, uint32_t kPlanes>
__device__ __forceinline__ uint32_t ColumnOf(uint32_t at, bool interleaved) {
  constexpr uint32_t kRun = kDim / kPlanes / 4;  // neighbouring elements of a lane
  const uint32_t plane = at / kRun, run = LaneColumn() * kRun + at % kRun;
  return interleaved ? run * kPlanes + plane : plane * (kDim / kPlanes) + run;
}
__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 rows of one head of one page; lanes of row g hold rows first + g and first + g + 8.
struct alignas(16) WarpRows {
  uint8_t* block;   // the head's block in the payload; null: nothing to do
  uint64_t raw;     // address of row `first` in the worker's memory, if all 16 lie in one slot
  uint32_t first;   // row of the warp's row 0
  uint32_t tokens;  // of the page
  uint32_t page;
  uint32_t head;  // of the tensor
  __device__ bool Has(int half) const { return first + LaneRow() + 8 * half < tokens; }
};

// What a block works on, in shared memory.
struct BlockHeads {
  CudaHeads heads;
  CudaPlace place;
};

// WHY not pointers: the compiler makes the generic address of shared memory anew for each use.
template <typename T>
__device__ __forceinline__ T FromShared(uint32_t at) {
  T out;
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  if constexpr (sizeof(T) == 4) {
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at));
    memcpy(&out, &v, 4);
  } else if constexpr (sizeof(T) == 8) {
    uint64_t v;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(v) : "r"(at));
    memcpy(&out, &v, 8);
  } else {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    memcpy(&out, &v, 16);
  }
  return out;
}

template <typename T>
__device__ __forceinline__ void ToShared(uint32_t at, const T& value) {
  if constexpr (sizeof(T) == 4) {
    uint32_t v;
    memcpy(&v, &value, 4);
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
  } else if constexpr (sizeof(T) == 8) {
    uint2 v;
    memcpy(&v, &value, 8);
    asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(at), "r"(v.x), "r"(v.y) : "memory");
  } else {
    static_assert(sizeof(T) == 16);
    uint4 v;
    memcpy(&v, &value, 16);
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
  }
}

// A BlockHeads at an address of shared memory.
class HeadsAt {
 public:
  __device__ explicit HeadsAt(uint32_t at) : at_(at) {}
  __device__ uint32_t offset() const { return Word(offsetof(CudaTensor, offset)); }
  __device__ uint32_t head_bytes() const { return Word(offsetof(CudaTensor, head_bytes)); }
  __device__ uint32_t code_row_bytes() const { return Word(offsetof(CudaTensor, code_row_bytes)); }
  __device__ uint32_t meta_offset() const { return Word(offsetof(CudaTensor, meta_offset)); }
  __device__ uint32_t meta_row_bytes() const { return Word(offsetof(CudaTensor, meta_row_bytes)); }
  __device__ uint32_t side_offset() const { return Word(offsetof(CudaTensor, side_offset)); }
  __device__ bool has_side() const { return (Flags() & 0xffu) != 0; }
  __device__ bool is_v() const { return (Flags() >> 8 & 0xffu) != 0; }
  __device__ bool has_base() const {
    return has_side() || FromShared<uint64_t>(at_ + offsetof(CudaTensor, mean)) != 0;
  }
  __device__ uint32_t group() const { return Word(offsetof(CudaTensor, group)); }
  __device__ uint32_t rank() const { return Word(offsetof(CudaTensor, rank)); }
  __device__ uint32_t tensor() const { return Word(offsetof(CudaTensor, tensor)); }
  __device__ uint32_t first() const { return Word(offsetof(CudaHeads, first)); }
  __device__ uint32_t count() const { return Word(offsetof(CudaHeads, count)); }
  // The static mean of a head; null: zero.
  __device__ const float* MeanOf(uint32_t head) const {
    const auto mean = FromShared<uint64_t>(at_ + offsetof(CudaTensor, mean));
    if (mean == 0) return nullptr;
    return reinterpret_cast<const float*>(mean) +
           static_cast<uint64_t>(head) * Word(offsetof(CudaTensor, mean_step));
  }
  __device__ uint64_t token_stride() const {
    return FromShared<uint64_t>(at_ + offsetof(BlockHeads, place) +
                                offsetof(CudaPlace, token_stride));
  }
  struct Place {
    ulonglong2 first, second;
  };
  __device__ Place place() const {
    const uint32_t at = at_ + offsetof(BlockHeads, place);
    return {FromShared<ulonglong2>(at), FromShared<ulonglong2>(at + 16)};
  }

 private:
  static_assert(offsetof(CudaHeads, tensor) == 0 && offsetof(BlockHeads, place) % 16 == 0);
  __device__ uint32_t Word(uint32_t offset) const { return FromShared<uint32_t>(at_ + offset); }
  __device__ uint32_t Flags() const { return Word(offsetof(CudaTensor, has_side)); }
  uint32_t at_;
};

// All threads of the block; a barrier must follow before any looks. WHY past the first cache, here
// and wherever places, pages, slots and rows are read by ordinary loads: V of codec crumb begins
// without a wait of its own, so that a multiprocessor may still hold lines of the batch before.
__device__ __forceinline__ void LoadHeads(const CudaBatch& batch, const CudaHeads& from,
                                          BlockHeads* to) {
  constexpr uint32_t kWords = sizeof(CudaHeads) / 4, kPlaceWords = sizeof(CudaPlace) / 4;
  const uint32_t i = threadIdx.x;
  if (i < kWords) {
    reinterpret_cast<uint32_t*>(&to->heads)[i] = reinterpret_cast<const uint32_t*>(&from)[i];
  } else if (i < kWords + kPlaceWords) {
    reinterpret_cast<uint32_t*>(&to->place)[i - kWords] =
        __ldcg(reinterpret_cast<const uint32_t*>(batch.places + from.tensor.tensor) + i - kWords);
  }
}

__device__ __forceinline__ CudaPage PageOf(const CudaBatch& batch, uint32_t page) {
  static_assert(sizeof(CudaPage) == 16 && offsetof(CudaPage, tokens) == 8);
  const auto* words = reinterpret_cast<const unsigned long long*>(batch.pages + page);
  const unsigned long long payload = __ldcg(words), rest = __ldcg(words + 1);
  return {payload, static_cast<uint32_t>(rest), static_cast<uint32_t>(rest >> 32)};
}

// A head's block in the payload of a page.
__device__ __forceinline__ uint8_t* BlockOf(const CudaPage& page, HeadsAt heads, uint32_t head) {
  return reinterpret_cast<uint8_t*>(page.payload) + heads.offset() +
         uint64_t{head} * heads.head_bytes();
}

// Address of a row in the worker's memory. REQUIRES: the row exists.
__device__ __forceinline__ uint64_t RawRowOf(const CudaBatch& batch, HeadsAt heads, uint32_t page,
                                             uint32_t head, uint32_t row) {
  const HeadsAt::Place place = heads.place();
  const uint32_t at = row / batch.tokens_per_slot;
  const uint64_t slot = __ldcg(batch.slots + PageOf(batch, page).slots_first + at);
  const uint64_t token = row - at * batch.tokens_per_slot;
  return place.first.x + slot * place.first.y + token * place.second.x + head * place.second.y;
}

// Of one warp: two batches of tiles, so that a tile is known while the next batch is looked up.
inline constexpr uint32_t kBatchTiles = 16;
struct RowRing {
  WarpRows tiles[2 * kBatchTiles];
};

// The walk of one warp through the tiles of one group of heads. Look up tile 0, then for n = 0, 1,
// ... LookUp(n + k) for a k below 16, and Rows of n to n + k are known.
class RowWalk {
 public:
  __device__ RowWalk(const CudaBatch& batch, HeadsAt heads, uint32_t ring, uint32_t first,
                     uint32_t stride)
      : batch_(batch), heads_(heads), ring_(ring), first_(first), stride_(stride) {
    const CudaTiling tiling = CudaTilingOf(batch.page_tokens);
    const uint32_t blocks = batch.page_count * heads.count();
    const uint32_t per = tiling.blocks_per_tile;
    const uint32_t tiles = per == 1 ? blocks * tiling.tiles_per_block : (blocks + per - 1) / per;
    count_ = first < tiles ? (tiles - first + stride - 1) / stride : 0;
  }

  __device__ uint32_t count() const { return count_; }  // tiles
  __device__ uint32_t ring() const { return ring_; }

  // Finds tiles n to n + 15 if n is the first of a batch. The whole warp.
  __device__ __forceinline__ void LookUp(uint32_t n) const {
    if (n % kBatchTiles == 0 && n < count_) LookUpBatch(n);
  }

  // REQUIRES: n < count().
  __device__ WarpRows Rows(uint32_t n) const {
    const uint32_t at = ring_ + n % (2 * kBatchTiles) * sizeof(WarpRows);
    const auto addresses = FromShared<ulonglong2>(at);
    const auto rest = FromShared<uint4>(at + 16);
    return {reinterpret_cast<uint8_t*>(addresses.x), addresses.y, rest.x, rest.y, rest.z, rest.w};
  }

  // Address of row first + i in the worker's memory. REQUIRES: the row exists.
  __device__ uint8_t* RawRow(const WarpRows& rows, uint32_t i) const {
    if (batch_.straight != 0) {
      return reinterpret_cast<uint8_t*>(rows.raw + uint64_t{i} * heads_.token_stride());
    }
    return reinterpret_cast<uint8_t*>(
        RawRowOf(batch_, heads_, rows.page, rows.head, rows.first + i));
  }

  __device__ uint64_t RowStep() const { return heads_.token_stride(); }

 private:
  static_assert(offsetof(WarpRows, raw) == 8 && offsetof(WarpRows, first) == 16 &&
                offsetof(WarpRows, tokens) == 20 && offsetof(WarpRows, head) == 28);
  static_assert(offsetof(CudaPlace, address) == 0 && offsetof(CudaPlace, slot_stride) == 8 &&
                offsetof(CudaPlace, token_stride) == 16 && sizeof(CudaPlace) == 32);

  __device__ __forceinline__ void LookUpBatch(uint32_t batch_first) const {
    const uint32_t n = batch_first + Lane();
    if (Lane() < kBatchTiles && n < count_) {
      const WarpRows rows = Find(first_ + n * stride_);
      const uint32_t at = ring_ + n % (2 * kBatchTiles) * sizeof(WarpRows);
      asm volatile("st.shared.v2.b64 [%0], {%1,%2};" ::"r"(at), "l"(rows.block), "l"(rows.raw)
                   : "memory");
      asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(at + 16), "r"(rows.first),
                   "r"(rows.tokens), "r"(rows.page), "r"(rows.head)
                   : "memory");
    }
    __syncwarp();
  }

  __device__ WarpRows Find(uint32_t tile) const {
    const CudaTiling tiling = CudaTilingOf(batch_.page_tokens);
    WarpRows rows = {};
    uint32_t block;
    if (tiling.blocks_per_tile == 1) {
      block = tile / tiling.tiles_per_block;
      rows.first =
          (tile - block * tiling.tiles_per_block) * kCudaTileRows + WarpOfTile() * kCudaRowsPerWarp;
    } else {
      const uint32_t of_tile = WarpOfTile() / tiling.warps_per_block;
      block = tile * tiling.blocks_per_tile + of_tile;
      rows.first = (WarpOfTile() - of_tile * tiling.warps_per_block) * kCudaRowsPerWarp;
    }
    const uint32_t count = heads_.count();
    rows.page = block / count;
    rows.head = heads_.first() + block - rows.page * count;
    if (rows.page >= batch_.page_count) return rows;
    const CudaPage page = PageOf(batch_, rows.page);
    rows.tokens = page.tokens;
    rows.block = BlockOf(page, heads_, rows.head);
    if (batch_.straight != 0 && rows.first < rows.tokens) {
      rows.raw = RawRowOf(batch_, heads_, rows.page, rows.head, rows.first);
    }
    return rows;
  }

  const CudaBatch& batch_;
  const HeadsAt heads_;
  const uint32_t ring_, first_, stride_;
  uint32_t count_;
};

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_ROWS_CUH_
