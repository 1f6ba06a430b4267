// A bounded reader of the pickles inside rotation files. It builds plain values and descriptions of
// tensors; it never calls, imports or constructs anything, and knows only the opcodes and globals
// that torch.save writes for dictionaries of tensors. Everything else is refused by name.
// No recursion: containers hold handles. Control path; any thread.
#ifndef CRUMB_GPU_CODEC_PICKLE_H_
#define CRUMB_GPU_CODEC_PICKLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kTuple,
  kList,
  kDict,
  kGlobal,
  kStorage,
  kTensor,
};
const char* ToString(PickleKind kind);

enum class StorageType : uint8_t { kFloat, kDouble, kHalf, kBFloat16 };
uint32_t StorageElementBytes(StorageType type);

using PickleHandle = uint32_t;  // index into Pickle::values

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  StorageType storage_type = StorageType::kFloat;  // kStorage; kGlobal that names one
  int64_t integer = 0;                // kInt, kBool; kStorage: elements; kTensor: offset
  double real = 0.0;                  // kFloat
  std::string text{};                 // kString; kGlobal: "module name"; kStorage: key
  std::vector<PickleHandle> items{};  // kTuple, kList; kDict: key, value, key, value, ...
                                      // kTensor: items[0] is its storage
  std::vector<uint64_t> sizes{};      // kTensor
  std::vector<uint64_t> strides{};    // kTensor, in elements
};

// INVARIANT: every handle is below values.size(); every tensor lies inside its storage's elements.
struct Pickle {
  std::vector<PickleValue> values;
  PickleHandle root = 0;

  const PickleValue& at(PickleHandle handle) const { return values[handle]; }
  // Value of a string key in a dictionary, or nullptr. Linear in the dictionary's size.
  const PickleValue* Find(const PickleValue& dict, absl::string_view key) const;
};

inline constexpr uint32_t kPickleValuesMax = 1u << 18;
inline constexpr uint32_t kPickleStackMax = 1u << 16;
inline constexpr uint32_t kPickleMarksMax = 256;
inline constexpr uint32_t kPickleMemoMax = 1u << 18;
inline constexpr uint32_t kPickleStringBytesMax = 1u << 16;
inline constexpr int64_t kPickleDimMax = 1 << 20;
inline constexpr uint64_t kPickleElementsMax = 1ull << 28;  // of one storage

// INVALID_ARGUMENT names opcode, byte and reason.
absl::StatusOr<Pickle> ParsePickle(Bytes data);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_PICKLE_H_
