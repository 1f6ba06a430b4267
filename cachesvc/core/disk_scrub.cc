// scrub: reads what lies on disk though nobody asked, a little at a time, so that what rots is
// found and forgotten before it is asked for, and while a copy elsewhere may still be good. One
// read at a time, at a bounded rate, only while gets read little.
#include <algorithm>
#include <array>

#include "cachesvc/core/engine_disk.h"

namespace crumb::core {
namespace {
constexpr size_t kScrubBatch = 16;             // records looked at per step
constexpr uint32_t kScrubSteps = 64;           // in a turn
constexpr uint64_t kEmptyPassUs = 10'000'000;  // until the next look, if there was nothing
constexpr uint64_t kBusyUs = 10'000;           // the same, if gets read too much
}  // namespace

int EngineDisk::RunScrub() {
  if (log == nullptr || draining || options.disk.scrub_bytes_per_second == 0) return 0;
  if (scrub.read != kNoId || now() < scrub.next_us) return 0;
  if (reads.taken() >= kQuietReads) {
    scrub.next_us = now() + kBusyUs;
    return 0;
  }
  if (scrub.segment == 0 && scrub.offset_blocks == 0) {
    scrub.pass_began_us = now();
    scrub.pass_bytes = 0;
  }
  for (uint32_t step = 0; step < kScrubSteps; ++step) {
    if (ScrubNext()) return 1;
    if (scrub.segment >= log->segment_count()) {
      EndScrubPass();
      return 0;
    }
    if (now() < scrub.next_us) return 0;
  }
  return 1;
}

// True: a read was started. Else the cursor moved, or `next_us` did.
bool EngineDisk::ScrubNext() {
  std::array<LogRecord, kScrubBatch> batch;
  const size_t count = log->Records(scrub.segment, scrub.offset_blocks, absl::MakeSpan(batch));
  for (size_t i = 0; i < count; ++i) {
    EntryId id = kNoId;
    const bool known =
        FindLive(batch[i].key, &id) == Live::kYes && index.location(id) == batch[i].location;
    const Grant grant = known ? StartSpareRead(id, ReadFor::kScrub, &scrub.read) : Grant::kNever;
    if (grant == Grant::kWait) {
      scrub.next_us = now() + kBusyUs;
      return false;
    }
    if (grant == Grant::kGot) {
      const uint64_t bytes = batch[i].location.record_bytes;
      scrub.pass_bytes += bytes;
      scrub.next_us =
          std::max(scrub.next_us, now()) + bytes * 1'000'000 / options.disk.scrub_bytes_per_second;
    }
    scrub.offset_blocks = batch[i].location.offset_blocks + 1;
    if (grant == Grant::kGot) return true;
  }
  if (count == batch.size()) return false;
  ++scrub.segment;
  scrub.offset_blocks = 0;
  return false;
}

void EngineDisk::EndScrubPass() {
  if (scrub.pass_bytes > 0) ++counts.scrub_passes;
  const uint64_t pause = scrub.pass_bytes == 0
                             ? std::min(kEmptyPassUs, options.disk.scrub_interval_us)
                             : options.disk.scrub_interval_us;
  scrub.next_us = std::max(now() + kBusyUs, scrub.pass_began_us + pause);
  scrub.segment = scrub.offset_blocks = 0;
}

}  // namespace crumb::core
