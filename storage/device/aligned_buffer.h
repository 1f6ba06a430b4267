// Memory aligned for O_DIRECT, zeroed, and only taken from the system as it is touched. Made at
// start-up; one owner; any thread.
#ifndef CRUMB_STORAGE_DEVICE_ALIGNED_BUFFER_H_
#define CRUMB_STORAGE_DEVICE_ALIGNED_BUFFER_H_

#include <sys/mman.h>

#include <cstdint>
#include <memory>

#include "cachesvc/base/check.h"
#include "cachesvc/base/types.h"

namespace crumb {

inline constexpr uint64_t kBufferAlignment = 4096;

struct UnmapMemory {
  uint64_t bytes = 0;
  void operator()(uint8_t* data) const { ::munmap(data, bytes); }
};

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // `bytes` is rounded up to kBufferAlignment.
  explicit AlignedBuffer(uint64_t bytes)
      : data_(nullptr,
              UnmapMemory{(bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment}) {
    const uint64_t size = data_.get_deleter().bytes;
    if (size == 0) return;
    void* memory =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CRUMB_CHECK(memory != MAP_FAILED);
    data_.reset(static_cast<uint8_t*>(memory));
  }

  uint8_t* data() const { return data_.get(); }
  uint64_t size() const { return data_.get_deleter().bytes; }
  MutableBytes span() const { return {data(), size()}; }
  // Longer, maybe at another address; what is new is zero. REQUIRES: not empty.
  void Grow(uint64_t bytes) {
    const uint64_t size = (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
    const uint64_t before = data_.get_deleter().bytes;
    CRUMB_CHECK(before > 0 && size >= before);
    void* memory = ::mremap(data_.get(), before, size, MREMAP_MAYMOVE);
    CRUMB_CHECK(memory != MAP_FAILED);
    (void)data_.release();
    data_ = {static_cast<uint8_t*>(memory), UnmapMemory{size}};
  }
  // For memory that a device which fell silent may still write to: never given back.
  void Abandon() { static_cast<void>(data_.release()); }

 private:
  std::unique_ptr<uint8_t, UnmapMemory> data_;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_ALIGNED_BUFFER_H_
