// Recovery: marks of all segments, then from the newest segment to the oldest their footers or, of
// those that have none, their blocks. The first record met of a key is its newest; a tombstone is
// met before everything that it kills. Start-up; blocking.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "storage/device/aligned_buffer.h"
#include "storage/segment/blocking_io.h"
#include "storage/segment/live_records.h"
#include "storage/segment/log_head.h"
#include "storage/segment/log_scan.h"
#include "storage/segment/log_state.h"

namespace crumb {
namespace {

constexpr size_t kMarksAtOnce = 1024;
constexpr size_t kFootersAtOnce = 32;
constexpr size_t kRecordsAtOnce = 32;  // given to the sink
constexpr uint32_t kScanRead = 1u << 20;
constexpr uint64_t kRecordsMax = 16u << 20;  // 24 bytes each, touched only as they are used
// What may have been given out and was not found again, between this run and the last one.
constexpr uint64_t kSequenceGap = 1u << 24;
constexpr uint32_t kGenerationGap = 1024, kGenerationMax = 0xf0000000;
// A sealed newest segment is opened again if this part of it is free.
constexpr uint32_t kReopenDivisor = 8;

uint64_t RecordsMax(const LogGeometry& geometry) {
  return std::min(geometry.CapacityBytes() / kLogBlock, kRecordsMax);
}

struct Evidence {
  enum class Kind : uint8_t { kNothing, kUnreadable, kMarked };
  Kind kind = Kind::kNothing;
  bool footer_damaged = false;
  bool cut = false;  // the file ended in this segment: its mark is made of what its records say
  SegmentMark mark;
};

class Recovery {
 public:
  Recovery(LogState* state, BlockDevice* device, SegmentLog::RecoverySink* sink)
      : state_(*state),
        device_(device),
        sink_(sink),
        evidence_(state->geometry.segment_count),
        live_(state->superblock.watermark) {}

  absl::Status Run();

 private:
  struct Footer {
    Bytes entries;
    bool read = false;
  };
  struct Unfinished {  // has pages or tombstones, and no footer on the disk
    uint32_t segment = 0;
    SegmentContents contents;
    bool readable = true;  // everything of it
    bool newest = false;   // only this one may take appends again: generations follow the sequence
  };

  absl::Status GoOn() const;
  absl::Status Read(std::vector<IoRequest> requests, std::vector<int>* errors,
                    absl::Span<AlignedBuffer* const> buffers);
  absl::Status BlankNewSegments();
  absl::Status ReadMarks();
  void TakeMark(uint32_t segment, Bytes block, int error);
  absl::Status ScanWhole(const ScanTarget& target, SegmentContents* out, bool* readable);
  absl::Status TakeCut();
  absl::Status TakeUnreadable();
  void SortNewestFirst();
  MutableBytes FooterMemory(size_t number, uint64_t bytes);
  absl::Status LoadFooters(size_t from);
  absl::Status RecoverSegment(uint32_t segment);
  absl::Status SealedContents(uint32_t segment, SegmentContents* out);
  void TakeTombstones(const SegmentContents& contents);
  void KeepLive(uint32_t segment, SegmentContents* contents);
  void Tell(const RecoveredRecord& record);
  void TellRest();
  void Adopt(uint32_t segment, SegmentContents contents, bool readable);
  absl::Status SettleUnfinished();
  void OpenAgain(const Unfinished& unfinished);
  absl::Status Seal(const Unfinished& unfinished);
  absl::Status WriteOpenMark(uint32_t segment);
  void Queues();

  ScanTarget Target(uint32_t segment) const {
    const LogGeometry& geometry = state_.geometry;
    return {state_.superblock.log_id,           state_.superblock.salt,      segment,
            evidence_[segment].mark.generation, geometry.DataBegin(segment), geometry.DataEnd()};
  }
  bool IsEmptyOpen(const SegmentContents& contents, uint32_t segment) const {
    return contents.records.empty() && contents.tombstones.empty() &&
           contents.end_blocks == state_.geometry.DataBegin(segment);
  }

  LogState& state_;
  BlockDevice* device_;
  SegmentLog::RecoverySink* sink_;
  std::vector<Evidence> evidence_;
  std::vector<uint32_t> newest_first_;  // segments with a mark
  std::map<uint32_t, Footer> footers_;  // loaded ahead
  std::array<AlignedBuffer, kFootersAtOnce> footer_memory_;
  AlignedBuffer scan_;  // a whole segment
  LiveRecords live_;
  std::vector<RecoveredRecord> untold_;  // for the sink, fewer than kRecordsAtOnce
  std::vector<Unfinished> unfinished_;   // newest first
  bool newest_seen_ = false;
  uint64_t sequence_max_ = 0;
  uint32_t generation_max_ = 0;
};

absl::Status Recovery::GoOn() const {
  const std::atomic<bool>* stop = state_.options.stop;
  if (stop == nullptr || !stop->load(std::memory_order_relaxed)) return absl::OkStatus();
  return absl::CancelledError("asked to stop while the log was read");
}

// WHY abandon: a device that fell silent may still write into the buffers.
absl::Status Recovery::Read(std::vector<IoRequest> requests, std::vector<int>* errors,
                            absl::Span<AlignedBuffer* const> buffers) {
  absl::Status status = RunBlocking(device_, std::move(requests), errors);
  if (status.ok()) return status;
  for (AlignedBuffer* buffer : buffers) buffer->Abandon();
  return status;
}

// Segments that the superblock does not count may hold marks of long ago.
absl::Status Recovery::BlankNewSegments() {
  const LogGeometry& geometry = state_.geometry;
  AlignedBuffer zeros(kLogBlock);
  for (uint32_t segment = state_.superblock.segment_count; segment < geometry.segment_count;
       ++segment) {
    const IoRequest write = {IoOp::kWriteDurable, geometry.MarkOffset(segment), zeros.data(),
                             kLogBlock, 0};
    const absl::Status status = RunOne(device_, write, "mark of a new segment");
    if (absl::IsDeadlineExceeded(status)) zeros.Abandon();
    CRUMB_TRY(status);
  }
  return absl::OkStatus();
}

absl::Status Recovery::ReadMarks() {
  const LogGeometry& geometry = state_.geometry;
  AlignedBuffer marks(kMarksAtOnce * kLogBlock);
  for (uint32_t first = 0; first < geometry.segment_count; first += kMarksAtOnce) {
    const size_t count = std::min<size_t>(kMarksAtOnce, geometry.segment_count - first);
    std::vector<IoRequest> requests;
    for (uint32_t i = 0; i < count; ++i) {
      requests.push_back({IoOp::kRead, geometry.MarkOffset(first + i),
                          marks.data() + uint64_t{i} * kLogBlock, kLogBlock, 0});
    }
    std::vector<int> errors;
    CRUMB_TRY(GoOn());
    CRUMB_TRY(Read(std::move(requests), &errors, {&marks}));
    for (uint32_t i = 0; i < count; ++i) {
      TakeMark(first + i, marks.span().subspan(uint64_t{i} * kLogBlock, kLogBlock), errors[i]);
    }
  }
  return absl::OkStatus();
}

void Recovery::SortNewestFirst() {
  std::sort(newest_first_.begin(), newest_first_.end(), [this](uint32_t a, uint32_t b) {
    return evidence_[a].mark.generation > evidence_[b].mark.generation;
  });
}

// A file that was cut lost the mark of the segment in which it ends. What lies before the cut is
// whole and says itself where it belongs.
absl::Status Recovery::TakeCut() {
  const LogGeometry& geometry = state_.geometry;
  const uint64_t present = state_.options.bytes_present;
  const uint64_t said = uint64_t{state_.superblock.segment_count} * geometry.segment_bytes;
  if (present == 0 || present >= said) return absl::OkStatus();
  state_.stats.bytes_missing = said - present;
  const uint64_t segment = present / geometry.segment_bytes;
  if (segment >= geometry.segment_count) return absl::OkStatus();
  Evidence& evidence = evidence_[segment];
  if (evidence.kind == Evidence::Kind::kMarked) return absl::OkStatus();
  SegmentContents ignored;
  bool readable = true;
  ScanTarget target = Target(static_cast<uint32_t>(segment));
  target.generation = 0;
  CRUMB_TRY(ScanWhole(target, &ignored, &readable));
  const uint32_t generation = NewestGeneration(target, scan_.span());
  if (generation == 0) return absl::OkStatus();
  evidence = {.kind = Evidence::Kind::kMarked, .cut = true, .mark = {}};
  evidence.mark.log_id = state_.superblock.log_id;
  evidence.mark.segment = static_cast<uint32_t>(segment);
  evidence.mark.generation = generation;
  generation_max_ = std::max(generation_max_, generation);
  newest_first_.push_back(static_cast<uint32_t>(segment));
  return absl::OkStatus();
}

void Recovery::TakeMark(uint32_t segment, Bytes block, int error) {
  Evidence& evidence = evidence_[segment];
  const ParseResult result = error == 0 ? ParseMark(block, &evidence.mark) : ParseResult::kBad;
  if (result == ParseResult::kBlank) return;
  if (result != ParseResult::kOk) {
    if (result == ParseResult::kNewer) ++state_.stats.dropped_format;
    evidence.kind = Evidence::Kind::kUnreadable;
    return;
  }
  const SegmentMark& mark = evidence.mark;
  const uint64_t room = state_.geometry.segment_bytes - kLogBlock;
  if (mark.log_id != state_.superblock.log_id || mark.segment != segment) return;  // older log
  if (mark.data_end_blocks > state_.geometry.DataEnd() || EntriesBytes(mark) > room) return;
  evidence.kind = Evidence::Kind::kMarked;
  generation_max_ = std::max(generation_max_, mark.generation);
  sequence_max_ = std::max(sequence_max_, mark.sequence_max);
  newest_first_.push_back(segment);
}

absl::Status Recovery::ScanWhole(const ScanTarget& target, SegmentContents* out, bool* readable) {
  const LogGeometry& geometry = state_.geometry;
  if (scan_.size() == 0) scan_ = AlignedBuffer(geometry.segment_bytes);
  std::vector<IoRequest> requests;
  for (uint32_t at = 0; at < geometry.segment_bytes; at += kScanRead) {
    requests.push_back(
        {IoOp::kRead, geometry.Offset(target.segment) + at, scan_.data() + at, kScanRead, 0});
  }
  std::vector<int> errors;
  const std::vector<IoRequest> asked = requests;
  CRUMB_TRY(Read(std::move(requests), &errors, {&scan_}));
  for (size_t i = 0; i < errors.size(); ++i) {
    if (errors[i] == 0) continue;
    ++state_.stats.read_errors;
    *readable = false;
    std::memset(asked[i].data, 0, asked[i].bytes);
  }
  *out = ScanSegment(target, scan_.span());
  state_.stats.dropped_format += out->bad_format;
  state_.stats.dropped_stamp += out->bad_stamp;
  return absl::OkStatus();
}

// A segment whose mark is destroyed keeps one right: its tombstones. Nobody knows how old it is, so
// they are honoured first of all.
absl::Status Recovery::TakeUnreadable() {
  for (uint32_t segment = 0; segment < evidence_.size(); ++segment) {
    if (evidence_[segment].kind != Evidence::Kind::kUnreadable) continue;
    CRUMB_TRY(GoOn());
    ++state_.stats.dropped_torn;
    SegmentContents contents;
    bool readable = true;
    ScanTarget target = Target(segment);
    target.generation = 0;
    CRUMB_TRY(ScanWhole(target, &contents, &readable));
    TakeTombstones(contents);
    state_.segments[segment].tombstones = static_cast<uint32_t>(contents.tombstones.size());
    generation_max_ = std::max(generation_max_, evidence_[segment].mark.generation);
  }
  return absl::OkStatus();
}

// Used again for the footers of later segments: memory from the system costs more than the reading.
MutableBytes Recovery::FooterMemory(size_t number, uint64_t bytes) {
  AlignedBuffer& memory = footer_memory_[number];
  if (memory.size() < bytes) memory = AlignedBuffer(bytes);
  return memory.span().subspan(0, LogGeometry::RoundUp(bytes));
}

// Footers of the next segments, in parallel.
absl::Status Recovery::LoadFooters(size_t from) {
  footers_.clear();
  std::vector<IoRequest> requests;
  std::vector<uint32_t> segments;
  std::vector<AlignedBuffer*> buffers;
  for (size_t i = from; i < newest_first_.size() && segments.size() < kFootersAtOnce; ++i) {
    const uint32_t segment = newest_first_[i];
    const SegmentMark& mark = evidence_[segment].mark;
    const uint64_t bytes = EntriesBytes(mark);
    Footer& footer = footers_[segment];
    if (mark.state == MarkState::kOpen || bytes == 0) continue;
    const MutableBytes memory = FooterMemory(segments.size(), bytes);
    footer.entries = memory.subspan(0, bytes);
    requests.push_back({IoOp::kRead, state_.geometry.EntriesOffset(segment, bytes), memory.data(),
                        static_cast<uint32_t>(memory.size()), 0});
    buffers.push_back(&footer_memory_[segments.size()]);
    segments.push_back(segment);
  }
  std::vector<int> errors;
  CRUMB_TRY(Read(std::move(requests), &errors, buffers));
  for (size_t i = 0; i < segments.size(); ++i) {
    footers_[segments[i]].read = errors[i] == 0;
    if (errors[i] != 0) ++state_.stats.read_errors;
  }
  return absl::OkStatus();
}

// By the footer or, if that is damaged, by the blocks.
absl::Status Recovery::SealedContents(uint32_t segment, SegmentContents* out) {
  const SegmentMark& mark = evidence_[segment].mark;
  const Footer& footer = footers_[segment];
  const uint64_t bytes = EntriesBytes(mark);
  if (mark.state == MarkState::kRetired) {  // its footer may be what is broken
    ScanTarget target = Target(segment);
    target.retired = true;
    bool readable = true;
    return ScanWhole(target, out, &readable);
  }
  const bool usable = bytes == 0 || footer.read;
  const Bytes entries = usable ? footer.entries : Bytes();
  if (usable && EntriesMatch(mark, entries) && ReadEntries(Target(segment), mark, entries, out)) {
    state_.stats.dropped_format += out->bad_format;
    state_.stats.dropped_checksum += out->bad_checksum;
    return absl::OkStatus();
  }
  ++state_.stats.checksum_failures;
  evidence_[segment].footer_damaged = true;
  bool readable = true;
  CRUMB_TRY(ScanWhole(Target(segment), out, &readable));
  state_.stats.dropped_checksum += out->bad_checksum;
  return absl::OkStatus();
}

void Recovery::TakeTombstones(const SegmentContents& contents) {
  for (const Tombstone& tombstone : contents.tombstones) {
    live_.Bury(tombstone);
    sequence_max_ = std::max(sequence_max_, tombstone.log_sequence);
  }
}

void Recovery::KeepLive(uint32_t segment, SegmentContents* contents) {
  state_.stats.dropped_stale += live_.Filter(&contents->records);
  LogSegment& info = state_.segments[segment];
  for (const FoundRecord& found : contents->records) {
    if (!state_.table.HasRoom(info.records)) {
      ++state_.stats.dropped_stale;
      continue;
    }
    Record record{};
    record.key = found.header.key;
    record.offset_blocks = found.offset_blocks;
    record.blocks = (found.record_bytes / kLogBlock) & 0xfffffff;
    record.SetState(RecordState::kLive);
    state_.table.Add(&info.records, record);
    ++info.live_records;
    info.live_bytes += found.record_bytes;
    ++state_.stats.recovered;
    Tell({found.header, {segment, info.generation, found.offset_blocks, found.record_bytes}});
  }
  TellRest();
}

void Recovery::Tell(const RecoveredRecord& record) {
  untold_.push_back(record);
  if (untold_.size() == kRecordsAtOnce) TellRest();
}

void Recovery::TellRest() {
  if (sink_ != nullptr && !untold_.empty()) sink_->OnRecords(untold_);
  untold_.clear();
}

void Recovery::Adopt(uint32_t segment, SegmentContents contents, bool readable) {
  const SegmentMark& mark = evidence_[segment].mark;
  LogSegment& info = state_.segments[segment];
  info.state = SegmentState::kSealed;
  info.generation = mark.generation;
  info.used_blocks = contents.end_blocks;
  info.sealed_on_disk = mark.state != MarkState::kOpen && !evidence_[segment].footer_damaged;
  sequence_max_ = std::max(sequence_max_, contents.sequence_max);
  TakeTombstones(contents);
  info.tombstones = static_cast<uint32_t>(contents.tombstones.size());
  if (mark.state == MarkState::kRetired) {
    info.generation = 0;
    return;
  }
  KeepLive(segment, &contents);
  const bool newest = !newest_seen_;
  newest_seen_ = true;
  if (!info.sealed_on_disk || newest) {
    unfinished_.push_back({segment, std::move(contents), readable, newest});
  }
}

absl::Status Recovery::RecoverSegment(uint32_t segment) {
  const SegmentMark& mark = evidence_[segment].mark;
  LogSegment& info = state_.segments[segment];
  if (mark.generation < state_.superblock.generation_min) {  // reclaimed, not written anew: free
    state_.stats.dropped_stale += mark.record_count;
    return absl::OkStatus();
  }
  SegmentContents contents;
  contents.end_blocks = state_.geometry.DataBegin(segment);
  bool readable = true;
  if (mark.state == MarkState::kOpen) {
    const bool cut = evidence_[segment].cut;
    if (cut || state_.superblock.clean == 0) {
      CRUMB_TRY(ScanWhole(Target(segment), &contents, &readable));
    }
    if (cut) readable = false;  // it has no mark on the disk: it is sealed, never opened again
    state_.stats.dropped_torn += contents.bad_checksum;
    if (IsEmptyOpen(contents, segment) && readable) {
      // Marked ahead of its use: at most one, the newest. Others are simply free.
      if (state_.ready == kNoSegment && !newest_seen_) {
        info.state = SegmentState::kReady;
        info.generation = mark.generation;
        info.used_blocks = contents.end_blocks;
        state_.ready = segment;
      }
      return absl::OkStatus();
    }
  } else {
    if (mark.sequence_max < state_.superblock.watermark) {  // all dead by a flush: free
      state_.stats.dropped_stale += mark.record_count;
      return absl::OkStatus();
    }
    CRUMB_TRY(SealedContents(segment, &contents));
  }
  Adopt(segment, std::move(contents), readable);
  return absl::OkStatus();
}

absl::Status Recovery::WriteOpenMark(uint32_t segment) {
  AlignedBuffer block(kLogBlock);
  SegmentMark mark;
  mark.log_id = state_.superblock.log_id;
  mark.segment = segment;
  mark.generation = state_.segments[segment].generation;
  StoreMark(mark, block.span());
  const IoRequest write = {IoOp::kWriteDurable, state_.geometry.MarkOffset(segment), block.data(),
                           kLogBlock, 0};
  const absl::Status status = RunOne(device_, write, "mark of the open segment");
  if (absl::IsDeadlineExceeded(status)) block.Abandon();
  return status;
}

void Recovery::OpenAgain(const Unfinished& unfinished) {
  state_.open = unfinished.segment;
  state_.segments[unfinished.segment].state = SegmentState::kOpen;
  state_.segments[unfinished.segment].sealed_on_disk = false;
  for (const FoundRecord& record : unfinished.contents.records) {
    state_.footer().AddRecord(record.header, record.offset_blocks);
  }
  for (const Tombstone& tombstone : unfinished.contents.tombstones) {
    state_.footer().AddTombstone(tombstone);
  }
}

// What an interrupted run left without a footer gets it now, so that it is scanned only once.
absl::Status Recovery::Seal(const Unfinished& unfinished) {
  FooterBuilder& builder = state_.builders[1 - state_.builder];
  builder.Clear();
  for (const FoundRecord& record : unfinished.contents.records) {
    builder.AddRecord(record.header, record.offset_blocks);
  }
  const size_t tombstones =
      std::min(unfinished.contents.tombstones.size(), FooterBuilder::kTombstonesMax);
  for (size_t i = 0; i < tombstones; ++i) {
    builder.AddTombstone(unfinished.contents.tombstones[i]);
  }
  const uint32_t segment = unfinished.segment;
  SegmentMark mark;
  mark.state = MarkState::kSealed;
  mark.log_id = state_.superblock.log_id;
  mark.segment = segment;
  mark.generation = state_.segments[segment].generation;
  mark.data_end_blocks = unfinished.contents.end_blocks;
  const MutableBytes bytes = builder.Build(mark);
  const uint64_t used = uint64_t{unfinished.contents.end_blocks} * kLogBlock;
  if (bytes.size() > state_.geometry.segment_bytes - used) return absl::OkStatus();  // no room
  CRUMB_TRY(RunOne(device_, {IoOp::kSync, 0, nullptr, 0, 0}, "sync"));
  const uint64_t offset =
      state_.geometry.Offset(segment) + state_.geometry.segment_bytes - bytes.size();
  CRUMB_TRY(RunOne(
      device_, {IoOp::kWriteDurable, offset, bytes.data(), static_cast<uint32_t>(bytes.size()), 0},
      "footer"));
  state_.segments[segment].sealed_on_disk = true;
  return absl::OkStatus();
}

// The newest segment with room takes appends again; others get their footers.
absl::Status Recovery::SettleUnfinished() {
  for (const Unfinished& unfinished : unfinished_) {
    LogSegment& info = state_.segments[unfinished.segment];
    const uint32_t left = state_.geometry.DataEnd() - info.used_blocks;
    const bool room = left >= state_.geometry.BlocksMax() / kReopenDivisor;
    const bool few = unfinished.contents.tombstones.size() < FooterBuilder::kTombstonesMax / 2;
    const uint64_t footer_bytes =
        LogGeometry::RoundUp(unfinished.contents.records.size() * sizeof(FooterRecord) +
                             unfinished.contents.tombstones.size() * sizeof(Tombstone));
    const bool fits = footer_bytes <= uint64_t{left} * kLogBlock;
    if (unfinished.newest && room && few && fits && unfinished.readable) {
      if (info.sealed_on_disk) {
        const absl::Status status = WriteOpenMark(unfinished.segment);
        if (absl::IsDeadlineExceeded(status)) return status;
        if (!status.ok()) continue;  // stays sealed
      }
      OpenAgain(unfinished);
      continue;
    }
    if (info.sealed_on_disk) continue;
    const absl::Status status = Seal(unfinished);
    if (absl::IsDeadlineExceeded(status)) return status;
    if (!status.ok()) ++state_.stats.append_errors;  // it will be scanned again next time
  }
  return absl::OkStatus();
}

// Oldest first; segments of unknown age count as the newest, for their tombstones' sake.
void Recovery::Queues() {
  for (size_t i = newest_first_.size(); i > 0; --i) {
    const uint32_t segment = newest_first_[i - 1];
    const SegmentState now = state_.segments[segment].state;
    if (now == SegmentState::kSealed || now == SegmentState::kOpen) state_.order.Push(segment);
  }
  for (uint32_t segment = 0; segment < evidence_.size(); ++segment) {
    LogSegment& info = state_.segments[segment];
    if (evidence_[segment].kind == Evidence::Kind::kUnreadable) {
      info.state = SegmentState::kSealed;
      state_.order.Push(segment);
    }
    if (info.state == SegmentState::kFree) state_.free.Push(segment);
  }
}

absl::Status Recovery::Run() {
  // WHY first: what a killed process wrote may still be in the drive's cache. It will be read, and
  // promised durable, as if it were stable: so let it be stable.
  CRUMB_TRY(RunOne(device_, {IoOp::kSync, 0, nullptr, 0, 0}, "sync"));
  CRUMB_TRY(GoOn());
  CRUMB_TRY(BlankNewSegments());
  CRUMB_TRY(ReadMarks());
  CRUMB_TRY(TakeCut());
  SortNewestFirst();
  uint64_t records = 0;
  for (const uint32_t segment : newest_first_) records += evidence_[segment].mark.record_count;
  live_.Reserve(std::min(records, kRecordsMax));
  if (sink_ != nullptr) sink_->Expect(records);
  CRUMB_TRY(TakeUnreadable());
  for (size_t i = 0; i < newest_first_.size(); ++i) {
    CRUMB_TRY(GoOn());
    if (!footers_.contains(newest_first_[i])) CRUMB_TRY(LoadFooters(i));
    CRUMB_TRY(RecoverSegment(newest_first_[i]));
  }
  if (generation_max_ >= kGenerationMax) {
    return absl::FailedPreconditionError(
        "has used up its segment generations: delete the log to start empty");
  }
  // WHY before anything is marked open again: "clean" says that open segments hold nothing.
  state_.superblock.segment_count = state_.geometry.segment_count;
  state_.superblock.clean = 0;
  CRUMB_TRY(WriteSuperblock(device_, &state_.superblock));
  CRUMB_TRY(SettleUnfinished());
  Queues();
  state_.next_generation = generation_max_ + kGenerationGap;
  state_.next_sequence = std::max(sequence_max_, state_.superblock.watermark) + kSequenceGap;
  return absl::OkStatus();
}

}  // namespace

void LogState::SetSegmentCount(uint32_t count) {
  geometry.segment_count = count;
  segments.resize(count);
  for (IndexQueue* queue : {&free, &order}) {
    IndexQueue other(count);
    while (!queue->empty()) other.Push(queue->Pop());
    *queue = std::move(other);
  }
  table.Grow(RecordsMax(geometry), count);
}

LogState::LogState(const SegmentLogOptions& options_in, const LogGeometry& geometry_in)
    : options(options_in),
      geometry(geometry_in),
      segments(geometry_in.segment_count),
      table(RecordsMax(geometry_in), geometry_in.segment_count),
      free(geometry_in.segment_count),
      order(geometry_in.segment_count),
      builders{FooterBuilder(geometry_in), FooterBuilder(geometry_in)} {}

absl::StatusOr<std::unique_ptr<LogState>> RecoverLog(const SegmentLogOptions& options,
                                                     BlockDevice* device,
                                                     SegmentLog::RecoverySink* sink) {
  CRUMB_ASSIGN(Superblock superblock, OpenHead(options, device));
  const uint64_t bytes = std::min(options.bytes_max, device->size_bytes());
  const LogGeometry geometry = {superblock.segment_bytes,
                                static_cast<uint32_t>(bytes / superblock.segment_bytes)};
  auto state = std::make_unique<LogState>(options, geometry);
  state->superblock = superblock;
  state->stats.clean_start = superblock.clean == 1;
  const absl::Status status = Recovery(state.get(), device, sink).Run();
  // WHY let go: a device that fell silent may still write into the state's buffers.
  if (absl::IsDeadlineExceeded(status)) static_cast<void>(state.release());
  CRUMB_TRY(status);
  return state;
}

}  // namespace crumb
