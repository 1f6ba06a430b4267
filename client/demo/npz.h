// Reader of numpy .npz archives: .npy version 1, little-endian, C order, u1 i1 u2 i4 i8 f4 f8.
// Bounded; refuses everything else with a message instead of guessing. Any thread.
#ifndef CRUMB_CLIENT_DEMO_NPZ_H_
#define CRUMB_CLIENT_DEMO_NPZ_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb::demo {

struct NpyArray {
  std::string dtype;  // "u1", "i1", "u2", "i4", "i8", "f4", "f8"
  std::vector<size_t> shape;
  std::vector<uint64_t> storage;  // 8-byte words, so that every dtype is aligned
  size_t size_bytes = 0;

  size_t elements() const;
  // REQUIRES: T is the array's dtype.
  template <typename T>
  absl::Span<const T> values() const {
    CRUMB_CHECK(dtype == DtypeName<T>());
    return {reinterpret_cast<const T*>(storage.data()), size_bytes / sizeof(T)};
  }
  Bytes bytes() const { return {reinterpret_cast<const uint8_t*>(storage.data()), size_bytes}; }

 private:
  template <typename T>
  static const char* DtypeName() {
    if constexpr (std::is_same_v<T, uint8_t>) return "u1";
    if constexpr (std::is_same_v<T, int8_t>) return "i1";
    if constexpr (std::is_same_v<T, uint16_t>) return "u2";
    if constexpr (std::is_same_v<T, int32_t>) return "i4";
    if constexpr (std::is_same_v<T, int64_t>) return "i8";
    if constexpr (std::is_same_v<T, float>) return "f4";
    if constexpr (std::is_same_v<T, double>) return "f8";
    return "";
  }
};

class NpzFile {
 public:
  static absl::StatusOr<NpzFile> Open(const std::string& path);

  bool Has(const std::string& name) const { return arrays_.contains(name); }
  // REQUIRES: Has(name).
  const NpyArray& operator[](const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  std::map<std::string, NpyArray> arrays_;
};

// Parses one .npy file.
absl::StatusOr<NpyArray> ParseNpy(Bytes file);

}  // namespace crumb::demo

#endif  // CRUMB_CLIENT_DEMO_NPZ_H_
