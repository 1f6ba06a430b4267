// What may come back after SIGKILL: an oracle over keys with generations. A value names its key and
// generation and is a keyed random stream, so right, foreign, stale and torn are told apart.
#ifndef CRUMB_TESTS_BENCH_KILL9_MODEL_H_
#define CRUMB_TESTS_BENCH_KILL9_MODEL_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cachesvc/base/types.h"
#include "crumb/types.h"

namespace crumb {

// Fills `out` with the value of (key, generation).
void FillValue(uint64_t key, uint32_t generation, MutableBytes out);
// The generation whose value this is; 0: of none of this key.
uint32_t GenerationOf(uint64_t key, Bytes value);

// About-normal BF16 values of (key, generation), and how far decoded ones are from them (squared
// error over energy).
void FillBf16(uint64_t key, uint32_t generation, MutableBytes out);
double DistanceBf16(uint64_t key, uint32_t generation, Bytes decoded);

struct KeyModel {
  std::set<uint32_t> possible;  // generations that a hit may have
  bool must_hit = false;        // one of them was answered durable, and not deleted since
  uint32_t last_put = 0;
  bool busy = false;  // a request of it is in flight
  // Lossy pages: what a get delivered, by generation (XXH3 of the bytes).
  std::vector<std::pair<uint32_t, uint64_t>> seen;
  std::string history;  // the last events, for an accusation's reader

  void Note(const std::string& event);

  // What an answer, or none (kUnavailable), teaches. Each returns an accusation, or nothing.
  std::string OnPut(uint32_t generation, client::Code code, bool durable);
  std::string OnDelete(client::Code code);
  // `generation`: of the value that came; 0 = wrong bytes. For a miss any.
  std::string OnGet(client::Code code, uint32_t generation);
  // A lossy page of `generation` arrived with this hash.
  std::string OnSeen(uint32_t generation, uint64_t hash);
};

}  // namespace crumb

#endif  // CRUMB_TESTS_BENCH_KILL9_MODEL_H_
