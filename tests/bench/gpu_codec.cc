// Times the GPU codec; what is measured and how is gpu/codec/gpu_bench.h, which crumbctl shares.
// One line for each way and number of pages, in the words that the bars read.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "gpu/codec/gpu_bench.h"

namespace crumb {
namespace {

struct Args {
  std::string kind = "oscar-int2", effort = "normal";
  int device = 0;
  GpuBenchCase wanted;
  bool encode = true, decode = true, original = true, rotated = true;
};

int Failed(const absl::Status& status) {
  std::fprintf(stderr, "bench_gpu_codec: %s\n", std::string(status.message()).c_str());
  return absl::IsUnavailable(status) ? 77 : 1;  // no GPU: skipped
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
  const absl::StatusOr<CodecKind> kind = ParseCodecKind(args.kind);
  if (!kind.ok()) return Failed(kind.status());
  const absl::StatusOr<Effort> effort = ParseEffort(args.effort);
  if (!effort.ok()) return Failed(effort.status());
  args.wanted.kind = *kind;
  args.wanted.effort = *effort;
  args.wanted.ways.clear();
  if (args.encode) args.wanted.ways.push_back(GpuBenchWay::kEncode);
  if (args.decode && args.original) args.wanted.ways.push_back(GpuBenchWay::kDecode);
  if (args.decode && args.rotated) args.wanted.ways.push_back(GpuBenchWay::kDecodeRotated);
  const absl::StatusOr<GpuBenchDevice> device = OpenGpuBench(args.device);
  if (!device.ok()) return Failed(device.status());
  std::printf("%s: a copy moves %.2f TB/s\n", device->name.c_str(),
              device->copy_bytes_per_us / 1e6);
  const absl::StatusOr<GpuBenchResult> result = MeasureGpuCodec(*device, args.wanted);
  if (!result.ok()) return Failed(result.status());
  for (const GpuBenchRow& row : result->rows) PrintRow(args, *device, *result, row);
  return 0;
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) {
  crumb::Args args;
  crumb::GpuBenchCase& wanted = args.wanted;
  CLI::App app{"Times the GPU codec. Exit 77: no GPU."};
  app.add_option("--device", args.device);
  app.add_option("--kind", args.kind, "codec");
  app.add_option("--effort", args.effort, "of crumb encoders");
  app.add_option("--dim", wanted.dim, "head dim");
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
  CLI11_PARSE(app, argc, argv);
  return crumb::RunBench(std::move(args));
}
