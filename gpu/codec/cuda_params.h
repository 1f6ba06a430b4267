// What codec kernels are told: plain structures, read on the device. Addresses are device-visible.
// The host fills the tables once per codec (CudaCodec) and the page list per launch; nothing here
// is checked on the device, so every value comes from checked code.
#ifndef CRUMB_GPU_CODEC_CUDA_PARAMS_H_
#define CRUMB_GPU_CODEC_CUDA_PARAMS_H_

#include <cstdint>

namespace crumb {

inline constexpr uint32_t kCudaRowsPerWarp = 16;
inline constexpr uint32_t kCudaWarpsPerTile = 4;
// MetaForm's values.
inline constexpr uint8_t kCudaMetaBf16 = 1, kCudaMetaFp32 = 2, kCudaMetaByte = 3;
inline constexpr uint32_t kCudaTileRows = kCudaRowsPerWarp * kCudaWarpsPerTile;

// K or V of one layer in a payload (TensorLayout) with what its rows need.
struct alignas(16) CudaTensor {
  uint32_t offset;  // of head 0 in the payload
  uint32_t head_bytes;
  uint32_t code_row_bytes;
  uint32_t meta_offset;  // within a head's block
  uint32_t meta_row_bytes;
  uint32_t side_offset;  // crumb's page mean: dim x i8, then BF16
  uint8_t has_side;
  uint8_t is_v;
  uint8_t reserved[2];
  uint32_t group;      // elements per scale
  uint32_t rank;       // encoders: the clip keeps the rank-th largest magnitude; 0: no clip
  const float* mean;   // static mean [heads or 1][dim]; null: zero
  uint32_t mean_step;  // floats from head to head; 0: one for all
  uint32_t tensor;     // index of its place
};

// Heads that share one rotation: a unit of scheduling.
struct alignas(16) CudaHeads {
  CudaTensor tensor;
  uint32_t first;  // head of the tensor
  uint32_t count;
  const void* image;  // the rotation as a tile reads it (cuda_image.h); null: none
  // crumb encoders: how errors of K weigh (cuda_metric_image.h); null: all the same
  const void* metric;
};

// Where element [slot][token][head][0] of a tensor lies: address + slot * slot_stride +
// token * token_stride + head * head_stride, dim contiguous. Bytes.
struct CudaPlace {
  uint64_t address;
  uint64_t slot_stride;
  uint64_t token_stride;
  uint64_t head_stride;
};

struct CudaPage {
  uint64_t payload;      // 16-byte aligned
  uint32_t tokens;       // rows that exist
  uint32_t slots_first;  // token t lies in slot slots[slots_first + t / tokens_per_slot]
};

// What an encode says of a page. Zero before the launch, but for bad_place.
struct CudaPageReport {
  unsigned long long bad_place;  // first NaN or Inf: tensor << 40 | head << 20 | token; ~0: none
  uint32_t unfit;                // rows that belong one step up the ladder
  uint32_t rows[2];              // sampled, of K and V: their errors and energies are summed
  uint32_t rows_static;          // crumb: rows of K with the static mean alone
  float error[2];                // squared error in the rotated frame
  float energy[2];               // of the rotated rows; crumb: of the rows as they were put
};

struct CudaBadPlace {
  bool found = false;
  uint32_t tensor = 0, head = 0, token = 0;
};
constexpr CudaBadPlace BadPlaceOf(const CudaPageReport& report) {
  constexpr uint32_t kPart = 0xfffff;
  if (report.bad_place == ~0ull) return {};
  return {true, static_cast<uint32_t>(report.bad_place >> 40),
          static_cast<uint32_t>(report.bad_place >> 20) & kPart,
          static_cast<uint32_t>(report.bad_place) & kPart};
}

// One launch: every page in every tensor.
struct CudaBatch {
  const CudaPlace* places;  // [tensor]
  const CudaPage* pages;
  const uint32_t* slots;
  CudaPageReport* reports;  // [page]; encode only
  uint32_t page_count;
  uint32_t page_tokens;
  uint32_t tokens_per_slot;
  uint8_t aligned;        // every place is a multiple of 16 bytes
  uint8_t rotated_frame;  // decode: without the inverse rotation and the base
  uint8_t interleaved;    // Packing::kInterleaved
  uint8_t straight;       // 16 rows of a warp lie in one slot
  uint8_t meta;           // MetaForm, of all tensors
};

// How pages of one size are cut into tiles of four warps with 16 rows each.
struct CudaTiling {
  uint32_t blocks_per_tile;  // heads of pages in a tile
  uint32_t warps_per_block;
  uint32_t tiles_per_block;  // 1 where blocks_per_tile > 1
};

constexpr CudaTiling CudaTilingOf(uint32_t page_tokens) {
  const uint32_t warps = (page_tokens + kCudaRowsPerWarp - 1) / kCudaRowsPerWarp;
  if (warps == 1) return {4, 1, 1};
  if (warps == 2) return {2, 2, 1};
  return {1, kCudaWarpsPerTile, (warps + kCudaWarpsPerTile - 1) / kCudaWarpsPerTile};
}

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CUDA_PARAMS_H_
