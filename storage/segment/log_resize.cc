// Another number of segments while the log runs. Up: the marks of new segments are blanked, the
// superblock counts them, they are free. Down: the segments behind the new end take nothing more;
// their tombstones are written anew, for what they hide may lie in segments that stay; the
// superblock no longer counts them; only then are their pages given up, and told. Whenever the
// power goes, a start finds the old log or the new one, and no erased page. The shard's thread.
#include <algorithm>
#include <cstring>
#include <utility>

#include "cachesvc/base/check.h"
#include "storage/segment/log_scan.h"
#include "storage/segment/segment_log_impl.h"

namespace crumb {
namespace {

constexpr uint32_t kBlanksAtOnce = 4;
constexpr uint32_t kScanPiece = 1u << 20;

// Keeps of a queue what lies below `end`, in its order.
void Keep(IndexQueue* queue, uint32_t end) {
  for (size_t left = queue->size(); left > 0; --left) {
    const uint32_t index = queue->Pop();
    if (index < end) queue->Push(index);
  }
}

}  // namespace

BlockResult SegmentLog::Impl::Resize(uint64_t bytes, uint64_t token) {
  if (closed || !MayWrite()) return BlockResult::kIo;
  if (resizing.step != ResizeStep::kNone || resizing.untold) return BlockResult::kBusy;
  const uint64_t count = bytes / state->geometry.segment_bytes;
  if (bytes > device->size_bytes() || count < kSegmentsMin || count >= kNoSegment) {
    return BlockResult::kInvalid;
  }
  resizing = {};
  resizing.untold = true;
  resizing.token = token;
  resizing.from = state->geometry.segment_count;
  resizing.to = static_cast<uint32_t>(count);
  resizing.cursor = std::min(resizing.from, resizing.to);
  if (resizing.to == resizing.from) {
    EndResize(BlockResult::kOk);
  } else if (resizing.to > resizing.from) {
    resizing.buffer = AlignedBuffer(kLogBlock);
    resizing.step = ResizeStep::kBlank;
  } else {
    resizing.step = ResizeStep::kVacate;
    Keep(&state->free, resizing.to);
    if (state->ready != kNoSegment && state->ready >= resizing.to) {
      state->segments[state->ready].state = SegmentState::kFree;
      state->ready = kNoSegment;
      want_next = true;
    }
  }
  return BlockResult::kOk;
}

// Segments from here on take nothing more.
uint32_t SegmentLog::Impl::Limit() const {
  const bool shrinking = resizing.step != ResizeStep::kNone && resizing.to < resizing.from;
  return shrinking ? resizing.to : state->geometry.segment_count;
}

void SegmentLog::Impl::EndResize(BlockResult result) {
  resizing.step = ResizeStep::kNone;
  LogEvent event;
  event.kind = LogEventKind::kResized;
  event.result = result;
  event.token = resizing.token;
  Emit(event);
}

void SegmentLog::Impl::AdvanceResize() {
  if (closed) return;
  if (resizing.step == ResizeStep::kBlank) AdvanceBlank();
  if (resizing.step == ResizeStep::kVacate && IsVacated()) resizing.step = ResizeStep::kCarry;
  if (resizing.step == ResizeStep::kCarry && CarryTombstones()) {
    state->superblock.segment_count = resizing.to;
    resizing.step = ResizeStep::kSuperblock;
  }
  if (resizing.step == ResizeStep::kGiveUp) GiveUp();
}

// Segments that no superblock counted may hold marks of long ago.
void SegmentLog::Impl::AdvanceBlank() {
  while (resizing.ops < kBlanksAtOnce && resizing.cursor < resizing.to && !resizing.failed) {
    Op op;
    op.kind = OpKind::kBlank;
    op.request = {IoOp::kWriteDurable, state->geometry.MarkOffset(resizing.cursor++),
                  resizing.buffer.data(), kLogBlock, 0};
    ++resizing.ops;
    Issue(op);
  }
  if (resizing.ops > 0) return;
  if (resizing.failed) return EndResize(BlockResult::kIo);
  state->superblock.segment_count = resizing.to;
  resizing.step = ResizeStep::kSuperblock;
}

void SegmentLog::Impl::OnBlank(const Op& op, int error) {
  --resizing.ops;
  if (error != 0) {
    OnWriteError();
    resizing.failed = true;
  } else {
    state->stats.bytes_written += op.request.bytes;
  }
}

// Nothing is on its way into the segments behind the end.
bool SegmentLog::Impl::IsVacated() {
  const uint32_t end = resizing.to;
  if (state->open != kNoSegment && state->open >= end) {
    if (sealing == kNoSegment) StartSeal();
    return false;
  }
  const bool sealed = sealing == kNoSegment || sealing < end;
  return sealed && (preparing == kNoSegment || preparing < end);
}

// True: those of all segments are stable where they are now.
bool SegmentLog::Impl::CarryTombstones() {
  while (resizing.ops == 0) {
    while (resizing.taken < resizing.found.size()) {
      if (erases.size() >= state->options.erases_max / 2) return false;
      const Tombstone& tombstone = resizing.found[resizing.taken++];
      if (tombstone.log_sequence < state->superblock.watermark) continue;
      ++erases_out;
      ++resizing.writing;
      ++state->stats.erases_begun;
      erases.Push({tombstone, 0, true});
    }
    if (resizing.carry == CarryStep::kScan) {
      if (resizing.scan_at < state->geometry.segment_bytes) {
        ReadForCarry(resizing.scan_at, kScanPiece);
        continue;
      }
      ++resizing.cursor;
      resizing.carry = CarryStep::kNext;
    }
    if (resizing.cursor >= resizing.from) return resizing.writing == 0;
    if (state->segments[resizing.cursor].tombstones == 0) {
      ++resizing.cursor;
      continue;
    }
    resizing.carry = CarryStep::kMark;
    ReadForCarry(state->geometry.segment_bytes - kLogBlock, kLogBlock);
  }
  return false;
}

void SegmentLog::Impl::ReadForCarry(uint64_t at, uint64_t bytes) {
  resizing.found.clear();
  resizing.taken = 0;
  resizing.buffer = AlignedBuffer(bytes);
  Op op;
  op.kind = OpKind::kCarry;
  op.request = {IoOp::kRead, state->geometry.Offset(resizing.cursor) + at, resizing.buffer.data(),
                static_cast<uint32_t>(resizing.buffer.size()), 0};
  ++resizing.ops;
  Issue(op);
}

// By the footer or, where there is none that can be believed, block by block.
void SegmentLog::Impl::OnCarry(const Op&, int error) {
  --resizing.ops;
  if (error != 0) {
    ++state->stats.read_errors;
    OnDeviceError();
  }
  if (resizing.carry == CarryStep::kScan) return TakeScanned(error);
  const bool marked = resizing.carry == CarryStep::kMark;
  if (marked) resizing.mark = {};
  if (error == 0 && (marked ? TakeMark() : TakeEntries())) return;
  resizing.carry = CarryStep::kScan;
  resizing.scan_at = 0;
}

bool SegmentLog::Impl::TakeMark() {
  SegmentMark& mark = resizing.mark;
  const LogGeometry& geometry = state->geometry;
  const bool whole = ParseMark(resizing.buffer.span(), &mark) == ParseResult::kOk &&
                     mark.log_id == state->superblock.log_id && mark.segment == resizing.cursor;
  if (!whole) mark = {};
  const uint64_t bytes = mark.state == MarkState::kSealed ? EntriesBytes(mark) : 0;
  if (bytes == 0 || bytes > geometry.segment_bytes - kLogBlock) return false;
  resizing.carry = CarryStep::kEntries;
  ReadForCarry(geometry.EntriesOffset(resizing.cursor, bytes) - geometry.Offset(resizing.cursor),
               bytes);
  return true;
}

bool SegmentLog::Impl::TakeEntries() {
  const SegmentMark& mark = resizing.mark;
  const Bytes entries = resizing.buffer.span().subspan(0, EntriesBytes(mark));
  if (!EntriesMatch(mark, entries)) return false;
  for (uint32_t i = 0; i < mark.tombstone_count; ++i) {
    resizing.found.push_back(LoadFooterTombstone(mark, entries, i));
  }
  ++resizing.cursor;
  resizing.carry = CarryStep::kNext;
  return true;
}

void SegmentLog::Impl::TakeScanned(int error) {
  const uint32_t first = resizing.scan_at / kLogBlock;
  resizing.scan_at += kScanPiece;
  const SegmentMark& mark = resizing.mark;
  const bool unknown = mark.generation == 0 && state->segments[resizing.cursor].generation == 0;
  if (error != 0 || unknown) LoseErase(state->next_sequence - 1);
  if (error != 0) return;
  ScanTarget target;
  target.salt = state->superblock.salt;
  target.segment = resizing.cursor;
  target.generation = mark.state == MarkState::kRetired ? mark.generation : 0;
  for (uint32_t at = 0; at < resizing.buffer.size(); at += kLogBlock) {
    TombstoneBlock block;
    const Bytes bytes = resizing.buffer.span().subspan(at, kLogBlock);
    if (const auto record = RetiredRecord(target, bytes, first + at / kLogBlock)) {
      resizing.found.push_back(*record);
    }
    if (ParseTombstones(bytes, state->superblock.salt, &block) != ParseResult::kOk) continue;
    if (block.log_id != state->superblock.log_id || block.segment != resizing.cursor) continue;
    resizing.found.insert(resizing.found.end(), block.entries.begin(),
                          block.entries.begin() + block.count);
  }
}

// The superblock says the new number, durably.
void SegmentLog::Impl::OnResizeStable() {
  if (resizing.to > resizing.from) {
    SetSegmentCount(resizing.to);
    for (uint32_t index = resizing.from; index < resizing.to; ++index) state->free.Push(index);
    return EndResize(BlockResult::kOk);
  }
  Keep(&state->order, resizing.to);
  Keep(&quarantine, resizing.to);
  resizing.cursor = resizing.to;
  resizing.step = ResizeStep::kGiveUp;
}

// One segment after the other: each one's pages are told first, and reads in flight end.
void SegmentLog::Impl::GiveUp() {
  while (resizing.cursor < resizing.from) {
    LogSegment& segment = state->segments[resizing.cursor];
    if (segment.state == SegmentState::kSealed) {
      if (segment.records.size > 0 && report.records.size > 0) return;
      if (segment.records.size > 0) {
        report = {resizing.cursor, segment.generation, 0, segment.records};
        segment.records = {};
      }
      DropSegment(resizing.cursor);
    }
    if (segment.state != SegmentState::kFree) return;
    ++resizing.cursor;
  }
  SetSegmentCount(resizing.to);
  EndResize(BlockResult::kOk);
}

void SegmentLog::Impl::SetSegmentCount(uint32_t count) {
  state->SetSegmentCount(count);
  IndexQueue other(count);
  while (!quarantine.empty()) other.Push(quarantine.Pop());
  quarantine = std::move(other);
}

}  // namespace crumb
