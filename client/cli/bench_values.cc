// Tiles of random bytes or BF16 values.
#include "client/cli/bench_values.h"

#include <bit>
#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/base/rng.h"

namespace crumb::cli {
namespace {

constexpr uint64_t kOffsets = 1 << 17;
constexpr uint64_t kStepBytes = 8;

// Sum of four uniform 16-bit numbers, centred: near enough to a normal value for a codec.
uint16_t NormalBf16(uint64_t bits) {
  int64_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<int64_t>(bits >> (16 * i) & 0xffff);
  const float value = static_cast<float>(sum - 2 * 0xffff) / 32768.0f;
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

}  // namespace

BenchValues::BenchValues(ValueKind kind, uint64_t value_bytes, uint64_t seed)
    : value_bytes_(value_bytes),
      seed_(seed),
      tile_((value_bytes + kOffsets * kStepBytes + 7) / 8 * 8) {
  Rng rng(seed);
  for (size_t i = 0; i < tile_.size(); i += 8) {
    uint64_t word = 0;
    if (kind == ValueKind::kBytes) {
      word = rng.Next();
    } else {
      for (int j = 0; j < 4; ++j) word |= uint64_t{NormalBf16(rng.Next())} << (16 * j);
    }
    std::memcpy(tile_.data() + i, &word, sizeof(word));
  }
}

uint64_t BenchValues::OffsetOf(uint64_t key) const {
  return SplitMix64(key ^ seed_).Next() % kOffsets * kStepBytes;
}

void BenchValues::Fill(uint64_t key, MutableBytes out) const {
  CRUMB_CHECK(out.size() == value_bytes_);
  std::memcpy(out.data(), tile_.data() + OffsetOf(key), out.size());
}

bool BenchValues::Matches(uint64_t key, Bytes value) const {
  return value.size() == value_bytes_ &&
         std::memcmp(value.data(), tile_.data() + OffsetOf(key), value.size()) == 0;
}

}  // namespace crumb::cli
