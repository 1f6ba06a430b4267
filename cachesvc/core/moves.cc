// Packed pages between HBM and DRAM: lowered, coldest first, when HBM fills up or somebody needs
// the page in DRAM; raised when a worker's GPU got it from DRAM for the second time. A page lies in
// one of both. It has no checksum while it lies in HBM: its header is made anew from the index and
// sealed when its bytes have arrived in DRAM.
// PROMISE: an entry's slot changes only if the entry still is the page that was moved.
#include <utility>

#include "cachesvc/core/engine_gpu.h"

namespace crumb::core {
namespace {

constexpr uint32_t kLoweringMax = 64;  // at once, to make room
constexpr uint64_t kFreeShare = 64;    // 1 / share of HBM is kept free

PageHeader HeaderOf(const Entry& entry, const PageKind& kind) {
  PageHeader header;
  header.precision = kind.precision;
  header.provenance = entry.provenance;
  header.identity_prefix = kind.identity_prefix;
  header.codec_id = kind.codec_id;
  header.key = entry.key;
  header.parent_prefix = entry.parent_prefix;
  header.token_start = entry.token_start;
  header.token_count = entry.token_count;
  header.lossy_depth = kind.lossy_depth;
  header.payload_bytes = kind.payload_bytes;
  header.tenant_prefix = kind.tenant_prefix;
  header.part = kind.part;
  header.raw_bytes = kind.raw_bytes;
  header.flags = kind.header_flags;
  return header;
}

}  // namespace

// A slot in HBM for a page that is packed on its worker's GPU; false: in DRAM, then. Nobody waits
// for room in HBM.
bool EngineGpu::AcquireHbm(Block& block, uint64_t bytes) {
  if (!has_hbm() || block.durable || block.dram_only || block.place != Place::kFinal) return false;
  EntryId id = kNoId;
  // It must be on disk before it replaces what is: from DRAM, then.
  if (FindLive(block.key, &id) != Live::kNo && index.at(id).on_disk()) return false;
  const SlotId slot = hbm().Allocate(bytes);
  if (!slot.valid()) {
    hbm_short = bytes;
    return false;
  }
  block.page = {slot.value | kHbmSlotBit};
  block.page_owned = true;
  ++transient_slots;
  return true;
}

// The move of an entry that is under way, or kNoId.
uint32_t EngineGpu::FindMove(EntryId id) const {
  for (uint32_t move = 0, left = moves.taken(); move < moves.size() && left > 0; ++move) {
    if (!moves[move].used) continue;
    --left;
    const bool its = moves[move].entry == id;
    if (its && moves[move].entry_generation == index.at(id).generation) return move;
  }
  return kNoId;
}

// The block looks again when the page lies in DRAM; a miss if it cannot be brought there.
void EngineGpu::WaitForDram(Block& block, EntryId id) {
  uint32_t move = FindMove(id);
  if (move == kNoId) move = StartMove(id, false, {});
  move == kNoId ? Wait(share_wait, block) : Wait(moves[move].waiters, block);
}

// kNoId: too many are under way, or it lies elsewhere.
uint32_t EngineGpu::StartMove(EntryId entry_id, bool raise, SlotId target) {
  const Entry& entry = index.at(entry_id);
  CRUMB_CHECK(entry.resident() && entry.in_hbm() != raise && !IsFresh(entry));
  const uint32_t id = moves.Take();
  if (id == Slab<Move>::kNone) return kNoId;
  Move& move = moves[id];
  move.entry = entry_id;
  move.entry_generation = entry.generation;
  move.raise = raise;
  move.step = raise ? MoveStep::kCopy : MoveStep::kSlot;
  move.source = SlotOf(entry);
  move.target = target;
  move.payload_bytes = index.kind(entry_id).payload_bytes;
  PinSlot(move.source);
  transient_slots += raise ? 2 : 1;
  if (!raise) {
    ++lowering;
    lowering_bytes += MemoryOf(move.source).size();
  }
  Rehold(entry_id);
  return id;
}

void EngineGpu::AdvanceMove(uint32_t id) {
  Move& move = moves[id];
  if (move.step == MoveStep::kSlot) {
    const Grant grant = TakeSlot({.bytes = PageSlotBytes(move.payload_bytes)}, &move.target);
    if (grant != Grant::kGot) {
      // Slots that operations in flight hold come back; what only pins keep does not.
      const bool hopeless = grant == Grant::kNever && transient_slots <= moves.taken();
      return hopeless ? EndMove(id, false) : static_cast<void>(0);
    }
    move.step = MoveStep::kCopy;
  }
  if (move.step == MoveStep::kCopy) CopyMove(id);
  if (move.step == MoveStep::kSeal) SealMove(id);
}

void EngineGpu::CopyMove(uint32_t id) {
  Move& move = moves[id];
  GpuLink* link = move.raise ? options.hbm.raise : options.hbm.lower;
  if (!link->health().ok()) return EndMove(id, false);
  GpuJob job;
  job.kind = GpuJobKind::kCopy;
  job.payload = MemoryOf(move.source).data() + kPageHeaderBytes;
  job.to = MemoryOf(move.target).data() + kPageHeaderBytes;
  job.bytes = move.payload_bytes;
  job.token = MakeToken(TokenKind::kMove, id, move.generation);
  if (!link->Submit(job)) return;
  move.step = MoveStep::kCopying;
  Activate(link);
}

void EngineGpu::OnMoveCopied(uint32_t id, bool ok) {
  Move& move = moves[id];
  CRUMB_CHECK(move.step == MoveStep::kCopying);
  const bool alive =
      index.Alive(move.entry, move.entry_generation) && SlotOf(index.at(move.entry)) == move.source;
  if (!ok || !alive || move.raise) return EndMove(id, ok && alive);
  move.step = MoveStep::kSeal;
  move.job = PageJob{};
  move.job.kind = PageJobKind::kSeal;
  move.job.page = MemoryOf(move.target);
  move.job.header = HeaderOf(index.at(move.entry), index.kind(move.entry));
  SealMove(id);
}

// A worker's affair: the checksum is a pass over the payload.
void EngineGpu::SealMove(uint32_t id) {
  Move& move = moves[id];
  const DeviceJob job{.run = RunPageJob,
                      .arg = &move.job,
                      .token = MakeToken(TokenKind::kMove, id, move.generation)};
  if (options.queue->Submit(job)) move.step = MoveStep::kSealing;
}

void EngineGpu::OnMoveSealed(uint32_t id) {
  Move& move = moves[id];
  CRUMB_CHECK(move.step == MoveStep::kSealing);
  EndMove(id, index.Alive(move.entry, move.entry_generation) &&
                  SlotOf(index.at(move.entry)) == move.source);
}

void EngineGpu::EndMove(uint32_t id, bool done) {
  Move& move = moves[id];
  const bool alive = index.Alive(move.entry, move.entry_generation);
  if (done && alive && AppendOf(index.at(move.entry)) == kNoId) {
    const uint64_t bytes = MemoryOf(move.target).size();
    move.raise ? ++counts.raised : ++counts.lowered;
    (move.raise ? counts.raised_bytes : counts.lowered_bytes) += bytes;
    const bool got = PageOf(index.at(move.entry)).got;
    DetachSlot(move.entry, move.raise ? Leaving::kReplaced : Leaving::kEvicted);
    AttachSlot(move.entry, {.slot = std::exchange(move.target, SlotId{}), .got = got});
    --transient_slots;
  } else {
    ++counts.moves_failed;
  }
  if (move.target.valid()) {
    ReleaseSlot(std::exchange(move.target, SlotId{}));
    --transient_slots;
  }
  if (!move.raise) {
    --lowering;
    lowering_bytes -= MemoryOf(move.source).size();
  }
  UnpinSlot(move.source);
  --transient_slots;
  if (alive) Rehold(move.entry);
  while (!move.waiters.empty()) {
    Block& block = blocks[move.waiters.PopFront(blocks)];
    const bool failed = !done && alive;
    if (failed && block.type == WireType::kGet) {
      Finish(block, BlockResult::kMiss);
      continue;
    }
    if (failed) block.write_failed = true;
    Wait(ready, block);
  }
  moves.Give(id);
}

// After a get of a packed page into GPU memory.
void EngineGpu::RaiseIfHot(const Block& block) {
  if (!has_hbm() || draining || !block.page_pinned || IsHbm(block.page) || !OnGpu(block)) return;
  if (!index.Alive(block.entry, block.entry_generation)) return;
  const Entry& entry = index.at(block.entry);
  const PageKind& kind = index.kind(block.entry);
  if (SlotOf(entry) != block.page || kind.precision == Precision::kRaw) return;
  Resident& page = PageOf(entry);
  const bool again = page.gpu_got;
  page.gpu_got = true;
  if (!again) return;
  if (page.append != kNoId || moves.free() == 0 || FindMove(block.entry) != kNoId) return;
  const uint64_t bytes = kind.slot_bytes();
  const SlotId slot = hbm().Allocate(bytes);
  if (!slot.valid()) {
    hbm_short = bytes;
    return;
  }
  (void)StartMove(block.entry, true, {slot.value | kHbmSlotBit});
}

// Lowers the coldest while little is free, or while a page found no room.
int EngineGpu::RunMoves() {
  if (!has_hbm()) return 0;
  const uint64_t room = hbm().capacity_bytes() - hbm().used_bytes();
  const uint64_t wanted = hbm().capacity_bytes() / kFreeShare;
  const auto size_class =
      hbm_short == 0 ? kAnyClass
                     : static_cast<uint32_t>(PagePool::ClassBytes(hbm_short) / kPageAlignment);
  bool more = hbm_short != 0 && lowering == 0;
  while (lowering < kLoweringMax && !draining && (more || room + lowering_bytes < wanted)) {
    EntryId victim = VictimOf(*hbm_policy, size_class);
    if (victim == kNoId) victim = VictimOf(*hbm_policy, kAnyClass);
    if (victim == kNoId) break;
    if (StartMove(victim, false, {}) == kNoId) break;
    more = false;
  }
  if (lowering > 0) hbm_short = 0;
  int work = 0;
  for (uint32_t id = 0, left = moves.taken(); id < moves.size() && left > 0; ++id) {
    if (!moves[id].used) continue;
    --left;
    const MoveStep before = moves[id].step;
    if (before == MoveStep::kCopying || before == MoveStep::kSealing) continue;
    AdvanceMove(id);
    if (!moves[id].used || moves[id].step != before) ++work;
  }
  return work;
}

}  // namespace crumb::core
