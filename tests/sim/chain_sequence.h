// One random sequence of puts on branching chains under a layout with windows, on the real engine
// over simulated seams: any order, gets, look-ups, pins, deletes, a dying worker, a full share, a
// tier with device errors, and now and then a crash. Small and fast: the codec is a sample one.
// Checked: a hit is the put value or its one encoding; sinks are raw; nothing is packed inside its
// window unless the engine says that it had to; nothing stays raw behind it; slabs, pins and gauges
// agree with what look-ups say.
#ifndef CRUMB_TESTS_SIM_CHAIN_SEQUENCE_H_
#define CRUMB_TESTS_SIM_CHAIN_SEQUENCE_H_

#include <cstdint>
#include <string>

#include "tests/sim/sim_core.h"

namespace crumb::sim {

enum class ChainPlant : uint8_t {
  kNone,
  kDemoteLossy,  // what is demoted was encoded before
  kDemoteEarly,  // the engine's window is smaller than the layout's
  kSinkPacked,   // the engine has no sink
  kNeverDemote,  // the engine's window is larger than the layout's
};
// False: unknown name.
bool FindChainPlant(const std::string& name, ChainPlant* plant);

struct ChainOptions {
  uint64_t seed = 1;
  Echo echo = Echo::kQuiet;
  ChainPlant plant = ChainPlant::kNone;
};

struct ChainResult {
  std::string failure;  // empty: every rule held
  uint64_t trace_hash = 0;
  uint64_t puts = 0, hits = 0, demotions = 0, forced = 0, crashes = 0;
};

ChainResult RunChainSequence(const ChainOptions& options);

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_CHAIN_SEQUENCE_H_
