// Reads 1 MiB pages through the segment log, verified, at a fixed queue depth.
//   bench_nvme_read fill FILE GIB            makes a log that holds GIB of pages
//   bench_nvme_read read FILE GIB DEPTH      reads every page once in random order, prints MiB/s
#include <algorithm>
#include <cinttypes>

#include "tests/bench/log_bench.h"

namespace crumb::bench {
namespace {

constexpr uint32_t kPageBytes = 1 << 20;

uint64_t LogBytes(uint64_t gib) { return (gib << 30) + (256ull << 20); }

int FillFile(const std::string& path, uint64_t gib) {
  SteadyClock clock;
  CollectSink sink;
  OpenLog open = OpenOrFail(path, LogBytes(gib), clock, &sink);
  const uint64_t pages = Fill(open.log.get(), {kPageBytes}, gib << 30);
  if (!open.log->Close().ok()) Fail("the log could not be closed");
  std::printf("%s\n%" PRIu64 " pages\n", open.description.c_str(), pages);
  return open.direct ? 0 : 77;
}

int ReadAll(const std::string& path, uint64_t gib, size_t depth) {
  SteadyClock clock;
  CollectSink sink;
  OpenLog open = OpenOrFail(path, LogBytes(gib), clock, &sink);
  open.log.reset();  // buffers are registered while nothing is in flight
  AlignedBuffer arena(depth * kPageBytes);
  const absl::Status registered = open.device->RegisterBuffers({arena.span()});
  if (!registered.ok()) std::fprintf(stderr, "%s\n", registered.ToString().c_str());
  SegmentLogOptions options;
  options.bytes_max = LogBytes(gib);
  absl::StatusOr<std::unique_ptr<SegmentLog>> log =
      SegmentLog::Open(options, open.device.get(), &clock, nullptr);
  if (!log.ok()) Fail(log.status().ToString());
  std::vector<RecoveredRecord>& records = sink.records;
  Rng rng(clock.now_us());
  for (size_t i = records.size(); i > 1; --i) std::swap(records[i - 1], records[rng.Below(i)]);

  std::vector<size_t> free_slots;
  for (size_t i = 0; i < depth; ++i) free_slots.push_back(i);
  std::array<LogEvent, 64> events;
  size_t next = 0, done = 0;
  const uint64_t begin_us = clock.now_us();
  while (done < records.size()) {
    const size_t count = (*log)->Poll(absl::MakeSpan(events));
    for (size_t i = 0; i < count; ++i) {
      if (events[i].result != BlockResult::kOk || !events[i].verified) Fail("a read failed");
      free_slots.push_back(events[i].token);
    }
    done += count;
    while (next < records.size() && !free_slots.empty()) {
      const MutableBytes out = arena.span().subspan(free_slots.back() * kPageBytes, kPageBytes);
      const RecoveredRecord& record = records[next];
      if ((*log)->Read(record.header.key, record.location, out, free_slots.back()) !=
          BlockResult::kOk) {
        break;
      }
      free_slots.pop_back();
      ++next;
    }
    (*log)->Submit();
    if (count == 0) SleepUntilReady(**log);
  }
  const double seconds = static_cast<double>(clock.now_us() - begin_us) * 1e-6;
  std::printf("%.1f\n", static_cast<double>(records.size()) / seconds);
  return 0;
}

int Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "fill" && argc == 4) return FillFile(argv[2], std::strtoull(argv[3], nullptr, 10));
  if (mode == "read" && argc == 5) {
    return ReadAll(argv[2], std::strtoull(argv[3], nullptr, 10),
                   std::strtoull(argv[4], nullptr, 10));
  }
  std::fprintf(stderr, "usage: bench_nvme_read fill FILE GIB | read FILE GIB DEPTH\n");
  return 2;
}

}  // namespace
}  // namespace crumb::bench

int main(int argc, char** argv) { return crumb::bench::Main(argc, argv); }
