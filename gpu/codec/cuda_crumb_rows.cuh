// 32 rows of one warp of the crumb encoder, one for each lane: from the worker's memory into shared
// memory, their page mean, and the rotation. Device code; a warp needs nobody else.
#ifndef CRUMB_GPU_CODEC_CUDA_CRUMB_ROWS_CUH_
#define CRUMB_GPU_CODEC_CUDA_CRUMB_ROWS_CUH_

#include "gpu/codec/cuda_crumb_params.h"
#include "gpu/codec/cuda_tile.cuh"

namespace crumb::cuda {

// One head of one page.
struct CrumbUnit {
  uint8_t* block;  // in the payload
  uint32_t page, head, tokens;
};

__device__ __forceinline__ CrumbUnit UnitAt(const CudaBatch& batch, HeadsAt heads, uint32_t page,
                                            uint32_t head) {
  const CudaPage at = batch.pages[page];
  return {BlockOf(at, heads, head), page, head, at.tokens};
}

template <int kDim, int kBits, bool kSearch>
class CrumbRows {
 public:
  using Share = CrumbShare<kDim, kBits, kSearch>;
  static constexpr int kSteps = kDim / 16;
  static constexpr int kLaneColumns = kDim / 32;  // of a page mean

  static constexpr bool kImageShared = kDim < 256;  // else it is read from the caches

  __device__ CrumbRows(uint32_t share, uint32_t image) : share_(share), image_(image) {}
  __device__ void SetImage(const void* image) { image_memory_ = static_cast<const uint4*>(image); }

  // Row of this lane.
  __device__ uint32_t Row() const { return share_ + Lane() * Share::kRowPitch; }

  // Once: what is never written must still be numbers.
  __device__ void Clear() const {
    for (uint32_t i = 16 * Lane(); i < Share::kBase; i += 512) {
      ToShared(share_ + i, make_uint4(0, 0, 0, 0));
    }
    __syncwarp();
  }

  // Where 32 gathered rows lie; those that are worked on, and others that only a mean needs.
  struct Place {
    uint32_t at, pitch;
  };
  __device__ Place OwnPlace() const { return {share_, Share::kRowPitch}; }
  __device__ Place OtherPlace() const {
    static_assert(!kSearch || Share::kErrorPitch >= 2 * kDim);
    return {share_ + Share::kErrors, Share::kErrorPitch};
  }

  // Starts to copy rows at every lane's address; 0: none, and its place keeps what it holds.
  __device__ void Start(bool aligned, uint64_t address, Place to) const {
    __syncwarp();
    if (aligned) {
      constexpr uint32_t kChunks = kDim / 8, kRowsAtOnce = 32 / kChunks;
#pragma unroll
      for (uint32_t i = 0; i < kCrumbRows; i += kRowsAtOnce) {
        const uint32_t row = i + Lane() / kChunks;
        const uint64_t from = __shfl_sync(0xffffffffu, address, static_cast<int>(row));
        if (from == 0) continue;
        CopyAsync16(to.at + row * to.pitch + Lane() % kChunks * 16,
                    reinterpret_cast<const uint8_t*>(from) + Lane() % kChunks * 16);
      }
    } else {
#pragma unroll 1
      for (uint32_t row = 0; row < kCrumbRows; ++row) {
        const uint64_t from = __shfl_sync(0xffffffffu, address, static_cast<int>(row));
        if (from == 0) continue;
        for (uint32_t i = Lane(); i < kDim; i += 32) {
          const uint16_t value = reinterpret_cast<const uint16_t*>(from)[i];
          const uint32_t at = to.at + row * to.pitch + 2 * i;
          asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"(value) : "memory");
        }
      }
    }
  }
  // What was started has arrived.
  __device__ static void Wait() {
    CopyAsyncCommit();
    CopyAsyncWaitFor<0>();
    __syncwarp();
  }

  // Sum of squares of this lane's gathered row.
  __device__ float Energy() const {
    float sum = 0.0f;
#pragma unroll 2
    for (int i = 0; i < kDim; i += 8) {
      const auto w = FromShared<uint4>(Row() + 2 * i);
      for (const uint32_t pair : {w.x, w.y, w.z, w.w}) {
        sum = fmaf(LowBf16(pair), LowBf16(pair), sum);
        sum = fmaf(HighBf16(pair), HighBf16(pair), sum);
      }
    }
    return sum;
  }

  // Adds the first `count` gathered rows to the sums of this lane's columns.
  __device__ void AddColumns(Place place, uint32_t count, float (&sums)[kLaneColumns]) const {
    if (count == kCrumbRows) return AddAllColumns(place, sums);
#pragma unroll 4
    for (uint32_t row = 0; row < count; ++row) {
      const uint32_t at = place.at + row * place.pitch + Lane() * (2 * kLaneColumns);
      uint32_t words[kLaneColumns / 2];
#pragma unroll
      for (int i = 0; i < kLaneColumns / 2; ++i) words[i] = FromShared<uint32_t>(at + 4 * i);
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) {
        sums[i] += i % 2 == 0 ? LowBf16(words[i / 2]) : HighBf16(words[i / 2]);
      }
    }
  }

  // p and sigma of the mean into the payload, m + bf16(p sigma) into the base.
  __device__ void StorePageMean(const CrumbUnit& unit, HeadsAt heads, uint32_t mean,
                                const float (&sums)[kLaneColumns]) const {
    const float share = __fdividef(1.0f, static_cast<float>(unit.tokens));
    float means[kLaneColumns], largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      // Sums of numbers may leave FP32: such rows fit into no level.
      const float own = FromShared<float>(mean + 4 * (Lane() * kLaneColumns + i));
      means[i] = fminf(fmaxf(fmaf(sums[i], share, -own), -3.3e38f), 3.3e38f);
      largest = fmaxf(largest, fabsf(means[i]));
    }
    largest = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(largest)));
    const uint32_t sigma_bits = PackBf16(largest * (1.0f / 127.0f), 0.0f) & 0xffffu;
    const float sigma = LowBf16(sigma_bits);
    uint8_t* side = unit.block + heads.side_offset();
    uint32_t packed[(kLaneColumns + 3) / 4] = {};
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      const uint32_t column = Lane() * kLaneColumns + i;
      // WHY a true division, here and for zeros: quotients of BF16 values often are ties.
      const float p = sigma == 0.0f ? 0.0f : fminf(fmaxf(rintf(means[i] / sigma), -127.0f), 127.0f);
      packed[i / 4] |= (static_cast<uint32_t>(static_cast<int>(p)) & 0xffu) << (8 * (i % 4));
      const float shift = LowBf16(PackBf16(p * sigma, 0.0f));
      ToShared(share_ + Share::kBase + 4 * column, FromShared<float>(mean + 4 * column) + shift);
    }
    if constexpr (kLaneColumns == 2) {
      reinterpret_cast<uint16_t*>(side)[Lane()] = static_cast<uint16_t>(packed[0]);
    } else {
#pragma unroll
      for (int i = 0; i < kLaneColumns / 4; ++i) {
        reinterpret_cast<uint32_t*>(side)[Lane() * (kLaneColumns / 4) + i] = packed[i];
      }
    }
    if (Lane() == 0) {
      *reinterpret_cast<uint16_t*>(side + kDim) = static_cast<uint16_t>(sigma_bits);
    }
    __syncwarp();
  }
  __device__ uint32_t PageBase() const { return share_ + Share::kBase; }

  // Gathered rows minus `base` (shared memory, FP32) times the rotation, in place, as
  // BF16; too large becomes infinite.
  __device__ void Rotate(uint32_t base) const {
    __syncwarp();
    if constexpr (kDim == 256) {
#pragma unroll 1
      for (uint32_t first = 0; first < kCrumbRows; first += 16) RotateTiles<1>(base, first);
    } else {
      RotateTiles<2>(base, 0);
    }
    __syncwarp();
  }

 private:
  // The same for 32 rows, by products with ones, through the place of the base. WHY not for fewer:
  // rows that are not there may hold what is no number.
  __device__ void AddAllColumns(Place place, float (&sums)[kLaneColumns]) const {
    constexpr uint32_t kOne = 0x3f803f80u;  // a pair
    const uint32_t ones[4] = {kOne, kOne, kOne, kOne};
    const uint32_t from = place.at + (Lane() & 15) * place.pitch + Lane() / 16 * 16;
    const uint32_t to = share_ + Share::kBase;
#pragma unroll 4
    for (int first = 0; first < kDim; first += 16) {
      float d[2][4] = {};
#pragma unroll
      for (uint32_t row = 0; row < kCrumbRows; row += 16) {
        uint32_t b[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(from + row * place.pitch + 2 * first)
                     : "memory");
        MultiplyBf16(ones, b[0], b[1], d[0]);
        MultiplyBf16(ones, b[2], b[3], d[1]);
      }
      if (LaneRow() < 2) {
        const bool second = LaneRow() == 1;
        ToShared(to + 4 * (first + 8 * LaneRow() + 2 * LaneColumn()),
                 make_float2(second ? d[1][0] : d[0][0], second ? d[1][1] : d[0][1]));
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kLaneColumns; i += 2) {
      const auto two = FromShared<float2>(to + 4 * (Lane() * kLaneColumns + i));
      sums[i] += two.x, sums[i + 1] += two.y;
    }
    __syncwarp();
  }

  // Columns at a time.
  static constexpr int kPassN = 32;
  static constexpr int kPlanes = kBits == 4 ? 2 : 4;
  static constexpr int kRun = kDim / kPlanes / 4;  // neighbouring columns of a lane

  __device__ static void Centre(uint32_t base, uint32_t (&a)[kSteps][4]) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const auto m = FromShared<float2>(base + 4 * (16 * s + 4 * i) + 8 * LaneColumn());
        a[s][i] = PackBf16OrInfinity(LowBf16(a[s][i]) - m.x, HighBf16(a[s][i]) - m.y);
        a[s][i + 1] = PackBf16OrInfinity(LowBf16(a[s][i + 1]) - m.x, HighBf16(a[s][i + 1]) - m.y);
      }
    }
  }

  // kTiles times 16 rows. WHY together: the image is read once for both.
  template <int kTiles>
  __device__ void RotateTiles(uint32_t base, uint32_t first_row) const {
    const uint32_t rows = share_ + first_row * Share::kRowPitch;
    uint32_t a[kTiles][kSteps][4];
    const uint32_t from = rows + (Lane() & 15) * Share::kRowPitch + Lane() / 16 * 16;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        LoadMatrix(from + 16 * m * Share::kRowPitch + 32 * s, a[m][s]);
      }
      Centre(base, a[m]);
    }
    __syncwarp();
#pragma unroll 1
    for (uint32_t first = 0; first < kDim; first += kPassN) {
      float d[kTiles][kPassN / 2] = {};
#pragma unroll
      for (int s = 0; s < kSteps; s += 2) {
        uint4 b[kPassN / 8];
#pragma unroll
        for (int t = 0; t < kPassN / 8; ++t) b[t] = Operand(first / 8 + t, s / 2);
          // WHY one step after the other: a product waits for the one before it on the same sums.
#pragma unroll
        for (int i = 0; i < 2 * (kPassN / 8); ++i) {
          const int t = i % (kPassN / 8);
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            if (i < kPassN / 8) {
              MultiplyBf16(a[m][s], b[t].x, b[t].y, &d[m][4 * t]);
            } else {
              MultiplyBf16(a[m][s + 1], b[t].z, b[t].w, &d[m][4 * t]);
            }
          }
        }
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        Store(rows + 16 * m * Share::kRowPitch, first, d[m]);
      }
    }
  }

  // Of eight columns and two steps (CudaOperandImage).
  __device__ uint4 Operand(uint32_t columns, uint32_t steps) const {
    const uint32_t at = (columns * (kDim / 32) + steps) * 512 + 16 * Lane();
    if constexpr (kImageShared) return FromShared<uint4>(image_ + at);
    return __ldg(image_memory_ + at / 16);
  }

  // Element `at` of a lane is column ColumnOf(at) of the row: the image is the affine encoder's.
  __device__ static void Store(uint32_t rows, uint32_t first, const float (&d)[kPassN / 2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t row = rows + (LaneRow() + 8 * half) * Share::kRowPitch;
#pragma unroll
      for (int i = 0; i < kPassN / 4; i += kRun < 8 ? 4 : 8) {
        const auto pair = [&](int j) {
          return PackBf16OrInfinity(d[2 * (i + j) + 2 * half], d[2 * (i + j) + 2 * half + 1]);
        };
        const uint32_t at = row + 2 * ColumnOf<kDim, kPlanes>(first / 4 + i, false);
        if constexpr (kRun < 8) {
          ToShared(at, make_uint2(pair(0), pair(2)));
        } else {
          ToShared(at, make_uint4(pair(0), pair(2), pair(4), pair(6)));
        }
      }
    }
  }

  const uint32_t share_, image_;  // the image in shared memory
  const uint4* image_memory_ = nullptr;
};

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_CRUMB_ROWS_CUH_
