// Kernels that only count, and the part of the CUDA runtime that measuring needs beside
// cuda_fake_runtime.cc. Every time that is measured is FakeCodec::event_ms.
#include "tests/unit/gpu/codec/cuda_fake_codec.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "gpu/codec/cuda_crumb_params.h"
#include "gpu/codec/cuda_launch.h"
#include "gpu/codec/cuda_raw_params.h"

namespace crumb {
namespace {

int Encode(const CudaLaunch& launch) {
  FakeCodec& fake = TheFakeCodec();
  ++fake.encodes;
  if (fake.encode_fails) return cudaErrorInvalidValue;
  if (fake.encode_reports) launch.batch.reports[0].bad_place = 7;
  return 0;
}

}  // namespace

FakeCodec& TheFakeCodec() {
  static FakeCodec fake;
  return fake;
}

int LaunchDecode(const CudaLaunch& launch) {
  FakeCodec& fake = TheFakeCodec();
  ++(launch.batch.rotated_frame != 0 ? fake.rotated : fake.decodes);
  return 0;
}
int LaunchAffineEncode(const CudaLaunch& launch) { return Encode(launch); }
int LaunchCrumbEncode(const CudaCrumbLaunch& launch) { return Encode(launch.base); }
int LaunchRawMove(const CudaRawLaunch&) { return cudaErrorNotSupported; }
int KernelsOverlap(bool* out) {
  *out = true;
  return 0;
}
int LaunchResetReports(CudaPageReport* reports, uint32_t count, void*) {
  for (uint32_t i = 0; i < count; ++i) {
    reports[i] = {};
    reports[i].bad_place = ~0ull;
  }
  return 0;
}
int PrepareCodecKernels(uint32_t, bool encode) {
  return encode ? TheFakeCodec().encode_prepared : TheFakeCodec().decode_prepared;
}
int PrepareCrumbEncode(const CudaForm&, uint32_t, uint32_t) { return 0; }

}  // namespace crumb

extern "C" {

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = crumb::TheFakeCodec().driver_version;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::memcpy(properties->name, "a fake", sizeof("a fake"));
  properties->major = 9;
  properties->totalGlobalMem = size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 132;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all) {
  *free_bytes = crumb::TheFakeCodec().free_bytes;
  *all = size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  return cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, 0);
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(&crumb::TheFakeCodec());
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t stream) {
  return cudaStreamSynchronize(stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = crumb::TheFakeCodec().event_ms;
  return cudaSuccess;
}

}  // extern "C"
