// Time from opening a log of sealed segments to every page being in the engine's index. The file is
// sparse: marks and footers are real and read from it, what would lie between them is a hole.
//   bench_log_footers make FILE PAGES SLOT_BYTES     writes it
//   bench_log_footers recover FILE PAGES SLOT_BYTES  opens it, checks, prints milliseconds
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cachesvc/core/engine.h"
#include "gpu/device/host_queue.h"
#include "storage/segment/footer_builder.h"
#include "tests/bench/log_bench.h"

namespace crumb::bench {
namespace {

constexpr uint32_t kSegmentBytes = 64u << 20;  // the default

struct Plan {
  std::string path;
  uint64_t pages = 0;
  uint32_t slot_bytes = 0;

  uint64_t FooterRoom(uint64_t records) const {
    return LogGeometry::RoundUp(records * sizeof(FooterRecord)) + kLogBlock;
  }
  // In a segment that is not the first.
  uint64_t PagesPerSegment() const {
    uint64_t records = (kSegmentBytes - kLogHeadBytes) / slot_bytes;
    while (records * slot_bytes + FooterRoom(records) > kSegmentBytes - kLogHeadBytes) --records;
    return records;
  }
  uint32_t Sealed() const {
    return static_cast<uint32_t>((pages + PagesPerSegment() - 1) / PagesPerSegment());
  }
  uint64_t Bytes() const { return uint64_t{Sealed() + kSegmentsMin} * kSegmentBytes; }
};

absl::StatusOr<FileDevice> OpenSparse(const Plan& plan) {
  return OpenFileDevice({.path = plan.path,
                         .bytes = plan.Bytes(),
                         .accept = &SegmentLog::CheckHead,
                         .allow_fallocate = false});
}

Superblock Format(const Plan& plan) {
  absl::StatusOr<FileDevice> device = OpenSparse(plan);
  if (!device.ok()) Fail(device.status().ToString());
  SteadyClock clock;
  SegmentLogOptions options;
  options.bytes_max = plan.Bytes();
  options.segment_bytes = kSegmentBytes;
  auto log = SegmentLog::Open(options, device->device.get(), &clock, nullptr);
  if (!log.ok()) Fail(log.status().ToString());
  if (!(*log)->Close().ok()) Fail("the new log does not close");
  AlignedBuffer head(kLogBlock);
  const int fd = ::open(plan.path.c_str(), O_RDONLY);
  if (fd < 0 || ::pread(fd, head.data(), head.size(), 0) != ssize_t{kLogBlock}) Fail("no head");
  ::close(fd);
  Superblock superblock;
  if (ParseSuperblock(head.span(), &superblock) != ParseResult::kOk) Fail("no superblock");
  return superblock;
}

int Make(const Plan& plan) {
  ::unlink(plan.path.c_str());
  const Superblock superblock = Format(plan);
  const LogGeometry geometry = {kSegmentBytes, superblock.segment_count};
  FooterBuilder footer(geometry);
  const int fd = ::open(plan.path.c_str(), O_WRONLY);
  if (fd < 0) Fail("cannot write the file");
  uint64_t id = 0;
  for (uint32_t segment = 0; segment < plan.Sealed(); ++segment) {
    footer.Clear();
    uint32_t block = geometry.DataBegin(segment);
    for (uint64_t i = 0; i < plan.PagesPerSegment() && id < plan.pages; ++i, ++id) {
      PageHeader header;
      header.key = KeyOf(id);
      header.identity_prefix = 1;
      header.tenant_prefix = 2;
      header.codec_id = 3;
      // Chains of 64 pages, as prompts are.
      header.parent_prefix = id % 64 == 0 ? 0 : KeyOf(id - 1).prefix64();
      header.token_start = static_cast<uint32_t>(id % 64 * 64);
      header.token_count = 64;
      header.payload_bytes = plan.slot_bytes - static_cast<uint32_t>(kPageHeaderBytes);
      header.log_sequence = id + 1;
      footer.AddRecord(header, block);
      block += plan.slot_bytes / kLogBlock;
    }
    SegmentMark mark;
    mark.state = MarkState::kSealed;
    mark.log_id = superblock.log_id;
    mark.segment = segment;
    mark.generation = segment + 1;
    mark.data_end_blocks = block;
    const MutableBytes bytes = footer.Build(mark);
    const auto at = static_cast<off_t>(geometry.Offset(segment) + kSegmentBytes - bytes.size());
    if (::pwrite(fd, bytes.data(), bytes.size(), at) != static_cast<ssize_t>(bytes.size())) {
      Fail("the disk is full");
    }
  }
  if (::fsync(fd) != 0) Fail("fsync");
  ::close(fd);
  std::fprintf(stderr, "%u segments of %u bytes sealed\n", plan.Sealed(), kSegmentBytes);
  return 0;
}

int Recover(const Plan& plan) {
  SteadyClock clock;
  HostQueue queue({.threads = 1, .jobs_max = 16});
  auto pool = PagePool::Create({.bytes = 16 << 20, .staging_bytes = 4 << 20});
  if (!pool.ok()) Fail(pool.status().ToString());
  EngineOptions options;
  options.limits.index_entries_max = static_cast<uint32_t>(plan.pages);
  options.clock = &clock;
  options.pool = pool->get();
  options.queue = &queue;
  auto engine = Engine::Create(options);
  if (!engine.ok()) Fail(engine.status().ToString());
  const uint64_t begin_us = clock.now_us();
  absl::StatusOr<FileDevice> device = OpenSparse(plan);
  if (!device.ok()) Fail(device.status().ToString());
  SegmentLogOptions log_options;
  log_options.bytes_max = plan.Bytes();
  auto log =
      SegmentLog::Open(log_options, device->device.get(), &clock, (*engine)->recovery_sink());
  if (!log.ok()) Fail(log.status().ToString());
  (*engine)->SetLog(log->get());
  const uint64_t us = clock.now_us() - begin_us;
  const EngineStats stats = (*engine)->stats();
  if (stats.nvme.recovered != plan.pages) Fail("pages are missing in the log");
  if (stats.index_entries != plan.pages) Fail("pages are missing in the index");
  if (!(*log)->Close().ok()) Fail("the log does not close");
  std::fprintf(stderr, "%s\n%" PRIu64 " pages in %u segments, index of %" PRIu64 " bytes\n",
               device->description.c_str(), plan.pages, plan.Sealed(), stats.index_bytes);
  std::printf("%.1f\n", static_cast<double>(us) * 1e-3);
  return 0;
}

int Main(int argc, char** argv) {
  const std::string mode = argc == 5 ? argv[1] : "";
  if (mode != "make" && mode != "recover") {
    std::fprintf(stderr, "usage: bench_log_footers make|recover FILE PAGES SLOT_BYTES\n");
    return 2;
  }
  const Plan plan = {.path = argv[2],
                     .pages = std::strtoull(argv[3], nullptr, 10),
                     .slot_bytes = static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 10))};
  if (plan.pages == 0 || plan.slot_bytes < kLogBlock || plan.slot_bytes % kLogBlock != 0 ||
      plan.slot_bytes > kSegmentBytes / 4) {
    Fail("PAGES is a number, SLOT_BYTES a multiple of 4096 up to 16 MiB");
  }
  return mode == "make" ? Make(plan) : Recover(plan);
}

}  // namespace
}  // namespace crumb::bench

int main(int argc, char** argv) { return crumb::bench::Main(argc, argv); }
