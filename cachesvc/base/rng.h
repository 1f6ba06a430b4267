// Chance behind a seam: xoshiro256** seeded by SplitMix64 (Blackman and Vigna, 2018; public
// domain algorithms). Same seed, same numbers, on every machine. Not for secrets. One thread.
#ifndef CRUMB_CACHESVC_BASE_RNG_H_
#define CRUMB_CACHESVC_BASE_RNG_H_

#include <array>
#include <bit>
#include <cstdint>

namespace crumb {

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

__extension__ typedef unsigned __int128 Wide;

class Rng {
 public:
  explicit Rng(uint64_t seed) {
    SplitMix64 mix(seed);
    for (uint64_t& word : state_) word = mix.Next();
  }

  uint64_t Next() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Uniform in [0, bound); bound > 0. The bias is under 2^-32 for bounds below 2^32.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<Wide>(Next()) * bound) >> 64);
  }
  // True with probability numerator / denominator.
  bool Chance(uint64_t numerator, uint64_t denominator) { return Below(denominator) < numerator; }

 private:
  std::array<uint64_t, 4> state_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_RNG_H_
