// The public face of the log, its operations and events. The shard's thread.
#include "storage/segment/segment_log.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "storage/segment/blocking_io.h"
#include "storage/segment/log_head.h"
#include "storage/segment/segment_log_impl.h"

namespace crumb {
namespace {

constexpr size_t kBatch = 64;
constexpr size_t kBatchesPerPoll = 8;
constexpr uint32_t kDefaultSegmentBytes = 64u << 20;
constexpr uint32_t kDefaultSegments = 16;
constexpr uint32_t kInFlightMax = 65536;

absl::Status CheckOptions(const SegmentLogOptions& options) {
  if (options.reads_max == 0 || options.appends_max == 0 || options.erases_max == 0 ||
      options.reads_max > kInFlightMax || options.appends_max > kInFlightMax ||
      options.erases_max > kInFlightMax || options.errors_max == 0 || options.corrupt_max == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a limit of the log is 0 or above ", kInFlightMax));
  }
  return absl::OkStatus();
}

}  // namespace

SegmentLog::Impl::Impl(std::unique_ptr<LogState> state_in, BlockDevice* device_in,
                       const Clock* clock_in)
    : state(std::move(state_in)),
      device(device_in),
      clock(clock_in),
      ops(state->options.reads_max + state->options.appends_max + kOwnOpsMax),
      free_ops(ops.size()),
      pending_ops(ops.size()),
      events(state->options.reads_max + state->options.appends_max + state->options.erases_max +
             kFlushesMax + 1),
      erases(state->options.erases_max),
      flushes(kFlushesMax),
      quarantine(state->segments.size()),
      mark_block(kLogBlock),
      retire_block(kLogBlock),
      tombstone_block(kLogBlock),
      superblock_block(kLogBlock) {
  for (uint32_t i = 0; i < ops.size(); ++i) free_ops.Push(i);
}

SegmentLog::Impl::~Impl() {
  DeviceWaiter waiter(device);
  std::array<IoCompletion, kBatch> ignored;
  while (device->in_flight() > 0) {
    device->Submit();
    if (device->Poll(absl::MakeSpan(ignored)) > 0) {
      waiter.SawProgress();
    } else if (!waiter.Wait()) {
      // WHY let go: the silent device may still write from or into these.
      static_cast<void>(state.release());
      for (AlignedBuffer* buffer :
           {&mark_block, &retire_block, &tombstone_block, &superblock_block, &resizing.buffer}) {
        buffer->Abandon();
      }
      return;
    }
  }
}

void SegmentLog::Impl::Issue(const Op& op) {
  const uint32_t index = free_ops.Pop();
  ops[index] = op;
  ops[index].request.token = index;
  const IoOp io = op.request.op;
  if (io == IoOp::kWrite || io == IoOp::kWriteDurable)
    state->stats.bytes_issued += op.request.bytes;
  pending_ops.Push(index);
}

void SegmentLog::Impl::PassToDevice() {
  while (!pending_ops.empty() && device->Queue(ops[pending_ops.Front()].request)) {
    pending_ops.Pop();
  }
}

void SegmentLog::Impl::DrainDevice() {
  std::array<IoCompletion, kBatch> completions;
  size_t count = kBatch;
  for (size_t i = 0; i < kBatchesPerPoll && count == kBatch; ++i) {
    count = device->Poll(absl::MakeSpan(completions));
    for (size_t k = 0; k < count; ++k) OnCompletion(completions[k]);
  }
}

void SegmentLog::Impl::OnCompletion(const IoCompletion& completion) {
  CRUMB_CHECK(completion.token < ops.size());
  const auto index = static_cast<uint32_t>(completion.token);
  const Op op = ops[index];
  free_ops.Push(index);
  if (completion.error == ENOSPC) ++state->stats.no_space_errors;
  switch (op.kind) {
    case OpKind::kAppend:
      return OnAppended(op, completion.error);
    case OpKind::kRead:
      return OnRead(op, completion.error);
    case OpKind::kMark:
      return OnMark(op, completion.error);
    case OpKind::kSync:
      return OnSealSynced(op, completion.error);
    case OpKind::kFooter:
      return OnFooter(op, completion.error);
    case OpKind::kTombstones:
      return OnTombstones(op, completion.error);
    case OpKind::kSuperblock:
      return OnSuperblock(completion.error);
    case OpKind::kRetire:
      return OnRetired(op, completion.error);
    case OpKind::kBlank:
      return OnBlank(op, completion.error);
    case OpKind::kCarry:
      return OnCarry(op, completion.error);
  }
}

void SegmentLog::Impl::Advance() {
  AdvanceErases();
  AdvanceSeal();
  AdvanceQuarantine();
  AdvanceResize();
  PrepareNext();
  AdvanceSuperblock();
}

void SegmentLog::Impl::Emit(const LogEvent& event) { events.Push(event); }

size_t SegmentLog::Impl::TakeEvents(absl::Span<LogEvent> out) {
  size_t count = 0;
  while (count < out.size() && !events.empty()) {
    const LogEvent event = events.Pop();
    if (event.kind == LogEventKind::kRead) --reads;
    if (event.kind == LogEventKind::kAppended) --appends;
    if (event.kind == LogEventKind::kErased) --erases_out;
    if (event.kind == LogEventKind::kFlushed) --flushes_out;
    if (event.kind == LogEventKind::kResized) resizing.untold = false;
    out[count++] = event;
  }
  while (count < out.size() && report.records.size > 0) {
    const Record record = state->table.PopFront(&report.records, &report.cursor);
    if (record.record_state() != RecordState::kLive) continue;
    LogEvent& event = out[count++];
    event = {};
    event.kind = LogEventKind::kReclaimed;
    event.key = record.key;
    event.location = {report.segment, report.generation, record.offset_blocks,
                      static_cast<uint32_t>(record.blocks * kLogBlock)};
  }
  return count;
}

bool SegmentLog::Impl::idle() const {
  return free_ops.size() == ops.size() && events.empty() && erases.empty() && flushes.empty() &&
         sealing == kNoSegment && report.records.size == 0 &&
         (!HeadIsBehind() || clock->now_us() < head_retry_us) &&
         (resizing.step == ResizeStep::kNone || clock->now_us() < resizing.retry_us);
}

bool SegmentLog::Impl::MayWrite() const {
  return state->stats.enabled || clock->now_us() >= off_until_us;
}

void SegmentLog::Impl::OnDeviceError() {
  ++errors;
  if (state->stats.enabled && errors >= state->options.errors_max) {
    state->stats.enabled = false;
    ++state->stats.times_off;
    off_until_us = clock->now_us() + state->options.retry_off_us;
  }
}

void SegmentLog::Impl::OnWriteError() {
  ++state->stats.append_errors;
  OnDeviceError();
  if (!state->stats.enabled) off_until_us = clock->now_us() + state->options.retry_off_us;
}

void SegmentLog::Impl::OnWriteOk() {
  if (++good_writes % kForgivenPerWrites == 0 && errors > 0) --errors;
}

// Runs everything that is under way to its end; events stay for TakeEvents.
bool SegmentLog::Impl::WaitUntilIdle() {
  DeviceWaiter waiter(device);
  std::array<IoCompletion, kBatch> completions;
  while (free_ops.size() != ops.size() || !erases.empty() || !flushes.empty() ||
         sealing != kNoSegment) {
    state->table.Free(&report.records);  // the listener goes away with the log
    Advance();
    PassToDevice();
    device->Submit();
    const size_t count = device->Poll(absl::MakeSpan(completions));
    for (size_t i = 0; i < count; ++i) OnCompletion(completions[i]);
    if (count > 0) {
      waiter.SawProgress();
    } else if (!waiter.Wait()) {
      return false;
    }
  }
  return true;
}

absl::Status SegmentLog::Impl::Close() {
  if (closed) return absl::OkStatus();
  closed = true;
  bool answered = WaitUntilIdle();
  if (answered && state->open != kNoSegment && !state->footer().empty()) {
    StartSeal();
    answered = WaitUntilIdle();
  }
  if (!answered) return absl::DeadlineExceededError("the device of the log does not answer");
  for (const LogSegment& segment : state->segments) {
    // Its tombstones count as much as its records.
    if (segment.state == SegmentState::kSealed && segment.generation != 0 &&
        !segment.sealed_on_disk) {
      return absl::UnavailableError("a segment could not be sealed; the next start will scan it");
    }
  }
  state->superblock.clean = 1;
  return WriteSuperblock(device, &state->superblock);
}

SegmentLogStats SegmentLog::Impl::Stats() const {
  SegmentLogStats stats = state->stats;
  stats.capacity_bytes = state->geometry.CapacityBytes();
  stats.segments = state->segments.size();
  stats.segments_free = state->free.size();
  for (const LogSegment& segment : state->segments) {
    stats.used_bytes += segment.live_bytes;
    stats.records += segment.live_records;
  }
  return stats;
}

SegmentLog::SegmentLog(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SegmentLog::~SegmentLog() = default;

absl::StatusOr<std::unique_ptr<SegmentLog>> SegmentLog::Open(const SegmentLogOptions& options,
                                                             BlockDevice* device,
                                                             const Clock* clock,
                                                             RecoverySink* sink) {
  CRUMB_TRY(CheckOptions(options));
  const uint64_t begin_us = clock->now_us();
  CRUMB_ASSIGN(std::unique_ptr<LogState> state, RecoverLog(options, device, sink));
  state->stats.recovery_us = clock->now_us() - begin_us;
  auto impl = std::make_unique<Impl>(std::move(state), device, clock);
  return std::make_unique<SegmentLog>(std::move(impl));
}

absl::Status SegmentLog::CheckHead(Bytes head) { return ParseHead(head).status(); }

uint32_t SegmentLog::DefaultSegmentBytes(uint64_t bytes_max) {
  uint32_t bytes = kDefaultSegmentBytes;
  while (bytes > kSegmentBytesMin && bytes_max / bytes < kDefaultSegments) bytes /= 2;
  return bytes;
}

BlockResult SegmentLog::Append(MutableBytes slot, bool durable, uint64_t token) {
  return impl_->Append(slot, durable, token);
}
BlockResult SegmentLog::Read(const BlockKey& key, const DiskLocation& location, MutableBytes out,
                             uint64_t token) {
  return impl_->Read({key, location, out, token, true});
}
BlockResult SegmentLog::ReadUnverified(const BlockKey& key, const DiskLocation& location,
                                       MutableBytes out, uint64_t token) {
  return impl_->Read({key, location, out, token, false});
}
void SegmentLog::ReportCorrupt(const BlockKey& key, const DiskLocation& location) {
  impl_->Corrupt(key, location);
}
BlockResult SegmentLog::Erase(const BlockKey& key, const DiskLocation& location, uint64_t token) {
  return impl_->Erase(key, location, token);
}
BlockResult SegmentLog::Flush(uint64_t token) { return impl_->Flush(token); }
BlockResult SegmentLog::Resize(uint64_t bytes, uint64_t token) {
  return impl_->Resize(bytes, token);
}
size_t SegmentLog::Records(uint32_t segment, uint32_t offset_blocks,
                           absl::Span<LogRecord> out) const {
  return impl_->Records(segment, offset_blocks, out);
}
std::optional<DiskLocation> SegmentLog::NextReclaimed() const { return impl_->NextReclaimed(); }

size_t SegmentLog::Poll(absl::Span<LogEvent> events) {
  impl_->DrainDevice();
  impl_->Advance();
  return impl_->TakeEvents(events);
}

void SegmentLog::Submit() {
  impl_->Advance();
  impl_->PassToDevice();
  impl_->device->Submit();
}

bool SegmentLog::idle() const { return impl_->idle(); }
int SegmentLog::wake_fd() const { return impl_->device->wake_fd(); }
absl::Status SegmentLog::Close() { return impl_->Close(); }
uint64_t SegmentLog::record_bytes_max() const { return impl_->state->geometry.RecordBytesMax(); }
SegmentLogStats SegmentLog::stats() const { return impl_->Stats(); }
const SegmentLogStats& SegmentLog::counts() const { return impl_->state->stats; }
uint32_t SegmentLog::segment_count() const { return impl_->state->geometry.segment_count; }
uint32_t SegmentLog::segment_bytes() const { return impl_->state->geometry.segment_bytes; }

}  // namespace crumb
