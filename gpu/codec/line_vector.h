// LineVector: memory that starts on a cache line and only grows. One thread at a time.
#ifndef CRUMB_GPU_CODEC_LINE_VECTOR_H_
#define CRUMB_GPU_CODEC_LINE_VECTOR_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace crumb {

template <typename T>
class LineVector {
 public:
  void Grow(size_t count) {
    if (size_ >= count) return;
    lines_.resize((count * sizeof(T) + sizeof(Line) - 1) / sizeof(Line));
    size_ = count;
  }
  T* data() { return reinterpret_cast<T*>(lines_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(lines_.data()); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64] = {};
  };
  std::vector<Line> lines_;
  size_t size_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_LINE_VECTOR_H_
