// Erase (tombstones, several in one block) and Flush (the watermark in the superblock). The
// shard's thread.
#include <algorithm>

#include "cachesvc/base/check.h"
#include "storage/segment/segment_log_impl.h"

namespace crumb {

BlockResult SegmentLog::Impl::Erase(const BlockKey& key, const DiskLocation& location,
                                    uint64_t token) {
  if (closed) return BlockResult::kIo;
  const bool nowhere = location.generation == 0;
  Record* record = nowhere ? nullptr : FindRecord(key, location);
  if (record != nullptr && record->record_state() != RecordState::kLive &&
      record->record_state() != RecordState::kFailed) {
    record = nullptr;
  }
  const bool needed = nowhere ? MayComeBack(key) : record != nullptr;
  if (!needed) return BlockResult::kMiss;
  if (erases_out >= state->options.erases_max) return BlockResult::kBusy;
  if (nowhere) {
    PushTombstone(key, token);
  } else {
    Forget(location.segment, record, token);
  }
  return BlockResult::kOk;
}

// Whether a start could find a record of the key that nobody knows of now: its tombstone, a flush,
// a reclaim or a quarantine is not stable yet, or some tombstone could not be written (which one is
// not kept: there is no bound).
bool SegmentLog::Impl::MayComeBack(const BlockKey& key) const {
  if (lost_sequence != 0 || HeadIsBehind() || retiring != kNoSegment) return true;
  for (size_t i = 0; i < erases.size(); ++i) {
    if (erases.At(i).tombstone.key == key) return true;
  }
  return false;
}

void SegmentLog::Impl::LoseErase(uint64_t log_sequence) {
  ++state->stats.erases_lost;
  lost_sequence = std::max(lost_sequence, log_sequence);
}

void SegmentLog::Impl::PushTombstone(const BlockKey& key, uint64_t token) {
  ++erases_out;
  ++state->stats.erases_begun;
  erases.Push({{key, state->next_sequence++}, token, false});
}

void SegmentLog::Impl::Forget(uint32_t index, Record* record, uint64_t token) {
  LogSegment& segment = state->segments[index];
  if (record->record_state() == RecordState::kLive) {
    CRUMB_CHECK(segment.live_records > 0);
    --segment.live_records;
    segment.live_bytes -= uint64_t{record->blocks} * kLogBlock;
  }
  record->SetState(RecordState::kDead);
  // Only ReportCorrupt comes here with a full queue.
  if (erases.full()) return LoseErase(state->next_sequence - 1);
  PushTombstone(record->key, token);
}

void SegmentLog::Impl::AdvanceErases() {
  if (tombstones_in_flight > 0 || erases.empty()) return;
  if (!MayWrite()) {
    EndErases(static_cast<uint32_t>(erases.size()), BlockResult::kIo);
    return;
  }
  const auto count = static_cast<uint32_t>(std::min(erases.size(), kTombstonesPerBlock));
  const BlockResult room = Reserve(1, 0, count);
  if (room == BlockResult::kIo) EndErases(static_cast<uint32_t>(erases.size()), room);
  if (room != BlockResult::kOk) return;
  LogSegment& segment = state->segments[state->open];
  TombstoneBlock block;
  block.count = static_cast<uint16_t>(count);
  block.log_id = state->superblock.log_id;
  block.segment = state->open;
  block.generation = segment.generation;
  block.offset_blocks = segment.used_blocks;
  for (uint32_t i = 0; i < count; ++i) {
    block.entries[i] = erases.At(i).tombstone;
    state->footer().AddTombstone(erases.At(i).tombstone);
  }
  StoreTombstones(block, state->superblock.salt, tombstone_block.span());
  tombstones_in_flight = count;
  segment.tombstones += count;
  Op op;
  op.kind = OpKind::kTombstones;
  op.location.segment = state->open;
  op.request = {IoOp::kWriteDurable,
                state->geometry.Offset(state->open) + uint64_t{segment.used_blocks} * kLogBlock,
                tombstone_block.data(), kLogBlock, 0};
  ++segment.used_blocks;
  ++segment.writes;
  Issue(op);
}

void SegmentLog::Impl::OnTombstones(const Op& op, int error) {
  LogSegment& segment = state->segments[op.location.segment];
  CRUMB_CHECK(segment.writes > 0);
  --segment.writes;
  if (error != 0) {
    OnWriteError();
  } else {
    OnWriteOk();
    state->stats.bytes_written += op.request.bytes;
    state->stats.tombstones_written += tombstones_in_flight;
  }
  const uint32_t count = tombstones_in_flight;
  tombstones_in_flight = 0;
  EndErases(count, error == 0 ? BlockResult::kOk : BlockResult::kIo);
  MaybeFree(op.location.segment);
}

void SegmentLog::Impl::EndErases(uint32_t count, BlockResult result) {
  state->stats.erases_ended += count;
  for (uint32_t i = 0; i < count; ++i) {
    const PendingErase erase = erases.Pop();
    if (result != BlockResult::kOk) LoseErase(erase.tombstone.log_sequence);
    if (erase.carried) --resizing.writing;
    if (erase.token == 0) {
      --erases_out;
      continue;
    }
    LogEvent event;
    event.kind = LogEventKind::kErased;
    event.result = result;
    event.token = erase.token;
    event.key = erase.tombstone.key;
    Emit(event);
  }
}

BlockResult SegmentLog::Impl::Flush(uint64_t token) {
  if (closed) return BlockResult::kIo;
  if (flushes_out >= kFlushesMax) return BlockResult::kBusy;
  ++flushes_out;
  flushes.Push(token);
  state->superblock.watermark = state->next_sequence++;
  while (!state->order.empty()) {
    const uint32_t index = state->order.Pop();
    state->table.Free(&state->segments[index].records);
    DropSegment(index);
  }
  for (uint32_t index = Limit(); index < state->segments.size(); ++index) {  // being given up
    if (state->segments[index].state != SegmentState::kSealed) continue;
    state->table.Free(&state->segments[index].records);
    DropSegment(index);
  }
  state->open = kNoSegment;
  state->footer().Clear();
  state->table.Free(&report.records);
  report = {};
  return BlockResult::kOk;
}

// Nothing of it can be read from now on; it becomes free when nothing in flight touches it.
// REQUIRES: its records were taken away.
void SegmentLog::Impl::DropSegment(uint32_t index) {
  LogSegment& segment = state->segments[index];
  CRUMB_CHECK(segment.records.size == 0);
  segment.generation = 0;
  segment.live_bytes = 0;
  segment.live_records = 0;
  segment.quarantine = false;
  segment.state = SegmentState::kDraining;
  MaybeFree(index);
}

// Until both superblocks say what was flushed and reclaimed, a start would still find it.
bool SegmentLog::Impl::HeadIsBehind() const {
  return head_stable.watermark != state->superblock.watermark ||
         head_stable.generation_min != state->superblock.generation_min;
}

void SegmentLog::Impl::AdvanceSuperblock() {
  const bool resized =
      !closed && resizing.step == ResizeStep::kSuperblock && clock->now_us() >= resizing.retry_us;
  const bool behind = HeadIsBehind() && clock->now_us() >= head_retry_us;
  if (superblock_busy || (flushes.empty() && !resized && !behind)) return;
  superblock_busy = true;
  resizing.covered = resized;
  flushes_in_flight = static_cast<uint32_t>(flushes.size());
  reclaims_in_flight = state->stats.segments_reclaimed;
  ++state->superblock.revision;
  head_in_flight = state->superblock;
  StoreSuperblock(state->superblock, superblock_block.span());
  superblock_copy = 0;
  WriteSuperblockCopy();
}

void SegmentLog::Impl::WriteSuperblockCopy() {
  Op op;
  op.kind = OpKind::kSuperblock;
  op.request = {IoOp::kWriteDurable, kSuperblockOffsets[superblock_copy], superblock_block.data(),
                kLogBlock, 0};
  Issue(op);
}

// WHY both copies: if one rots, the other one still knows the flush.
void SegmentLog::Impl::OnSuperblock(int error) {
  if (error == 0) {
    OnWriteOk();
    state->stats.bytes_written += kLogBlock;
    if (++superblock_copy < kSuperblockOffsets.size()) {
      WriteSuperblockCopy();
      return;
    }
    head_stable = head_in_flight;
    if (lost_sequence < head_stable.watermark) {  // whatever they should have hidden is flushed
      lost_sequence = 0;
      state->stats.erases_lost = 0;
    }
    if (resizing.covered) OnResizeStable();
  } else {
    OnWriteError();
    head_retry_us = clock->now_us() + state->options.retry_off_us;
    if (resizing.covered) resizing.retry_us = head_retry_us;
  }
  state->stats.head_lost = error != 0 && HeadIsBehind();
  state->stats.reclaims_ended = reclaims_in_flight;
  superblock_busy = resizing.covered = false;
  for (uint32_t i = 0; i < flushes_in_flight; ++i) {
    LogEvent event;
    event.kind = LogEventKind::kFlushed;
    event.result = error == 0 ? BlockResult::kOk : BlockResult::kIo;
    event.token = flushes.Pop();
    Emit(event);
  }
  flushes_in_flight = 0;
}

}  // namespace crumb
