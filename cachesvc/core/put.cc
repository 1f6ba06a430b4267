// put: rules -> staging -> slot -> pull -> encode along the ladder -> publish -> durable write.
// A put that fails leaves no trace; one key has one writer at a time.
#include <cstddef>
#include <cstring>

#include "cachesvc/core/engine_impl.h"

namespace crumb::core {
namespace {

uint32_t TokensOf(const Block& block) {
  const uint32_t page_tokens = block.binding->part(block.wire.part).page_tokens;
  return block.wire.token_count == 0 ? page_tokens : block.wire.token_count;
}

// The second put of a key replaces only if strictly better. A page that this layout cannot read
// would shadow the key for good, so anything readable is better.
bool IsBetter(const Block& block, Precision precision, const PageKind& old) {
  if (block.binding->FindReader(block.wire.part, old.codec_id) == nullptr) return true;
  if (precision != old.precision) return precision < old.precision;
  return block.lossy_depth < old.lossy_depth;
}

// Raw pages that are kept as they are need no staging: they are pulled to where they stay.
bool PutsAsIs(const Block& block) {
  return block.form == PageForm::kRaw && CodecOf(block).kind == CodecKind::kRaw;
}

// As good a page lies on NVMe alone and may not be stable yet: a durable put writes it anew from
// the bytes at hand.
bool MustRenew(const Block& block, const Entry& entry) {
  return block.durable && !entry.resident() && !entry.durable;
}

}  // namespace

PageHeader MakeHeader(const Block& block, const BoundCodec& codec) {
  PageHeader header;
  header.precision = codec.precision;
  header.provenance = block.wire.provenance;
  header.identity_prefix = block.binding->identity_prefix();
  header.codec_id = codec.id;
  header.key = block.key;
  header.parent_prefix = block.parent.is_zero() ? 0 : block.parent.prefix64();
  header.token_start = block.wire.token_start;
  header.token_count = static_cast<uint16_t>(TokensOf(block));
  header.lossy_depth = block.lossy_depth;
  header.payload_bytes = codec.payload_bytes;
  header.tenant_prefix = block.binding->tenant_prefix();
  header.part = block.wire.part;
  header.raw_bytes = static_cast<uint32_t>(block.binding->part(block.wire.part).raw_bytes);
  const bool position_known = block.wire.token_start != kTokenStartUnknown;
  if (block.place == Place::kSink) header.flags |= kPageFlagSink;
  if (block.place == Place::kFresh) header.flags |= kPageFlagRawTail;
  if (block.place == Place::kFinal &&
      block.rung > block.binding->rung(block.wire.part, position_known)) {
    header.flags |= kPageFlagStepped;
  }
  return header;
}

// Parent rules. A partial page is never a parent; where both positions are known they must meet.
BlockResult EngineImpl::CheckParent(Block& block, const Session& session) {
  if (block.parent.is_zero()) return BlockResult::kOk;
  EntryId id = kNoId;
  uint8_t parent_depth = 0;
  if (FindLive(block.parent, &id) == Live::kYes) {
    const Entry& parent = index.at(id);
    const uint32_t page_tokens = block.binding->part(block.wire.part).page_tokens;
    if (parent.token_count < page_tokens) return BlockResult::kInvalid;
    const bool known =
        parent.token_start != kTokenStartUnknown && block.wire.token_start != kTokenStartUnknown;
    if (known && block.wire.token_start != parent.token_start + page_tokens) {
      return BlockResult::kInvalid;
    }
    parent_depth = index.kind(id).lossy_depth;
  }
  block.lossy_depth = session.served.ChildDepth(block.parent.prefix64(), parent_depth);
  return BlockResult::kOk;
}

// What is there (block.entry) is as good. True: it must be made durable first, and the block goes
// on with that.
bool EngineImpl::PutExists(Block& block) {
  const Entry& entry = index.at(block.entry);
  block.entry_generation = entry.generation;
  DescribePut(block);
  if (!block.durable || entry.durable || !entry.resident()) return false;
  ReleaseStaging(block);
  ReleasePage(block);
  block.exists = true;
  block.step = Step::kPutDurable;
  return true;
}

bool EngineImpl::PutStart(Block& block) {
  if (!Lead(block)) return false;
  EndPhase(block, Phase::kQueue);
  if (block.flushed) return Finish(block, BlockResult::kCancelled), false;
  Session* session = FindSession(block.session);
  if (session == nullptr) return Finish(block, BlockResult::kUnavailable), false;
  if (const BlockResult check = CheckParent(block, *session); check != BlockResult::kOk) {
    return Finish(block, check), false;
  }
  EntryId id = kNoId;
  const Live live = FindLive(block.key, &id);
  if (live == Live::kLater) return Wait(disk_wait, block), false;
  PlaceBlock(block);
  if (live == Live::kYes && block.form != PageForm::kPage) {
    if (!IsBetter(block, CodecOf(block).precision, index.kind(id))) {
      block.entry = id;
      if (PutExists(block)) return true;
      if (!MustRenew(block, index.at(id))) return Finish(block, BlockResult::kExists), false;
    }
  }
  EndPhase(block, Phase::kIndex);
  block.step = Step::kPutStage;
  return true;
}

bool EngineImpl::PutStage(Block& block) {
  const PartShape& part = block.binding->part(block.wire.part);
  if (block.form != PageForm::kRaw) {
    uint64_t payload_bytes = CodecOf(block).payload_bytes;
    // Another tag: packed by what this layout had once.
    const uint16_t tag = block.wire.codec_tag;
    const bool other = tag != 0 && tag != CodecTag(CodecOf(block).id);
    if (block.form == PageForm::kPacked && (other || block.wire.value_bytes != payload_bytes)) {
      return Finish(block, BlockResult::kMismatch), false;
    }
    if (block.form == PageForm::kPage) {
      const uint64_t most = kPageHeaderBytes + part.raw_bytes;
      if (block.wire.value_bytes <= kPageHeaderBytes || block.wire.value_bytes > most) {
        return Finish(block, BlockResult::kMismatch), false;
      }
    }
  }
  if (!PutsAsIs(block) && !GpuEncodes(block) && !block.staging.valid() &&
      !AcquireStaging(block, part.raw_bytes, StageHalf::kIn)) {
    return false;
  }
  block.step = Step::kPutSlot;
  return true;
}

bool EngineImpl::PutSlot(Block& block) {
  uint64_t payload_bytes = CodecOf(block).payload_bytes;
  if (block.form == PageForm::kPage) payload_bytes = block.wire.value_bytes - kPageHeaderBytes;
  const uint64_t bytes = PageSlotBytes(payload_bytes);
  const bool gpu_encodes = GpuEncodes(block);
  if (gpu_encodes && AcquireHbm(block, bytes)) {
    block.step = Step::kPutEncode;
    return true;
  }
  switch (block.place == Place::kFresh ? AcquireFresh(block, bytes) : AcquireSlot(block, bytes)) {
    case Grant::kGot:
      block.step = block.pulled || gpu_encodes ? Step::kPutEncode : Step::kPutPull;
      return true;
    case Grant::kWait:
      return false;
    case Grant::kNever:
      break;
  }
  if (block.place == Place::kFresh) {
    // Slots that gets still read, or another size's, hold the share: the page is encoded at once.
    block.place = Place::kFinal;
    block.rung = block.binding->rung(block.wire.part, true);
    block.starved_us = 0;
    block.step = block.staging.valid() ? Step::kPutSlot : Step::kPutStage;
    return true;
  }
  ++counts.alloc_failures;
  Finish(block, BlockResult::kNoSpace);
  return false;
}

bool EngineImpl::PutPull(Block& block) {
  const TransferPlan plan = PullPlan(block);
  if (OnGpu(block)) return GpuPull(block, plan), false;
  if (MappedFor(block) == nullptr) return StartTransfer(block, plan), false;
  if (!HoldLent(block, plan)) return false;
  if (block.form != PageForm::kPage) {
    block.step = Step::kPutEncode;  // whose job copies it
    return true;
  }
  // The header decides what becomes of a page, so it is fetched before anything is decided.
  block.job = PageJob{};
  block.job.kind = PageJobKind::kFetch;
  block.job.page = pool().memory(block.page);
  block.job.local = plan.local;
  RunJob(block);
  return false;
}

// A page from outside must be one that could have been put here under this key.
BlockResult EngineImpl::ExpectPage(Block& block) {
  const PageHeader header = LoadHeader(pool().memory(block.page));
  if (CheckHeaderFields(header) != PageCheck::kOk) return BlockResult::kMismatch;
  const BoundCodec* codec = block.binding->FindReader(block.wire.part, header.codec_id);
  if (codec == nullptr || codec->precision != header.precision) return BlockResult::kMismatch;
  if (kPageHeaderBytes + header.payload_bytes != block.wire.value_bytes ||
      header.payload_bytes != codec->payload_bytes) {
    return BlockResult::kMismatch;
  }
  const PageHeader want = MakeHeader(block, *codec);
  if (header.identity_prefix != want.identity_prefix || header.key != want.key ||
      header.tenant_prefix != want.tenant_prefix || header.part != want.part ||
      header.raw_bytes != want.raw_bytes ||
      header.token_count > block.binding->part(want.part).page_tokens) {
    return BlockResult::kMismatch;
  }
  if (block.wire.token_count != 0 && header.token_count != block.wire.token_count) {
    return BlockResult::kMismatch;
  }
  EntryId id = kNoId;
  block.lossy_depth = header.lossy_depth;
  if (FindLive(block.key, &id) == Live::kYes &&
      !IsBetter(block, header.precision, index.kind(id)) && !MustRenew(block, index.at(id))) {
    block.entry = id;
    return BlockResult::kExists;
  }
  block.job.codec = codec->codec.get();
  block.job.header = PageHeader{};  // the stamp of wherever it came from is not ours
  std::memcpy(static_cast<void*>(&block.job.header), &header, offsetof(PageHeader, segment));
  return BlockResult::kOk;
}

bool EngineImpl::PutEncode(Block& block) {
  if (!block.pulled && GpuEncodes(block)) return GpuEncode(block), false;
  if (!block.pulled && !block.lent.held()) {  // its worker's GPU set is gone: as if it had had none
    ReleasePage(block);
    block.step = Step::kPutStage;
    return true;
  }
  const PartShape& part = block.binding->part(block.wire.part);
  const BoundCodec& codec = CodecOf(block);
  block.job = PageJob{};
  block.job.effort = block.binding->effort();
  block.job.dtype = part.dtype;
  block.job.page = pool().memory(block.page);
  block.job.raw = RawOf(block);
  block.job.local = PullPlan(block).local;
  block.job.keep_non_finite = block.binding->keep_non_finite_raw();
  if (block.form == PageForm::kPage) {
    block.job.kind = PageJobKind::kAcceptPage;
    const BlockResult check = ExpectPage(block);
    if (check == BlockResult::kExists && PutExists(block)) return true;
    if (check != BlockResult::kOk) return Finish(block, check), false;
  } else {
    block.job.kind =
        block.form == PageForm::kRaw ? PageJobKind::kEncode : PageJobKind::kAcceptPacked;
    block.job.codec = codec.codec.get();
    block.job.header = MakeHeader(block, codec);
    // A layout that wants raw pages wants them as they are. A fresh page must be one that can be
    // encoded later.
    if (!block.binding->lossy(block.wire.part)) block.job.keep_non_finite = true;
    if (block.place == Place::kFresh) block.job.keep_non_finite = false;
  }
  RunJob(block);
  return false;
}

// One page, another rung: the slot has the wrong size now.
bool EngineImpl::ClimbLadder(Block& block, uint32_t rung) {
  if (rung >= block.binding->ladder(block.wire.part).size()) return false;
  ReleasePage(block);
  block.rung = rung;
  block.step = Step::kPutSlot;
  if (!block.staging.valid()) {  // the raw page went with the slot
    block.pulled = false;
    block.step = Step::kPutStage;
  }
  Run(block);
  return true;
}

void EngineImpl::OnPutJob(Block& block) {
  if (block.job.kind == PageJobKind::kFetch) {
    block.step = Step::kPutEncode;
    return Run(block);
  }
  const PageJob& job = block.job;
  const EncodeReport& report = job.report;
  const uint32_t last = static_cast<uint32_t>(block.binding->ladder(block.wire.part).size()) - 1;
  const bool finite =
      job.result != BlockResult::kNonFinite && (job.header.flags & kPageFlagNonFinite) == 0;
  if (!finite) ++counts.non_finite_pages;
  if (job.result == BlockResult::kNonFinite) {
    const bool kept = block.form == PageForm::kRaw && block.binding->keep_non_finite_raw();
    if (kept && (block.rung < last || block.place == Place::kFresh)) {
      block.place = Place::kFinal;
      ClimbLadder(block, last);
      return;
    }
    block.reply.checksum = PackPlace({.layer_id = report.bad_layer_id,
                                      .is_v = report.bad_is_v,
                                      .head = static_cast<uint16_t>(report.bad_head),
                                      .token = static_cast<uint16_t>(report.bad_token)});
    return Finish(block, BlockResult::kNonFinite);
  }
  if (job.result != BlockResult::kOk) {
    if (job.result == BlockResult::kCorrupt) ++counts.checksum_failures_peer;
    return Finish(block, job.result);
  }
  if (job.kind == PageJobKind::kEncode || job.kind == PageJobKind::kSeal) {
    if (!report.fits) {
      ++counts.ladder_steps;
      if (!ClimbLadder(block, block.rung + 1)) Finish(block, BlockResult::kInvalid);
      return;
    }
    if (block.place != Place::kFresh) CountEncode(job);  // else when it is demoted
  }
  block.step = Step::kPutPublish;
  Run(block);
}

bool EngineImpl::PutPublish(Block& block) {
  ReleaseStaging(block);
  if (block.flushed) return Finish(block, BlockResult::kCancelled), false;
  EntryId id = kNoId;
  const Live live = FindLive(block.key, &id);
  if (live == Live::kLater) return Wait(disk_wait, block), false;
  if (live == Live::kYes && index.at(id).on_disk()) {
    block.step = Step::kPutReplace;
    return true;
  }
  return Publish(block, DiskLocation{}, false);
}

// WHY before publishing: the entry's location must never hold another image than its slot, and a
// page that was promised durable must not be replaced by one that is not.
bool EngineImpl::PutReplace(Block& block) {
  if (block.flushed) return Finish(block, BlockResult::kCancelled), false;
  EntryId id = kNoId;
  const Live live = FindLive(block.key, &id);
  if (live == Live::kLater) return Wait(disk_wait, block), false;
  if (live == Live::kNo || !index.at(id).on_disk()) return Publish(block, DiskLocation{}, false);
  if (IsHbm(block.page)) {  // only what lies in DRAM can be written: it is encoded anew, to there
    ReleasePage(block);
    block.dram_only = true;
    block.step = Step::kPutStage;
    return true;
  }
  const BlockResult result = StartBlockAppend(block, block.durable || index.at(id).durable);
  if (result == BlockResult::kBusy) {
    Wait(disk_wait, block);
  } else if (result != BlockResult::kOk) {
    Finish(block, result == BlockResult::kNoSpace ? result : BlockResult::kIo);
  }
  return false;
}

// The page becomes visible. True: the block goes on with the durable write.
bool EngineImpl::Publish(Block& block, const DiskLocation& location, bool durable) {
  const PageHeader& header = block.job.header;
  EntryId id = index.Find(block.key);
  const bool known = id != kNoId;
  const KindId kind = index.TakeKind(PageKind::Of(header));
  if (!known && kind != kNoKind) id = InsertEntry(block.key);
  if (id == kNoId || kind == kNoKind) {
    if (kind != kNoKind) index.GiveKind(kind);
    if (location.generation != 0) {
      ForgetRecord(block.key, location, kNoId);
      if (known) ForgetPage(id);  // the tombstone hides that one too
    }
    return Finish(block, BlockResult::kNoSpace), false;
  }
  Entry& entry = index.at(id);
  if (known) {
    CountPage(index.kind(id).precision, -1);
    if (entry.read() != kNoId) reads[entry.read()].entry = kNoId;
    if (entry.resident()) DetachSlot(id, Leaving::kReplaced);
    entry.place = kNoId;
  }
  index.SetKind(id, kind);
  entry.token_start = header.token_start;
  entry.token_count = header.token_count;
  entry.provenance = header.provenance;
  index.SetLocation(id, location);
  entry.durable = location.generation != 0 && durable;
  SpareFromFlushes(id);
  CountPage(header.precision, 1);
  SetParent(id, header.parent_prefix);
  block.page_owned = false;
  --transient_slots;
  AttachSlot(id, {.slot = std::exchange(block.page, SlotId{}),
                  .fresh = block.place == Place::kFresh,
                  .gpu_put = OnGpu(block),
                  .got = !known && options.nvme_admission == NvmeAdmission::kSeen &&
                         SeenLately(block.key)});
  NoteCommit(block, id);
  block.entry = id;
  block.entry_generation = entry.generation;
  DescribePut(block);
  counts.bytes_in[static_cast<size_t>(entry.tier())] +=
      block.form == PageForm::kRaw ? header.raw_bytes : block.wire.value_bytes;
  if (Session* session = FindSession(block.session); session != nullptr) {
    session->served.Note(block.key.prefix64(), header.lossy_depth);
  }
  WakeParked(block.key);
  if (block.durable && !entry.durable) {
    block.step = Step::kPutDurable;
    return true;
  }
  Finish(block, BlockResult::kOk);
  return false;
}

// The reply of a put whose page is block.entry.
void EngineImpl::DescribePut(Block& block) {
  const PageKind& kind = index.kind(block.entry);
  block.reply = {.tier = index.at(block.entry).tier(),
                 .precision = kind.precision,
                 .lossy_depth = kind.lossy_depth,
                 .value_bytes = kPageHeaderBytes + kind.payload_bytes};
}

// WHY a flush does not cancel it: the page was there for all to see; only what leaves no trace may
// be said to have failed.
bool EngineImpl::PutDurable(Block& block) {
  if (block.flushed) return Finish(block, BlockResult::kNotDurable), false;
  const BlockResult done = block.exists ? BlockResult::kExists : BlockResult::kOk;
  const bool alive = index.Alive(block.entry, block.entry_generation);
  if (alive && index.at(block.entry).on_disk() && index.at(block.entry).durable) {
    return Finish(block, done), false;
  }
  if (!alive || block.write_failed || log == nullptr) {
    return Finish(block, BlockResult::kNotDurable), false;
  }
  if (index.at(block.entry).in_hbm()) return WaitForDram(block, block.entry), false;
  if (!index.at(block.entry).in_memory()) {
    // Evicted meanwhile, by a write that nobody asked to be stable: the bytes at hand are put anew.
    block.seen = block.seen || !block.exists;
    block.exists = block.pulled = false;
    block.step = Step::kPutStart;
    return true;
  }
  const Entry& entry = index.at(block.entry);
  if (AppendOf(entry) == kNoId) {
    const BlockResult result = StartAppend(block.entry, true, false);
    if (result == BlockResult::kBusy) return Wait(disk_wait, block), false;
    if (result != BlockResult::kOk) return Finish(block, BlockResult::kNotDurable), false;
  }
  Wait(appends[AppendOf(entry)].waiters, block);
  return false;
}

}  // namespace crumb::core
