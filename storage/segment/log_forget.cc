// Erase (tombstones, several in one block) and Flush (the watermark in the superblock). The
// shard's thread.
#include <algorithm>

#include "cachesvc/base/check.h"
#include "storage/segment/segment_log_impl.h"

namespace crumb {

BlockResult SegmentLog::Impl::Erase(const BlockKey& key, const DiskLocation& location,
                                    uint64_t token) {
  if (closed) return BlockResult::kIo;
  Record* record = FindLive(key, location);
  if (record == nullptr) return BlockResult::kMiss;
  if (erases_out >= state->options.erases_max) return BlockResult::kBusy;
  Forget(location.segment, record, token);
  return BlockResult::kOk;
}

void SegmentLog::Impl::Forget(uint32_t index, Record* record, uint64_t token) {
  CRUMB_CHECK(record->record_state() == RecordState::kLive);
  LogSegment& segment = state->segments[index];
  record->SetState(RecordState::kDead);
  CRUMB_CHECK(segment.live_records > 0);
  --segment.live_records;
  segment.live_bytes -= uint64_t{record->blocks} * kLogBlock;
  if (erases.full()) return;  // only ReportCorrupt comes here then
  ++erases_out;
  erases.Push({{record->key, state->next_sequence++}, token});
}

void SegmentLog::Impl::AdvanceErases() {
  if (tombstones_in_flight > 0 || erases.empty()) return;
  if (!MayWrite()) {
    EndErases(static_cast<uint32_t>(erases.size()), BlockResult::kIo);
    return;
  }
  const auto count = static_cast<uint32_t>(std::min(erases.size(), kTombstonesPerBlock));
  if (Reserve(1, 0, count) != BlockResult::kOk) return;
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
  for (uint32_t i = 0; i < count; ++i) {
    const PendingErase erase = erases.Pop();
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

void SegmentLog::Impl::AdvanceSuperblock() {
  if (flushes_in_flight > 0 || flushes.empty()) return;
  flushes_in_flight = static_cast<uint32_t>(flushes.size());
  ++state->superblock.revision;
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
  } else {
    OnWriteError();
  }
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
