// The simulator as a program: runs seeds, twice each, and says which one broke a rule and how to
// see it again. Exit 0: every rule held in every seed.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "CLI/CLI.hpp"
#include "tests/sim/planted_bugs.h"
#include "tests/sim/sim_world.h"

namespace crumb::sim {
namespace {

struct Arguments {
  uint64_t seeds = 50;
  uint64_t first = 1;
  uint32_t runs = 2;
  bool verbose = false;
  std::string plant = "none";
};

void PrintResult(uint64_t seed, const SimResult& result) {
  std::printf("seed %" PRIu64 ": %" PRIu64 " answers, %" PRIu64 " hits (%" PRIu64
              " promised, %" PRIu64 " nvme), %" PRIu64 " misses, %" PRIu64 " evicted, %" PRIu64
              " lives, %" PRIu64 " recovered, %" PRIu64 " damaged, %" PRIu64 " counted, %" PRIu64
              " reclaimed, %.1f s, %" PRIu64 " events, trace %016" PRIx64 "\n",
              seed, result.answers, result.hits, result.promised_hits, result.nvme_hits,
              result.misses, result.evictions, result.crashes, result.recovered, result.damaged,
              result.corrupt_counted, result.reclaimed,
              static_cast<double>(result.simulated_us) / 1e6, result.trace_events,
              result.trace_hash);
}

// The line that shows the same failure again.
void PrintReplay(const char* program, const Arguments& arguments, uint64_t seed) {
  std::printf("replay: %s --first %" PRIu64 " --seeds 1 --runs 1 --verbose", program, seed);
  if (arguments.plant != "none") std::printf(" --plant %s", arguments.plant.c_str());
  std::printf("\n");
}

// True if the seed holds.
bool RunSeed(const SimOptions& options, uint32_t runs) {
  SimResult first;
  for (uint32_t run = 0; run < runs; ++run) {
    const SimResult result = RunSimulation(options);
    if (run == 0) {
      first = result;
      PrintResult(options.seed, result);
    }
    if (!result.failure.empty()) {
      std::printf("FAILED seed %" PRIu64 " %s\n", options.seed, result.failure.c_str());
      return false;
    }
    if (result.trace_hash != first.trace_hash) {
      std::printf("FAILED seed %" PRIu64 ": two runs differ, trace %016" PRIx64 " and %016" PRIx64
                  "\n",
                  options.seed, first.trace_hash, result.trace_hash);
      return false;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  CLI::App app("Deterministic simulation of crumbd: one thread, one seed, every fault.");
  Arguments arguments;
  app.add_option("--seeds", arguments.seeds, "How many seeds to run");
  app.add_option("--first", arguments.first, "The first seed");
  app.add_option("--runs", arguments.runs, "Runs of each seed; their traces must be equal")
      ->check(CLI::Range(1, 10));
  app.add_option("--plant", arguments.plant, "Plant a bug: " + PlantNames());
  app.add_flag("--verbose", arguments.verbose, "Print every event");
  CLI11_PARSE(app, argc, argv);
  SimOptions options;
  if (!FindPlant(arguments.plant, &options.planted)) {
    std::fprintf(stderr, "--plant %s: unknown; use %s\n", arguments.plant.c_str(),
                 PlantNames().c_str());
    return 2;
  }
  const auto layouts = MakeSimLayouts();
  if (!layouts.ok()) {
    std::fprintf(stderr, "layouts: %s\n", layouts.status().ToString().c_str());
    return 2;
  }
  options.layouts = &*layouts;
  options.echo = arguments.verbose ? Echo::kPrint : Echo::kQuiet;
  for (uint64_t i = 0; i < arguments.seeds; ++i) {
    options.seed = arguments.first + i;
    // Said before the run: an abort or a sanitizer's report has its seed above it.
    std::printf("running seed %" PRIu64 "\n", options.seed);
    std::fflush(stdout);
    if (RunSeed(options, arguments.runs)) continue;
    PrintReplay(argv[0], arguments, options.seed);
    return 1;
  }
  std::printf("sim: %" PRIu64 " seeds, every rule held\n", arguments.seeds);
  return 0;
}

}  // namespace
}  // namespace crumb::sim

int main(int argc, char** argv) { return crumb::sim::Main(argc, argv); }
