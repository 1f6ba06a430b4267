// Bounded little-endian reader and writer for everything that leaves the process.
// PROMISE: a reader never touches a byte outside its span; after the first failure every
// read yields zero and ok() stays false.
#ifndef CRUMB_CACHESVC_BASE_BYTES_H_
#define CRUMB_CACHESVC_BASE_BYTES_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "cachesvc/base/types.h"

namespace crumb {

static_assert(std::endian::native == std::endian::little, "formats are little-endian");

class ByteReader {
 public:
  explicit ByteReader(Bytes data) : data_(data) {}

  template <typename T>
  T Read() {
    static_assert(std::is_integral_v<T> || std::is_floating_point_v<T>);
    T value{};
    Copy(&value, sizeof(T));
    return value;
  }

  template <size_t N>
  std::array<uint8_t, N> ReadArray() {
    std::array<uint8_t, N> value{};
    Copy(value.data(), N);
    return value;
  }

  // The next `size` bytes, or an empty span on failure.
  Bytes ReadBytes(size_t size) {
    if (!Have(size)) return {};
    Bytes out = data_.subspan(position_, size);
    position_ += size;
    return out;
  }

  // u32 length, then that many bytes; refused if longer than `size_max`.
  std::string_view ReadString(size_t size_max) {
    const auto size = Read<uint32_t>();
    if (size > size_max) ok_ = false;
    Bytes out = ReadBytes(size);
    return {reinterpret_cast<const char*>(out.data()), out.size()};
  }

  bool ok() const { return ok_; }
  bool done() const { return ok_ && position_ == data_.size(); }
  size_t remaining() const { return ok_ ? data_.size() - position_ : 0; }

 private:
  bool Have(size_t size) {
    if (!ok_ || size > data_.size() - position_) ok_ = false;
    return ok_;
  }
  void Copy(void* out, size_t size) {
    if (!Have(size)) return;
    std::memcpy(out, data_.data() + position_, size);
    position_ += size;
  }

  Bytes data_;
  size_t position_ = 0;
  bool ok_ = true;
};

// Appends to a std::string: for control paths and files, not for the shard's hot path.
class ByteWriter {
 public:
  template <typename T>
  void Write(T value) {
    static_assert(std::is_integral_v<T> || std::is_floating_point_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void WriteBytes(Bytes bytes) {
    out_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void WriteString(std::string_view text) {
    Write<uint32_t>(static_cast<uint32_t>(text.size()));
    out_.append(text);
  }
  void PadTo(size_t alignment) {
    while (out_.size() % alignment != 0) out_.push_back('\0');
  }
  size_t size() const { return out_.size(); }
  std::string& str() { return out_; }

 private:
  std::string out_;
};

inline Bytes AsBytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_BYTES_H_
