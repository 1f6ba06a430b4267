// Time from opening the file of a killed log to all its pages being known.
//   bench_log_recovery fill FILE GIB     writes GIB of 360 KiB and 1 MiB pages, then kills itself
//   bench_log_recovery recover FILE GIB  opens it, checks pages and a sample of their bytes, prints
//                                        milliseconds
#include <algorithm>
#include <cinttypes>
#include <csignal>

#include "tests/bench/log_bench.h"

namespace crumb::bench {
namespace {

const std::vector<uint32_t> kSlotBytes = {360 << 10, 1 << 20};
constexpr size_t kSample = 200;

// Room for one segment that is kept ready and for the last one's remainder.
uint64_t LogBytes(uint64_t gib) { return (gib << 30) + (gib << 26) + (256ull << 20); }

uint64_t PagesIn(uint64_t bytes) {
  uint64_t pages = 0;
  for (uint64_t written = 0; written < bytes; ++pages) {
    written += kSlotBytes[pages % kSlotBytes.size()];
  }
  return pages;
}

int FillFile(const std::string& path, uint64_t gib) {
  SteadyClock clock;
  OpenLog open = OpenOrFail(path, LogBytes(gib), clock, nullptr);
  Fill(open.log.get(), kSlotBytes, gib << 30);
  std::raise(SIGKILL);
  return 1;
}

void CheckPage(OpenLog* open, const RecoveredRecord& record) {
  AlignedBuffer out(record.location.record_bytes);
  std::array<LogEvent, 4> events;
  if (open->log->Read(record.header.key, record.location, out.span(), 1) != BlockResult::kOk) {
    Fail("a recovered page is not there");
  }
  size_t count = 0;
  while (count == 0) {
    open->log->Submit();
    SleepUntilReady(*open->log);
    count = open->log->Poll(absl::MakeSpan(events));
  }
  if (events[0].result != BlockResult::kOk) Fail("a recovered page is not exact");
}

int Recover(const std::string& path, uint64_t gib) {
  SteadyClock clock;
  CollectSink sink;
  const uint64_t begin_us = clock.now_us();
  OpenLog open = OpenOrFail(path, LogBytes(gib), clock, &sink);
  const uint64_t us = clock.now_us() - begin_us;
  const SegmentLogStats stats = open.log->stats();
  std::fprintf(stderr, "%s\nrecovered %zu pages, %" PRIu64 " bytes, %" PRIu64 " us in the log\n",
               open.description.c_str(), sink.records.size(), stats.used_bytes, stats.recovery_us);
  if (stats.clean_start) Fail("the log was closed, not killed");
  if (sink.records.size() != PagesIn(gib << 30)) Fail("pages are missing");
  Rng rng(1);
  for (size_t i = 0; i < kSample; ++i) {
    CheckPage(&open, sink.records[rng.Below(sink.records.size())]);
  }
  std::printf("%.1f\n", static_cast<double>(us) * 1e-3);
  return 0;
}

int Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc == 4 && mode == "fill") return FillFile(argv[2], std::strtoull(argv[3], nullptr, 10));
  if (argc == 4 && mode == "recover") return Recover(argv[2], std::strtoull(argv[3], nullptr, 10));
  std::fprintf(stderr, "usage: bench_log_recovery fill|recover FILE GIB\n");
  return 2;
}

}  // namespace
}  // namespace crumb::bench

int main(int argc, char** argv) { return crumb::bench::Main(argc, argv); }
