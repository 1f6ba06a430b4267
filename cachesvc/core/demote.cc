// demote: a fresh page gets its final precision: a new slot -> encoded from the stored raw page,
// which is verified first -> (where the raw page is on disk: written, so that nothing that was
// promised is lost in between) -> the entry has the new slot. Old pins keep the old one.
// PROMISE: nothing is ever encoded from a lossy page; what comes out equals, byte for byte, what a
// put that encodes at once would have stored.
#include <utility>

#include "cachesvc/core/engine_demote.h"

namespace crumb::core {
int EngineDemote::RunDemotions() {
  FindDue();
  int work = 0;
  while (demotions.free() > 0 && chains.front(FreshQueue::kDue) != kNoId) {
    StartDemotion(pages[chains.front(FreshQueue::kDue)].entry);
    ++work;
  }
  for (uint32_t id = 0; id < demotions.size() && demotions.taken() > 0; ++id) {
    if (demotions[id].used && AdvanceDemotion(id)) ++work;
  }
  return work;
}

// Which fresh pages must go: those of chains that stood still, and as many as make room for the
// blocks that wait for the fresh share, oldest first.
void EngineBasics::FindDue() {
  while (NextIdleUs() <= now()) {
    MakeDue(chains.front(FreshQueue::kGrowing), DemotionReason::kIdle);
  }
  if (fresh_wait.empty()) return;
  if (pool().FreshFits(blocks[fresh_wait.front()].slot_bytes, FreshLimit())) return;
  while (chains.size(FreshQueue::kDue) + demotions.taken() < fresh_wait.size()) {
    const PageId oldest = chains.front(FreshQueue::kGrowing);
    if (oldest == kNoId) return;
    MakeDue(oldest, DemotionReason::kFull);
  }
}

void EngineDemote::StartDemotion(EntryId entry_id) {
  const Entry& entry = index.at(entry_id);
  const PageKind& kind = index.kind(entry_id);
  CRUMB_CHECK(IsFresh(entry) && entry.in_memory() && kind.precision == Precision::kRaw);
  const uint32_t id = demotions.Take();
  Demotion& demotion = demotions[id];
  demotion.entry = entry_id;
  demotion.reason = chains.reason(entry.place);
  demotion.step = DemotionStep::kSlot;
  demotion.stuck = false;
  demotion.binding = layouts.at({kind.identity_prefix, kind.tenant_prefix});
  demotion.part = kind.part;
  demotion.source = SlotOf(entry);
  demotion.location = {};
  demotion.target = {};
  demotion.rung = 0;
  demotion.started_us = now();
  pool().Pin(demotion.source);
  ++transient_slots;
  chains.Remove(entry.place);
  chains.SetDemotion(entry.place, id);
}

// True if something moved.
bool EngineDemote::AdvanceDemotion(uint32_t id) {
  Demotion& demotion = demotions[id];
  if (ComesBack(demotion.step)) return false;
  if (demotion.entry == kNoId) return EndDemotion(id), true;
  switch (demotion.step) {
    case DemotionStep::kSlot: {
      const Grant grant = AcquireTarget(id);
      demotion.stuck = grant == Grant::kNever;
      if (grant != Grant::kGot) return false;
      demotion.step = DemotionStep::kSubmit;
      SubmitDemotion(id);
      return true;
    }
    case DemotionStep::kSubmit:
      return SubmitDemotion(id);
    case DemotionStep::kGpuSubmit:
      return EncodeDemotion(id);
    case DemotionStep::kSealSubmit:
      return SealDemotion(id);
    case DemotionStep::kWrite:
      WriteDemotion(id);
      return !demotion.used || demotion.step != DemotionStep::kWrite;
    case DemotionStep::kEncode:
    case DemotionStep::kVerify:
    case DemotionStep::kGpu:
    case DemotionStep::kSeal:
    case DemotionStep::kWriting:
      break;
  }
  return false;
}

Grant EngineDemote::AcquireTarget(uint32_t id) {
  Demotion& demotion = demotions[id];
  const BoundCodec& codec = demotion.binding->ladder(demotion.part)[demotion.rung];
  const uint64_t bytes = PageSlotBytes(codec.payload_bytes);
  const Grant grant = TakeSlot({.bytes = bytes, .demotion = id}, &demotion.target);
  if (grant == Grant::kGot && clear_owner == id) clear_owner = kNoId;
  return grant;
}

// False: the queue is full.
bool EngineDemote::SubmitDemotion(uint32_t id) {
  Demotion& demotion = demotions[id];
  const Binding& binding = *demotion.binding;
  const auto& ladder = binding.ladder(demotion.part);
  const BoundCodec& codec = ladder[demotion.rung];
  PageJob& job = demotion.job;
  job = PageJob{};
  job.kind = PageJobKind::kDemote;
  job.effort = binding.effort();
  job.dtype = binding.part(demotion.part).dtype;
  job.codec = codec.codec.get();
  job.scratch = &scratch;
  job.page = pool().memory(demotion.target);
  job.source = pool().memory(demotion.source);
  job.header.key = index.at(demotion.entry).key;
  job.header.raw_bytes = index.kind(demotion.entry).payload_bytes;
  job.header.precision = codec.precision;
  job.header.codec_id = codec.id;
  job.header.flags = demotion.rung > 0 ? kPageFlagStepped : 0;
  DemotionStep next = DemotionStep::kEncode;
  if (DemotionCodec(demotion) != nullptr) {
    next = DemotionStep::kVerify;
    job.kind = PageJobKind::kHashPayload;
    job.page = pool().memory(demotion.source);
    job.header.codec_id = binding.raw_id(demotion.part);
    job.header.payload_bytes = job.header.raw_bytes;
  }
  return QueueDemotion(id, next);
}

bool EngineDemote::QueueDemotion(uint32_t id, DemotionStep next) {
  Demotion& demotion = demotions[id];
  const DeviceJob device_job{.run = RunPageJob,
                             .arg = &demotion.job,
                             .token = MakeToken(TokenKind::kDemotion, id, demotion.generation)};
  if (!options.queue->Submit(device_job)) return false;
  demotion.step = next;
  return true;
}

void EngineDemote::OnDemotionJob(uint32_t id) {
  Demotion& demotion = demotions[id];
  const bool verified = demotion.step == DemotionStep::kVerify;
  CRUMB_CHECK(verified || demotion.step == DemotionStep::kEncode ||
              demotion.step == DemotionStep::kSeal);
  if (demotion.entry == kNoId) return EndDemotion(id);
  if (!verified || demotion.job.result != BlockResult::kOk) return JudgeDemotion(id);
  demotion.step = DemotionStep::kGpuSubmit;
  (void)EncodeDemotion(id);
}

void EngineDemote::JudgeDemotion(uint32_t id) {
  Demotion& demotion = demotions[id];
  const PageJob& job = demotion.job;
  if (job.result != BlockResult::kOk) {
    // The raw page is not what was stored. A record on disk has its own checksum and may be good.
    ++counts.checksum_failures_dram;
    ++counts.demotion_failures;
    const EntryId entry = demotion.entry;
    const bool spare = index.at(entry).on_disk() && AppendOf(index.at(entry)) == kNoId;
    spare ? LeaveMemory(entry, Leaving::kGone) : ForgetPage(entry);
    return EndDemotion(id);
  }
  if (!job.report.fits) {
    ++counts.ladder_steps;
    pool().Release(std::exchange(demotion.target, SlotId{}));
    --transient_slots;
    ++demotion.rung;  // raw, at the end of every ladder, always fits
    CRUMB_CHECK(demotion.rung < demotion.binding->ladder(demotion.part).size());
    demotion.step = DemotionStep::kSlot;
    return;
  }
  demotion.job.took_us = now() - demotion.started_us;
  CountEncode(demotion.job);
  demotion.step = DemotionStep::kWrite;
  WriteDemotion(id);
}

// WHY before the swap: as for a put that replaces (put.cc), the entry's location must never hold
// another image than its slot, and what was promised durable must not give way to what is not.
void EngineDemote::WriteDemotion(uint32_t id) {
  Demotion& demotion = demotions[id];
  Entry& entry = index.at(demotion.entry);
  if (AppendOf(entry) != kNoId) return;  // of the raw page, for a durable put
  if (!entry.on_disk()) return SwapDemoted(id);
  if (flush_blocks_appends || AppendInFlight(entry.key)) return;
  const uint32_t append_id = appends.Take();
  if (append_id == Slab<DiskAppend>::kNone) return;
  DiskAppend& append = appends[append_id];
  append.key = entry.key;
  append.entry = demotion.entry;
  append.entry_generation = entry.generation;
  append.block = append.flush = kNoId;
  append.demotion = id;
  append.slot = demotion.target;
  append.durable = entry.durable;
  append.evict = false;
  const BlockResult result = QueueAppend(append, append_id);
  if (result == BlockResult::kBusy) return;
  if (result != BlockResult::kOk) return KeepRaw(id);
  PageOf(entry).append = append_id;
  demotion.step = DemotionStep::kWriting;
}

void EngineDemote::EndDemotionAppend(DiskAppend& append, const LogEvent& event) {
  const uint32_t id = append.demotion;
  Demotion& demotion = demotions[id];
  CRUMB_CHECK(demotion.step == DemotionStep::kWriting);
  if (demotion.entry == kNoId) {
    // Deleted, flushed or replaced meanwhile: the record must not come back after a restart.
    if (event.location.generation != 0) ForgetRecord(append.key, event.location, append.flush);
    return EndDemotion(id);
  }
  Entry& entry = index.at(demotion.entry);
  PageOf(entry).append = kNoId;
  if (event.result != BlockResult::kOk) return KeepRaw(id);
  demotion.location = event.location;
  SwapDemoted(id);
}

// The new image could not be written: the raw record stays what the key holds, in memory only where
// a client pinned it. WHY not forget what may have been written: a tombstone would hide the raw
// record too, and either is an image of what was put.
void EngineDemote::KeepRaw(uint32_t id) {
  const EntryId entry_id = demotions[id].entry;
  ++counts.demotion_failures;
  OrphanDemotion(entry_id);
  if (index.at(entry_id).pinned || !index.at(entry_id).on_disk()) {
    chains.Push(FreshQueue::kGrowing, index.at(entry_id).place, now());
  } else {
    LeaveMemory(entry_id, Leaving::kEvicted);
  }
  EndDemotion(id);
}

void EngineDemote::SwapDemoted(uint32_t id) {
  Demotion& demotion = demotions[id];
  const EntryId entry_id = demotion.entry;
  Entry& entry = index.at(entry_id);
  const PageHeader& header = demotion.job.header;
  PageKind kind = index.kind(entry_id);
  CRUMB_CHECK(IsFresh(entry) && SlotOf(entry) == demotion.source);
  CRUMB_CHECK(kind.precision == Precision::kRaw);
  kind.codec_id = header.codec_id;
  kind.payload_bytes = header.payload_bytes;
  kind.precision = header.precision;
  kind.header_flags = static_cast<uint8_t>(header.flags);
  const KindId taken = index.TakeKind(kind);
  if (taken == kNoKind) {
    ++counts.demotion_failures;
    if (demotion.location.generation != 0) ForgetRecord(entry.key, demotion.location, kNoId);
    ForgetPage(entry_id);
    return EndDemotion(id);
  }
  index.SetKind(entry_id, taken);
  if (demotion.location.generation != 0) index.SetLocation(entry_id, demotion.location);
  const bool got = PageOf(entry).got;
  DetachSlot(entry_id, Leaving::kReplaced);
  CountPage(Precision::kRaw, -1);
  CountPage(header.precision, 1);
  --transient_slots;
  AttachSlot(entry_id, {.slot = std::exchange(demotion.target, SlotId{}), .got = got});
  ++counts.demotions[static_cast<size_t>(demotion.reason)];
  EndDemotion(id);
}

void EngineDemote::EndDemotion(uint32_t id) {
  Demotion& demotion = demotions[id];
  CRUMB_CHECK(demotion.entry == kNoId);
  if (clear_owner == id) {
    clear_owner = kNoId;
    pool().CancelClear();
  }
  if (demotion.target.valid()) {
    pool().Release(demotion.target);
    --transient_slots;
  }
  pool().Unpin(demotion.source);
  --transient_slots;
  demotion.target = demotion.source = {};
  demotion.binding.reset();
  demotions.Give(id);
}

}  // namespace crumb::core
