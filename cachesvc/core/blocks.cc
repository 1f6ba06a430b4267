// Running, waiting and ending of blocks: the same for every path.
#include <algorithm>
#include <utility>

#include "cachesvc/core/engine_impl.h"

namespace crumb::core {
namespace {
constexpr int kStepsPerRun = 32;  // more than any path has; a ladder of four rungs included
constexpr uint32_t kReadyPerTurn = 1024;
constexpr uint32_t kSharesPerTurn = 32;
}  // namespace

void EngineImpl::Run(Block& block) {
  for (int i = 0; i < kStepsPerRun; ++i) {
    if (!RunStep(block)) return;
  }
  Wait(ready, block);
}

bool EngineImpl::RunStep(Block& block) {
  switch (block.step) {
    case Step::kPutStart:
      return PutStart(block);
    case Step::kPutStage:
      return PutStage(block);
    case Step::kPutSlot:
      return PutSlot(block);
    case Step::kPutPull:
      return PutPull(block);
    case Step::kPutEncode:
      return PutEncode(block);
    case Step::kPutPublish:
      return PutPublish(block);
    case Step::kPutReplace:
      return PutReplace(block);
    case Step::kPutDurable:
      return PutDurable(block);
    case Step::kGetStart:
      return GetStart(block);
    case Step::kGetLoad:
      return GetLoad(block);
    case Step::kGetLoadApart:
      return GetLoadApart(block);
    case Step::kGetStage:
      return GetStage(block);
    case Step::kGetWork:
      return GetWork(block);
    case Step::kGetPush:
      return GetPush(block);
    case Step::kPrefetchStart:
      return PrefetchStart(block);
    case Step::kEraseStart:
      return EraseStart(block);
    case Step::kEraseDisk:
      return EraseDisk(block);
  }
  return false;
}

void EngineBasics::Wait(List<Block>& list, Block& block) { list.PushBack(blocks, block.id); }

void EngineBasics::WakeAll(List<Block>& list) {
  while (!list.empty()) ready.PushBack(blocks, list.PopFront(blocks));
}

// Runs waiting blocks in order until one of them has to wait here again.
int EngineImpl::RetryList(List<Block>& list) {
  uint32_t budget = std::min(list.size(), kReadyPerTurn);
  int moved = 0;
  while (budget-- > 0 && !list.empty()) {
    Block& block = blocks[list.PopFront(blocks)];
    const uint32_t generation = block.generation;
    retrying = &list;
    Run(block);
    retrying = nullptr;
    if (&list != &ready && block.used && block.generation == generation && block.list == &list) {
      list.Remove(blocks, block.id);
      list.PushFront(blocks, block.id);
      break;
    }
    ++moved;
  }
  return moved;
}

// Blocks of peers that hold more than their share: each is looked at now and then, none can stop
// the others.
int EngineImpl::RetryShares() {
  int moved = 0;
  for (uint32_t i = std::min(share_wait.size(), kSharesPerTurn); i > 0 && !share_wait.empty();
       --i) {
    Block& block = blocks[share_wait.PopFront(blocks)];
    const uint32_t generation = block.generation;
    Run(block);
    if (block.generation != generation || block.list != &share_wait) ++moved;
  }
  return moved;
}

void EngineBasics::EndPhase(Block& block, Phase phase) {
  const uint64_t time_us = now();
  counts.phases[static_cast<size_t>(phase)].Add(time_us - block.phase_us);
  block.phase_us = time_us;
}

// Answers for the block. What is pending goes on and cleans up when it ends.
void EngineImpl::Finish(Block& block, BlockResult result) {
  if (block.list != nullptr) block.list->Remove(blocks, block.id);
  if (block.request != kNoId) {
    const uint32_t request_id = std::exchange(block.request, kNoId);
    // Only what leaves no trace may be said to have failed.
    if (block.seen && result != BlockResult::kExists && result != BlockResult::kOk) {
      result = BlockResult::kNotDurable;
    }
    Request& request = requests[request_id];
    ++counts.blocks[static_cast<size_t>(request.op)][static_cast<size_t>(result)];
    WireBlockReply reply = block.reply;
    const bool success = result == BlockResult::kOk || result == BlockResult::kExists ||
                         result == BlockResult::kNotDurable;
    if (!success) {
      const Tier tier = block.type == WireType::kPrefetch ? block.reply.tier : Tier::kNone;
      reply = {.tier = tier};
      if (result == BlockResult::kNonFinite) reply.checksum = block.reply.checksum;
    }
    reply.result = result;
    request.deepest = std::max(request.deepest, reply.tier);
    request.replies[block.index] = reply;
    request.blocks[block.index] = kNoId;
    if (--request.blocks_left == 0) CompleteRequest(request_id);
  }
  if (block.pending == Pending::kNone) Cleanup(block);
}

void EngineImpl::Cleanup(Block& block) {
  CRUMB_CHECK(block.list == nullptr && block.pending == Pending::kNone);
  ReleaseStaging(block);
  ReleasePage(block);
  if (block.segments.capacity() > 0) {
    if (spare_segments.size() < options.limits.transfers_max) {
      spare_segments.push_back(std::move(block.segments));
    }
    block.segments = {};
  }
  DropLent(block);
  if (block.gpu.held()) (void)ReleaseGpu(block, 0);
  if (block.leading) {
    leaders.erase(block.key);
    WakeAll(block.followers);
  }
  block.binding.reset();
  if (peers.Alive(block.peer, block.peer_generation)) --peers[block.peer].blocks;
  blocks.Give(block.id);
}

void EngineBasics::ReleaseStaging(Block& block) {
  if (block.gpu_stage != kNoId) gpu_stage.Free(std::exchange(block.gpu_stage, kNoId));
  for (SlotId* slot : {&block.staging, &block.staging2}) {
    if (!slot->valid()) continue;
    if (peers.Alive(block.peer, block.peer_generation)) {
      const uint64_t bytes = pool().memory(*slot).size();
      peers[block.peer].staged_bytes[static_cast<size_t>(block.half)] -= bytes;
    }
    pool().Release(*slot);
    *slot = {};
  }
}

void EngineBasics::ReleasePage(Block& block) {
  if (block.page_owned) {
    ReleaseSlot(block.page);
    --transient_slots;
  } else if (block.page_pinned) {
    UnpinSlot(block.page);
    --transient_slots;
    if (index.Alive(block.entry, block.entry_generation)) Rehold(block.entry);
  }
  block.page_owned = block.page_pinned = false;
  block.page = {};
}

void EngineImpl::Expire(Block& block, BlockResult result) {
  if (block.type == WireType::kPut && requests[block.request].peer == kNoId) {
    ++counts.abandoned_puts;
  }
  if (block.pending == Pending::kTransfer || block.pending == Pending::kGpu ||
      (block.pending == Pending::kJob && block.lent.held())) {
    block.doom = result;  // the worker's memory is in use until the transfer ended
    return;
  }
  // On its way to the disk, to replace the page that is there: what comes of it is the answer, as
  // nothing can be told to leave no trace any more.
  if (block.pending == Pending::kAppend) return;
  if (block.step == Step::kPutDurable) result = BlockResult::kNotDurable;
  Finish(block, result);
}

// Makes the block the only put or delete of its key, or queues it behind the one there is.
bool EngineBasics::Lead(Block& block) {
  if (block.leading) return true;
  const auto [it, fresh] = leaders.try_emplace(block.key, block.id);
  if (!fresh) {
    Wait(blocks[it->second].followers, block);
    return false;
  }
  block.leading = true;
  return true;
}

// Hands block.job over; false: the queue is full and the block waits for room.
bool EngineBasics::SubmitJob(Block& block) {
  block.job.scratch = &scratch;
  const DeviceJob job{.run = RunPageJob,
                      .arg = &block.job,
                      .token = MakeToken(TokenKind::kBlock, block.id, block.generation)};
  if (!options.queue->Submit(job)) {
    Wait(queue_wait, block);
    return false;
  }
  block.pending = Pending::kJob;
  return true;
}

void EngineImpl::RunJob(Block& block) {
  block.job.lent = block.lent.held() ? &block.lent : nullptr;
  RunInline(block) ? EndJob(block) : static_cast<void>(SubmitJob(block));
}

// A short copy costs less than the way to a worker thread and back. Only memory that cannot be
// taken away is touched here, and only so much of it in one turn.
bool EngineLent::RunInline(Block& block) {
  const uint64_t bytes = block.job.page.size();
  if (block.job.lent == nullptr || !block.lent.steady || bytes > kInlineBytesMax) return false;
  if (block.job.is_codec_work() || bytes > inline_bytes_left) return false;
  inline_bytes_left -= bytes;
  block.job.scratch = &scratch;
  RunPageJob(&block.job, options.queue->worker_count());
  return true;
}

void EngineImpl::OnJobDone(uint64_t token) {
  const uint32_t id = IdOf(token);
  if (KindOf(token) == TokenKind::kDemotion) {
    CRUMB_CHECK(demotions[id].used && TokenIs(token, demotions[id].generation));
    return OnDemotionJob(id);
  }
  if (KindOf(token) == TokenKind::kMove) {
    CRUMB_CHECK(moves[id].used && TokenIs(token, moves[id].generation));
    return OnMoveSealed(id);
  }
  if (KindOf(token) == TokenKind::kRead) {
    CRUMB_CHECK(reads.Alive(id, reads[id].generation) && TokenIs(token, reads[id].generation));
    return EndRead(id, reads[id].job.result);
  }
  Block& block = blocks[id];
  CRUMB_CHECK(block.used && TokenIs(token, block.generation) && block.pending == Pending::kJob);
  block.pending = Pending::kNone;
  EndJob(block);
}

void EngineImpl::EndJob(Block& block) {
  if (block.request == kNoId) return Cleanup(block);
  block.job.took_us = now() - block.phase_us;
  EndPhase(block, block.job.is_codec_work() ? Phase::kCodec : Phase::kWire);
  if (block.lent.held() && !EndLent(block)) return;
  block.type == WireType::kPut ? OnPutJob(block) : OnGetJob(block);
}

}  // namespace crumb::core
