// Registers one page, and has the driver write values to it in stream order.
#include "gpu/device/cuda_word.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "cachesvc/base/check.h"
#include "gpu/device/cuda_current.cuh"
#include "gpu/device/cuda_driver.cuh"

namespace crumb {
namespace {

PFN_cuStreamWriteValue64_v11070 WriteValue() {
  static const auto call =
      DriverCall<PFN_cuStreamWriteValue64_v11070>("cuStreamWriteValue64", 12000);
  return call;
}

}  // namespace

void GpuWord::Unregister::operator()(uint8_t* page) const { (void)cudaHostUnregister(page); }

absl::StatusOr<GpuWord> GpuWord::Create(int device, uint8_t* page) {
  const OnDevice current(device);
  CRUMB_TRY(TakenCudaStatus(current.error(), "making a word", device));
  if (WriteValue() == nullptr) {
    return absl::FailedPreconditionError(
        "GPU memory: the NVIDIA driver cannot write words from a stream: use one of CUDA 12 or "
        "newer");
  }
  CRUMB_TRY(TakenCudaStatus(
      cudaHostRegister(page, kGpuWordBytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
      "locking a page", device));
  GpuWord word;
  word.page_.reset(page);
  void* address = nullptr;
  CRUMB_TRY(TakenCudaStatus(cudaHostGetDevicePointer(&address, page, 0), "naming a page", device));
  word.address_ = reinterpret_cast<uint64_t>(address);
  word.device_ = device;
  return word;
}

absl::Status GpuWord::Set(StreamHandle stream, uint64_t value) const {
  CRUMB_CHECK(page_ != nullptr);
  // By default the write comes behind a barrier of the whole system: what the stream wrote before
  // is there for whoever sees the value.
  return OnStream(stream, device_, "writing a word", [&] {
    return static_cast<cudaError_t>(WriteValue()(stream, address_, value, 0));
  });
}

absl::StatusOr<bool> GpuWord::Idle(StreamHandle stream) const {
  CRUMB_CHECK(page_ != nullptr);
  bool busy = false;
  CRUMB_TRY(OnStream(stream, device_, "asking a stream", [&] {
    const cudaError_t error = cudaStreamQuery(stream);
    busy = error == cudaErrorNotReady;
    return busy ? cudaSuccess : error;
  }));
  return !busy;
}

}  // namespace crumb
