// What may come back after SIGKILL: an oracle over keys with generations. A value names its key and
// generation and is a keyed random stream, so right, foreign, stale and torn are told apart.
#ifndef CRUMB_TESTS_BENCH_KILL9_MODEL_H_
#define CRUMB_TESTS_BENCH_KILL9_MODEL_H_

#include <cstdint>
#include <map>
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

// A flush of everything, by the clock that orders all requests of all clients.
struct FlushSpan {
  uint64_t began = 0;
  uint64_t over = UINT64_MAX;  // it can do nothing any more: answered, failed, or the daemon died
  bool done = false;           // answered: forgotten, durably
};

struct KeyModel {
  std::map<uint32_t, uint64_t> possible;  // generations that a hit may have, and when put
  bool must_hit = false;                  // one of them was answered durable, and not deleted since
  uint64_t durable_asked = 0, durable_bytes = 0;  // when, and what all had written until then
  uint32_t last_put = 0;
  uint32_t touched = 0;  // in which life last
  bool busy = false;     // a request of it is in flight
  bool flushed_meanwhile = false;
  // Of a log that reclaims: what lay on disk before a put that is in memory alone. A kill may bring
  // it back, if what made it go (a reclaim, a flush without an answer) was not stable yet.
  bool reclaims = false;
  std::map<uint32_t, uint64_t> older;
  // Lossy pages: what a get delivered, by generation (XXH3 of the bytes).
  std::vector<std::pair<uint32_t, uint64_t>> seen;
  std::string history;  // the last events, for an accusation's reader

  void Note(const std::string& event);

  // Before an answer is judged that was asked for at `asked` and came at `now`.
  void OnFlushes(const std::vector<FlushSpan>& flushes, uint64_t asked, uint64_t now);
  void OnKill();
  // A log that reclaims keeps what is durable until `limit` bytes more were written.
  void OnWritten(uint64_t bytes, uint64_t limit);

  // What an answer, or none (kUnavailable), teaches. Each returns an accusation, or nothing.
  std::string OnPut(uint32_t generation, client::Code code, bool durable);
  std::string OnDelete(client::Code code);
  // `generation`: of the value that came; 0 = wrong bytes. For a miss any.
  std::string OnGet(client::Code code, uint32_t generation);
  // A lossy page of `generation` arrived with this hash.
  std::string OnSeen(uint32_t generation, uint64_t hash);

 private:
  uint64_t asked_ = 0, now_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_BENCH_KILL9_MODEL_H_
