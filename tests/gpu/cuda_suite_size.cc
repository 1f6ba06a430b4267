// What a GPU has time for: about 40 s in all.
#include "tests/gpu/daemon_suite.h"

namespace crumb {

SuiteSize SizeOfSuite() {
  return {.large = {.layers = 32, .heads = 8, .dim = 128},  // 8 MiB a page
          .daemon = {.hbm = "256MiB", .dram = "1GiB"},
          .fill_batches = 40,
          .kills = 300,
          .kill_seconds = 40};
}

}  // namespace crumb
