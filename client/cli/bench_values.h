// Values of benchmark keys: made cheaply, told apart surely. The value of key i is a random tile
// read from an offset that depends on i, so making one is a copy and checking one a comparison that
// touches every byte. Immutable after construction; any thread.
#ifndef CRUMB_CLIENT_CLI_BENCH_VALUES_H_
#define CRUMB_CLIENT_CLI_BENCH_VALUES_H_

#include <cstdint>
#include <vector>

#include "cachesvc/base/types.h"

namespace crumb::cli {

enum class ValueKind : uint8_t { kBytes, kBf16 };  // kBf16: finite, about normal

class BenchValues {
 public:
  BenchValues(ValueKind kind, uint64_t value_bytes, uint64_t seed);

  void Fill(uint64_t key, MutableBytes out) const;
  bool Matches(uint64_t key, Bytes value) const;

 private:
  uint64_t OffsetOf(uint64_t key) const;

  uint64_t value_bytes_;
  uint64_t seed_;
  std::vector<uint8_t> tile_;  // value_bytes and the offsets' range
};

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_BENCH_VALUES_H_
