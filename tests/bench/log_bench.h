// Shared by the storage benchmarks: pages, a log on a file, waiting. One thread.
#ifndef CRUMB_TESTS_BENCH_LOG_BENCH_H_
#define CRUMB_TESTS_BENCH_LOG_BENCH_H_

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/base/rng.h"
#include "storage/device/aligned_buffer.h"
#include "storage/device/file_device.h"
#include "storage/device/stripe_set.h"
#include "storage/segment/segment_log.h"

namespace crumb::bench {

[[noreturn]] inline void Fail(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::exit(1);
}

struct OpenLog {
  std::string description;
  bool uring = false, direct = false;
  std::unique_ptr<BlockDevice> device;
  std::unique_ptr<SegmentLog> log;
};

class CollectSink final : public SegmentLog::RecoverySink {
 public:
  void Expect(uint64_t count) override { records.reserve(count); }
  void OnRecords(absl::Span<const RecoveredRecord> some) override {
    records.insert(records.end(), some.begin(), some.end());
  }
  std::vector<RecoveredRecord> records;
};

struct DiskOptions {
  std::vector<std::string> paths;  // several are striped
  uint64_t bytes = 0;              // for pages, over all of them
  bool merge = true;
  uint32_t unit_bytes = kStripeUnitBytes;
};

inline OpenLog OpenDeviceOrFail(const DiskOptions& disk) {
  FileDeviceOptions file;
  file.path = disk.paths.front();
  file.bytes = disk.bytes;
  file.accept = &SegmentLog::CheckHead;
  if (!disk.merge) file.merge_bytes_max = 0;
  const size_t members = disk.paths.size();
  absl::StatusOr<FileDevice> device =
      members == 1
          ? OpenFileDevice(file)
          : OpenStripeSet({.paths = disk.paths,
                           .bytes = disk.bytes + members * (kStripeLabelBytes + disk.unit_bytes),
                           .each = file,
                           .unit_bytes = disk.unit_bytes});
  if (!device.ok()) Fail(device.status().ToString());
  OpenLog out;
  out.description = device->description;
  out.uring = device->uring;
  out.direct = device->direct;
  out.device = std::move(device->device);
  return out;
}

inline void OpenLogOrFail(OpenLog* open, const Clock& clock, CollectSink* sink) {
  SegmentLogOptions options;
  options.bytes_max = open->device->size_bytes();
  absl::StatusOr<std::unique_ptr<SegmentLog>> log =
      SegmentLog::Open(options, open->device.get(), &clock, sink);
  if (!log.ok()) Fail(log.status().ToString());
  open->log = *std::move(log);
}

inline OpenLog OpenOrFail(const std::string& path, uint64_t bytes, const Clock& clock,
                          CollectSink* sink) {
  OpenLog out = OpenDeviceOrFail({.paths = {path}, .bytes = bytes});
  OpenLogOrFail(&out, clock, sink);
  return out;
}

inline BlockKey KeyOf(uint64_t id) {
  BlockKey key;
  SplitMix64 mix(id + 1);
  for (size_t at = 0; at < key.bytes.size(); at += 8) {
    const uint64_t word = mix.Next();
    std::memcpy(key.bytes.data() + at, &word, 8);
  }
  return key;
}

// Fills the whole slot; the payload is random words of a generator that is quick enough.
inline void MakePage(uint64_t id, MutableBytes slot) {
  PageHeader header;
  header.key = KeyOf(id);
  header.token_count = 64;
  header.payload_bytes = static_cast<uint32_t>(slot.size() - kPageHeaderBytes);
  SplitMix64 mix(id);
  for (size_t at = kPageHeaderBytes; at < slot.size(); at += 8) {
    const uint64_t word = mix.Next();
    std::memcpy(slot.data() + at, &word, 8);
  }
  SealHeader(header, slot.subspan(kPageHeaderBytes));
  StoreHeader(header, slot);
}

inline void SleepUntilReady(const SegmentLog& log) {
  pollfd entry = {log.wake_fd(), POLLIN, 0};
  ::poll(&entry, 1, 1000);
}

// Appends pages 0.. of the given slot sizes in turn until `bytes` are written.
inline uint64_t Fill(SegmentLog* log, const std::vector<uint32_t>& slot_bytes, uint64_t bytes) {
  constexpr size_t kDepth = 16;
  const uint32_t largest = *std::max_element(slot_bytes.begin(), slot_bytes.end());
  AlignedBuffer arena(uint64_t{kDepth} * largest);
  std::vector<size_t> free_slots;
  for (size_t i = 0; i < kDepth; ++i) free_slots.push_back(i);
  std::array<LogEvent, 64> events;
  uint64_t id = 0, written = 0, done = 0;
  size_t index = 0;
  bool made = false;
  while (written < bytes || done < id) {
    const size_t count = log->Poll(absl::MakeSpan(events));
    for (size_t i = 0; i < count; ++i) {
      if (events[i].kind != LogEventKind::kAppended) continue;
      if (events[i].result != BlockResult::kOk) Fail("an append failed");
      free_slots.push_back(events[i].token);
      ++done;
    }
    BlockResult result = BlockResult::kOk;
    while (result == BlockResult::kOk && written < bytes && (made || !free_slots.empty())) {
      if (!made) {
        index = free_slots.back();
        free_slots.pop_back();
      }
      const MutableBytes slot =
          arena.span().subspan(index * largest, slot_bytes[id % slot_bytes.size()]);
      if (!made) MakePage(id, slot);
      result = log->Append(slot, false, index);
      made = result == BlockResult::kBusy;  // then the page waits in its slot
      if (made) break;
      if (result != BlockResult::kOk) Fail("an append was refused");
      written += slot.size();
      ++id;
    }
    log->Submit();
    if (count == 0) SleepUntilReady(*log);
  }
  return id;
}

}  // namespace crumb::bench

#endif  // CRUMB_TESTS_BENCH_LOG_BENCH_H_
