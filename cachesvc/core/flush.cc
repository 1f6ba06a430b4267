// flush: forgets matching pages in every tier. From the call on no look-up finds them (FindLive);
// the index is swept a little per turn; `done` runs when that and the tombstones, or the log's own
// flush, are durable. Puts that began before the call do not publish.
#include "absl/strings/str_cat.h"
#include "cachesvc/core/engine_impl.h"

namespace crumb::core {
namespace {
constexpr uint32_t kSweepPerTurn = 4096;
static_assert(kFlushesMax <= 8 * sizeof(Entry::spared));
}  // namespace

bool EngineImpl::IsSwept(EntryId id, uint32_t flush_id) const {
  const FlushOp& flush = flushes[flush_id];
  return id < flush.cursor || id >= flush.cursor_end;
}

// What the sweep has yet to come to, unless it came after the flush.
bool EngineImpl::FlushMatches(EntryId id, uint32_t flush_id) const {
  const FlushOp& flush = flushes[flush_id];
  const Entry& entry = index.at(id);
  if (!entry.live || IsSwept(id, flush_id) || (entry.spared >> flush_id & 1) != 0) return false;
  const PageKind& kind = index.kind(id);
  if (flush.by_tenant && kind.tenant_prefix != flush.tenant_prefix) return false;
  return !flush.by_identity || kind.identity_prefix == flush.identity_prefix;
}

// A page is published: the flushes that are under way came before it. Each takes its mark away when
// it passes, so that the next one of its number finds none.
void EngineImpl::SpareFromFlushes(EntryId id) {
  for (uint32_t flush = 0; flush < flushes.size() && flushes.taken() > 0; ++flush) {
    if (!flushes[flush].used || IsSwept(id, flush)) continue;
    index.at(id).spared = static_cast<uint8_t>(index.at(id).spared | 1u << flush);
  }
}

Live EngineImpl::FindLive(const BlockKey& key, EntryId* id) {
  *id = index.Find(key);
  if (*id == kNoId) return Live::kNo;
  if (flushes.taken() == 0) return Live::kYes;
  for (uint32_t flush = 0; flush < flushes.size(); ++flush) {
    if (!flushes[flush].used || !FlushMatches(*id, flush)) continue;
    return Forget(*id, flush) ? Live::kNo : Live::kLater;
  }
  return Live::kYes;
}

// False: the log is busy; the entry stays, dead to everybody, until the next try.
bool EngineImpl::Forget(EntryId id, uint32_t flush_id) {
  FlushOp& flush = flushes[flush_id];
  const Entry& entry = index.at(id);
  if (!flush.everything) {
    const uint32_t append = AppendOf(entry);
    if (append != kNoId && appends[append].flush == kNoId) {
      appends[append].flush = flush_id;  // its record is forgotten when the write ended
      ++flush.waiting_for;
    }
    if (entry.on_disk()) {
      const uint64_t token = MakeToken(TokenKind::kFlushErase, flush_id, flush.generation);
      const BlockResult result = log->Erase(entry.key, index.location(id), token);
      if (result == BlockResult::kBusy) return false;
      if (result == BlockResult::kOk) ++flush.waiting_for;
      if (result == BlockResult::kIo) flush.worst = result;
    }
  }
  EraseEntry(id);
  return true;
}

void EngineImpl::StartFlush(const FlushRequest& request, std::function<void(absl::Status)> done) {
  const uint32_t id = flushes.Take();
  if (id == Slab<FlushOp>::kNone) {
    done(absl::ResourceExhaustedError(
        absl::StrCat(kFlushesMax, " flushes are running: try again when one has ended")));
    return;
  }
  FlushOp& flush = flushes[id];
  const uint32_t generation = flush.generation;
  flush = FlushOp{};
  flush.used = true;
  flush.generation = generation;
  flush.by_tenant = !request.tenant.empty();
  flush.by_identity = request.has_identity;
  flush.everything = !flush.by_tenant && !flush.by_identity;
  flush.tenant_prefix = TenantPrefix(request.tenant);
  flush.identity_prefix = request.identity.prefix64();
  flush.log_done = !flush.everything || log == nullptr;
  flush.log_asked = flush.log_done;
  flush.cursor_end = index.scan_end();
  flush.done = std::move(done);
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    Block& block = blocks[i];
    if (!block.used || block.type != WireType::kPut || block.binding == nullptr) continue;
    if (flush.by_tenant && block.binding->tenant_prefix() != flush.tenant_prefix) continue;
    if (flush.by_identity && block.binding->identity_prefix() != flush.identity_prefix) continue;
    block.flushed = true;
  }
  for (uint32_t i = 0; i < appends.size() && !flush.everything; ++i) {
    DiskAppend& append = appends[i];
    const bool counts_here = append.used && append.block != kNoId && blocks[append.block].flushed &&
                             append.flush == kNoId;
    if (!counts_here) continue;
    append.flush = id;
    ++flush.waiting_for;
  }
  if (!flush.everything && log != nullptr) QueueBehind(id);
  AskLogToFlush(id);
}

// Pages that are gone already are this flush's too: it must not promise that they stay so before
// that is true. (A flush of everything hides them by itself.)
void EngineImpl::QueueBehind(uint32_t id) {
  FlushOp& flush = flushes[id];
  for (uint32_t other = 0; other < flushes.size(); ++other) {
    if (other == id || !flushes[other].used) continue;
    flush.behind = static_cast<uint8_t>(flush.behind | 1u << other);
  }
  flush.forgets_before = !forgets.empty();
  flush.erases_before = log->counts().erases_begun;
  flush.reclaims_before = log->counts().segments_reclaimed;
  flush.retiring_before = log->counts().retiring;
}

bool EngineImpl::IsBehind(FlushOp* flush) const {
  if (flush->everything || log == nullptr) return false;
  if (flush->forgets_before) {
    if (!forgets.empty()) return true;
    flush->forgets_before = false;
    flush->erases_before = log->counts().erases_begun;
  }
  const SegmentLogStats& of_log = log->counts();
  flush->retiring_before = flush->retiring_before && of_log.retiring;
  return flush->behind != 0 || flush->retiring_before ||
         of_log.erases_ended < flush->erases_before ||
         of_log.reclaims_ended < flush->reclaims_before;
}

// Those that waited for it do not any more; if it failed, so have they.
void EngineImpl::LetFlushesGoOn(uint32_t ended, BlockResult worst) {
  const auto bit = static_cast<uint8_t>(1u << ended);
  for (uint32_t id = 0; id < flushes.size(); ++id) {
    FlushOp& flush = flushes[id];
    if (!flush.used || (flush.behind & bit) == 0) continue;
    flush.behind = static_cast<uint8_t>(flush.behind & ~bit);
    if (worst != BlockResult::kOk) flush.worst = worst;
    EndFlushIfDone(id);
  }
}

void EngineImpl::AskLogToFlush(uint32_t id) {
  FlushOp& flush = flushes[id];
  const BlockResult result = log == nullptr || flush.log_asked
                                 ? BlockResult::kOk
                                 : log->Flush(MakeToken(TokenKind::kFlush, id, flush.generation));
  flush_blocks_appends = result == BlockResult::kBusy;
  if (flush_blocks_appends) return;
  flush.log_asked = true;
  if (result == BlockResult::kOk) return;
  flush.worst = result;
  flush.log_done = true;
}

int EngineImpl::RunFlushes() {
  int work = 0;
  for (uint32_t id = 0; id < flushes.size() && flushes.taken() > 0; ++id) {
    FlushOp& flush = flushes[id];
    if (!flush.used) continue;
    if (!flush.log_asked) AskLogToFlush(id);
    uint32_t budget = kSweepPerTurn;
    while (flush.cursor < flush.cursor_end && budget-- > 0) {
      if (FlushMatches(flush.cursor, id) && !Forget(flush.cursor, id)) break;
      Entry& passed = index.at(flush.cursor++);
      passed.spared = static_cast<uint8_t>(passed.spared & ~(1u << id));
      ++work;
    }
    EndFlushIfDone(id);
  }
  return work;
}

void EngineImpl::EndFlushIfDone(uint32_t id) {
  FlushOp& flush = flushes[id];
  if (flush.cursor < flush.cursor_end || !flush.log_done || flush.waiting_for > 0) return;
  if (IsBehind(&flush)) return;
  const std::function<void(absl::Status)> done = std::move(flush.done);
  BlockResult worst = flush.worst;
  // Pages that an erase should have hidden may come back, and may be ones of these.
  const bool lost = !flush.everything && log != nullptr &&
                    (log->counts().erases_lost > 0 || log->counts().head_lost);
  if (lost && worst == BlockResult::kOk) worst = BlockResult::kIo;
  flush.done = nullptr;
  flushes.Give(id);
  if (worst == BlockResult::kOk) {
    done(absl::OkStatus());
  } else {
    done(absl::DataLossError(absl::StrCat(
        "pages are forgotten until a restart only: the NVMe tier answered ", ToString(worst),
        "; see its error counters, then flush everything, or again after a restart")));
  }
  LetFlushesGoOn(id, worst);
}

}  // namespace crumb::core
