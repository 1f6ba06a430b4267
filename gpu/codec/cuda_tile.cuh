// A tile of 64 rows times a rotation image in shared memory: the fragments of four warps, and the
// product by the tensor cores of the architecture. Device code of the kernels.
#ifndef CRUMB_GPU_CODEC_CUDA_TILE_CUH_
#define CRUMB_GPU_CODEC_CUDA_TILE_CUH_

#include <cstdint>

#include "gpu/codec/cuda_rows.cuh"
#include "gpu/codec/cuda_tuning.h"

namespace crumb::cuda {

// To nearest even; past the largest finite BF16 becomes that, as in bf16.h.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t out;
  asm("cvt.rn.satfinite.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
// The same, but too large becomes infinite: for what must still be told from a number.
__device__ __forceinline__ uint32_t PackBf16OrInfinity(float low, float high) {
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ __forceinline__ float LowBf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float HighBf16(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// What a thread started since the last commit becomes a group.
__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// All groups of the thread have arrived but for the kAfter newest.
template <int kAfter>
__device__ __forceinline__ void CopyAsyncWaitFor() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kAfter) : "memory");
}

// Ordinary writes to shared memory become visible to the tensor cores' own reads.
template <bool kNeeded>
__device__ __forceinline__ void FenceForTensorCores() {
  if constexpr (kNeeded) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Lets the next kernel of the stream begin where this one has blocks no more; all threads.
__device__ __forceinline__ void LetNextBegin() {
  if constexpr (kCudaDependentLaunch)
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// What was put on the stream before this kernel has ended, and what it wrote is seen. Before it
// only what a codec made at its start may be read. All threads, in every kernel: what comes later
// on the stream waits for this kernel alone.
__device__ __forceinline__ void AwaitEarlier() {
  if constexpr (kCudaDependentLaunch) asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Starts to copy an image into shared memory; all threads of the block.
template <int kDim>
__device__ __forceinline__ void StartImage(const void* image, uint32_t to) {
  constexpr int kChunks = kDim * kDim * 2 / 16;
  for (int i = static_cast<int>(threadIdx.x); i < kChunks; i += static_cast<int>(blockDim.x)) {
    CopyAsync16(to + 16 * i, static_cast<const uint8_t*>(image) + 16 * i);
  }
  CopyAsyncCommit();
}
// The image has arrived; what was committed in kAfter groups since may still be on its way. All
// threads of the block; ends with a barrier.
template <int kAfter>
__device__ __forceinline__ void WaitForImage() {
  CopyAsyncWaitFor<kAfter>();
  FenceForTensorCores<kCudaWarpgroups>();
  __syncthreads();
}

// K-major operand, 128-byte swizzle, groups of 8 rows 1024 bytes apart.
__device__ __forceinline__ uint64_t OperandOf(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | uint64_t{1} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

#define CRUMB_OUT4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define CRUMB_OUT16(d, i) \
  CRUMB_OUT4(d, i), CRUMB_OUT4(d, i + 4), CRUMB_OUT4(d, i + 8), CRUMB_OUT4(d, i + 12)

// WHY templates: they are compiled only where somebody calls them.
template <int kN>
requires(kN == 128) __device__ __forceinline__
    void WarpgroupStep(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
      "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
      "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
      "{%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}\n"
      : CRUMB_OUT16(d, 0), CRUMB_OUT16(d, 16), CRUMB_OUT16(d, 32), CRUMB_OUT16(d, 48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

template <int kN>
requires(kN == 64) __device__ __forceinline__
    void WarpgroupStep(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
      "%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}\n"
      : CRUMB_OUT16(d, 0), CRUMB_OUT16(d, 16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

// d = a x image, 64 rows by kN columns; a[s] is the operand of step s of kSteps. Lane (g, c) of a
// warp holds rows g (d[4t], d[4t+1]) and g + 8 (d[4t+2], d[4t+3]), columns 8t + 2c, + 1. The four
// warps of a tile call it together. Until WaitForWarpgroup nobody may touch a or d.
template <int kSteps, int kN>
__device__ __forceinline__ void StartByWarpgroup(uint32_t (&a)[kSteps][4], uint32_t image,
                                                 float (&d)[kN / 2]) {
  const uint64_t operand = OperandOf(image);
  // WHY: what makes an operand must not move in between the steps, which would wait for each other.
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[s][i])::"memory");
  }
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    WarpgroupStep<kN>(d, a[s], operand + (s >> 2) * (kN * 128 >> 4) + (s & 3) * 2, s > 0);
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kCount>
__device__ __forceinline__ void WaitForWarpgroup(float (&d)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Four 8 x 8 matrices of shared memory, a row of one at each lane's address, as operands.
__device__ __forceinline__ void LoadMatrix(uint32_t at, uint32_t (&a)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(at)
               : "memory");
}

// d += a b, 16 rows by 8 columns of a step of 16.
__device__ __forceinline__ void MultiplyBf16(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                             float* d) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of a step of eight.
__device__ __forceinline__ void MultiplyBf16By8(const uint32_t (&a)[2], uint32_t b, float (&d)[4]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}

// The same by each warp for itself, for every architecture.
template <int kSteps, int kN>
__device__ __forceinline__ void MultiplyByWarp(const uint32_t (&a)[kSteps][4], uint32_t image,
                                               float (&d)[kN / 2]) {
#pragma unroll
  for (int s = 0; s < kSteps; s += 2) {
    const uint32_t chunk = static_cast<uint32_t>(s & 3) * 2 + Lane() / 8;
#pragma unroll
    for (int t = 0; t < kN / 8; ++t) {
      const uint32_t row = 8 * t + Lane() % 8;
      uint32_t b[4];
      LoadMatrix(image + (s >> 2) * (kN * 128) + row * 128 + ((chunk ^ Lane() % 8) << 4), b);
      MultiplyBf16(a[s], b[0], b[1], &d[4 * t]);
      MultiplyBf16(a[s + 1], b[2], b[3], &d[4 * t]);
    }
  }
}

// Starts a product; what does not need it may run before Finish. WHY it is worth it: a warp of the
// tile has nothing else to do meanwhile, and there are few others.
template <int kSteps, int kN>
__device__ __forceinline__ void StartProduct(uint32_t (&a)[kSteps][4], uint32_t image,
                                             float (&d)[kN / 2]) {
  // WHY also for warpgroups, which need no start: without values of its own ptxas 13.0 drops the
  // second product of a tile that has two.
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) d[i] = 0.0f;
  if constexpr (kCudaWarpgroups) {
    StartByWarpgroup<kSteps, kN>(a, image, d);
  } else {
    MultiplyByWarp<kSteps, kN>(a, image, d);
  }
}
template <int kCount>
__device__ __forceinline__ void FinishProduct(float (&d)[kCount]) {
  if constexpr (kCudaWarpgroups) WaitForWarpgroup(d);
}

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_TILE_CUH_
