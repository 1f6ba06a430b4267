// get: find -> pin -> (NVMe -> slot, verified, shared by all who wait) -> decode or gather ->
// worker's memory -> reply. Whatever goes wrong on the way is a miss and a counter.
#include "cachesvc/core/engine_impl.h"

namespace crumb::core {
namespace {

uint64_t ValueBytes(const Block& block, const PageKind& kind) {
  if (block.form == PageForm::kRaw) return kind.raw_bytes;
  const uint64_t header_bytes = block.form == PageForm::kPage ? kPageHeaderBytes : 0;
  return header_bytes + kind.payload_bytes;
}

// Whether this layout can be given the page in the form it asks for.
bool CanServe(const Block& block, const PageKind& kind, uint32_t token_count) {
  if (block.wire.token_count != 0 && block.wire.token_count != token_count) return false;
  if (kind.raw_bytes != block.binding->part(block.wire.part).raw_bytes) return false;
  if (block.form == PageForm::kPage) return true;
  const BoundCodec* codec = block.binding->FindReader(block.wire.part, kind.codec_id);
  return codec != nullptr && codec->payload_bytes == kind.payload_bytes;
}

}  // namespace

void EngineImpl::Park(Block& block) {
  if (parked.size() >= options.limits.waiters_max) return Finish(block, BlockResult::kBusy);
  Wait(parked, block);
}

// Few wait at once, so looking at all of them is cheap.
void EngineImpl::WakeParked(const BlockKey& key) {
  uint32_t next = Slab<Block>::kNone;
  for (uint32_t id = parked.front(); id != Slab<Block>::kNone; id = next) {
    next = blocks[id].next;
    if (blocks[id].key != key) continue;
    parked.Remove(blocks, id);
    Wait(ready, blocks[id]);
  }
}

bool EngineImpl::GetStart(Block& block) {
  EndPhase(block, Phase::kQueue);
  EntryId id = kNoId;
  const bool found = FindLive(block.key, &id) == Live::kYes &&
                     index.kind(id).lossy_depth <= options.max_lossy_depth &&
                     CanServe(block, index.kind(id), index.at(id).token_count);
  if (!found) return block.wait_for_put ? Park(block) : Finish(block, BlockResult::kMiss), false;
  const Entry& entry = index.at(id);
  const uint64_t value_bytes = ValueBytes(block, index.kind(id));
  if (block.wire.value_bytes != 0 && value_bytes > block.wire.value_bytes) {
    return Finish(block, BlockResult::kInvalid), false;
  }
  EndPhase(block, Phase::kIndex);
  if (entry.in_hbm() && !GpuReads(block, index.kind(id))) return WaitForDram(block, id), false;
  if (entry.resident()) {
    GetFromMemory(block, id, entry.tier());
  } else {
    block.step = Step::kGetLoad;
  }
  return true;
}

// What the reply says of the page, and what the page must turn out to be.
void EngineImpl::DescribeHit(Block& block, const Entry& entry, Tier tier) {
  const PageKind& kind = index.KindOf(entry);
  block.reply = {.tier = tier,
                 .precision = kind.precision,
                 .lossy_depth = kind.lossy_depth,
                 .value_bytes = static_cast<uint32_t>(ValueBytes(block, kind))};
  block.lossy_depth = kind.lossy_depth;
  block.job = PageJob{};
  block.job.header.key = entry.key;
  block.job.header.codec_id = kind.codec_id;
  block.job.header.payload_bytes = kind.payload_bytes;
  block.job.header.token_count = entry.token_count;
  block.step = Step::kGetStage;
}

void EngineImpl::GetFromMemory(Block& block, EntryId id, Tier tier) {
  TouchPage(index.at(id));
  PageOf(index.at(id)).got = true;
  if (PageOf(index.at(id)).prefetched) index.at(id).disk_hit = 1;
  ForgetPrefetched(id);
  PinForBlock(block, id);
  DescribeHit(block, index.at(id), tier);
}

bool EngineImpl::GetLoad(Block& block) {
  EntryId id = kNoId;
  if (FindLive(block.key, &id) != Live::kYes || index.at(id).resident()) {
    ReleasePage(block);
    block.step = Step::kGetStart;
    return true;
  }
  const uint64_t record_bytes = index.kind(id).slot_bytes();
  if (block.page_owned && pool().memory(block.page).size() != PagePool::ClassBytes(record_bytes)) {
    ReleasePage(block);  // another image took the place of the one it was meant for
  }
  if (index.at(id).read() != kNoId) {
    ReleasePage(block);
    Wait(reads[index.at(id).read()].waiters, block);
    return false;
  }
  if (log == nullptr) return Finish(block, BlockResult::kMiss), false;
  if (!block.page_owned && StaysOnNvme(block, id)) {
    ++counts.promotions_deferred;
    block.step = Step::kGetLoadApart;
    return true;
  }
  if (!block.page_owned) {
    switch (AcquireSlot(block, record_bytes)) {
      case Grant::kGot:
        return true;  // the world may have changed while the block waited: look again
      case Grant::kWait:
        return false;
      case Grant::kNever:
        block.step = Step::kGetLoadApart;
        return true;
    }
  }
  const BlockResult result = StartRead(id, block.page, nullptr);
  if (result == BlockResult::kBusy) return Wait(disk_wait, block), false;
  if (result != BlockResult::kOk) {
    ForgetPage(id);
    return Finish(block, BlockResult::kMiss), false;
  }
  block.page_owned = false;
  --transient_slots;
  block.page = {};
  Wait(reads[index.at(id).read()].waiters, block);
  return false;
}

// nvme.promotion: second. The first get of a page takes no slot from pages that are hotter: one
// that is free, or none. What staging cannot hold has to be raised. Decided once per block.
bool EngineImpl::StaysOnNvme(Block& block, EntryId id) {
  if (options.nvme_promotion == NvmePromotion::kFirst || block.promotes) return false;
  const PageKind& kind = index.kind(id);
  const uint64_t staged = kind.slot_bytes() + PageSlotBytes(ValueBytes(block, kind));
  block.promotes = SeenLately(block.key) || !pool().CanEverStage(staged);
  if (block.promotes) return false;
  if (slot_wait.empty()) block.page = pool().Allocate(kind.slot_bytes());
  if (block.page.valid()) {
    block.page_owned = true;
    ++transient_slots;
    return false;
  }
  seen_keys.Add(block.key.prefix64());
  return true;
}

// The pool is full of pins, or of hotter pages: the record goes through staging, for this block
// alone. Both buffers
// are taken at once or not at all, so that two such blocks cannot wait for each other.
bool EngineImpl::GetLoadApart(Block& block) {
  EntryId id = kNoId;
  if (FindLive(block.key, &id) != Live::kYes || index.at(id).resident() || log == nullptr) {
    ReleaseStaging(block);
    block.step = Step::kGetStart;
    return true;
  }
  const uint64_t record = index.kind(id).slot_bytes();
  const uint64_t value = PageSlotBytes(ValueBytes(block, index.kind(id)));
  const bool fits = block.staging2.valid() &&
                    pool().memory(block.staging2).size() == PagePool::ClassBytes(record) &&
                    pool().memory(block.staging).size() == PagePool::ClassBytes(value);
  if (!fits) ReleaseStaging(block);  // another image took the place of the one it was meant for
  if (!block.staging2.valid()) {
    if (!pool().CanEverStage(record + value)) return Finish(block, BlockResult::kMiss), false;
    if (!AcquireStaging(block, value, StageHalf::kOut)) return false;
    block.staging2 = pool().AllocateStaging(record, StageHalf::kOut);
    if (!block.staging2.valid()) {
      ReleaseStaging(block);
      return Wait(stage_wait[static_cast<size_t>(StageHalf::kOut)], block), false;
    }
    CountStaging(block, block.staging2);
  }
  const BlockResult result = StartRead(id, block.staging2, &block);
  if (result == BlockResult::kBusy) return Wait(disk_wait, block), false;
  if (result != BlockResult::kOk) {
    ForgetPage(id);
    return Finish(block, BlockResult::kMiss), false;
  }
  block.pending = Pending::kLoadApart;
  return false;
}

bool EngineImpl::GetStage(Block& block) {
  const bool raw_page = block.reply.precision == Precision::kRaw;
  const bool as_stored =
      block.form == PageForm::kPacked || (block.form == PageForm::kRaw && raw_page);
  const bool decodes = block.form == PageForm::kRaw && !raw_page;
  const bool staged = !as_stored && (decodes ? !GpuDecodes(block) : MappedFor(block) == nullptr);
  if (staged && !block.staging.valid() &&
      !AcquireStaging(block, block.reply.value_bytes, StageHalf::kOut)) {
    return false;
  }
  block.step = Step::kGetWork;
  return true;
}

bool EngineImpl::GetWork(Block& block) {
  const bool apart = block.staging2.valid();
  if (!apart && IsHbm(block.page)) {
    block.step = Step::kGetPush;
    return true;
  }
  block.job.page = pool().memory(apart ? block.staging2 : block.page);
  block.job.kind = PageJobKind::kHashPayload;
  if (block.staging.valid()) {
    block.job.raw = pool().memory(block.staging).subspan(0, block.reply.value_bytes);
  }
  if (block.form == PageForm::kPage) block.job.kind = PageJobKind::kCopyPage;
  const bool decode = block.form == PageForm::kRaw && block.reply.precision != Precision::kRaw;
  if (decode && !GpuDecodes(block)) {
    const BoundCodec* codec = block.binding->FindReader(block.wire.part, block.job.header.codec_id);
    block.job.codec = codec->codec.get();
    block.job.kind = PageJobKind::kDecode;
  }
  if (MappedFor(block) != nullptr && !HoldLent(block, PushPlan(block))) return false;
  RunJob(block);
  return false;
}

void EngineImpl::OnGetJob(Block& block) {
  if (block.job.kind == PageJobKind::kDecode) {
    ++counts.decode_pages;
    counts.decode_us += block.job.took_us;
  }
  if (block.job.result != BlockResult::kOk) {
    // The page in memory is not what was stored: nobody may see it again.
    ++counts.checksum_failures_dram;
    const bool current = block.page_pinned && index.Alive(block.entry, block.entry_generation) &&
                         SlotOf(index.at(block.entry)) == block.page;
    bool elsewhere = block.page_pinned && !current;  // replaced, or left by another get
    if (current) {
      const Entry& entry = index.at(block.entry);
      elsewhere = entry.on_disk() && AppendOf(entry) == kNoId;
      // A record on disk has its own checksum and may still be good.
      elsewhere ? LeaveMemory(block.entry, Leaving::kGone) : ForgetPage(block.entry);
    }
    if (elsewhere) return StartOver(block, ready);
    ++counts.hit_then_failed;
    return Finish(block, BlockResult::kMiss);
  }
  block.reply.checksum = block.job.value_hash;
  if (block.job.lent != nullptr) return OnGetPushed(block);
  block.step = Step::kGetPush;
  Run(block);
}

bool EngineImpl::GetPush(Block& block) {
  if (OnGpu(block)) return GpuPush(block), false;
  if (IsHbm(block.page)) return Finish(block, BlockResult::kUnavailable), false;  // its set is gone
  StartTransfer(block, PushPlan(block));
  return false;
}

void EngineImpl::OnGetPushed(Block& block) {
  const auto tier = static_cast<size_t>(block.reply.tier);
  ++counts.hits[tier];
  counts.bytes_out[tier] += block.reply.value_bytes;
  if (Session* session = FindSession(block.session); session != nullptr) {
    const bool lossy = block.reply.precision != Precision::kRaw;
    const uint8_t depth = block.lossy_depth;
    const uint8_t child = lossy && depth < 255 ? static_cast<uint8_t>(depth + 1) : depth;
    session->served.Note(block.key.prefix64(), child);
  }
  RaiseIfHot(block);
  Finish(block, BlockResult::kOk);
}

}  // namespace crumb::core
