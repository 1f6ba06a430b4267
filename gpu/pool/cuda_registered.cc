// cudaHostRegister, a slice at a time, and the same in reverse.
#include "gpu/pool/cuda_registered.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu/device/cuda_status.h"

namespace crumb {
namespace {

constexpr char kRemedy[] =
    "; raise the limit of locked memory (ulimit -l, LimitMEMLOCK=infinity of the unit) and of the "
    "container, or lower pool.dram_bytes";

size_t SlicesOf(uint64_t bytes) {
  return static_cast<size_t>((bytes + kRegisterSliceBytes - 1) / kRegisterSliceBytes);
}

absl::Status CheckMemory(MutableBytes memory) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto base = reinterpret_cast<uintptr_t>(memory.data());
  if (base == 0 || base % page != 0) {
    return absl::InvalidArgumentError(absl::StrCat("host memory to register: memory.data() is 0x",
                                                   absl::Hex(base), "; it must be a multiple of ",
                                                   page, " other than 0"));
  }
  if (memory.empty() || memory.size() % page != 0) {
    return absl::InvalidArgumentError(absl::StrCat("host memory to register: memory.size() is ",
                                                   memory.size(), "; it must be a multiple of ",
                                                   page, " other than 0"));
  }
  return absl::OkStatus();
}

// Kernels and copies use the host's addresses: an arena of slices has no single other one.
absl::Status CheckAddresses(int device) {
  int same = 0;
  CRUMB_TRY(CudaStatus(
      cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem, device),
      "asking for its abilities", device));
  if (same != 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("CUDA device ", device,
                   ": does not use the host's addresses for registered memory: this platform "
                   "cannot have a DRAM pool that GPUs reach, set pool.hbm_bytes: 0"));
}

}  // namespace

absl::StatusOr<RegisteredMemory> RegisteredMemory::Create(int device, MutableBytes memory) {
  CRUMB_TRY(CheckMemory(memory));
  CRUMB_TRY(CheckCudaDevice(device));
  CRUMB_TRY(CudaStatus(cudaSetDevice(device), "cannot be used", device));
  CRUMB_TRY(CheckAddresses(device));
  RegisteredMemory registered;
  registered.device_ = device;
  CRUMB_TRY(registered.Register(memory));
  return registered;
}

absl::Status RegisteredMemory::Register(MutableBytes memory) {
  for (uint64_t begin = 0; begin < memory.size(); begin += kRegisterSliceBytes) {
    const MutableBytes slice = memory.subspan(begin, kRegisterSliceBytes);
    const cudaError_t error = cudaHostRegister(slice.data(), slice.size(),
                                               cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (error == cudaSuccess) {
      memory_ = memory.first(begin + slice.size());
      continue;
    }
    (void)cudaGetLastError();  // reported here, once
    const std::string what =
        absl::StrCat("slice ", begin / kRegisterSliceBytes + 1, " of ", SlicesOf(memory.size()),
                     " (", slice.size(), " bytes) of the DRAM pool was not registered");
    if (error == cudaErrorHostMemoryAlreadyRegistered) {
      return absl::FailedPreconditionError(
          absl::StrCat("CUDA device ", device_, ": ", what,
                       ": part of it is registered already; register a pool once"));
    }
    const absl::Status status = CudaStatus(error, what, device_);
    return absl::Status(status.code(), absl::StrCat(status.message(), kRemedy));
  }
  return absl::OkStatus();
}

// A failure has no remedy: after a lost context every call fails, and the process ends.
void RegisteredMemory::Unregister() {
  if (memory_.empty()) return;
  if (cudaSetDevice(device_) == cudaSuccess) {
    for (size_t slice = slices(); slice-- > 0;) {
      if (cudaHostUnregister(memory_.data() + slice * kRegisterSliceBytes) != cudaSuccess) {
        (void)cudaGetLastError();
      }
    }
  }
  memory_ = {};
}

RegisteredMemory::~RegisteredMemory() { Unregister(); }

RegisteredMemory::RegisteredMemory(RegisteredMemory&& other) noexcept
    : device_(std::exchange(other.device_, -1)), memory_(std::exchange(other.memory_, {})) {}

RegisteredMemory& RegisteredMemory::operator=(RegisteredMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(memory_, other.memory_);
  return *this;
}

size_t RegisteredMemory::slices() const { return SlicesOf(memory_.size()); }

uint64_t RegisteredMemory::SliceBytesFrom(const uint8_t* at) const {
  const auto base = reinterpret_cast<uintptr_t>(memory_.data());
  const auto address = reinterpret_cast<uintptr_t>(at);
  if (address < base || address - base >= memory_.size()) return 0;
  const uint64_t offset = address - base;
  return std::min(kRegisterSliceBytes - offset % kRegisterSliceBytes, memory_.size() - offset);
}

}  // namespace crumb
