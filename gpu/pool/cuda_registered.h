// RegisteredMemory: host memory of somebody else, page-locked and known to CUDA while the object
// lives, so that copies to and from every GPU run asynchronously and kernels reach it at the same
// address. Start-up and end only: it touches every page of the memory. Any thread, one at a time.
#ifndef CRUMB_GPU_POOL_CUDA_REGISTERED_H_
#define CRUMB_GPU_POOL_CUDA_REGISTERED_H_

#include <cstddef>
#include <cstdint>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

// Slices: a registration of hundreds of GiB in one call holds the driver's lock for its whole time.
inline constexpr uint64_t kRegisterSliceBytes = 1ull << 30;

class RegisteredMemory {
 public:
  RegisteredMemory() = default;  // empty
  // All or nothing. `memory`: whole pages, writable, outlives the object. INVALID_ARGUMENT names
  // the field; other errors name the slice and the remedy. Leaves the device current on this
  // thread.
  static absl::StatusOr<RegisteredMemory> Create(int device, MutableBytes memory);
  // REQUIRES: nothing on a stream still uses the memory.
  ~RegisteredMemory();
  RegisteredMemory(RegisteredMemory&& other) noexcept;
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept;

  MutableBytes memory() const { return memory_; }
  size_t slices() const;
  // Of registered memory, from `at` to the end of its slice. CUDA promises copies within one
  // registration only: cut what is longer here. 0: outside.
  uint64_t SliceBytesFrom(const uint8_t* at) const;

 private:
  absl::Status Register(MutableBytes memory);
  void Unregister();

  int device_ = -1;
  MutableBytes memory_;  // what is registered so far
};

}  // namespace crumb

#endif  // CRUMB_GPU_POOL_CUDA_REGISTERED_H_
