// What the fake kernels of cuda_fake_codec.cc did, and what they shall do. One thread.
#ifndef CRUMB_TESTS_UNIT_GPU_CODEC_CUDA_FAKE_CODEC_H_
#define CRUMB_TESTS_UNIT_GPU_CODEC_CUDA_FAKE_CODEC_H_

#include <cstdint>

namespace crumb {

struct FakeCodec {
  uint64_t free_bytes = uint64_t{288} << 20;  // what the device says is free
  float event_ms = 1.0f;                      // between any two events
  uint64_t encodes = 0, decodes = 0, rotated = 0;
  int driver_version = 13000;  // 0: no driver
  int decode_prepared = 0;     // a cudaError_t
  int encode_prepared = 0;
  bool encode_fails = false;    // the launch is refused
  bool encode_reports = false;  // the first page is said to hold a NaN
};

FakeCodec& TheFakeCodec();

}  // namespace crumb

#endif  // CRUMB_TESTS_UNIT_GPU_CODEC_CUDA_FAKE_CODEC_H_
