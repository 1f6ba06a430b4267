// cudaMalloc, or the driver's virtual memory: one physical allocation, one range of addresses,
// mapped.
#include "gpu/pool/cuda_arena.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/page_header.h"
#include "gpu/device/cuda_driver.cuh"
#include "gpu/device/cuda_memory.h"
#include "gpu/device/cuda_status.h"
#include "gpu/pool/hbm_size.h"

namespace crumb {
namespace {

constexpr CUmemAllocationHandleType kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr char kUseMalloc[] = ": make the arena by cudaMalloc instead";

// The driver's calls for virtual memory.
struct VmmCalls {
  PFN_cuDeviceGetAttribute_v2000 attribute = nullptr;
  PFN_cuMemGetAllocationGranularity_v10020 granularity = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemAddressReserve_v10020 reserve = nullptr;
  PFN_cuMemAddressFree_v10020 free = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
  PFN_cuMemExportToShareableHandle_v10020 export_handle = nullptr;

  // False: this driver lacks one.
  bool Find() {
    const auto find = [](auto* call, const char* name, unsigned version) {
      *call = DriverCall<std::remove_pointer_t<decltype(call)>>(name, version);
      return *call != nullptr;
    };
    return find(&attribute, "cuDeviceGetAttribute", 2000) &&
           find(&granularity, "cuMemGetAllocationGranularity", 10020) &&
           find(&create, "cuMemCreate", 10020) && find(&release, "cuMemRelease", 10020) &&
           find(&reserve, "cuMemAddressReserve", 10020) && find(&free, "cuMemAddressFree", 10020) &&
           find(&map, "cuMemMap", 10020) && find(&unmap, "cuMemUnmap", 10020) &&
           find(&set_access, "cuMemSetAccess", 10020) &&
           find(&export_handle, "cuMemExportToShareableHandle", 10020);
  }
};

// What was made so far; undone in reverse, whole or half made.
class VmmMemory {
 public:
  VmmMemory() = default;
  ~VmmMemory();
  VmmMemory(const VmmMemory&) = delete;
  VmmMemory& operator=(const VmmMemory&) = delete;

  absl::Status Make(const DeviceArenaOptions& options);
  absl::StatusOr<int> ExportFd() const;
  absl::Status SetAccess(int device) const;
  uint8_t* data() const { return reinterpret_cast<uint8_t*>(address_); }

 private:
  absl::Status CheckDevice() const;
  absl::Status Check(CUresult result, const char* what) const {
    return CudaStatus(static_cast<int>(result), what, device_);
  }

  VmmCalls calls_;
  int device_ = -1;
  uint64_t bytes_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
  bool created_ = false;  // WHY a flag: no value of a handle is said to be none
  CUdeviceptr address_ = 0;
  bool mapped_ = false;
};

// A failure to free has no remedy: after a lost context every call fails, and the process ends.
VmmMemory::~VmmMemory() {
  if (!created_ || cudaSetDevice(device_) != cudaSuccess) return;
  if (mapped_) (void)calls_.unmap(address_, bytes_);
  if (address_ != 0) (void)calls_.free(address_, bytes_);
  (void)calls_.release(handle_);
}

absl::Status VmmMemory::CheckDevice() const {
  for (const auto& [attribute, what] :
       {std::pair{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory"},
        std::pair{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                  "memory that exports as a file descriptor"}}) {
    int value = 0;
    CRUMB_TRY(Check(calls_.attribute(&value, attribute, device_), "asking for its abilities"));
    if (value == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("CUDA device ", device_, ": has no ", what, kUseMalloc));
    }
  }
  return absl::OkStatus();
}

absl::Status VmmMemory::Make(const DeviceArenaOptions& options) {
  device_ = options.device;
  bytes_ = options.bytes;
  CRUMB_TRY(CheckCudaDevice(device_));
  CRUMB_TRY(CudaStatus(cudaSetDevice(device_), "cannot be used", device_));
  if (!calls_.Find()) {
    return absl::FailedPreconditionError(
        absl::StrCat("CUDA device ", device_, ": the driver has no virtual memory", kUseMalloc));
  }
  CRUMB_TRY(CheckDevice());
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = kFd;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_};
  size_t step = 0;
  CRUMB_TRY(
      Check(calls_.granularity(&step, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "no step"));
  if (step == 0 || bytes_ % step != 0) {
    return absl::InvalidArgumentError(absl::StrCat("CUDA device ", device_, ": pool.hbm_bytes is ",
                                                   bytes_, " bytes; this device maps multiples of ",
                                                   step));
  }
  const std::string what = absl::StrCat("no ", bytes_, " bytes of GPU memory");
  CRUMB_TRY(Check(calls_.create(&handle_, bytes_, &properties, 0), what.c_str()));
  created_ = true;
  CRUMB_TRY(Check(calls_.reserve(&address_, bytes_, 0, 0, 0), "no addresses for GPU memory"));
  CRUMB_TRY(Check(calls_.map(address_, bytes_, 0, handle_, 0), "GPU memory was not mapped"));
  mapped_ = true;
  return SetAccess(device_);
}

absl::Status VmmMemory::SetAccess(int device) const {
  const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return Check(calls_.set_access(address_, bytes_, &access, 1), "no access to GPU memory");
}

absl::StatusOr<int> VmmMemory::ExportFd() const {
  int fd = -1;
  CRUMB_TRY(Check(calls_.export_handle(&fd, handle_, kFd, 0), "GPU memory was not exported"));
  return fd;
}

absl::Status CheckBytes(const DeviceArenaOptions& options) {
  if (options.bytes > 0 && options.bytes % kHbmStepBytes == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("CUDA device ", options.device, ": bytes is ",
                                                 options.bytes, "; it must be a multiple of ",
                                                 kHbmStepBytes, " other than 0"));
}

// The current device from now on reaches what cudaMalloc gave of another.
absl::Status ReachPeer(int device, int peer) {
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();  // the next call must not find it
    return absl::OkStatus();
  }
  return TakenCudaStatus(error, absl::StrCat("reaching memory of device ", peer), device);
}

// The error of an allocation, with what would have fitted.
absl::Status WithFree(const absl::Status& status, int device) {
  if (status.code() != absl::StatusCode::kResourceExhausted) return status;
  std::string free = "; ";
  if (const auto memory = AskDeviceMemory(device); memory.ok()) {
    free = absl::StrCat("; ", memory->free_bytes >> 20, " MiB of ", memory->total_bytes >> 20,
                        " MiB are free: ");
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      status.message(), free, "lower pool.hbm_bytes, or the memory fraction of engines"));
}

}  // namespace

struct DeviceArena::Impl {
  DeviceArenaOptions options;
  DeviceBuffer malloced;
  VmmMemory vmm;
  uint8_t* data = nullptr;

  absl::Status Make() {
    if (options.kind == DeviceArenaKind::kVmm) {
      CRUMB_TRY(vmm.Make(options));
      data = vmm.data();
    } else {
      CRUMB_ASSIGN(malloced, DeviceBuffer::Create(options.device, options.bytes));
      data = reinterpret_cast<uint8_t*>(malloced.data());
    }
    if (reinterpret_cast<uintptr_t>(data) % kPageAlignment == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("CUDA device ", options.device,
                                            ": memory at an address that is no multiple of ",
                                            kPageAlignment));
  }
};

absl::StatusOr<DeviceMemory> AskDeviceMemory(int device) {
  CRUMB_TRY(CheckCudaDevice(device));
  CRUMB_TRY(CudaStatus(cudaSetDevice(device), "cannot be used", device));
  size_t free = 0;
  size_t total = 0;
  CRUMB_TRY(TakenCudaStatus(cudaMemGetInfo(&free, &total), "asking for free memory", device));
  return DeviceMemory{total, free};
}

DeviceArena::DeviceArena() = default;
DeviceArena::~DeviceArena() = default;
DeviceArena::DeviceArena(DeviceArena&& other) noexcept = default;
DeviceArena& DeviceArena::operator=(DeviceArena&& other) noexcept = default;

absl::StatusOr<DeviceArena> DeviceArena::Create(const DeviceArenaOptions& options) {
  CRUMB_TRY(CheckBytes(options));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  CRUMB_TRY(WithFree(impl->Make(), options.device));
  DeviceArena arena;
  arena.impl_ = std::move(impl);
  return arena;
}

MutableBytes DeviceArena::memory() const {
  return impl_ == nullptr ? MutableBytes{} : MutableBytes{impl_->data, impl_->options.bytes};
}
int DeviceArena::device() const { return impl_ == nullptr ? -1 : impl_->options.device; }
DeviceArenaKind DeviceArena::kind() const {
  return impl_ == nullptr ? DeviceArenaKind::kMalloc : impl_->options.kind;
}

absl::Status DeviceArena::LetReach(int device) const {
  CRUMB_CHECK(impl_ != nullptr);
  CRUMB_TRY(CheckCudaDevice(device));
  CRUMB_TRY(CudaStatus(cudaSetDevice(device), "cannot be used", device));
  const int owner = impl_->options.device;
  if (device == owner) return absl::OkStatus();
  int can = 0;
  CRUMB_TRY(TakenCudaStatus(cudaDeviceCanAccessPeer(&can, device, owner),
                            "asking for its abilities", device));
  if (can == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("CUDA device ", device, ": cannot reach memory of device ", owner,
                     " (nvidia-smi topo -p2p rw says why): serve each by a daemon of its own"));
  }
  return kind() == DeviceArenaKind::kVmm ? impl_->vmm.SetAccess(device) : ReachPeer(device, owner);
}

absl::StatusOr<int> DeviceArena::ExportFd() const {
  if (kind() == DeviceArenaKind::kVmm) return impl_->vmm.ExportFd();
  return absl::FailedPreconditionError(
      "GPU memory: what cudaMalloc gave has no file descriptor: share it by CUDA IPC, or make the "
      "arena of virtual memory");
}

}  // namespace crumb
