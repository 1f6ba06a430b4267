// GpuWord: a word of host memory that a stream sets behind the work that is on it, so that whoever
// maps the memory sees by a load how far the GPU has come: without CUDA, without a wait on a
// stream, and whatever becomes of the process that owns the stream. One thread.
#ifndef CRUMB_GPU_DEVICE_CUDA_WORD_H_
#define CRUMB_GPU_DEVICE_CUDA_WORD_H_

#include <cstdint>
#include <memory>

#include "gpu/device/stream_queue.h"

namespace crumb {

inline constexpr uint64_t kGpuWordBytes = 4096;  // a page is registered, its first eight bytes used

class GpuWord {
 public:
  GpuWord() = default;
  // `page` outlives the object. FAILED_PRECONDITION: the driver cannot write words (before 12.0);
  // RESOURCE_EXHAUSTED: the page cannot be locked.
  static absl::StatusOr<GpuWord> Create(int device, uint8_t* page);

  // Puts it on the stream (null: the legacy default stream of the device) and waits for nothing.
  // INVALID_ARGUMENT and others: a stream of another device, a lost device.
  absl::Status Set(StreamHandle stream, uint64_t value) const;
  // Whether nothing is on the stream now. The same errors.
  absl::StatusOr<bool> Idle(StreamHandle stream) const;

 private:
  struct Unregister {
    void operator()(uint8_t* page) const;
  };
  std::unique_ptr<uint8_t, Unregister> page_;
  uint64_t address_ = 0;  // as the device names it
  int device_ = -1;
};

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_CUDA_WORD_H_
