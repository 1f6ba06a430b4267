// Reads that nobody waits for: into staging memory that is not needed, while the log has room. And
// what may be written though nobody asked for it.
#include <algorithm>

#include "cachesvc/core/engine_disk.h"

namespace crumb::core {
namespace {

constexpr uint64_t kStagingShare = 2;  // 1 / share of a half of the staging area stays free

}  // namespace

void EngineDisk::ChargeBudget() {
  if (log != nullptr) write_budget.Charge(log->counts().bytes_issued, now());
}

bool EngineDisk::MayWriteSpare() {
  if (write_budget.bytes_per_day() == 0) return true;
  ChargeBudget();
  return write_budget.allows();
}

// kWait: not now. kNever: it has no room in staging.
Grant EngineDisk::StartSpareRead(EntryId entry_id, ReadFor purpose, uint32_t* started) {
  const Entry& entry = index.at(entry_id);
  const DiskLocation location = index.location(entry_id);
  const uint64_t bytes = location.record_bytes;
  const uint64_t half = pool().staging_capacity_bytes() / 2;
  const uint64_t spare = pool().staging_free_bytes(StageHalf::kIn);
  if (bytes > half) return Grant::kNever;
  // A page that takes more than its share has the half to itself.
  const bool leaves_enough = spare == half || spare >= bytes + half / kStagingShare;
  if (!leaves_enough) return Grant::kWait;
  const uint32_t id = reads.Take();
  if (id == Slab<DiskRead>::kNone) return Grant::kWait;
  const SlotId slot = pool().AllocateStaging(bytes, StageHalf::kIn);
  DiskRead& read = reads[id];
  const uint64_t token = MakeToken(TokenKind::kRead, id, read.generation);
  const BlockResult result =
      slot.valid() ? log->ReadUnverified(entry.key, location, pool().memory(slot), token)
                   : BlockResult::kBusy;
  if (result != BlockResult::kOk) {
    if (slot.valid()) pool().Release(slot);
    reads.Give(id);
    return result == BlockResult::kBusy ? Grant::kWait : Grant::kNever;
  }
  read.key = entry.key;
  read.entry = entry_id;
  read.entry_generation = entry.generation;
  read.block = read.rescue = kNoId;
  read.location = location;
  read.slot = slot;
  read.purpose = purpose;
  read.prefetch = false;
  read.started_us = now();
  *started = id;
  return Grant::kGot;
}

void EngineDisk::EndSpareRead(uint32_t id, BlockResult result) {
  DiskRead& read = reads[id];
  EntryId found = kNoId;
  const bool current = FindLive(read.key, &found) == Live::kYes && found == read.entry &&
                       index.at(found).generation == read.entry_generation &&
                       index.location(found) == read.location;
  const bool same = result != BlockResult::kOk || !current ||
                    IsImageOf(LoadHeader(pool().memory(read.slot)), index, found);
  if (!same) result = BlockResult::kCorrupt;
  if (current && result != BlockResult::kOk) ForgetBadRecord(read, result);
  const bool good = current && result == BlockResult::kOk;
  if (read.purpose == ReadFor::kRescue) {
    OnRescueRead(read, good);
  } else {
    scrub.read = kNoId;
    if (good) {
      ++counts.scrubbed_pages;
      counts.scrubbed_bytes += read.location.record_bytes;
    } else if (current && result != BlockResult::kMiss) {
      ++counts.scrub_bad_pages;
    }
    pool().Release(read.slot);
  }
  reads.Give(id);
}

// WHY not while a page of the key is being written: the tombstone would hide that too. It replaces
// the bad record by itself.
void EngineDisk::ForgetBadRecord(const DiskRead& read, BlockResult result) {
  if (result == BlockResult::kCorrupt) ++counts.checksum_failures_scrub;
  if (FindAppend(read.key) != kNoId) return;
  if (result == BlockResult::kCorrupt) {
    log->ReportCorrupt(read.key, read.location);
  } else if (result == BlockResult::kIo) {
    ForgetRecord(read.key, read.location, kNoId);
  }
  LoseRecord(read.entry);
}

// The page is what is in memory, if it is there.
void EngineDisk::LoseRecord(EntryId id) {
  Entry& entry = index.at(id);
  if (!entry.resident()) return EraseEntry(id);
  index.SetLocation(id, {});
  entry.durable = false;
}

// When there is something to do though nothing happens.
uint64_t EngineDisk::NextSpareUs() const {
  if (log == nullptr || draining) return UINT64_MAX;
  for (uint32_t id = 0, left = rescues.taken(); id < rescues.size() && left > 0; ++id) {
    if (!rescues[id].used) continue;
    if (rescues[id].read && !rescues[id].writing) return now() + kRetryUs;
    --left;
  }
  if (options.disk.scrub_bytes_per_second == 0 || scrub.read != kNoId) return UINT64_MAX;
  return std::max(scrub.next_us, now() + kRetryUs);
}

}  // namespace crumb::core
