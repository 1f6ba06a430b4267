// The engine's turn: events in, timers, waiting lists in a fixed order, submissions out. Also its
// birth: sizes from limits, entries from recovery.
#include <algorithm>

#include "cachesvc/core/engine_impl.h"

namespace crumb::core {

EngineState::EngineState(const EngineOptions& engine_options, EngineBooks books)
    : EngineBooks(std::move(books)),
      options(engine_options),
      scratch(engine_options.queue->worker_count() + 1),  // the last is the shard's own
      gpu_stage(static_cast<uint32_t>(engine_options.gpu_stage.memory.size() / kPageAlignment)),
      peers(engine_options.limits.peers_max),
      requests(engine_options.limits.requests_max),
      blocks(engine_options.limits.blocks_in_flight_max),
      appends(kAppendsMax),
      reads(kReadsMax),
      demotions(kDemotionsMax),
      moves(kMovesMax),
      flushes(kFlushesMax),
      pins(engine_options.limits.pins_max),
      request_timers(engine_options.limits.requests_max),
      pin_timers(engine_options.limits.pins_max),
      reply_buffer(ReplyBytes(kBlocksPerRequestMax)) {
  bindings.reserve(options.limits.layouts_max);
  layouts.reserve(options.limits.layouts_max);
  peer_ids.reserve(options.limits.peers_max);
  leaders.reserve(options.limits.blocks_in_flight_max);
  unsent.reserve(options.limits.requests_max);
  unverified.reserve(kReadsMax);
  forgets.reserve(kAppendsMax);
  unknown_layouts.reserve(options.limits.layouts_max);
  spare_segments.reserve(options.limits.transfers_max);
  spare_lent.reserve(options.limits.transfers_max);
}

void EngineImpl::Expect(uint64_t records) { index.Reserve(records); }

void EngineImpl::OnRecords(absl::Span<const RecoveredRecord> records) {
  for (const RecoveredRecord& record : records) index.PrefetchCell(record.header.key.prefix64());
  for (const RecoveredRecord& record : records) index.PrefetchEntry(record.header.key.prefix64());
  for (const auto& [header, location] : records) {
    if (index.Find(header.key) != kNoId) continue;  // one record per key is live
    const KindId kind = index.TakeKind(PageKind::Of(header));
    if (kind == kNoKind) continue;
    const EntryId id = index.Insert(header.key);
    if (id == kNoId) {
      index.GiveKind(kind);
      continue;
    }
    Entry& entry = index.at(id);
    index.SetKind(id, kind);
    index.SetLocation(id, location);
    entry.token_start = header.token_start;
    entry.token_count = header.token_count;
    entry.provenance = header.provenance;
    entry.durable = true;
    CountPage(header.precision, 1);
    entry.parent_prefix = header.parent_prefix;  // which learns of it in LinkRecovered
    NoteRecovered(id);
  }
}

int EngineImpl::Poll() {
  size_t found = 0;
  for (size_t i = 0; i < transports.size(); ++i) {
    PolledEvents& events = polled[i];
    CRUMB_CHECK(events.count == 0);  // RunReady comes after every Poll
    events.count = transports[i]->Poll(absl::MakeSpan(events.events));
    found += events.count;
  }
  jobs_done_count = options.queue->Poll(absl::MakeSpan(jobs_done));
  if (log != nullptr) log_event_count = log->Poll(absl::MakeSpan(log_events));
  gpu_done_count = PollLinks();
  return static_cast<int>(found + jobs_done_count + log_event_count + gpu_done_count);
}

int EngineImpl::RunReady() {
  int work = 0;
  inline_bytes_left = kInlineBytesPerTurn;
  for (uint32_t i = 0; i < transports.size(); ++i) {
    for (size_t e = 0; e < polled[i].count; ++e) OnNetEvent(i, polled[i].events[e]);
    work += static_cast<int>(std::exchange(polled[i].count, 0));
  }
  for (size_t i = 0; i < jobs_done_count; ++i) OnJobDone(jobs_done[i]);
  work += static_cast<int>(std::exchange(jobs_done_count, 0));
  for (size_t i = 0; i < gpu_done_count; ++i) OnGpuDone(gpu_done[i]);
  work += static_cast<int>(std::exchange(gpu_done_count, 0));
  for (size_t i = 0; i < log_event_count; ++i) OnLogEvent(log_events[i]);
  work += static_cast<int>(std::exchange(log_event_count, 0));
  work += RunTimers();
  work += RunClosing();
  work += RunDemotions();
  work += RunMoves();
  for (List<Block>* list : {&transfer_wait, &queue_wait, &disk_wait, &fresh_wait, &slot_wait,
                            &prefetch_wait, &stage_wait[0], &stage_wait[1], &ready}) {
    work += RetryList(*list);
  }
  work += RetryShares();
  work += RetryGates();
  if (slot_wait.empty() && clear_owner == kNoId) pool().CancelClear();
  KeepEvictionsAhead();
  RetryUnverified();
  RetryUnsent();
  RetryForgets();
  work += RunFlushes();
  work += RunRescues();
  work += RunScrub();
  work += RunDrain();
  for (GpuLink* link : links) link->Flush();
  if (log != nullptr) log->Submit();
  return work;
}

}  // namespace crumb::core
