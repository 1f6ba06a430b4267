// Times the GPU codec; what is measured and how is gpu/codec/gpu_bench.h, which crumbctl shares.
// One line for each way and number of pages, in the words that the bars read. Exit 2: wrong
// arguments, which are looked at before any device; 77: no GPU; 1: not all that was asked for could
// be measured.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "gpu/codec/gpu_bench.h"
#include "gpu/device/gpu_probe.h"

namespace crumb {
namespace {

struct Args {
  std::string kind = "oscar-int2", effort = "normal";
  int device = 0;
  GpuBenchCase wanted;
  bool encode = true, decode = true, original = true, rotated = true;
};

constexpr int kFailed = 1, kUsage = 2, kSkipped = 77;

int Failed(const absl::Status& status, int exit = kFailed) {
  std::fprintf(stderr, "bench_gpu_codec: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kUsage : exit;
}

absl::Status Complete(Args* args) {
  CRUMB_ASSIGN(args->wanted.kind, ParseCodecKind(args->kind));
  CRUMB_ASSIGN(args->wanted.effort, ParseEffort(args->effort));
  std::vector<GpuBenchWay>& ways = args->wanted.ways;
  ways.clear();
  if (args->encode) ways.push_back(GpuBenchWay::kEncode);
  if (args->decode && args->original) ways.push_back(GpuBenchWay::kDecode);
  if (args->decode && args->rotated) ways.push_back(GpuBenchWay::kDecodeRotated);
  if (ways.empty()) return absl::InvalidArgumentError("these --no-... leave nothing to measure");
  return CheckGpuBenchCase(args->wanted);
}

void PrintRow(const Args& args, const GpuBenchDevice& device, const GpuBenchResult& result,
              const GpuBenchRow& row) {
  if (!row.why_not.empty()) {
    std::printf("%-14s d=%u %-8s none: %s\n", args.kind.c_str(), args.wanted.dim, ToString(row.way),
                row.why_not.c_str());
  }
  for (const GpuBenchTime& time : row.times) {
    const double floor = result.FloorUs(device, time.pages);
    std::printf(
        "%-14s d=%u pages=%u x %u layers %-8s burst %8.1f us (%.2f x) sustained %8.1f us "
        "(%.2f x) floor %.1f us\n",
        args.kind.c_str(), args.wanted.dim, time.pages, args.wanted.layers, ToString(row.way),
        time.burst_us, time.burst_us / floor, time.sustained_us, time.sustained_us / floor, floor);
  }
}

int RunBench(Args args) {
  const absl::Status complete = Complete(&args);
  if (!complete.ok()) return Failed(complete, kUsage);
  const absl::StatusOr<GpuBenchDevice> device = OpenGpuBench(args.device);
  if (!device.ok()) {
    // A GPU that is there and cannot be used is no reason to skip anything.
    return Failed(device.status(), ProbeGpus().devices.empty() ? kSkipped : kFailed);
  }
  std::printf("%s: a copy moves %.2f TB/s\n", device->name.c_str(),
              device->copy_bytes_per_us / 1e6);
  const absl::StatusOr<GpuBenchResult> result = MeasureGpuCodec(*device, args.wanted);
  if (!result.ok()) return Failed(result.status());
  bool all = true;
  for (const GpuBenchRow& row : result->rows) {
    PrintRow(args, *device, *result, row);
    all &= !row.times.empty();
  }
  return all ? 0 : kFailed;
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) {
  crumb::Args args;
  crumb::GpuBenchCase& wanted = args.wanted;
  CLI::App app{
      "Times the GPU codec. Exit 77: no GPU; 2: wrong arguments; 1: not all could be measured."};
  app.add_option("--device", args.device)->check(CLI::Range(0, 1023));
  app.add_option("--kind", args.kind, "codec");
  app.add_option("--effort", args.effort, "of crumb encoders");
  app.add_option("--dim", wanted.dim, "head dim")->check(CLI::IsMember({64, 128, 256}));
  app.add_option("--heads", wanted.heads)->check(CLI::Range(1, 64));
  app.add_option("--layers", wanted.layers)->check(CLI::Range(1, 64));
  app.add_option("--pages", wanted.pages, "of a launch; several are measured one after another");
  app.add_option("--page-tokens", wanted.page_tokens, "a multiple of 16")
      ->check(CLI::Range(16, 4096));
  app.add_option("--burst", wanted.bursts, "runs after an idle time")->check(CLI::Range(0, 1000));
  app.add_option("--sustained", wanted.sustained_launches, "of a sustained run; 0: 20 ms of them")
      ->check(CLI::Range(0, 1000));
  app.add_flag("!--no-encode", args.encode);
  app.add_flag("!--no-decode", args.decode);
  app.add_flag("!--no-original", args.original, "no decode to the original frame");
  app.add_flag("!--no-rotated", args.rotated, "no decode to the rotated frame");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : crumb::kUsage;  // 0: --help
  }
  return crumb::RunBench(std::move(args));
}
