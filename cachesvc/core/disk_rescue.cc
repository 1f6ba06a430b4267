// rescue: before a segment is written over, pages in it that were read since they were written and
// are not in memory are written anew, at the log's end. Reclaim never waits for it: what is not
// done when the segment's turn comes is lost, as it would have been.
#include <algorithm>
#include <array>

#include "cachesvc/core/engine_disk.h"

namespace crumb::core {
namespace {
constexpr size_t kLookBatch = 64;         // records looked at in a turn
constexpr uint32_t kReadsForRescue = 16;  // reads in flight from which on none is added
}  // namespace

int EngineDisk::RunRescues() {
  if (log == nullptr || !options.disk.rescue) return 0;
  for (uint32_t id = 0, left = rescues.taken(); id < rescues.size() && left > 0; ++id) {
    if (!rescues[id].used) continue;
    --left;
    if (rescues[id].read && !rescues[id].writing) WriteRescue(id);
  }
  if (draining || !log->counts().enabled) return 0;
  const std::optional<DiskLocation> next = log->NextReclaimed();
  if (!next.has_value()) return 0;
  if (rescue.segment != next->segment || rescue.log_generation != next->generation) {
    rescue = {.segment = next->segment,
              .log_generation = next->generation,
              .offset_blocks = 0,
              .bytes = 0,
              .done = false};
  }
  if (rescue.done) return 0;
  return LookForRescues() ? 1 : 0;
}

// True: there is more to look at, and nothing in the way.
bool EngineDisk::LookForRescues() {
  std::array<LogRecord, kLookBatch> batch;
  const size_t count = log->Records(rescue.segment, rescue.offset_blocks, absl::MakeSpan(batch));
  for (size_t i = 0; i < count; ++i) {
    EntryId id = kNoId;
    if (WantsRescue(batch[i], &id)) {
      const uint64_t bytes = batch[i].location.record_bytes;
      if (rescue.bytes + bytes > log->segment_bytes() / kRescueShare) {
        ++counts.rescues_over_share;
      } else if (!MayWriteSpare()) {
        ++counts.rescues_over_budget;
      } else {
        if (rescues.free() == 0 || reads.taken() >= kReadsForRescue) return false;
        const Grant grant = StartRescue(id);
        if (grant == Grant::kWait) return false;
        if (grant == Grant::kGot) rescue.bytes += bytes;
        if (grant == Grant::kNever) ++counts.rescues_failed;
      }
    }
    rescue.offset_blocks = batch[i].location.offset_blocks + 1;
  }
  rescue.done = count < batch.size();
  return !rescue.done;
}

Grant EngineDisk::StartRescue(EntryId entry) {
  uint32_t read = kNoId;
  const Grant grant = StartSpareRead(entry, ReadFor::kRescue, &read);
  if (grant != Grant::kGot) return grant;
  const uint32_t id = rescues.Take();
  Rescue& made = rescues[id];
  made.entry = entry;
  made.entry_generation = index.at(entry).generation;
  made.from = index.location(entry);
  made.slot = reads[read].slot;
  made.read = made.writing = false;
  reads[read].rescue = id;
  return grant;
}

bool EngineDisk::WantsRescue(const LogRecord& record, EntryId* id) {
  if (FindLive(record.key, id) != Live::kYes) return false;
  const Entry& entry = index.at(*id);
  return index.location(*id) == record.location && entry.disk_hit != 0 && !entry.resident() &&
         entry.read() == kNoId && !AppendInFlight(record.key);
}

void EngineDisk::OnRescueRead(DiskRead& read, bool good) {
  const uint32_t id = read.rescue;
  CRUMB_CHECK(rescues[id].used && !rescues[id].read);
  if (!good || draining) return EndRescue(id, false);
  rescues[id].read = true;
  WriteRescue(id);
}

void EngineDisk::WriteRescue(uint32_t id) {
  Rescue& op = rescues[id];
  EntryId found = kNoId;
  if (!index.Alive(op.entry, op.entry_generation)) return EndRescue(id, false);
  const BlockKey key = index.at(op.entry).key;
  const bool current =
      FindLive(key, &found) == Live::kYes && found == op.entry && index.location(found) == op.from;
  if (!current || draining) return EndRescue(id, false);
  if (flush_blocks_appends || AppendInFlight(key)) return;
  const uint32_t append_id = appends.Take();
  if (append_id == Slab<DiskAppend>::kNone) return;
  Entry& entry = index.at(found);
  DiskAppend& append = appends[append_id];
  append.started_us = now();
  const uint64_t token = MakeToken(TokenKind::kAppend, append_id, append.generation);
  const BlockResult result = log->Append(pool().memory(op.slot), entry.durable, token);
  if (result != BlockResult::kOk) {
    appends.Give(append_id);
    return result == BlockResult::kBusy ? static_cast<void>(0) : EndRescue(id, false);
  }
  append.key = key;
  append.entry = found;
  append.entry_generation = op.entry_generation;
  append.block = append.flush = append.demotion = kNoId;
  append.rescue = id;
  append.slot = op.slot;
  append.durable = entry.durable;
  append.evict = false;
  op.writing = true;
}

// A write that failed may be on the medium or not: it is the same image, and no lie if a start
// finds it; an erase of the page hides both. WHY only while the entry is where it was: else it was
// deleted or flushed, or holds another image by now.
void EngineDisk::EndRescueAppend(DiskAppend& append, const LogEvent& event) {
  const bool done = event.result == BlockResult::kOk;
  const bool same = index.Alive(append.entry, append.entry_generation) &&
                    index.location(append.entry) == rescues[append.rescue].from;
  if (same && done) {
    index.SetLocation(append.entry, event.location);
    index.at(append.entry).durable = append.durable;
    counts.rescued_bytes += event.location.record_bytes;
  } else if (!same && event.location.generation != 0) {
    ForgetRecord(append.key, event.location, append.flush);
  }
  EndRescue(append.rescue, same && done);
}

void EngineDisk::EndRescue(uint32_t id, bool done) {
  done ? ++counts.rescued : ++counts.rescues_failed;
  pool().Release(rescues[id].slot);
  rescues.Give(id);
}

}  // namespace crumb::core
