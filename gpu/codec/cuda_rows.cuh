// Which rows of which page a warp has in a tile, and where they lie. Finding that takes two loads
// that wait for each other (the page, then its slots), so a warp keeps a ring in shared memory that
// asynchronous copies fill three tiles ahead. Device code of the kernels.
#ifndef CRUMB_GPU_CODEC_CUDA_ROWS_CUH_
#define CRUMB_GPU_CODEC_CUDA_ROWS_CUH_

#include <cstddef>
#include <cstring>

#include "gpu/codec/cuda_params.h"

namespace crumb::cuda {

__device__ __forceinline__ uint32_t Lane() { return threadIdx.x & 31; }
__device__ __forceinline__ uint32_t LaneRow() { return (threadIdx.x & 31) >> 2; }  // g
__device__ __forceinline__ uint32_t LaneColumn() { return threadIdx.x & 3; }       // c
__device__ __forceinline__ uint32_t WarpOfTile() { return (threadIdx.x >> 5) & 3; }
// The same value in all lanes, and known to be: else the compiler serialises warpgroup products.
__device__ __forceinline__ uint32_t TileOfBlock() {
  return __shfl_sync(0xffffffffu, threadIdx.x >> 7, 0);
}
__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 rows of one head of one page; lanes of row g hold rows first + g and first + g + 8.
struct WarpRows {
  uint32_t page = 0;
  uint32_t head = 0;         // of the tensor
  uint32_t first = 0;        // row of the warp's row 0
  uint32_t tokens = 0;       // of the page
  uint8_t* block = nullptr;  // the head's block in the payload; null: nothing to do
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
  __device__ uint8_t meta() const { return static_cast<uint8_t>(Flags() >> 16); }
  __device__ uint32_t group() const { return Word(offsetof(CudaTensor, group)); }
  __device__ uint32_t rank() const { return Word(offsetof(CudaTensor, rank)); }
  __device__ uint32_t tensor() const { return Word(offsetof(CudaTensor, tensor)); }
  __device__ uint32_t first() const { return Word(offsetof(CudaHeads, first)); }
  __device__ uint32_t count() const { return Word(offsetof(CudaHeads, count)); }
  __device__ uint32_t count_shift() const { return Word(offsetof(CudaHeads, count_shift)); }
  __device__ bool has_image() const {
    return FromShared<uint64_t>(at_ + offsetof(CudaHeads, image)) != 0;
  }
  // The static mean of a head; null: zero.
  __device__ const float* MeanOf(uint32_t head) const {
    const auto mean = FromShared<uint64_t>(at_ + offsetof(CudaTensor, mean));
    if (mean == 0) return nullptr;
    return reinterpret_cast<const float*>(mean) +
           static_cast<uint64_t>(head) * Word(offsetof(CudaTensor, mean_step));
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

// All threads of the block; a barrier must follow before any looks.
__device__ __forceinline__ void LoadHeads(const CudaBatch& batch, const CudaHeads& from,
                                          BlockHeads* to) {
  constexpr uint32_t kWords = sizeof(CudaHeads) / 4, kPlaceWords = sizeof(CudaPlace) / 4;
  const uint32_t i = threadIdx.x;
  if (i < kWords) {
    reinterpret_cast<uint32_t*>(&to->heads)[i] = reinterpret_cast<const uint32_t*>(&from)[i];
  } else if (i < kWords + kPlaceWords) {
    reinterpret_cast<uint32_t*>(&to->place)[i - kWords] =
        reinterpret_cast<const uint32_t*>(batch.places + from.tensor.tensor)[i - kWords];
  }
}

inline constexpr int kRingTiles = 4;

// Of one warp. Tile n of the warp is at n % kRingTiles.
struct alignas(16) RowRing {
  CudaPage pages[kRingTiles];
  uint4 where[kRingTiles];  // page, head, first row, whether there is one
  uint32_t slots[kRingTiles][kCudaRowsPerWarp];
};

// The walk of one warp through the tiles of one group of heads. Call Start, then for n = 0, 1, ...:
// Wait, then whatever needs tile n (and slots of n + 1), then Advance(n).
class RowWalk {
 public:
  __device__ RowWalk(const CudaBatch& batch, HeadsAt heads, uint32_t ring, uint32_t first,
                     uint32_t stride)
      : batch_(batch),
        heads_(heads),
        ring_(ring),
        first_(first),
        stride_(stride),
        heads_count_(heads.count()) {
    const CudaTiling tiling = CudaTilingOf(batch.page_tokens);
    const uint32_t blocks = batch.page_count * heads_count_;
    const uint32_t per = tiling.blocks_per_tile;
    const uint32_t tiles = per == 1 ? blocks * tiling.tiles_per_block : (blocks + per - 1) / per;
    count_ = first < tiles ? (tiles - first + stride - 1) / stride : 0;
  }

  __device__ uint32_t count() const { return count_; }  // tiles

  // The first entries, waiting for each.
  __device__ void Start() const {
    for (uint32_t n = 0; n < kPagesAhead; ++n) FetchPage(n);
    Commit();
    Wait();
    for (uint32_t n = 0; n < kSlotsAhead; ++n) FetchSlots(n);
    Commit();
    Wait();
  }

  // All copies of this warp so far have arrived.
  __device__ static void Wait() {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncwarp();
  }
  // Entries that tiles after n need; the caller commits with what else it copies.
  __device__ void Advance(uint32_t n) const {
    FetchSlots(n + kSlotsAhead);
    FetchPage(n + kPagesAhead);
  }
  __device__ static void Commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

  __device__ WarpRows Rows(uint32_t n) const {
    const auto where = FromShared<uint4>(WhereAt(n));
    const auto page = FromShared<uint4>(PageAt(n));
    WarpRows rows;
    rows.page = where.x, rows.head = where.y, rows.first = where.z;
    if (n >= count_ || where.w == 0) return rows;
    rows.tokens = page.z;
    rows.block = reinterpret_cast<uint8_t*>(static_cast<uint64_t>(page.y) << 32 | page.x) +
                 heads_.offset() + static_cast<uint64_t>(rows.head) * heads_.head_bytes();
    return rows;
  }

  // Address of row first + i of tile n in the worker's memory. REQUIRES: the row exists.
  __device__ uint8_t* RawRow(uint32_t n, const WarpRows& rows, uint32_t i) const {
    const HeadsAt::Place place = heads_.place();
    const uint32_t row = rows.first + i;
    const uint64_t slot = FromShared<uint32_t>(SlotsAt(n) + 4 * i);
    const uint64_t token = row - SlotOf(row) * batch_.tokens_per_slot;
    return reinterpret_cast<uint8_t*>(place.first.x + slot * place.first.y +
                                      token * place.second.x + rows.head * place.second.y);
  }

 private:
  static constexpr uint32_t kSlotsAhead = 2, kPagesAhead = 3;
  static_assert(kPagesAhead < kRingTiles);
  static_assert(offsetof(CudaPlace, address) == 0 && offsetof(CudaPlace, slot_stride) == 8 &&
                offsetof(CudaPlace, token_stride) == 16 && sizeof(CudaPlace) == 32);
  static_assert(offsetof(CudaPage, tokens) == 8 && offsetof(CudaPage, slots_first) == 12);

  __device__ uint32_t PageAt(uint32_t n) const { return ring_ + n % kRingTiles * 16; }
  __device__ uint32_t WhereAt(uint32_t n) const {
    return ring_ + offsetof(RowRing, where) + n % kRingTiles * 16;
  }
  __device__ uint32_t SlotsAt(uint32_t n) const {
    return ring_ + offsetof(RowRing, slots) + n % kRingTiles * (4 * kCudaRowsPerWarp);
  }
  __device__ uint32_t SlotOf(uint32_t row) const {
    return batch_.slot_shift < 32 ? row >> batch_.slot_shift : row / batch_.tokens_per_slot;
  }

  __device__ void FetchPage(uint32_t n) const {
    if (n >= count_ || Lane() != 0) return;
    const CudaTiling tiling = CudaTilingOf(batch_.page_tokens);
    const uint32_t tile = first_ + n * stride_;
    uint32_t block, row;
    if (tiling.blocks_per_tile == 1) {
      block = tiling.tiles_per_block == 1 ? tile : tile / tiling.tiles_per_block;
      row =
          (tile - block * tiling.tiles_per_block) * kCudaTileRows + WarpOfTile() * kCudaRowsPerWarp;
    } else {
      const uint32_t of_tile = WarpOfTile() / tiling.warps_per_block;
      block = tile * tiling.blocks_per_tile + of_tile;
      row = (WarpOfTile() - of_tile * tiling.warps_per_block) * kCudaRowsPerWarp;
    }
    const uint32_t shift = heads_.count_shift();
    const uint32_t page = shift < 32 ? block >> shift : block / heads_count_;
    const uint32_t head = heads_.first() + block - page * heads_count_;
    const uint32_t has = page < batch_.page_count ? 1 : 0;
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(WhereAt(n)), "r"(page), "r"(head),
                 "r"(row), "r"(has)
                 : "memory");
    if (has == 0) return;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(PageAt(n)),
                 "l"(batch_.pages + page)
                 : "memory");
  }

  __device__ void FetchSlots(uint32_t n) const {
    if (n >= count_ || Lane() >= kCudaRowsPerWarp) return;
    const auto where = FromShared<uint4>(WhereAt(n));
    const auto page = FromShared<uint4>(PageAt(n));
    const uint32_t row = where.z + Lane();
    if (where.w == 0 || row >= page.z) return;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(SlotsAt(n) + 4 * Lane()),
                 "l"(batch_.slots + page.w + SlotOf(row))
                 : "memory");
  }

  const CudaBatch& batch_;
  const HeadsAt heads_;
  const uint32_t ring_, first_, stride_, heads_count_;
  uint32_t count_;
};

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_ROWS_CUH_
