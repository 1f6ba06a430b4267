// What the reference codec has time for.
#include "tests/gpu/daemon_suite.h"

namespace crumb {

SuiteSize SizeOfSuite() {
  return {.large = {.layers = 8, .heads = 4, .dim = 64},  // 512 KiB a page
          .daemon = {.hbm = "16MiB", .dram = "256MiB"},
          .fill_batches = 24,
          .kills = 30,
          .kill_seconds = 60};
}

}  // namespace crumb
