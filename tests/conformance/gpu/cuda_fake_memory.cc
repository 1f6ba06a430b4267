// Physical memory of the fake device is a memfd, addresses are a mapping that faults until memory
// is mapped into it: what is used too early or too late faults, and an exported fd is the memory
// itself.
#include "tests/conformance/gpu/cuda_fake_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <string_view>

#include "cachesvc/base/check.h"
#include "tests/conformance/gpu/cuda_fake_runtime.h"

namespace crumb::fake_cuda {
namespace {

struct Range {  // of addresses
  std::byte* base = nullptr;
  uint64_t bytes = 0;
};
std::vector<Range>& Registered() {
  static std::vector<Range> all;
  return all;
}

// True: this one fails, with Memory().fail_error.
bool Fails(const char* name) {
  MemoryState& state = Memory();
  if (state.fail_call != name || state.fail_skip-- > 0) return false;
  state.fail_call.clear();
  return true;
}
CUresult Error() { return static_cast<CUresult>(Memory().fail_error); }

void Did(const char* name, int change) {
  Memory().calls.emplace_back(name);
  Memory().live += change;
  CRUMB_CHECK(Memory().live >= 0);
}

void* At(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult Granularity(size_t* step, const CUmemAllocationProp* properties,
                     CUmemAllocationGranularity_flags) {
  if (Fails("granularity")) return Error();
  if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  *step = Memory().step_bytes;
  return CUDA_SUCCESS;
}

CUresult Create(CUmemGenericAllocationHandle* handle, size_t bytes,
                const CUmemAllocationProp* properties, unsigned long long) {
  if (Fails("create")) return Error();
  if (bytes % Memory().step_bytes != 0 || properties->location.id != 0 ||
      properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (bytes > Memory().free_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const int file = memfd_create("fake-gpu", MFD_CLOEXEC);
  CRUMB_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0);
  *handle = static_cast<CUmemGenericAllocationHandle>(file);
  Did("create", 1);
  return CUDA_SUCCESS;
}
CUresult Release(CUmemGenericAllocationHandle handle) {
  CRUMB_CHECK(close(static_cast<int>(handle)) == 0);
  Did("release", -1);
  return CUDA_SUCCESS;
}

CUresult Reserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  if (Fails("reserve")) return Error();
  void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CRUMB_CHECK(base != MAP_FAILED);
  *address = reinterpret_cast<CUdeviceptr>(base);
  Did("reserve", 1);
  return CUDA_SUCCESS;
}
CUresult Free(CUdeviceptr address, size_t bytes) {
  CRUMB_CHECK(munmap(At(address), bytes) == 0);
  Did("free", -1);
  return CUDA_SUCCESS;
}

// Mapped, but not to be touched until access is set.
CUresult Map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long) {
  if (Fails("map")) return Error();
  CRUMB_CHECK(mmap(At(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, static_cast<int>(handle),
                   static_cast<off_t>(offset)) != MAP_FAILED);
  Did("map", 1);
  return CUDA_SUCCESS;
}
CUresult Unmap(CUdeviceptr address, size_t bytes) {
  CRUMB_CHECK(mmap(At(address), bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED);
  Did("unmap", -1);
  return CUDA_SUCCESS;
}
CUresult SetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  if (Fails("access")) return Error();
  if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Memory().reach.push_back(access->location.id);
  CRUMB_CHECK(mprotect(At(address), bytes, PROT_READ | PROT_WRITE) == 0);
  Did("access", 0);
  return CUDA_SUCCESS;
}

CUresult Export(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                unsigned long long) {
  if (Fails("export")) return Error();
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  *static_cast<int*>(out) = fcntl(static_cast<int>(handle), F_DUPFD_CLOEXEC, 0);
  return CUDA_SUCCESS;
}
// The descriptor is passed as a pointer's value.
CUresult Import(CUmemGenericAllocationHandle* handle, void* descriptor, CUmemAllocationHandleType) {
  const auto file = static_cast<int>(reinterpret_cast<intptr_t>(descriptor));
  *handle = static_cast<CUmemGenericAllocationHandle>(fcntl(file, F_DUPFD_CLOEXEC, 0));
  Did("import", 1);
  return CUDA_SUCCESS;
}

CUresult Attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  if (Fails("attribute")) return Error();
  if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) {
    *value = Memory().virtual_memory ? 1 : 0;
  } else if (attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) {
    *value = Memory().exports_fd ? 1 : 0;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

struct Named {
  const char* name;
  void* call;
};
const Named kCalls[] = {
    {"cuDeviceGetAttribute", reinterpret_cast<void*>(Attribute)},
    {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(Granularity)},
    {"cuMemCreate", reinterpret_cast<void*>(Create)},
    {"cuMemRelease", reinterpret_cast<void*>(Release)},
    {"cuMemAddressReserve", reinterpret_cast<void*>(Reserve)},
    {"cuMemAddressFree", reinterpret_cast<void*>(Free)},
    {"cuMemMap", reinterpret_cast<void*>(Map)},
    {"cuMemUnmap", reinterpret_cast<void*>(Unmap)},
    {"cuMemSetAccess", reinterpret_cast<void*>(SetAccess)},
    {"cuMemExportToShareableHandle", reinterpret_cast<void*>(Export)},
    {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(Import)},
};

const bool kAdded = [] {
  for (const Named& one : kCalls) AddDriverCall(one.name, one.call);
  return true;
}();

}  // namespace

MemoryState& Memory() {
  CRUMB_CHECK(kAdded);
  static MemoryState state;
  return state;
}

void ProvideVmmCall(const char* name) {
  for (const Named& one : kCalls) {
    if (std::string_view(one.name) == name) AddDriverCall(one.name, one.call);
  }
}
void HideVmmCall(const char* name) { AddDriverCall(name, nullptr); }

}  // namespace crumb::fake_cuda

using crumb::fake_cuda::Memory;

extern "C" {

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  if (crumb::fake_cuda::Fails("info")) return static_cast<cudaError_t>(Memory().fail_error);
  *free_bytes = Memory().free_bytes;
  *total = Memory().total_bytes;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrCanUseHostPointerForRegisteredMem) return cudaErrorInvalidValue;
  *value = Memory().same_addresses ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer ? Memory().peer_access : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  if (crumb::fake_cuda::Fails("peer")) return static_cast<cudaError_t>(Memory().fail_error);
  if (peer != 0 || flags != 0) return cudaErrorInvalidValue;
  Memory().reach.push_back(1);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned int flags) {
  if (crumb::fake_cuda::Fails("register")) return static_cast<cudaError_t>(Memory().fail_error);
  if (flags != (cudaHostRegisterPortable | cudaHostRegisterMapped) || bytes == 0 ||
      bytes > size_t{1} << 30) {
    return cudaErrorInvalidValue;
  }
  auto* const base = static_cast<std::byte*>(memory);
  auto& all = crumb::fake_cuda::Registered();
  for (const auto& other : all) {
    if (base < other.base + other.bytes && other.base < base + bytes) {
      return cudaErrorHostMemoryAlreadyRegistered;
    }
  }
  all.push_back({base, bytes});
  crumb::fake_cuda::Did("register", 1);
  return cudaSuccess;
}

// The last one first, or it is the caller's mistake.
cudaError_t cudaHostUnregister(void* memory) {
  auto& all = crumb::fake_cuda::Registered();
  if (all.empty() || all.back().base != memory) {
    crumb::fake_cuda::Did("unregister what is not", 0);
    return cudaErrorHostMemoryNotRegistered;
  }
  all.pop_back();
  crumb::fake_cuda::Did("unregister", -1);
  return cudaSuccess;
}

}  // extern "C"
