// What a run cost the processors. Any thread.
#ifndef CRUMB_CLIENT_CLI_BENCH_CPU_H_
#define CRUMB_CLIENT_CLI_BENCH_CPU_H_

#include "client/cli/cli.h"

namespace crumb::cli {

double CpuSeconds();  // of this process
// CPU seconds that the daemon used since its start, by its own status; -1 where it does not say.
double DaemonCpuSeconds(const Globals& globals);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_BENCH_CPU_H_
