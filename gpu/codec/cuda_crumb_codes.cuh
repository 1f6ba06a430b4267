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
  const uint4* lower;  // device memory; null: in shared memory at lower_shared
  uint32_t lower_shared;
  uint32_t triangle;  // shared memory
  uint32_t diagonal;  // shared memory
};

// Of a candidate, lengths in the row's units: errors in the metric (or plain) of the codes, with
// the row, and the row's own.
struct CrumbSums {
  float ee = 0.0f, ye = 0.0f, yy = 0.0f;
};

template <int kDim, int kBits>
class CrumbCodes {
 public:
  using Share = CrumbShare<kDim, kBits>;
  using Grid = CrumbLevelGrid<kBits>;
  static constexpr int kBlocks = kDim / 16;

  __device__ CrumbCodes(uint32_t share) : share_(share), row_(share + Lane() * Share::kRowPitch) {}

  // Nearest levels. kErrors: also the error; else only what the gain needs.
  template <bool kErrors>
  __device__ CrumbSums Plain(const CrumbFit& fit, float scale, float zero) const {
    const float inverse = 1.0f / scale;
    const float steep = inverse / Grid::kTop, shift = zero / Grid::kTop;
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
        if constexpr (kErrors) {
          const float rest = fmaf(y[i], inverse, zero) - code;
          errors = fmaf(rest, rest, errors);
        }
      }
      StoreCodes(b, packed);
    }
    CrumbSums sums;
    sums.yy = fit.energy;
    sums.ye = fit.energy - scale * (along - zero * fit.sum);
    sums.ee = errors * scale * scale;
    return sums;
  }

  // With error feedback. The whole warp.
  __device__ CrumbSums Feedback(const CrumbMetricAt& metric, float scale, float zero) const {
    const float inverse = 1.0f / scale;
    CrumbSums sums;  // here: ee and ye in steps
#pragma unroll 1
    for (int b = kBlocks - 1; b >= 0; --b) {
      float u[16], along[16];
      Products(metric, b, u, along);
      Block(metric, b, inverse, zero, u, along, &sums);
    }
    sums.ee *= scale * scale;
    sums.ye *= scale;
    return sums;
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
  __device__ uint32_t CodeAt(uint32_t i) const {
    constexpr uint32_t kPlane = kDim / kPlanes;
    uint32_t code = Byte(i % kPlane) >> (8 / kPlanes * (i / kPlane)) & ((1u << (8 / kPlanes)) - 1);
    if constexpr (kBits == 3) code |= (Byte(kPlane + i / 8) >> i % 8 & 1u) << 2;
    return code;
  }
  // Element of this lane's row, in the row's units.
  __device__ float ElementAt(uint32_t i) const {
    uint16_t bits;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(bits) : "r"(row_ + 2 * i));
    return __half2float(__ushort_as_half(bits));
  }

 private:
  // Adding this leaves the nearest integer, ties to even, in the last place.
  static constexpr float kRounder = 0x1.8p23f;
  static constexpr uint32_t kRounderBits = 0x4b400000u;
  static constexpr int kPlanes = kBits == 4 ? 2 : 4;

  __device__ uint32_t CodeRow() const {
    return share_ + Share::kCodes + Lane() * Share::kCodePitch;
  }
  __device__ uint32_t Byte(uint32_t i) const {
    uint16_t value;
    asm volatile("{\n.reg .u8 b;\nld.shared.u8 b, [%1];\ncvt.u16.u8 %0, b;\n}\n"
                 : "=h"(value)
                 : "r"(CodeRow() + i));
    return value;
  }

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
    constexpr int kPlaneBlocks = kBlocks / kPlanes;
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

  __device__ static void MultiplyHalf(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                      float (&d)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }

  __device__ static uint4 Operand(const CrumbMetricAt& metric, int k, int b) {
    const uint32_t at = static_cast<uint32_t>(k * (k + 1) / 2 + b) * kCrumbOperandBytes;
    if (metric.lower != nullptr) return __ldg(metric.lower + at / 16 + Lane());
    return FromShared<uint4>(metric.lower_shared + at + 16 * Lane());
  }

  // u: what the errors of blocks after b push into it; along: L^T y of the block. For this lane's
  // row, in steps and in units.
  __device__ void Products(const CrumbMetricAt& metric, int b, float (&u)[16],
                           float (&along)[16]) const {
    float pushed[2][2][4] = {}, own[2][2][4] = {};
    const uint32_t lane = (Lane() & 15) * Share::kRowPitch + Lane() / 16 * 16;
    const uint32_t error_lane =
        share_ + Share::kErrors + (Lane() & 15) * Share::kErrorPitch + Lane() / 16 * 16;
    const auto multiply = [&](uint32_t at, uint32_t pitch, const uint4& w, float(&d)[2][2][4]) {
      uint32_t a[2][4];
      LoadMatrix(at, a[0]);
      LoadMatrix(at + 16 * pitch, a[1]);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        MultiplyHalf(a[m], w.x, w.y, d[m][0]);
        MultiplyHalf(a[m], w.z, w.w, d[m][1]);
      }
    };
    multiply(share_ + lane + 32 * b, Share::kRowPitch, Operand(metric, b, b), own);
#pragma unroll 2
    for (int k = kBlocks - 1; k > b; --k) {
      const uint4 w = Operand(metric, k, b);
      multiply(share_ + lane + 32 * k, Share::kRowPitch, w, own);
      multiply(error_lane + 32 * (k + 1), Share::kErrorPitch, w, pushed);
    }
    ToLanes(b, pushed, u);
    ToLanes(b, own, along);
  }

  // A tile of sums from the order of tensor cores to one row in each lane.
  __device__ void ToLanes(int b, const float (&d)[2][2][4], float (&out)[16]) const {
    const uint32_t at = share_ + Share::kErrors + 32 * b;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t row = at + (16 * m + 8 * half + LaneRow()) * Share::kErrorPitch;
        ToShared(row + 8 * LaneColumn(), make_float2(d[m][0][2 * half], d[m][0][2 * half + 1]));
        ToShared(row + 32 + 8 * LaneColumn(),
                 make_float2(d[m][1][2 * half], d[m][1][2 * half + 1]));
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const auto four = FromShared<float4>(at + Lane() * Share::kErrorPitch + 4 * i);
      out[i] = four.x, out[i + 1] = four.y, out[i + 2] = four.z, out[i + 3] = four.w;
    }
  }

  __device__ void Block(const CrumbMetricAt& metric, int b, float inverse, float zero,
                        float (&u)[16], const float (&along)[16], CrumbSums* sums) const {
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
      const float heavy = weight * along[i];
      sums->yy = fmaf(heavy, along[i], sums->yy);
      sums->ye = fmaf(heavy, rest, sums->ye);
      sums->ee = fmaf(weight * rest, rest, sums->ee);
    }
    StoreCodes(b, packed);
    if (b != 0) StoreErrors(b, t);
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
    const uint32_t at = share_ + Share::kErrors + Lane() * Share::kErrorPitch + 32 * (b + 1);
    ToShared(at, make_uint4(PackHalf(e[0], e[1]), PackHalf(e[2], e[3]), PackHalf(e[4], e[5]),
                            PackHalf(e[6], e[7])));
    ToShared(at + 16, make_uint4(PackHalf(e[8], e[9]), PackHalf(e[10], e[11]),
                                 PackHalf(e[12], e[13]), PackHalf(e[14], e[15])));
    __syncwarp();
  }

  const uint32_t share_, row_;
};

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_CRUMB_CODES_CUH_
