// The simulator as a program: runs seeds, a share of them twice, and says which one broke a rule
// and how to see it again. Exit 0: every rule held in every seed; 1: a rule was broken.
#include <sys/wait.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "CLI/CLI.hpp"
#include "tests/sim/mutation.h"
#include "tests/sim/planted_bugs.h"
#include "tests/sim/seed_range.h"
#include "tests/sim/sim_world.h"

namespace crumb::sim {
namespace {

struct Arguments {
  RangeOptions range;
  uint64_t twice_every = 1;
  bool verbose = false;
  bool quiet = false;
  bool plants = false;
  std::string plant = "none";
};

void PrintResult(uint64_t seed, const SimResult& result) {
  std::printf(
      "seed %" PRIu64 ": %" PRIu64 " answers, %" PRIu64 " hits (%" PRIu64 " promised, %" PRIu64
      " nvme), %" PRIu64 " misses, %" PRIu64 " evicted, %" PRIu64 " promoted, %" PRIu64
      " demoted, %" PRIu64 " lives, %" PRIu64 " recovered, %" PRIu64 " damaged, %" PRIu64
      " counted, %" PRIu64 " reclaimed, %.1f s, %" PRIu64 " events, trace %016" PRIx64 "\n",
      seed, result.answers, result.hits, result.promised_hits, result.nvme_hits, result.misses,
      result.evictions, result.promoted, result.demotions, result.lives, result.recovered,
      result.damaged, result.corrupt_counted, result.reclaimed,
      static_cast<double>(result.simulated_us) / 1e6, result.trace_events, result.trace_hash);
}

// The line that shows the same failure again.
void PrintReplay(const char* program, const Arguments& arguments, uint64_t seed) {
  std::printf("replay: %s --first %" PRIu64 " --seeds 1 --twice-every 0 --verbose", program, seed);
  if (arguments.plant != "none") std::printf(" --plant %s", arguments.plant.c_str());
  std::printf("\n");
  std::fflush(stdout);
}

void AddTo(Sums* sums, const SimResult& result) {
  ++sums->seeds;
  sums->answers += result.answers;
  sums->hits += result.hits;
  sums->promised_hits += result.promised_hits;
  sums->lives += result.lives;
  sums->damaged += result.damaged;
  sums->reclaimed += result.reclaimed;
  sums->simulated_us += result.simulated_us;
}

// True if the seed holds.
bool RunSeed(const SimOptions& options, const Arguments& arguments, Sums* sums) {
  // Said before the run: an abort or a sanitizer's report has its seed above it.
  if (!arguments.quiet) std::printf("running seed %" PRIu64 "\n", options.seed);
  std::fflush(stdout);
  const SimResult first = RunSimulation(options);
  AddTo(sums, first);
  if (!arguments.quiet) PrintResult(options.seed, first);
  if (!first.failure.empty()) {
    std::printf("FAILED seed %" PRIu64 " %s\nthe seed's plan: %s\n", options.seed,
                first.failure.c_str(), first.plan.c_str());
    return false;
  }
  if (arguments.twice_every == 0 || options.seed % arguments.twice_every != 0) return true;
  const uint64_t again = RunSimulation(options).trace_hash;
  if (again == first.trace_hash) return true;
  std::printf("FAILED seed %" PRIu64 ": two runs differ, trace %016" PRIx64 " and %016" PRIx64 "\n",
              options.seed, first.trace_hash, again);
  return false;
}

void PrintSums(const RangeResult& result) {
  const Sums& sums = result.sums;
  const double wall_s = static_cast<double>(sums.wall_us) / 1e6;
  const double hours = static_cast<double>(sums.simulated_us) / 3.6e9;
  std::printf("%" PRIu64 " seeds, %" PRIu64 " answers, %" PRIu64 " hits judged (%" PRIu64
              " of them promised), %" PRIu64 " lives of daemons, %" PRIu64 " damages, %" PRIu64
              " segments reclaimed; %.2f simulated hours in %.1f s\n",
              sums.seeds, sums.answers, sums.hits, sums.promised_hits, sums.lives, sums.damaged,
              sums.reclaimed, hours, wall_s);
}

int RunAll(const char* program, const Arguments& arguments, SimOptions options) {
  const RunSeedFunction run = [&](uint64_t seed, Sums* sums) {
    options.seed = seed;
    if (RunSeed(options, arguments, sums)) return true;
    PrintReplay(program, arguments, seed);
    return false;
  };
  const auto died = [&](uint64_t seed, int status) {
    std::printf("FAILED seed %" PRIu64 ": its process ended with %s %d\n", seed,
                WIFSIGNALED(status) ? "signal" : "exit code",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    PrintReplay(program, arguments, seed);
  };
  const RangeResult result = RunRange(arguments.range, run, died);
  if (!result.error.empty()) {
    std::fprintf(stderr, "--resume %s\n", result.error.c_str());
    return 2;
  }
  PrintSums(result);
  if (!result.failed.empty()) {
    std::printf("sim: %zu seeds broke a rule, the first is %" PRIu64 "\n", result.failed.size(),
                result.failed.front());
    return 1;
  }
  std::printf("sim: %" PRIu64 " seeds, every rule held\n", result.sums.seeds);
  return result.complete ? 0 : 1;
}

int Main(int argc, char** argv) {
  CLI::App app("Deterministic simulation of crumbd: one thread, one seed, every fault.");
  Arguments arguments;
  app.add_option("--seeds", arguments.range.seeds, "How many seeds to run");
  app.add_option("--first", arguments.range.first, "The first seed");
  app.add_option("--jobs", arguments.range.jobs,
                 "Processes to spread them over; 0: run them in this one")
      ->check(CLI::Range(0, 64));
  app.add_option("--resume", arguments.range.resume,
                 "State file: made if it is not there, else the run goes on where it ended");
  app.add_option("--stop-after", arguments.range.stop_after, "End after so many failing seeds")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--twice-every", arguments.twice_every,
                 "Seeds that this divides run twice, and their traces must be equal; 0: none");
  app.add_option("--plant", arguments.plant, "Plant a bug: " + PlantNames());
  app.add_flag("--verbose", arguments.verbose, "Print every event");
  app.add_flag("--quiet", arguments.quiet, "Print failures and sums alone");
  app.add_flag("--plants", arguments.plants, "Print the names of the bugs that can be planted");
  CLI11_PARSE(app, argc, argv);
  if (arguments.plants) {
    std::printf("%s\n", PlantNames().c_str());
    return 0;
  }
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
  return RunAll(argv[0], arguments, options);
}

}  // namespace
}  // namespace crumb::sim

int main(int argc, char** argv) { return crumb::sim::Main(argc, argv); }
