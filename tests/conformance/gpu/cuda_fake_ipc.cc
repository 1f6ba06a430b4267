// Allocations are memfds: each opening of one is a mapping of its own, as between processes.
#include "tests/conformance/gpu/cuda_fake_ipc.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "cachesvc/base/check.h"
#include "tests/conformance/gpu/cuda_fake_runtime.h"

namespace crumb::fake_cuda {
namespace {

struct Allocation {
  int file = -1;
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  bool ended = false;
};
struct Mapping {  // while it is open
  std::byte* base = nullptr;
  uint64_t bytes = 0;
};

std::vector<Allocation>& Allocations() {
  static std::vector<Allocation> all;
  return all;
}
std::vector<Mapping>& Mappings() {
  static std::vector<Mapping> all;
  return all;
}

template <typename T>
T* Find(std::vector<T>& all, const void* address) {
  for (T& one : all) {
    if (address >= one.base && address < one.base + one.bytes) return &one;
  }
  return nullptr;
}

std::byte* MapFile(int file, uint64_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  CRUMB_CHECK(base != MAP_FAILED);
  return static_cast<std::byte*>(base);
}

CUresult AddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  if (Ipc().range_error != 0) return static_cast<CUresult>(Ipc().range_error);
  const auto* pointer = reinterpret_cast<const void*>(address);
  if (const Allocation* found = Find(Allocations(), pointer); found != nullptr) {
    *base = reinterpret_cast<CUdeviceptr>(found->base), *bytes = found->bytes;
    return CUDA_SUCCESS;
  }
  const Mapping* found = Find(Mappings(), pointer);
  if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
  *base = reinterpret_cast<CUdeviceptr>(found->base), *bytes = found->bytes - Ipc().range_cut;
  return CUDA_SUCCESS;
}

CUresult Attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (attribute != CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) return CUDA_ERROR_INVALID_VALUE;
  const Allocation* found = Find(Allocations(), reinterpret_cast<const void*>(address));
  *static_cast<int*>(data) = found != nullptr && found->kind == MemoryKind::kDevice ? 1 : 0;
  return CUDA_SUCCESS;
}

const bool kAdded = [] {
  AddDriverCall("cuMemGetAddressRange", reinterpret_cast<void*>(AddressRange));
  AddDriverCall("cuPointerGetAttribute", reinterpret_cast<void*>(Attribute));
  return true;
}();

}  // namespace

std::byte* Allocate(uint64_t bytes, MemoryKind kind) {
  CRUMB_CHECK(kAdded);
  const int file = memfd_create("fake-gpu", MFD_CLOEXEC);
  CRUMB_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0);
  Allocations().push_back({file, MapFile(file, bytes), bytes, kind});
  return Allocations().back().base;
}
void EndAllocation(const std::byte* memory) { Find(Allocations(), memory)->ended = true; }
IpcState& Ipc() {
  static IpcState state;
  return state;
}

}  // namespace crumb::fake_cuda

using crumb::fake_cuda::Allocation;
using crumb::fake_cuda::Ipc;
using crumb::fake_cuda::MemoryKind;

// Recorded work of a stream that another one waits for.
struct CUevent_st {
  std::atomic<uint64_t> recorded = 0, reached = 0;
};

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return cudaErrorInvalidDevice;
  *properties = {};
  std::memcpy(properties->uuid.bytes, "fake-gpu-number0", 16);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* address) {
  *out = {};
  const Allocation* found = crumb::fake_cuda::Find(crumb::fake_cuda::Allocations(), address);
  if (found == nullptr) return cudaSuccess;  // memory that CUDA does not know
  out->type = found->kind == MemoryKind::kHost      ? cudaMemoryTypeHost
              : found->kind == MemoryKind::kManaged ? cudaMemoryTypeManaged
                                                    : cudaMemoryTypeDevice;
  return cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* base) {
  const Allocation* found = crumb::fake_cuda::Find(crumb::fake_cuda::Allocations(), base);
  if (found == nullptr || found->base != base) return cudaErrorInvalidValue;
  *handle = {};
  std::memcpy(handle->reserved, &found->base, sizeof(found->base));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** base, cudaIpcMemHandle_t handle, unsigned int) {
  if (Ipc().open_error != 0) return static_cast<cudaError_t>(Ipc().open_error);
  std::byte* exported = nullptr;
  std::memcpy(&exported, handle.reserved, sizeof(exported));
  const Allocation* found = crumb::fake_cuda::Find(crumb::fake_cuda::Allocations(), exported);
  if (found == nullptr || found->ended) return cudaErrorMapBufferObjectFailed;
  std::byte* mapped = crumb::fake_cuda::MapFile(found->file, found->bytes);
  crumb::fake_cuda::Mappings().push_back({mapped, found->bytes});
  ++Ipc().open_mappings;
  *base = mapped;
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* base) {
  auto& mappings = crumb::fake_cuda::Mappings();
  const auto* found = crumb::fake_cuda::Find(mappings, base);
  if (found == nullptr || found->base != base) return cudaErrorInvalidValue;
  munmap(found->base, found->bytes);
  mappings.erase(mappings.begin() + (found - mappings.data()));
  --Ipc().open_mappings;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if (flags != (cudaEventDisableTiming | cudaEventInterprocess)) return cudaErrorInvalidValue;
  // Kept until the test ends: the "other process" may still wait for it.
  static std::vector<std::unique_ptr<CUevent_st>> events;
  events.push_back(std::make_unique<CUevent_st>());
  *event = events.back().get();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  *handle = {};
  std::memcpy(handle->reserved, &event, sizeof(event));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  std::memcpy(event, handle.reserved, sizeof(*event));
  return *event == nullptr ? cudaErrorInvalidResourceHandle : cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ++event->recorded;
  return static_cast<cudaError_t>(crumb::fake_cuda::AddToStream(
      stream,
      [](void* arg) {
        auto* of = static_cast<CUevent_st*>(arg);
        ++of->reached;
        of->reached.notify_all();
      },
      event));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  return static_cast<cudaError_t>(crumb::fake_cuda::AddToStream(
      stream,
      [](void* arg) {
        auto* of = static_cast<CUevent_st*>(arg);
        for (uint64_t now = of->reached; now < of->recorded; now = of->reached) {
          of->reached.wait(now);
        }
      },
      event));
}

}  // extern "C"
