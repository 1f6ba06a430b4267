// Reading, verifying, and retiring segments whose records do not verify. The shard's thread, except
// VerifyRecord (any thread).
#include "cachesvc/base/check.h"
#include "storage/segment/segment_log_impl.h"

namespace crumb {

BlockResult SegmentLog::VerifyRecord(Bytes record, const BlockKey& key,
                                     const DiskLocation& location) {
  if (record.size() < location.record_bytes || location.record_bytes < kPageHeaderBytes) {
    return BlockResult::kCorrupt;
  }
  const PageHeader header = LoadHeader(record);
  // The cheap and telling checks first; CheckPage reads the payload.
  if (header.magic != kPageMagic || header.key != key || !StampIsValid(header) ||
      header.segment != location.segment || header.generation != location.generation ||
      PageSlotBytes(header.payload_bytes) != location.record_bytes) {
    return BlockResult::kCorrupt;
  }
  const PageCheck check = CheckPage(record.subspan(0, location.record_bytes));
  return check == PageCheck::kOk ? BlockResult::kOk : BlockResult::kCorrupt;
}

Record* SegmentLog::Impl::FindRecord(const BlockKey& key, const DiskLocation& location) {
  if (location.segment >= state->segments.size() || location.generation == 0) return nullptr;
  const LogSegment& segment = state->segments[location.segment];
  if (segment.generation != location.generation) return nullptr;
  Record* record = state->table.Find(segment.records, location.offset_blocks);
  if (record == nullptr || record->key != key) return nullptr;
  return uint64_t{record->blocks} * kLogBlock == location.record_bytes ? record : nullptr;
}

Record* SegmentLog::Impl::FindLive(const BlockKey& key, const DiskLocation& location) {
  Record* record = FindRecord(key, location);
  const bool live = record != nullptr && record->record_state() == RecordState::kLive;
  return live ? record : nullptr;
}

BlockResult SegmentLog::Impl::Read(const ReadRequest& request) {
  const DiskLocation& location = request.location;
  if (closed) return BlockResult::kIo;
  if (FindLive(request.key, location) == nullptr) return BlockResult::kMiss;
  if (request.out.size() < location.record_bytes ||
      reinterpret_cast<uintptr_t>(request.out.data()) % device->alignment() != 0) {
    return BlockResult::kInvalid;
  }
  if (reads >= state->options.reads_max) return BlockResult::kBusy;
  ++reads;
  ++state->segments[location.segment].reads;
  Op op;
  op.kind = OpKind::kRead;
  op.verify = request.verify;
  op.token = request.token;
  op.key = request.key;
  op.location = location;
  op.request = {
      IoOp::kRead,
      state->geometry.Offset(location.segment) + uint64_t{location.offset_blocks} * kLogBlock,
      request.out.data(), location.record_bytes, 0};
  Issue(op);
  return BlockResult::kOk;
}

void SegmentLog::Impl::OnRead(const Op& op, int error) {
  LogSegment& segment = state->segments[op.location.segment];
  CRUMB_CHECK(segment.reads > 0);
  --segment.reads;
  LogEvent event;
  event.kind = LogEventKind::kRead;
  event.token = op.token;
  event.key = op.key;
  event.location = op.location;
  if (error != 0) {
    ++state->stats.read_errors;
    OnDeviceError();
    event.result = BlockResult::kIo;
  } else if (segment.generation != op.location.generation) {
    event.result = BlockResult::kMiss;  // reclaimed or flushed while it was read
  } else {
    state->stats.bytes_read += op.request.bytes;
    if (op.verify) {
      event.result = VerifyRecord(Bytes(op.request.data, op.request.bytes), op.key, op.location);
      event.verified = event.result == BlockResult::kOk;
    }
    if (event.result == BlockResult::kCorrupt) Corrupt(op.key, op.location);
  }
  Emit(event);
  MaybeFree(op.location.segment);
}

void SegmentLog::Impl::Corrupt(const BlockKey& key, const DiskLocation& location) {
  ++state->stats.checksum_failures;
  Record* record = FindLive(key, location);
  if (record == nullptr) return;  // gone already
  // WHY a tombstone: after a restart the record must not be found again and fail again.
  Forget(location.segment, record, 0);
  LogSegment& segment = state->segments[location.segment];
  if (++segment.corrupt < state->options.corrupt_max || segment.quarantine) return;
  segment.quarantine = true;
  if (!quarantine.full()) quarantine.Push(location.segment);
}

// Takes a segment that lost too many records out of use until its turn to be written again: its
// pages are reported as reclaimed, and a mark says so to the next recovery. It keeps its place in
// the order, because its tombstones must outlive older segments, and its pages count as such: they
// took the place of what lies in older segments under their keys.
void SegmentLog::Impl::AdvanceQuarantine() {
  if (quarantine.empty() || retiring != kNoSegment || report.records.size > 0) return;
  const uint32_t index = quarantine.Front();
  LogSegment& segment = state->segments[index];
  if (!segment.quarantine) {  // reclaimed or flushed meanwhile
    quarantine.Pop();
    return;
  }
  if (segment.state == SegmentState::kOpen && sealing == kNoSegment) StartSeal();
  if (segment.state != SegmentState::kSealed || segment.meta_busy) return;
  quarantine.Pop();
  segment.quarantine = false;
  ++state->stats.segments_quarantined;
  report = {index, segment.generation, 0, segment.records};
  SegmentMark mark;
  mark.state = MarkState::kRetired;
  mark.log_id = state->superblock.log_id;
  mark.segment = index;
  mark.generation = segment.generation;
  mark.data_end_blocks = segment.used_blocks;
  mark.sequence_max = state->next_sequence;
  segment.tombstones += segment.records.size;
  segment.records = {};
  segment.generation = 0;
  segment.live_bytes = 0;
  segment.live_records = 0;
  StoreMark(mark, retire_block.span());
  retiring = index;
  state->stats.retiring = true;
  segment.meta_busy = true;
  Op op;
  op.kind = OpKind::kRetire;
  op.location.segment = index;
  op.request = {IoOp::kWriteDurable, state->geometry.MarkOffset(index), retire_block.data(),
                kLogBlock, 0};
  Issue(op);
}

void SegmentLog::Impl::OnRetired(const Op& op, int error) {
  retiring = kNoSegment;
  state->stats.retiring = false;
  state->segments[op.location.segment].meta_busy = false;
  if (error != 0) {
    OnWriteError();
    LoseErase(state->next_sequence - 1);  // a start finds its pages
  } else {
    state->stats.bytes_written += op.request.bytes;
  }
  MaybeFree(op.location.segment);
}

size_t SegmentLog::Impl::Records(uint32_t index, uint32_t offset_blocks,
                                 absl::Span<LogRecord> out) const {
  if (index >= state->segments.size() || out.empty()) return 0;
  const LogSegment& segment = state->segments[index];
  if (segment.state != SegmentState::kSealed || segment.generation == 0) return 0;
  size_t count = 0;
  state->table.ForEachFrom(segment.records, offset_blocks, [&](const Record& record) {
    if (record.record_state() != RecordState::kLive) return true;
    out[count++] = {record.key,
                    {index, segment.generation, record.offset_blocks,
                     static_cast<uint32_t>(record.blocks * kLogBlock)}};
    return count < out.size();
  });
  return count;
}

std::optional<DiskLocation> SegmentLog::Impl::NextReclaimed() const {
  if (!state->free.empty() || state->order.empty()) return std::nullopt;
  const uint32_t oldest = state->order.Front();
  const LogSegment& segment = state->segments[oldest];
  if (segment.state != SegmentState::kSealed || segment.generation == 0) return std::nullopt;
  return DiskLocation{.segment = oldest, .generation = segment.generation};
}

}  // namespace crumb
