// CUDA IPC: what exports, what is mapped, and what an error of it means to a user.
#include "gpu/device/cuda_share.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "cachesvc/base/check.h"
#include "gpu/device/cuda_current.cuh"
#include "gpu/device/cuda_driver.cuh"
#include "gpu/device/cuda_status.h"

namespace crumb {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == kGpuHandleBytes);
static_assert(sizeof(cudaIpcEventHandle_t) == kGpuHandleBytes);
static_assert(sizeof(cudaUUID_t) == sizeof(GpuUuid));

constexpr unsigned kDriverVersion = 12000;

struct Allocation {
  std::byte* base = nullptr;
  uint64_t bytes = 0;
};

// Of the allocation that an address lies in, as the driver knows it.
absl::StatusOr<Allocation> AllocationOf(const void* address, int device) {
  static const auto range_of =
      DriverCall<PFN_cuMemGetAddressRange_v3020>("cuMemGetAddressRange", kDriverVersion);
  if (range_of == nullptr) {
    return absl::FailedPreconditionError("CUDA's driver has no cuMemGetAddressRange: update it");
  }
  CUdeviceptr base = 0;
  size_t bytes = 0;
  const CUresult error = range_of(&base, &bytes, reinterpret_cast<CUdeviceptr>(address));
  CRUMB_TRY(CudaStatus(static_cast<int>(error), "finding an allocation", device));
  return Allocation{reinterpret_cast<std::byte*>(base), bytes};
}

bool Exports(const void* address) {
  static const auto attribute_of =
      DriverCall<PFN_cuPointerGetAttribute_v4000>("cuPointerGetAttribute", kDriverVersion);
  int capable = 0;
  return attribute_of != nullptr &&
         attribute_of(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                      reinterpret_cast<CUdeviceptr>(address)) == CUDA_SUCCESS &&
         capable != 0;
}

absl::Status DoesNotExport(int device) {
  return absl::FailedPreconditionError(
      "CUDA device " + std::to_string(device) +
      ": memory of a pool (cudaMallocAsync) or of virtual memory (PyTorch's expandable segments, "
      "an "
      "engine's sleep mode) cannot be mapped by another process: set "
      "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False and turn sleep mode off, or let the "
      "worker run the codec");
}

// Which device of this process that is.
absl::StatusOr<int> DeviceWith(const GpuUuid& uuid) {
  int count = 0;
  CRUMB_TRY(TakenCudaStatus(cudaGetDeviceCount(&count), "counting GPUs", 0));
  for (int device = 0; device < count; ++device) {
    CRUMB_ASSIGN(const GpuUuid own, UuidOfDevice(device));
    if (own == uuid) return device;
  }
  return absl::NotFoundError(
      "GPU memory: the worker's GPU is none of the " + std::to_string(count) +
      " that this process sees: compare CUDA_VISIBLE_DEVICES (or the container's GPUs) of both");
}

}  // namespace

absl::StatusOr<GpuUuid> UuidOfDevice(int device) {
  cudaDeviceProp properties = {};
  CRUMB_TRY(
      TakenCudaStatus(cudaGetDeviceProperties(&properties, device), "asking for its id", device));
  GpuUuid uuid;
  std::memcpy(uuid.data(), properties.uuid.bytes, uuid.size());
  return uuid;
}

absl::StatusOr<GpuUuid> UuidOfMemory(const void* address) {
  cudaPointerAttributes attributes = {};
  CRUMB_TRY(
      TakenCudaStatus(cudaPointerGetAttributes(&attributes, address), "asking about memory", 0));
  if (attributes.type != cudaMemoryTypeDevice) {
    return absl::InvalidArgumentError("GPU memory: this is none of a device");
  }
  return UuidOfDevice(attributes.device);
}

absl::StatusOr<GpuShare> ShareGpuMemory(const void* address, uint64_t bytes) {
  cudaPointerAttributes attributes = {};
  CRUMB_TRY(
      TakenCudaStatus(cudaPointerGetAttributes(&attributes, address), "asking about memory", 0));
  if (attributes.type != cudaMemoryTypeDevice || bytes == 0) {
    return absl::InvalidArgumentError(
        "GPU memory: only a range of device memory can be lent, not of the host's or managed "
        "memory, and not an empty one");
  }
  const int device = attributes.device;
  const OnDevice current(device);
  CRUMB_TRY(TakenCudaStatus(current.error(), "sharing memory", device));
  CRUMB_ASSIGN(const Allocation allocation, AllocationOf(address, device));
  GpuShare share;
  share.offset = static_cast<uint64_t>(static_cast<const std::byte*>(address) - allocation.base);
  share.allocation_bytes = allocation.bytes;
  share.bytes = bytes;
  if (!LiesWithin(share.offset, bytes, allocation.bytes)) {
    return absl::InvalidArgumentError(
        "GPU memory: " + std::to_string(bytes) + " bytes at offset " +
        std::to_string(share.offset) + " pass the end of an allocation of " +
        std::to_string(allocation.bytes) + ": lend the ranges of several allocations one by one");
  }
  if (!Exports(address)) return DoesNotExport(device);
  cudaIpcMemHandle_t handle;
  CRUMB_TRY(
      TakenCudaStatus(cudaIpcGetMemHandle(&handle, allocation.base), "sharing memory", device));
  std::memcpy(share.handle.data(), &handle, sizeof(handle));
  CRUMB_ASSIGN(share.device, UuidOfDevice(device));
  return share;
}

absl::StatusOr<GpuImports::Import> GpuImports::Open(const GpuShare& share) const {
  CRUMB_ASSIGN(const int device, DeviceWith(share.device));
  const OnDevice current(device);
  CRUMB_TRY(TakenCudaStatus(current.error(), "mapping a worker's memory", device));
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, share.handle.data(), sizeof(handle));
  void* base = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    const absl::Status status = TakenCudaStatus(error, "mapping a worker's memory", device);
    return absl::FailedPreconditionError(
        std::string(status.message()) +
        "; the worker may be gone, or in another container: both need one PID and IPC namespace "
        "(hostPID and hostIPC), or let the worker run the codec");
  }
  Import import = {.handle = share.handle,
                   .base = static_cast<std::byte*>(base),
                   .bytes = 0,
                   .device = device,
                   .ranges = 0};
  const absl::StatusOr<Allocation> found = AllocationOf(base, device);
  if (found.ok() && found->base == import.base) import.bytes = found->bytes;
  if (import.bytes != 0) return import;
  (void)cudaIpcCloseMemHandle(base);
  return found.ok() ? absl::InternalError("GPU memory: a mapping that is no whole allocation")
                    : found.status();
}

absl::StatusOr<GpuImports::Range> GpuImports::Map(const GpuShare& share) {
  auto place = imports_.begin();
  while (place != imports_.end() && place->second.handle != share.handle) ++place;
  const bool fresh = place == imports_.end();
  if (fresh) {
    if (imports_.size() >= most_) {
      return absl::ResourceExhaustedError(
          "GPU memory: " + std::to_string(most_) +
          " allocations of workers are mapped: lend few large ones instead of one per layer");
    }
    CRUMB_ASSIGN(Import import, Open(share));
    place = imports_.emplace(++last_, import).first;
  }
  Import& import = place->second;
  // What the other process says of its allocation counts for nothing.
  if (LiesWithin(share.offset, share.bytes, import.bytes)) {
    ++import.ranges;
    return Range{import.base + share.offset, share.bytes, import.device, place->first};
  }
  const uint64_t there = import.bytes;
  if (fresh) {
    (void)cudaIpcCloseMemHandle(import.base);
    imports_.erase(place);
  }
  return absl::InvalidArgumentError("GPU memory: " + std::to_string(share.bytes) +
                                    " bytes at offset " + std::to_string(share.offset) +
                                    " of an allocation that has " + std::to_string(there));
}

void GpuImports::Release(const Range& range) {
  const auto place = imports_.find(range.import);
  CRUMB_CHECK(place != imports_.end() && place->second.ranges > 0);
  if (--place->second.ranges > 0) return;
  // A failure has no remedy: the context is lost, and the process ends.
  (void)cudaIpcCloseMemHandle(place->second.base);
  imports_.erase(place);
}

GpuImports::~GpuImports() {
  for (const auto& [id, import] : imports_) (void)cudaIpcCloseMemHandle(import.base);
}

void GpuEvent::Destroy::operator()(void* event) const {
  (void)cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

absl::StatusOr<GpuEvent> GpuEvent::Create(int device) {
  const OnDevice current(device);
  CRUMB_TRY(TakenCudaStatus(current.error(), "making an event", device));
  cudaEvent_t made = nullptr;
  CRUMB_TRY(TakenCudaStatus(
      cudaEventCreateWithFlags(&made, cudaEventDisableTiming | cudaEventInterprocess),
      "making an event", device));
  GpuEvent event;
  event.event_.reset(made);
  event.device_ = device;
  cudaIpcEventHandle_t handle;
  CRUMB_TRY(TakenCudaStatus(cudaIpcGetEventHandle(&handle, made), "sharing an event", device));
  std::memcpy(event.handle_.data(), &handle, sizeof(handle));
  return event;
}

absl::StatusOr<GpuEvent> GpuEvent::Open(const GpuHandle& handle, int device) {
  const OnDevice current(device);
  CRUMB_TRY(TakenCudaStatus(current.error(), "opening a worker's event", device));
  cudaIpcEventHandle_t there;
  std::memcpy(&there, handle.data(), sizeof(there));
  cudaEvent_t opened = nullptr;
  CRUMB_TRY(
      TakenCudaStatus(cudaIpcOpenEventHandle(&opened, there), "opening a worker's event", device));
  GpuEvent event;
  event.event_.reset(opened);
  event.handle_ = handle;
  event.device_ = device;
  return event;
}

absl::Status GpuEvent::Record(StreamHandle stream) const {
  CRUMB_CHECK(event_ != nullptr);
  const auto event = static_cast<cudaEvent_t>(event_.get());
  return OnStream(stream, device_, "recording an event",
                  [&] { return cudaEventRecord(event, stream); });
}

absl::Status GpuEvent::Wait(StreamHandle stream) const {
  CRUMB_CHECK(event_ != nullptr);
  const auto event = static_cast<cudaEvent_t>(event_.get());
  return OnStream(stream, device_, "waiting for an event",
                  [&] { return cudaStreamWaitEvent(stream, event, 0); });
}

}  // namespace crumb
