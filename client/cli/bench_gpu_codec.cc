// Measures kind after kind on one GPU; gpu/codec/gpu_bench.h does the work, and is all that knows
// whether this build has CUDA.
#include "client/cli/bench_gpu_codec.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/bench_gpu_report.h"
#include "client/cli/cli.h"

namespace crumb::cli {
namespace {

constexpr uint32_t kSmallBatches[] = {1, 8, 64};

// The large launch first, then small ones.
std::vector<uint32_t> BatchesOf(uint32_t pages) {
  std::vector<uint32_t> batches = {pages};
  for (const uint32_t small : kSmallBatches) {
    if (small < pages) batches.push_back(small);
  }
  return batches;
}

std::vector<CodecKind> KindsOf(const CodecArgs& args) {
  std::vector<CodecKind> kinds;
  for (const CodecKind kind : kBenchKinds) {
    if (args.only.empty() || args.only == ToString(kind)) kinds.push_back(kind);
  }
  return kinds;
}

bool Measured(const GpuBenchResult& result) {
  for (const GpuBenchRow& row : result.rows) {
    if (!row.times.empty()) return true;
  }
  return false;
}

}  // namespace

void BenchGpuCodec(Context* context, const CodecArgs& args) {
  const absl::StatusOr<Effort> effort = ParseEffort(args.effort);
  if (!effort.ok()) return context->Usage(std::string(effort.status().message()));
  const std::vector<CodecKind> kinds = KindsOf(args);
  if (args.tokens % kGpuBenchSlotTokens != 0) {
    return context->Usage(absl::StrCat("--tokens ", args.tokens, ": with --device a multiple of ",
                                       kGpuBenchSlotTokens));
  }
  const absl::StatusOr<GpuBenchDevice> device = OpenGpuBench(args.device);
  if (!device.ok()) return context->Fail(device.status());
  GpuBenchReport report;
  report.device = *device;
  report.wanted = {
      .effort = *effort,
      .dim = args.dim,
      .heads = args.heads,
      .layers = args.layers,
      .page_tokens = args.tokens,
      .pages = BatchesOf(args.pages),
      .ways = {GpuBenchWay::kEncode,
               args.frame == "rotated" ? GpuBenchWay::kDecodeRotated : GpuBenchWay::kDecode}};
  bool measured = false;
  for (const CodecKind kind : kinds) {
    report.wanted.kind = kind;
    absl::StatusOr<GpuBenchResult> result = MeasureGpuCodec(*device, report.wanted);
    if (!result.ok()) return context->Fail(result.status());
    measured |= Measured(*result);
    report.results.emplace_back(kind, *std::move(result));
  }
  context->out << (context->globals.json ? GpuReportJson(report) : GpuReportText(report));
  if (!measured) context->exit = kExitFailed;
}

}  // namespace crumb::cli
