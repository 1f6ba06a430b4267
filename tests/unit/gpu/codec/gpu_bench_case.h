// A measurement of the GPU benchmark that is soon over: few pages, few launches, every way.
#ifndef CRUMB_TESTS_UNIT_GPU_CODEC_GPU_BENCH_CASE_H_
#define CRUMB_TESTS_UNIT_GPU_CODEC_GPU_BENCH_CASE_H_

#include "gpu/codec/gpu_bench.h"

namespace crumb::codec_test {

inline GpuBenchCase SmallBenchCase(CodecKind kind) {
  GpuBenchCase wanted;
  wanted.kind = kind;
  wanted.heads = 2;
  wanted.pages = {8, 1};
  wanted.ways = {GpuBenchWay::kEncode, GpuBenchWay::kDecode, GpuBenchWay::kDecodeRotated};
  wanted.bursts = 1;
  wanted.sustained_launches = 10;
  return wanted;
}

}  // namespace crumb::codec_test

#endif  // CRUMB_TESTS_UNIT_GPU_CODEC_GPU_BENCH_CASE_H_
