// What `crumbctl bench codec --device N` prints: a table, or a document. Pure; any thread.
#ifndef CRUMB_CLIENT_CLI_BENCH_GPU_REPORT_H_
#define CRUMB_CLIENT_CLI_BENCH_GPU_REPORT_H_

#include <string>
#include <utility>
#include <vector>

#include "gpu/codec/gpu_bench.h"

namespace crumb::cli {

struct GpuBenchReport {
  GpuBenchDevice device;
  GpuBenchCase wanted;  // but for its kind: one of each in `results`
  std::vector<std::pair<CodecKind, GpuBenchResult>> results;
};

std::string GpuReportText(const GpuBenchReport& report);
std::string GpuReportJson(const GpuBenchReport& report);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_BENCH_GPU_REPORT_H_
