// Appending, and the life of segments: free -> marking -> ready -> open -> sealing -> sealed ->
// draining -> free. The shard's thread.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "cachesvc/base/check.h"
#include "storage/segment/segment_log_impl.h"

namespace crumb {
namespace {

// The next segment is prepared once the open one is filled to 3/4, so that appends do not wait.
bool IsNearlyFull(const LogSegment& segment, const LogGeometry& geometry) {
  return segment.used_blocks >= geometry.BlocksMax() / 4 * 3;
}

}  // namespace

BlockResult SegmentLog::Impl::Append(MutableBytes slot, bool durable, uint64_t token) {
  if (closed || !MayWrite()) return BlockResult::kIo;
  if (slot.size() < kPageHeaderBytes ||
      reinterpret_cast<uintptr_t>(slot.data()) % device->alignment() != 0) {
    return BlockResult::kInvalid;
  }
  PageHeader header = LoadHeader(slot);
  if (CheckHeaderFields(header) != PageCheck::kOk) return BlockResult::kInvalid;
  const uint64_t bytes = PageSlotBytes(header.payload_bytes);
  if (bytes > slot.size()) return BlockResult::kInvalid;
  if (bytes > state->geometry.RecordBytesMax()) return BlockResult::kNoSpace;
  if (appends >= state->options.appends_max) return BlockResult::kBusy;
  const auto blocks = static_cast<uint32_t>(bytes / kLogBlock);
  if (BlockResult result = Reserve(blocks, 1, 0); result != BlockResult::kOk) return result;

  LogSegment& segment = state->segments[state->open];
  const RecordPlace place = {state->open, segment.generation, segment.used_blocks,
                             state->next_sequence++};
  StampHeader(state->superblock.salt, place, &header);
  // Only the stamp: a worker may be reading the rest of the page at this moment.
  constexpr size_t kStampAt = offsetof(PageHeader, segment);
  std::memcpy(slot.data() + kStampAt, reinterpret_cast<const uint8_t*>(&header) + kStampAt,
              kPageHeaderBytes - kStampAt);
  Record record{};
  record.key = header.key;
  record.offset_blocks = place.offset_blocks;
  record.blocks = blocks & 0xfffffff;
  record.SetState(RecordState::kWriting);
  state->table.Add(&segment.records, record);
  state->footer().AddRecord(header, place.offset_blocks);
  segment.used_blocks += blocks;
  ++segment.writes;
  ++appends;

  Op op;
  op.kind = OpKind::kAppend;
  op.token = token;
  op.key = header.key;
  op.location = {place.segment, place.generation, place.offset_blocks,
                 static_cast<uint32_t>(bytes)};
  op.request.op = durable ? IoOp::kWriteDurable : IoOp::kWrite;
  op.request.offset =
      state->geometry.Offset(place.segment) + uint64_t{place.offset_blocks} * kLogBlock;
  op.request.data = slot.data();
  op.request.bytes = static_cast<uint32_t>(bytes);
  Issue(op);
  if (IsNearlyFull(segment, state->geometry) && state->ready == kNoSegment) want_next = true;
  return BlockResult::kOk;
}

void SegmentLog::Impl::OnAppended(const Op& op, int error) {
  LogSegment& segment = state->segments[op.location.segment];
  CRUMB_CHECK(segment.writes > 0);
  --segment.writes;
  LogEvent event;
  event.kind = LogEventKind::kAppended;
  event.token = op.token;
  event.key = op.key;
  event.location = op.location;
  const bool present = segment.generation == op.location.generation;  // else flushed meanwhile
  Record* record =
      present ? state->table.Find(segment.records, op.location.offset_blocks) : nullptr;
  CRUMB_CHECK(!present || record != nullptr);
  if (error != 0) {
    OnWriteError();
    event.result = error == ENOSPC ? BlockResult::kNoSpace : BlockResult::kIo;
    if (record != nullptr) {
      record->SetState(RecordState::kFailed);
      if (FooterBuilder* builder = BuilderOf(op.location.segment)) {
        builder->DropRecord(op.location.offset_blocks);
      }
    }
  } else {
    OnWriteOk();
    if (!state->stats.enabled) {  // the one append that was tried went well
      state->stats.enabled = true;
      errors = 0;
    }
    state->stats.bytes_written += op.request.bytes;
    event.result = present ? BlockResult::kOk : BlockResult::kMiss;
    if (record != nullptr) {
      record->SetState(RecordState::kLive);
      ++segment.live_records;
      segment.live_bytes += op.request.bytes;
    }
  }
  Emit(event);
  MaybeFree(op.location.segment);
}

FooterBuilder* SegmentLog::Impl::BuilderOf(uint32_t segment) {
  if (segment == state->open) return &state->footer();
  if (segment == sealing) return &state->builders[1 - state->builder];
  return nullptr;
}

bool SegmentLog::Impl::Fits(uint32_t blocks, uint32_t records, uint32_t tombstones) const {
  const LogSegment& segment = state->segments[state->open];
  const FooterBuilder& footer = state->builders[state->builder];
  if (footer.tombstone_count() + tombstones > FooterBuilder::kTombstonesMax) return false;
  const uint64_t data = uint64_t{segment.used_blocks + blocks} * kLogBlock;
  return data + footer.BytesWith(records, tombstones) <= state->geometry.segment_bytes;
}

// kOk: the open segment takes so many more blocks. kBusy: not yet. kIo: not before the superblock,
// whose write failed, could be written.
BlockResult SegmentLog::Impl::Reserve(uint32_t blocks, uint32_t records, uint32_t tombstones) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (state->open == kNoSegment && state->ready == kNoSegment) {
      want_next = true;
      return state->stats.head_lost ? BlockResult::kIo : BlockResult::kBusy;
    }
    if (state->open == kNoSegment) OpenReady();
    if (records > 0 && !state->table.HasRoom(state->segments[state->open].records)) {
      ReclaimOldest();
      return BlockResult::kBusy;
    }
    if (Fits(blocks, records, tombstones)) return BlockResult::kOk;
    if (sealing != kNoSegment) return BlockResult::kBusy;
    StartSeal();
  }
  return BlockResult::kBusy;
}

void SegmentLog::Impl::OpenReady() {
  CRUMB_CHECK(state->open == kNoSegment && state->ready != kNoSegment);
  state->open = state->ready;
  state->ready = kNoSegment;
  LogSegment& segment = state->segments[state->open];
  CRUMB_CHECK(segment.state == SegmentState::kReady && segment.records.size == 0);
  segment.state = SegmentState::kOpen;
  state->order.Push(state->open);
}

void SegmentLog::Impl::StartSeal() {
  CRUMB_CHECK(state->open != kNoSegment && sealing == kNoSegment);
  sealing = state->open;
  state->open = kNoSegment;
  state->segments[sealing].state = SegmentState::kSealing;
  state->builder = 1 - state->builder;
  state->footer().Clear();
}

// Data first, then a sync, then the footer: a footer never tells of a record that a power loss
// could have taken.
void SegmentLog::Impl::AdvanceSeal() {
  if (sealing == kNoSegment) return;
  LogSegment& segment = state->segments[sealing];
  if (segment.meta_busy || segment.writes > 0) return;
  if (segment.state == SegmentState::kDraining) {  // flushed meanwhile
    const uint32_t done = sealing;
    sealing = kNoSegment;
    MaybeFree(done);
    return;
  }
  segment.meta_busy = true;
  Op op;
  op.kind = OpKind::kSync;
  op.location.segment = sealing;
  op.request.op = IoOp::kSync;
  Issue(op);
}

void SegmentLog::Impl::OnSealSynced(const Op& op, int error) {
  LogSegment& segment = state->segments[op.location.segment];
  segment.meta_busy = false;
  if (segment.state == SegmentState::kDraining) return;  // AdvanceSeal ends it
  if (error != 0) {  // stays without a footer: recovery will look at each record
    OnWriteError();
    segment.state = SegmentState::kSealed;
    sealing = kNoSegment;
    return;
  }
  SegmentMark mark;
  mark.state = MarkState::kSealed;
  mark.log_id = state->superblock.log_id;
  mark.segment = op.location.segment;
  mark.generation = segment.generation;
  mark.data_end_blocks = segment.used_blocks;
  const MutableBytes bytes = state->builders[1 - state->builder].Build(mark);
  const LogGeometry& geometry = state->geometry;
  CRUMB_CHECK(uint64_t{segment.used_blocks} * kLogBlock + bytes.size() <= geometry.segment_bytes);
  segment.meta_busy = true;
  Op footer;
  footer.kind = OpKind::kFooter;
  footer.location.segment = op.location.segment;
  footer.request.op = IoOp::kWriteDurable;
  footer.request.offset =
      geometry.Offset(op.location.segment) + geometry.segment_bytes - bytes.size();
  footer.request.data = bytes.data();
  footer.request.bytes = static_cast<uint32_t>(bytes.size());
  Issue(footer);
}

void SegmentLog::Impl::OnFooter(const Op& op, int error) {
  LogSegment& segment = state->segments[op.location.segment];
  segment.meta_busy = false;
  if (error != 0) {
    OnWriteError();
  } else {
    OnWriteOk();
    state->stats.bytes_written += op.request.bytes;
  }
  if (segment.state == SegmentState::kDraining) return;  // AdvanceSeal ends it
  segment.sealed_on_disk = error == 0;
  segment.state = SegmentState::kSealed;
  sealing = kNoSegment;
}

void SegmentLog::Impl::PrepareNext() {
  if (state->ready != kNoSegment) want_next = false;
  if (!want_next || preparing != kNoSegment || !MayWrite()) return;
  if (state->next_generation == 0) return;  // used up: 2^32 segments were written
  if (state->free.empty()) ReclaimOldest();
  // WHY: what a start would still find may be hidden by tombstones and newer pages in any other
  // segment that was flushed or reclaimed, so that none of them may be written over yet.
  if (HeadIsBehind() || state->free.empty()) return;
  preparing = state->free.Pop();
  LogSegment& segment = state->segments[preparing];
  CRUMB_CHECK(segment.state == SegmentState::kFree && segment.records.size == 0);
  segment = {};
  segment.state = SegmentState::kMarking;
  segment.meta_busy = true;
  preparing_generation = state->next_generation++;
  SegmentMark mark;
  mark.log_id = state->superblock.log_id;
  mark.segment = preparing;
  mark.generation = preparing_generation;
  StoreMark(mark, mark_block.span());
  Op op;
  op.kind = OpKind::kMark;
  op.location.segment = preparing;
  op.request = {IoOp::kWriteDurable, state->geometry.MarkOffset(preparing), mark_block.data(),
                kLogBlock, 0};
  Issue(op);
}

void SegmentLog::Impl::OnMark(const Op& op, int error) {
  CRUMB_CHECK(preparing == op.location.segment);
  LogSegment& segment = state->segments[preparing];
  segment.meta_busy = false;
  if (error != 0) {  // its turn comes again after all others
    OnWriteError();
    segment.state = SegmentState::kSealed;
    state->order.Push(preparing);
  } else {
    OnWriteOk();
    state->stats.bytes_written += op.request.bytes;
    if (preparing >= Limit()) {  // the log became smaller meanwhile
      segment.state = SegmentState::kFree;
      preparing = kNoSegment;
      return;
    }
    segment.generation = preparing_generation;
    segment.used_blocks = state->geometry.DataBegin(preparing);
    segment.state = SegmentState::kReady;
    state->ready = preparing;
    want_next = false;
  }
  preparing = kNoSegment;
}

void SegmentLog::Impl::ReclaimOldest() {
  if (report.records.size > 0 || state->order.empty()) return;
  const uint32_t oldest = state->order.Front();
  LogSegment& segment = state->segments[oldest];
  if (segment.state != SegmentState::kSealed) return;
  state->order.Pop();
  if (segment.generation != 0) {
    ++state->stats.segments_reclaimed;
    uint32_t& dead = state->superblock.generation_min;
    dead = std::max(dead, segment.generation + 1);
  }
  report = {oldest, segment.generation, 0, segment.records};
  segment.records = {};
  DropSegment(oldest);
}

void SegmentLog::Impl::MaybeFree(uint32_t index) {
  LogSegment& segment = state->segments[index];
  if (segment.state != SegmentState::kDraining || index == sealing) return;
  if (segment.reads > 0 || segment.writes > 0 || segment.meta_busy) return;
  segment.state = SegmentState::kFree;
  if (index < Limit()) state->free.Push(index);
}

}  // namespace crumb
