// The NVMe tier as the engine sees it: writes and reads in flight, what to do when they end, and
// records that must be forgotten. At most one write per key is in flight, so that records and
// tombstones of a key lie in the log in the order in which the engine decided them.
#include <algorithm>

#include "cachesvc/core/engine_impl.h"

namespace crumb::core {

bool IsImageOf(const PageHeader& header, const Index& index, EntryId id) {
  const PageKind& kind = index.kind(id);
  return header.codec_id == kind.codec_id && header.payload_bytes == kind.payload_bytes &&
         header.raw_bytes == kind.raw_bytes && header.token_count == index.at(id).token_count &&
         header.identity_prefix == kind.identity_prefix && header.part == kind.part &&
         header.tenant_prefix == kind.tenant_prefix && header.precision == kind.precision;
}

uint32_t EngineBasics::FindAppend(const BlockKey& key) const {
  uint32_t left = appends.taken();
  for (uint32_t id = 0; id < appends.size() && left > 0; ++id) {
    if (!appends[id].used) continue;
    if (appends[id].key == key) return id;
    --left;
  }
  return kNoId;
}

bool EngineBasics::AppendInFlight(const BlockKey& key) const {
  if (FindAppend(key) != kNoId) return true;
  return std::any_of(forgets.begin(), forgets.end(),
                     [&key](const ForgetOp& forget) { return forget.key == key; });
}

// kOk: the slot is pinned and kAppended will come.
BlockResult EngineBasics::QueueAppend(DiskAppend& append, uint32_t id) {
  append.started_us = now();
  const uint64_t token = MakeToken(TokenKind::kAppend, id, append.generation);
  const BlockResult result = log->Append(pool().memory(append.slot), append.durable, token);
  if (result != BlockResult::kOk) {
    appends.Give(id);
    return result;
  }
  append.page_bytes = kPageHeaderBytes + LoadHeader(pool().memory(append.slot)).payload_bytes;
  pool().Pin(append.slot);
  ++transient_slots;
  return BlockResult::kOk;
}

BlockResult EngineImpl::StartAppend(EntryId entry_id, bool durable, bool evict) {
  const Entry& entry = index.at(entry_id);
  CRUMB_CHECK(entry.in_memory());
  Resident& page = PageOf(entry);
  CRUMB_CHECK(!evict || !page.fresh);
  if (flush_blocks_appends || AppendInFlight(entry.key)) return BlockResult::kBusy;
  const uint32_t id = appends.Take();
  if (id == Slab<DiskAppend>::kNone) return BlockResult::kBusy;
  DiskAppend& append = appends[id];
  append.key = entry.key;
  append.entry = entry_id;
  append.entry_generation = entry.generation;
  append.block = append.flush = append.demotion = kNoId;
  append.slot = page.slot;
  append.durable = durable;
  append.evict = evict;
  if (const BlockResult result = QueueAppend(append, id); result != BlockResult::kOk) return result;
  page.append = id;
  page.touched = false;
  if (evict) ++evictions;
  Rehold(entry_id);
  return BlockResult::kOk;
}

BlockResult EngineImpl::StartBlockAppend(Block& block, bool durable) {
  if (log == nullptr) return BlockResult::kIo;
  if (flush_blocks_appends || AppendInFlight(block.key)) return BlockResult::kBusy;
  const uint32_t id = appends.Take();
  if (id == Slab<DiskAppend>::kNone) return BlockResult::kBusy;
  DiskAppend& append = appends[id];
  append.key = block.key;
  append.entry = append.flush = append.demotion = kNoId;
  append.block = block.id;
  append.slot = block.page;
  append.durable = durable;
  append.evict = false;
  if (const BlockResult result = QueueAppend(append, id); result != BlockResult::kOk) return result;
  block.pending = Pending::kAppend;
  return BlockResult::kOk;
}

void EngineImpl::OnLogEvent(const LogEvent& event) {
  switch (event.kind) {
    case LogEventKind::kAppended:
      return OnAppended(event);
    case LogEventKind::kRead:
      return OnRead(event);
    case LogEventKind::kReclaimed:
      return OnReclaimed(event);
    case LogEventKind::kResized:
      return OnResized(event.result);
    case LogEventKind::kFlushed:
    case LogEventKind::kErased:
      break;
  }
  const uint32_t id = IdOf(event.token);
  if (KindOf(event.token) == TokenKind::kBlock) {
    Block& block = blocks[id];
    CRUMB_CHECK(block.used && TokenIs(event.token, block.generation));
    CRUMB_CHECK(block.pending == Pending::kErase);
    block.pending = Pending::kNone;
    EndPhase(block, Phase::kIo);
    const bool done = event.result == BlockResult::kOk || event.result == BlockResult::kMiss;
    return Finish(block, done ? BlockResult::kOk : BlockResult::kIo);
  }
  FlushOp& flush = flushes[id];
  CRUMB_CHECK(flush.used && TokenIs(event.token, flush.generation));
  if (event.result != BlockResult::kOk && event.result != BlockResult::kMiss) {
    flush.worst = event.result;
  }
  if (KindOf(event.token) == TokenKind::kFlush) {
    flush.log_done = true;
  } else {
    --flush.waiting_for;
  }
  EndFlushIfDone(id);
}

void EngineImpl::OnAppended(const LogEvent& event) {
  const uint32_t id = IdOf(event.token);
  DiskAppend& append = appends[id];
  CRUMB_CHECK(append.used && TokenIs(event.token, append.generation));
  counts.phases[static_cast<size_t>(Phase::kIo)].Add(now() - append.started_us);
  if (append.evict) --evictions;
  if (append.rescue == kNoId) {
    pool().Unpin(append.slot);
    --transient_slots;
    if (event.result == BlockResult::kOk) counts.nvme_page_bytes += append.page_bytes;
  }
  const uint32_t flush = append.flush;
  append.used = false;  // WHY before the ends: they may look for appends of this key
  if (append.block != kNoId) {
    EndBlockAppend(append, event);
  } else if (append.demotion != kNoId) {
    EndDemotionAppend(append, event);
  } else if (append.rescue != kNoId) {
    EndRescueAppend(append, event);
  } else {
    EndEntryAppend(append, event);
  }
  append.rescue = kNoId;
  WakeAll(append.waiters);
  append.used = true;
  appends.Give(id);
  if (flush != kNoId) {
    --flushes[flush].waiting_for;
    EndFlushIfDone(flush);
  }
}

// A page that replaces one on disk: it is published now that it is there itself.
void EngineImpl::EndBlockAppend(DiskAppend& append, const LogEvent& event) {
  Block& block = blocks[append.block];
  CRUMB_CHECK(block.used && block.pending == Pending::kAppend);
  block.pending = Pending::kNone;
  EndPhase(block, Phase::kIo);
  if (event.result != BlockResult::kOk || block.flushed) {
    if (event.location.generation != 0) ForgetRecord(append.key, event.location, append.flush);
    // With it the older record of the key is gone too: a tombstone hides all that came before.
    EntryId old = kNoId;
    if (event.location.generation != 0 && FindLive(append.key, &old) == Live::kYes) {
      if (index.at(old).on_disk()) ForgetRecord(append.key, index.location(old), append.flush);
      EraseEntry(old);
    }
    return Finish(block, block.flushed ? BlockResult::kCancelled : BlockResult::kIo);
  }
  if (Publish(block, event.location, append.durable)) Run(block);
}

void EngineImpl::EndEntryAppend(DiskAppend& append, const LogEvent& event) {
  const bool done = event.result == BlockResult::kOk;
  if (append.entry == kNoId || !index.Alive(append.entry, append.entry_generation)) {
    // Deleted, flushed or replaced meanwhile: the record must not come back after a restart.
    if (event.location.generation != 0) ForgetRecord(append.key, event.location, append.flush);
    return;
  }
  Entry& entry = index.at(append.entry);
  Resident& page = PageOf(entry);
  page.append = kNoId;
  Rehold(append.entry);
  const bool cold = !page.touched && pool().pins(page.slot) == 0;
  if (done) {
    index.SetLocation(append.entry, event.location);
    entry.durable = append.durable;
    if (!append.evict || !cold) return;
    ++counts.evicted_to_nvme;
    counts.evicted_bytes += event.location.record_bytes;
    DetachSlot(append.entry, Leaving::kEvicted);
    return;
  }
  for (uint32_t id = append.waiters.front(); append.durable && id != Slab<Block>::kNone;
       id = blocks[id].next) {
    blocks[id].write_failed = true;
  }
  if (event.location.generation != 0) ForgetRecord(append.key, event.location, kNoId);
  if (!append.evict) return;
  ++counts.eviction_failures;
  if (!cold) return;
  ++counts.evicted_dropped;
  counts.evicted_bytes += index.kind(append.entry).slot_bytes();
  EraseEntry(append.entry);
}

// Makes the log forget a record that the index does not know (any more), now or a little later.
void EngineImpl::ForgetRecord(const BlockKey& key, const DiskLocation& location, uint32_t flush) {
  const uint64_t token =
      flush == kNoId ? 0 : MakeToken(TokenKind::kFlushErase, flush, flushes[flush].generation);
  const BlockResult result = log->Erase(key, location, token);
  if (result == BlockResult::kBusy) forgets.push_back({key, location, flush});
  const bool counted = result == BlockResult::kBusy || (result == BlockResult::kOk && token != 0);
  if (flush != kNoId && counted) ++flushes[flush].waiting_for;
  if (flush != kNoId && result == BlockResult::kIo) flushes[flush].worst = result;
}

void EngineImpl::RetryForgets() {
  while (!forgets.empty()) {
    const ForgetOp forget = forgets.back();
    const bool counted = forget.flush != kNoId;
    const uint64_t token =
        counted ? MakeToken(TokenKind::kFlushErase, forget.flush, flushes[forget.flush].generation)
                : 0;
    const BlockResult result = log->Erase(forget.key, forget.location, token);
    if (result == BlockResult::kBusy) return;
    forgets.pop_back();
    if (!counted || result == BlockResult::kOk) continue;
    if (result == BlockResult::kIo) flushes[forget.flush].worst = result;
    --flushes[forget.flush].waiting_for;
    EndFlushIfDone(forget.flush);
  }
}

// kOk: the slot belongs to the read (or, apart, stays with the block) until EndRead.
BlockResult EngineImpl::StartRead(EntryId entry_id, SlotId slot, Block* apart) {
  Entry& entry = index.at(entry_id);
  const uint32_t id = reads.Take();
  if (id == Slab<DiskRead>::kNone) return BlockResult::kBusy;
  DiskRead& read = reads[id];
  const uint64_t token = MakeToken(TokenKind::kRead, id, read.generation);
  const MutableBytes out = pool().memory(slot);
  const BlockResult result = log->ReadUnverified(entry.key, index.location(entry_id), out, token);
  if (result != BlockResult::kOk) {
    reads.Give(id);
    return result;
  }
  read.key = entry.key;
  read.entry = entry_id;
  read.entry_generation = entry.generation;
  read.block = apart == nullptr ? kNoId : apart->id;
  read.location = index.location(entry_id);
  read.slot = slot;
  read.purpose = ReadFor::kPage;
  read.prefetch = false;
  read.started_us = now();
  if (apart == nullptr) {
    CRUMB_CHECK(!entry.resident());
    entry.place = id;
    ++transient_slots;
  }
  return BlockResult::kOk;
}

void EngineImpl::OnRead(const LogEvent& event) {
  const uint32_t id = IdOf(event.token);
  CRUMB_CHECK(reads[id].used && TokenIs(event.token, reads[id].generation));
  counts.phases[static_cast<size_t>(Phase::kIo)].Add(now() - reads[id].started_us);
  if (event.result != BlockResult::kOk || event.verified) return EndRead(id, event.result);
  VerifyRead(id);
}

// The pass over the payload is a worker's affair.
void EngineImpl::VerifyRead(uint32_t id) {
  DiskRead& read = reads[id];
  read.job = PageJob{};
  read.job.kind = PageJobKind::kVerify;
  read.job.page = pool().memory(read.slot).subspan(0, read.location.record_bytes);
  read.job.header.key = read.key;
  read.job.location = read.location;
  const DeviceJob job{.run = RunPageJob,
                      .arg = &read.job,
                      .token = MakeToken(TokenKind::kRead, id, read.generation)};
  if (!options.queue->Submit(job)) unverified.push_back(id);
}

void EngineImpl::RetryUnverified() {
  std::vector<uint32_t> again;
  again.swap(unverified);
  for (const uint32_t id : again) VerifyRead(id);
  if (unverified.empty()) {
    again.clear();
    unverified.swap(again);  // keeps its capacity
  }
}

void EngineImpl::EndRead(uint32_t id, BlockResult result) {
  DiskRead& read = reads[id];
  if (read.purpose != ReadFor::kPage) return EndSpareRead(id, result);
  if (read.prefetch) --prefetches;
  const bool current = read.entry != kNoId && index.Alive(read.entry, read.entry_generation) &&
                       index.location(read.entry) == read.location;
  if (result == BlockResult::kOk && current &&
      !IsImageOf(LoadHeader(pool().memory(read.slot)), index, read.entry)) {
    result = BlockResult::kCorrupt;
  }
  if (result == BlockResult::kCorrupt) ++counts.checksum_failures_nvme;
  // WHY only what is current: a tombstone hides all that was written of the key before it, also the
  // page that took this one's place.
  const bool failed = current && result != BlockResult::kOk;
  const uint32_t successor = failed ? FindAppend(read.key) : kNoId;
  if (successor != kNoId) {
    WaitForSuccessor(id, successor);
    reads.Give(id);
    return;
  }
  if (failed) {
    ++counts.promotions_failed;
    counts.hit_then_failed += read.waiters.size() + (read.block != kNoId ? 1 : 0);
    if (result == BlockResult::kCorrupt) log->ReportCorrupt(read.key, read.location);
    if (result == BlockResult::kIo) ForgetRecord(read.key, read.location, kNoId);
  }
  if (read.block != kNoId) {
    EndReadApart(read, result);
  } else {
    --transient_slots;
    const bool owned = read.entry != kNoId && index.Alive(read.entry, read.entry_generation) &&
                       index.at(read.entry).read() == id;
    if (owned) index.at(read.entry).place = kNoId;
    if (current && owned && result == BlockResult::kOk) {
      Promote(read);
    } else {
      pool().Release(read.slot);
      if (current && owned) EraseEntry(read.entry);
      WakeAll(read.waiters);  // they look again, and miss or wait for a put
    }
  }
  reads.Give(id);
}

// The record did not verify, and a page that replaces it is being written: that one must not be
// hidden by this one's tombstone. The entry stays until the write ends, which publishes the new
// page or forgets the key; whoever asked looks again then.
void EngineImpl::WaitForSuccessor(uint32_t id, uint32_t append) {
  DiskRead& read = reads[id];
  List<Block>& waiters = appends[append].waiters;
  if (read.block != kNoId) {
    Block& block = blocks[read.block];
    CRUMB_CHECK(block.used && block.pending == Pending::kLoadApart);
    block.pending = Pending::kNone;
    if (block.request == kNoId) return Cleanup(block);
    return StartOver(block, waiters);
  }
  --transient_slots;
  if (index.at(read.entry).read() == id) index.at(read.entry).place = kNoId;
  pool().Release(read.slot);
  while (!read.waiters.empty()) Wait(waiters, blocks[read.waiters.PopFront(blocks)]);
}

void EngineImpl::Promote(DiskRead& read) {
  AttachSlot(read.entry, {.slot = read.slot});
  ++counts.promoted;
  if (read.prefetch) NotePrefetched(read.entry);
  while (!read.waiters.empty()) {
    Block& block = blocks[read.waiters.PopFront(blocks)];
    EndPhase(block, Phase::kIo);
    if (block.type == WireType::kGet) {
      index.at(read.entry).disk_hit = 1;
      GetFromMemory(block, read.entry, Tier::kNvme);
    }
    Wait(ready, block);
  }
}

// WHY not a miss if the page is elsewhere by now: what took its place may be durable, or its record
// was only moved; and a record that failed says nothing of the page in memory.
void EngineImpl::EndReadApart(DiskRead& read, BlockResult result) {
  Block& block = blocks[read.block];
  CRUMB_CHECK(block.used && block.pending == Pending::kLoadApart);
  block.pending = Pending::kNone;
  const bool current =
      index.Alive(read.entry, read.entry_generation) && index.location(read.entry) == read.location;
  const bool good = current && result == BlockResult::kOk;
  if (current && !good) LoseRecord(read.entry);
  if (block.request == kNoId) return Cleanup(block);
  EndPhase(block, Phase::kIo);
  if (!good) return StartOver(block, ready);
  index.at(read.entry).disk_hit = 1;
  DescribeHit(block, index.at(read.entry), Tier::kNvme);
  Wait(ready, block);
}

// The get looks again, when its turn comes. What it holds was meant for another image.
void EngineImpl::StartOver(Block& block, List<Block>& list) {
  ReleaseStaging(block);
  ReleasePage(block);
  DropLent(block);
  block.step = Step::kGetStart;
  Wait(list, block);
}

void EngineImpl::OnReclaimed(const LogEvent& event) {
  const EntryId id = index.Find(event.key);
  if (id != kNoId && index.location(id) == event.location) LoseRecord(id);
}

}  // namespace crumb::core
