// Chain sequences as a program: runs many, a share of them twice, says which one broke a rule and
// how to see it again. Exit 0: every rule held in every sequence, and equal seeds gave equal
// traces.
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "tests/sim/chain_sequence.h"

namespace crumb::sim {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("Random sequences of puts on branching chains with windows, simulated.");
  uint64_t sequences = 1000, first = 1, twice_every = 1;
  std::string plant = "none";
  bool verbose = false;
  app.add_option("--sequences", sequences, "How many to run");
  app.add_option("--first", first, "The first seed");
  app.add_option("--twice-every", twice_every, "Every so many are run twice, traces compared")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--plant", plant,
                 "Plant a bug: none, demote_lossy, demote_early, sink_packed, never_demote");
  app.add_flag("--verbose", verbose, "Print every event");
  CLI11_PARSE(app, argc, argv);
  ChainOptions options;
  if (!FindChainPlant(plant, &options.plant)) {
    std::fprintf(stderr, "--plant %s: unknown; see --help\n", plant.c_str());
    return 2;
  }
  options.echo = verbose ? Echo::kPrint : Echo::kQuiet;
  ChainResult sum;
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < sequences; ++i) {
    options.seed = first + i;
    ChainResult result = RunChainSequence(options);
    if (result.failure.empty() && i % twice_every == 0) {
      const ChainResult again = RunChainSequence(options);
      if (again.trace_hash != result.trace_hash) result.failure = "two runs differ";
    }
    if (!result.failure.empty()) {
      std::printf("FAILED seed %" PRIu64 " %s\nreplay: %s --first %" PRIu64
                  " --sequences 1 --verbose --plant %s\n",
                  options.seed, result.failure.c_str(), argv[0], options.seed, plant.c_str());
      return 1;
    }
    sum.puts += result.puts;
    sum.hits += result.hits;
    sum.demotions += result.demotions;
    sum.forced += result.forced;
    sum.crashes += result.crashes;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%" PRIu64 " sequences, %" PRIu64 " puts, %" PRIu64 " hits, %" PRIu64
              " demotions, %" PRIu64 " with forced ones, %" PRIu64
              " crashes: every rule held, %.0f sequences/s\n",
              sequences, sum.puts, sum.hits, sum.demotions, sum.forced, sum.crashes,
              static_cast<double>(sequences) / took.count());
  return 0;
}

}  // namespace
}  // namespace crumb::sim

int main(int argc, char** argv) { return crumb::sim::Main(argc, argv); }
