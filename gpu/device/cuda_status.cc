// One table from CUDA's error numbers to our codes and remedies.
#include "gpu/device/cuda_status.h"

#include <cuda_runtime_api.h>

#include <string>

namespace crumb {
namespace {

constexpr char kNoDriver[] =
    "nvidia-smi has to work here; a container needs the NVIDIA runtime (docker run --gpus all)";
constexpr char kDriverOld[] = "install a driver for CUDA 13 (580 or newer)";
constexpr char kContextLost[] =
    "the CUDA context is lost, the process has to end; compute-sanitizer finds the access";
constexpr char kHardware[] =
    "a hardware fault, the process has to end; dmesg | grep Xid says more, reset or replace the "
    "GPU";
constexpr char kMps[] = "restart the MPS control daemon, then this process";
constexpr char kMemory[] =
    "ask for less or free some: nvidia-smi shows who holds GPU memory; pinned memory counts "
    "against "
    "the host's RAM and the container's memory limit";
constexpr char kOther[] = "dmesg | grep Xid may say more";

struct Known {
  cudaError_t error;
  absl::StatusCode code;
  const char* remedy;
};

using Code = absl::StatusCode;
constexpr Known kKnown[] = {
    {cudaErrorInvalidValue, Code::kInvalidArgument, "a pointer or size that CUDA does not know"},
    {cudaErrorInvalidResourceHandle, Code::kInvalidArgument,
     "a stream or event of another device, or one that is gone"},
    {cudaErrorMemoryAllocation, Code::kResourceExhausted, kMemory},
    {cudaErrorInitializationError, Code::kFailedPrecondition, kNoDriver},
    {cudaErrorNoDevice, Code::kFailedPrecondition, kNoDriver},
    {cudaErrorStubLibrary, Code::kFailedPrecondition, kNoDriver},
    {cudaErrorInsufficientDriver, Code::kFailedPrecondition, kDriverOld},
    {cudaErrorSystemDriverMismatch, Code::kFailedPrecondition, kDriverOld},
    {cudaErrorCompatNotSupportedOnDevice, Code::kFailedPrecondition, kDriverOld},
    {cudaErrorInvalidDevice, Code::kInvalidArgument,
     "nvidia-smi -L lists the devices; CUDA_VISIBLE_DEVICES renumbers them"},
    {cudaErrorDevicesUnavailable, Code::kFailedPrecondition,
     "another process has the GPU in exclusive mode: nvidia-smi -c DEFAULT, or use MPS"},
    {cudaErrorNoKernelImageForDevice, Code::kFailedPrecondition,
     "this build has no code for this GPU: add its architecture to CMAKE_CUDA_ARCHITECTURES"},
    {cudaErrorMpsConnectionFailed, Code::kUnavailable, kMps},
    {cudaErrorMpsServerNotReady, Code::kUnavailable, kMps},
    {cudaErrorMpsClientTerminated, Code::kUnavailable, kMps},
    {cudaErrorIllegalAddress, Code::kInternal, kContextLost},
    {cudaErrorMisalignedAddress, Code::kInternal, kContextLost},
    {cudaErrorInvalidAddressSpace, Code::kInternal, kContextLost},
    {cudaErrorInvalidPc, Code::kInternal, kContextLost},
    {cudaErrorIllegalInstruction, Code::kInternal, kContextLost},
    {cudaErrorAssert, Code::kInternal, kContextLost},
    {cudaErrorLaunchFailure, Code::kInternal, kContextLost},
    {cudaErrorLaunchTimeout, Code::kInternal, kContextLost},
    {cudaErrorECCUncorrectable, Code::kInternal, kHardware},
    {cudaErrorNvlinkUncorrectable, Code::kInternal, kHardware},
    {cudaErrorHardwareStackError, Code::kInternal, kHardware},
};

Known Lookup(int error) {
  for (const Known& row : kKnown) {
    if (row.error == error) return row;
  }
  return {static_cast<cudaError_t>(error), Code::kInternal, kOther};
}

}  // namespace

const char* CudaRemedy(int error) { return Lookup(error).remedy; }

absl::Status CudaStatus(int error, std::string_view what, int device) {
  if (error == cudaSuccess) return absl::OkStatus();
  const Known known = Lookup(error);
  std::string text = "CUDA device " + std::to_string(device) + ": ";
  text.append(what).append(": ").append(cudaGetErrorString(known.error));
  text.append(" (").append(cudaGetErrorName(known.error)).append("): ").append(known.remedy);
  return absl::Status(known.code, text);
}

absl::Status TakenCudaStatus(int error, std::string_view what, int device) {
  if (error != cudaSuccess) (void)cudaGetLastError();
  return CudaStatus(error, what, device);
}

absl::Status CheckCudaDevice(int device) {
  int count = 0;
  CRUMB_TRY(CudaStatus(cudaGetDeviceCount(&count), "no usable GPU", device));
  if (device >= 0 && device < count) return absl::OkStatus();
  const std::string there = count == 0 ? "no GPU" : "devices 0 to " + std::to_string(count - 1);
  return absl::InvalidArgumentError("CUDA device " + std::to_string(device) + ": there are " +
                                    there +
                                    "; nvidia-smi -L lists them, CUDA_VISIBLE_DEVICES renumbers");
}

}  // namespace crumb
