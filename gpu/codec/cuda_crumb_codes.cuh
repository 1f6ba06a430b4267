// Codes of crumb rows for a stored scale and zero, one row in each lane: nearest levels, or one
// code after the other with every error pushed along L into the elements still to come. Feedback
// goes in blocks of 16 elements: one by one inside of a block, by tensor cores from the blocks
// before (FP16 operands, FP32 sums; docs/gpu.md says how far that is from the reference). Device
// code; a warp needs nobody else.
#ifndef CRUMB_GPU_CODEC_CUDA_CRUMB_CODES_CUH_
#define CRUMB_GPU_CODEC_CUDA_CRUMB_CODES_CUH_

#include "gpu/codec/cuda_crumb_fit.cuh"

namespace crumb::cuda {

// A metric in device or shared memory; see CrumbLowerBytes.
struct CrumbMetricAt {
  const uint4* lower;     // device memory, from its start
  uint32_t lower_shared;  // shared memory, where CrumbCodes says that it has room for it
  uint32_t triangle;      // shared memory
  uint32_t diagonal;      // shared memory
};

// Of a candidate, lengths in the row's units, in the metric or plain: its error, error times row,
// and the row itself.
struct CrumbSums {
  float ee = 0.0f, ye = 0.0f, yy = 0.0f;
};

template <int kDim, int kBits, bool kSearch>
class CrumbCodes {
 public:
  using Share = CrumbShare<kDim, kBits, kSearch>;
  using Grid = CrumbLevelGrid<kBits>;
  static constexpr int kBlocks = kDim / 16;

  static constexpr bool kLowerShared = kDim < 256;  // else L is read from device memory

  __device__ explicit CrumbCodes(uint32_t share)
      : share_(share),
        row_(share + Lane() * Share::kRowPitch),
        row_operand_(share + (Lane() & 15) * Share::kRowPitch + Lane() / 16 * 16),
        error_operand_(ErrorChunk(Lane() & 15, 2 + Lane() / 16)) {}

  // Nearest levels.
  __device__ CrumbSums Plain(const CrumbFit& fit, float scale, float zero) const {
    const float inverse = __frcp_rn(scale);
    const float steep = inverse * (1.0f / Grid::kTop), shift = zero * (1.0f / Grid::kTop);
    float along = 0.0f, errors = 0.0f;  // sum of code y; squared error in steps
#pragma unroll 1
    for (int b = kBlocks - 1; b >= 0; --b) {
      float y[16];
      LoadBlock(b, y);
      uint32_t packed[4] = {};
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float m = fmaf(__saturatef(fmaf(y[i], steep, shift)), Grid::kTop, kRounder);
        const float code = m - kRounder;
        Pack(m, i, &packed[i / 4]);
        along = fmaf(code, y[i], along);
        const float rest = fmaf(y[i], inverse, zero) - code;
        errors = fmaf(rest, rest, errors);
      }
      StoreCodes(b, packed);
    }
    CrumbSums sums;
    sums.yy = fit.energy;
    sums.ye = fit.energy - scale * (along - zero * fit.sum);
    sums.ee = errors * scale * scale;
    return sums;
  }

  // With error feedback: codes, and their errors for the blocks to come. kGain: all sums, else `ee`
  // alone. The whole warp.
  template <bool kGain>
  __device__ CrumbSums Feedback(const CrumbMetricAt& metric, float scale, float zero) const {
    const float inverse = __frcp_rn(scale);
    float ee = 0.0f;  // in steps
    TileSums tile;
#pragma unroll 1
    for (int b = kBlocks - 1; b >= 0; --b) {
      float u[16], pushed[2][2][4] = {}, own[2][2][4];
      if constexpr (kGain) Multiply<true>(row_operand_ + 32 * b, Operand(metric, b, b), own);
#pragma unroll 2
      for (int k = b + 1; k < kBlocks; ++k) {
        const uint4 w = Operand(metric, k, b);
        Multiply<false, Share::kErrorPitch>(error_operand_ + 32 * k, w, pushed);
        if constexpr (kGain) Multiply<false>(row_operand_ + 32 * k, w, own);
      }
      ToLanes(b, pushed, u);
      Block<!kGain>(metric, b, inverse, zero, u, &ee);
      if constexpr (kGain) {
        Multiply<false, Share::kErrorPitch>(error_operand_ + 32 * b, Operand(metric, b, b), pushed);
        tile.Add(metric.diagonal + 64 * b, own, pushed);
      }
    }
    __syncwarp();
    if constexpr (kGain) return tile.OfRows(scale);
    CrumbSums sums;
    sums.ee = ee * scale * scale;
    return sums;
  }

  // All sums of the codes that lie there, which need not be those that were made last. The whole
  // warp.
  __device__ CrumbSums Gain(const CrumbMetricAt& metric, float scale, float zero) const {
    RedoErrors(__frcp_rn(scale), zero);
    TileSums tile;
#pragma unroll 1
    for (int b = 0; b < kBlocks; ++b) {
      float own[2][2][4], errors[2][2][4];
      const uint4 first = Operand(metric, b, b);
      Multiply<true>(row_operand_ + 32 * b, first, own);
      Multiply<true, Share::kErrorPitch>(error_operand_ + 32 * b, first, errors);
#pragma unroll 2
      for (int k = b + 1; k < kBlocks; ++k) {
        const uint4 w = Operand(metric, k, b);
        Multiply<false>(row_operand_ + 32 * k, w, own);
        Multiply<false, Share::kErrorPitch>(error_operand_ + 32 * k, w, errors);
      }
      tile.Add(metric.diagonal + 64 * b, own, errors);
    }
    return tile.OfRows(scale);
  }

  // Packed codes of this lane's row.
  static constexpr int kWords = Share::kCodeBytes / 4;
  __device__ void Take(uint32_t (&words)[kWords]) const {
#pragma unroll
    for (int i = 0; i < kWords; i += 2) {
      const auto two = FromShared<uint2>(CodeRow() + 4 * i);
      words[i] = two.x, words[i + 1] = two.y;
    }
  }
  __device__ void Put(const uint32_t (&words)[kWords]) const {
#pragma unroll
    for (int i = 0; i < kWords; i += 2) {
      ToShared(CodeRow() + 4 * i, make_uint2(words[i], words[i + 1]));
    }
  }

  // A block of this lane's row, in the row's units, and its codes.
  __device__ void LoadBlock(int b, float (&y)[16]) const {
    const uint4 words[2] = {FromShared<uint4>(row_ + 32 * b),
                            FromShared<uint4>(row_ + 32 * b + 16)};
    const auto* w = reinterpret_cast<const uint32_t*>(words);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      y[2 * j] = __low2float(AsHalf2(w[j]));
      y[2 * j + 1] = __high2float(AsHalf2(w[j]));
    }
  }
  __device__ void LoadCodes(int b, float (&codes)[16]) const {
    const auto words = FromShared<uint4>(CodeRow() + 16 * (b % kPlaneBlocks));
    const uint32_t shift = static_cast<uint32_t>(b / kPlaneBlocks) * (8 / kPlanes);
    const uint32_t w[4] = {words.x >> shift, words.y >> shift, words.z >> shift, words.w >> shift};
    uint32_t tops = 0;  // the third bits
    if constexpr (kBits == 3) {
      tops = FromShared<uint32_t>(CodeRow() + kDim / 4 + 4 * (b / 2)) >> 16 * (b % 2);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      uint32_t code = w[i / 4] >> (8 * (i % 4)) & ((1u << (8 / kPlanes)) - 1);
      if constexpr (kBits == 3) code |= (tops >> i & 1u) << 2;
      codes[i] = __uint_as_float(code | kLargeBits) - __uint_as_float(kLargeBits);
    }
  }

 private:
  static constexpr uint32_t kLargeBits = 0x4b000000u;  // 2^23: small integers in its last places
  static constexpr int kPlanes = kBits == 4 ? 2 : 4;
  static constexpr int kPlaneBlocks = kBlocks / kPlanes;

  __device__ uint32_t CodeRow() const {
    return share_ + Share::kCodes + Lane() * Share::kCodePitch;
  }
  // Code i of a block, the low bits of `m`, into byte i % 4.
  __device__ static void Pack(float m, int i, uint32_t* packed) {
    *packed += __float_as_uint(m) << (8 * (i % 4));
  }

  // 16 codes in four words of bytes to where they belong: block b goes before block b - 1.
  __device__ void StoreCodes(int b, uint32_t (&packed)[4]) const {
    // What the rounder's own bits added up to.
    constexpr uint32_t kRest = kRounderBits * 0x01010101u;
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[i] -= kRest;
    const int plane = b / kPlaneBlocks;
    const uint32_t at = CodeRow() + 16 * (b % kPlaneBlocks);
    constexpr uint32_t kMask = (1u << (8 / kPlanes)) - 1;
    const uint32_t shift = static_cast<uint32_t>(plane) * (8 / kPlanes);
    uint4 low = {};
    if (plane != kPlanes - 1) low = FromShared<uint4>(at);
    low.x |= (packed[0] & kMask * 0x01010101u) << shift;
    low.y |= (packed[1] & kMask * 0x01010101u) << shift;
    low.z |= (packed[2] & kMask * 0x01010101u) << shift;
    low.w |= (packed[3] & kMask * 0x01010101u) << shift;
    ToShared(at, low);
    if constexpr (kBits == 3) {
      uint32_t bits = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        bits |= ((packed[i] >> 2 & 0x01010101u) * 0x01020408u >> 24) << (4 * i);
      }
      asm volatile("st.shared.b16 [%0], %1;" ::"r"(CodeRow() + kDim / 4 + 2 * b),
                   "h"(static_cast<uint16_t>(bits))
                   : "memory");
    }
  }

  // kFresh: d is written, else added to.
  template <bool kFresh>
  __device__ static void MultiplyHalf(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                      float (&d)[4]) {
    if constexpr (kFresh) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
          : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
  }

  // Sums over a tile of 32 rows in the order of tensor cores: rows g, g + 8, g + 16 and g + 24.
  struct TileSums {
    float ee[4] = {}, ye[4] = {}, yy[4] = {};

    // L^T y and L^T e of a block, its D at `diagonal`.
    __device__ void Add(uint32_t diagonal, const float (&y)[2][2][4], const float (&e)[2][2][4]) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const auto d = FromShared<float2>(diagonal + 32 * n + 8 * LaneColumn());
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float weight = i % 2 == 0 ? d.x : d.y;
          const float own = y[i / 4][n][i % 4], error = e[i / 4][n][i % 4];
          const float heavy = weight * own;
          yy[i / 2] = fmaf(heavy, own, yy[i / 2]);
          ye[i / 2] = fmaf(heavy, error, ye[i / 2]);
          ee[i / 2] = fmaf(weight * error, error, ee[i / 2]);
        }
      }
    }
    // Of this lane's row; errors were in steps of `scale`.
    __device__ CrumbSums OfRows(float scale) {
      CrumbSums sums;
      sums.ee = OfRow(ee) * scale * scale;
      sums.ye = OfRow(ye) * scale;
      sums.yy = OfRow(yy);
      return sums;
    }
  };

  __device__ static uint4 Operand(const CrumbMetricAt& metric, int k, int b) {
    const uint32_t at = CrumbOperand(kBlocks, static_cast<uint32_t>(k), static_cast<uint32_t>(b));
    if constexpr (kLowerShared) return FromShared<uint4>(metric.lower_shared + at + 16 * Lane());
    return __ldg(metric.lower + at / 16 + Lane());
  }

  // 16 bytes of a row of errors; see kErrorPitch.
  __device__ uint32_t ErrorChunk(uint32_t row, uint32_t chunk) const {
    return share_ + Share::kErrors + row * Share::kErrorPitch + 16 * (chunk ^ (row >> 2 & 1));
  }

  // 32 rows of a block times L of two blocks. Rows 16 apart lie alike.
  template <bool kFresh, uint32_t kPitch = Share::kRowPitch>
  __device__ static void Multiply(uint32_t at, const uint4& w, float (&d)[2][2][4]) {
    uint32_t a[2][4];
    LoadMatrix(at, a[0]);
    LoadMatrix(at + 16 * kPitch, a[1]);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      MultiplyHalf<kFresh>(a[m], w.x, w.y, d[m][0]);
      MultiplyHalf<kFresh>(a[m], w.z, w.w, d[m][1]);
    }
  }

  // A tile of sums from the order of tensor cores to one row in each lane.
  __device__ void ToLanes(int b, const float (&d)[2][2][4], float (&u)[16]) const {
    __syncwarp();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t row = 16 * m + 8 * half + LaneRow();
          ToShared(ErrorChunk(row, 2 * b + 2 * n + LaneColumn() / 2) + 8 * (LaneColumn() & 1),
                   make_float2(d[m][n][2 * half], d[m][n][2 * half + 1]));
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto four = FromShared<float4>(ErrorChunk(Lane(), 2 * b + i));
      u[4 * i] = four.x, u[4 * i + 1] = four.y, u[4 * i + 2] = four.z, u[4 * i + 3] = four.w;
    }
  }

  // One code after the other. kErrors: adds to `ee`.
  template <bool kErrors>
  __device__ void Block(const CrumbMetricAt& metric, int b, float inverse, float zero,
                        float (&u)[16], float* ee) const {
    float t[16];
    LoadBlock(b, t);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      t[i] = fmaf(t[i], inverse, zero);
      u[i] += t[i];
    }
    const uint32_t triangle = metric.triangle + static_cast<uint32_t>(b) * kCrumbTriangleFloats * 4;
    const uint32_t diagonal = metric.diagonal + static_cast<uint32_t>(b) * 64;
    uint32_t packed[4] = {};
    float4 d = {};
#pragma unroll
    for (int i = 15; i >= 0; --i) {
      if (i % 4 == 3) d = FromShared<float4>(diagonal + 4 * (i - 3));
      const float weight = i % 4 == 3 ? d.w : i % 4 == 2 ? d.z : i % 4 == 1 ? d.y : d.x;
      const float m = fmaf(__saturatef(u[i] * (1.0f / Grid::kTop)), Grid::kTop, kRounder);
      const float code = m - kRounder;
      Pack(m, i, &packed[i / 4]);
      const float rest = u[i] - code;
      t[i] -= code;
      PushInside(triangle, i, t[i], u);
      if constexpr (kErrors) *ee = fmaf(weight * rest, rest, *ee);
    }
    StoreCodes(b, packed);
    StoreErrors(b, t);
  }

  __device__ static void PushInside(uint32_t triangle, int i, float error, float (&u)[16]) {
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const auto l = FromShared<float4>(triangle + 4 * (CrumbTriangleRow(i) + j));
      u[j] = fmaf(l.x, error, u[j]);
      if (j + 1 < i) u[j + 1] = fmaf(l.y, error, u[j + 1]);
      if (j + 2 < i) u[j + 2] = fmaf(l.z, error, u[j + 2]);
      if (j + 3 < i) u[j + 3] = fmaf(l.w, error, u[j + 3]);
    }
  }

  __device__ void StoreErrors(int b, const float (&e)[16]) const {
    const uint32_t chunk = 2 * (b + 1);
    ToShared(ErrorChunk(Lane(), chunk), make_uint4(PackHalf(e[0], e[1]), PackHalf(e[2], e[3]),
                                                   PackHalf(e[4], e[5]), PackHalf(e[6], e[7])));
    ToShared(ErrorChunk(Lane(), chunk + 1),
             make_uint4(PackHalf(e[8], e[9]), PackHalf(e[10], e[11]), PackHalf(e[12], e[13]),
                        PackHalf(e[14], e[15])));
    __syncwarp();
  }

  // Errors of this lane's row from its codes.
  __device__ void RedoErrors(float inverse, float zero) const {
    __syncwarp();
#pragma unroll 1
    for (int b = 0; b < kBlocks; ++b) {
      float t[16], codes[16];
      LoadBlock(b, t);
      LoadCodes(b, codes);
#pragma unroll
      for (int i = 0; i < 16; ++i) t[i] = fmaf(t[i], inverse, zero) - codes[i];
      StoreErrors(b, t);
    }
  }

  // Sums of rows g, g + 8, ... over a quad's lanes, to the lane of each row.
  __device__ static float OfRow(float (&sums)[4]) {
    float out = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 1);
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 2);
      const float of_row = __shfl_sync(0xffffffffu, sums[i], static_cast<int>(Lane() % 8 * 4));
      if (Lane() / 8 == static_cast<uint32_t>(i)) out = of_row;
    }
    return out;
  }

  const uint32_t share_, row_;
  // Where this lane starts to load 16 rows of block 0, of rows and of errors, as first operands.
  const uint32_t row_operand_, error_operand_;
};

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_CRUMB_CODES_CUH_
