// delete: forgets a page in memory at once, on disk durably before the answer. Serialised with the
// puts of the same key, so that no tombstone can hit a page that came after it.
#include "cachesvc/core/engine_impl.h"

namespace crumb::core {

bool EngineImpl::EraseStart(Block& block) {
  if (!Lead(block)) return false;
  EndPhase(block, Phase::kQueue);
  EntryId id = kNoId;
  const Live live = FindLive(block.key, &id);
  if (live == Live::kLater) return Wait(disk_wait, block), false;
  if (live == Live::kNo) return EraseUnknown(block), false;
  const Entry& entry = index.at(id);
  if (AppendOf(entry) != kNoId) {
    // It is on its way to the disk: only then is there a record to forget.
    Wait(appends[AppendOf(entry)].waiters, block);
    return false;
  }
  block.reply.tier = entry.tier();
  if (entry.on_disk()) {
    block.step = Step::kEraseDisk;
    return true;
  }
  EraseEntry(id);
  EraseUnknown(block);
  return false;
}

// The index knows nothing of the key (any more). The disk may: a record whose tombstone was not
// written, or is under way, or a write of an image that was replaced or forgotten meanwhile.
void EngineImpl::EraseUnknown(Block& block) {
  const bool found = block.reply.tier != Tier::kNone;
  BlockResult result = BlockResult::kMiss;
  if (log != nullptr) {
    const uint64_t token = MakeToken(TokenKind::kBlock, block.id, block.generation);
    const bool later = flush_blocks_appends || AppendInFlight(block.key);
    result = later ? BlockResult::kBusy : log->Erase(block.key, DiskLocation{}, token);
  }
  switch (result) {
    case BlockResult::kOk:
      block.pending = Pending::kErase;
      return;
    case BlockResult::kBusy:
      return Wait(disk_wait, block);
    case BlockResult::kMiss:
      return Finish(block, found ? BlockResult::kOk : BlockResult::kMiss);
    default:
      return Finish(block, BlockResult::kIo);
  }
}

bool EngineImpl::EraseDisk(Block& block) {
  EntryId id = kNoId;
  const Live live = FindLive(block.key, &id);
  if (live == Live::kLater) return Wait(disk_wait, block), false;
  if (live == Live::kNo || !index.at(id).on_disk()) {
    block.step = Step::kEraseStart;
    return true;
  }
  const Entry& entry = index.at(id);
  const uint64_t token = MakeToken(TokenKind::kBlock, block.id, block.generation);
  const BlockResult result = log->Erase(entry.key, index.location(id), token);
  if (result == BlockResult::kBusy) return Wait(disk_wait, block), false;
  EraseEntry(id);
  if (result == BlockResult::kOk) {
    block.pending = Pending::kErase;
    return false;
  }
  if (result != BlockResult::kMiss) return Finish(block, BlockResult::kIo), false;
  block.step = Step::kEraseStart;
  return true;
}

}  // namespace crumb::core
