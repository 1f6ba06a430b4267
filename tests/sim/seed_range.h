// Many seeds as one piece of work: in this process, or spread over several, each of which may die
// of what it finds; with a state file, so that a night can go on where the last one ended.
#ifndef CRUMB_TESTS_SIM_SEED_RANGE_H_
#define CRUMB_TESTS_SIM_SEED_RANGE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace crumb::sim {

// What seeds did, summed up. Goes through a pipe and into the state file.
struct Sums {
  uint64_t seeds = 0, answers = 0, hits = 0, promised_hits = 0, lives = 0, damaged = 0;
  uint64_t reclaimed = 0, simulated_us = 0, wall_us = 0;
  void Add(const Sums& other);
};

struct RangeOptions {
  uint64_t first = 1;
  uint64_t seeds = 50;
  uint32_t jobs = 0;        // processes; 0: here
  uint64_t stop_after = 1;  // failures
  std::string resume;       // state file; empty: none
};

struct RangeResult {
  Sums sums;
  std::vector<uint64_t> failed;  // seeds
  bool complete = false;
  std::string error;  // of the state file
};

// Runs one seed: adds to the sums, prints what it found, returns whether every rule held.
using RunSeedFunction = std::function<bool(uint64_t seed, Sums* sums)>;

// `died` prints what is to be said of a seed whose process ended by a signal or by exit `code`.
RangeResult RunRange(const RangeOptions& options, const RunSeedFunction& run,
                     const std::function<void(uint64_t seed, int status)>& died);

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SEED_RANGE_H_
