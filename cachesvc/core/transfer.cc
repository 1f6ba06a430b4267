// Moving bytes between page memory and what a worker lent. Memory named by a transfer is neither
// released nor answered for before the transfer's own completion. Where the transport has mapped
// what is lent, the job that makes or checks the page copies it itself: one copy, one trip to a
// worker thread.
#include <utility>

#include "cachesvc/core/engine_impl.h"

namespace crumb::core {
namespace {

MappedUse UseOf(const Block& block) {
  return block.type == WireType::kPut ? MappedUse::kRead : MappedUse::kWrite;
}

template <typename T>
void TakeSpare(std::vector<T>* spare, T* to) {
  if (spare->empty()) return;
  *to = std::move(spare->back());
  spare->pop_back();
}

}  // namespace

// The set that a block's transfer goes to or from, if it may begin now; null: the block waits, or
// is finished.
const RegisteredSet* EngineGpu::MayTransfer(Block& block) {
  const Session* session = FindSession(block.session);
  if (session == nullptr || !peers.Alive(block.peer, block.peer_generation)) {
    return Finish(block, BlockResult::kUnavailable), nullptr;
  }
  const RegisteredSet* set = session->FindSet(block.region_set);
  if (set == nullptr) return Finish(block, BlockResult::kInvalid), nullptr;
  const uint32_t left = options.limits.transfers_max - transfers;
  if (peers[block.peer].transfers > left) return Wait(share_wait, block), nullptr;
  if (left == 0 || (!transfer_wait.empty() && retrying != &transfer_wait)) {
    return Wait(transfer_wait, block), nullptr;
  }
  return set;
}

// False: the block waits, or is finished.
bool EngineImpl::PrepareTransfer(Block& block, const TransferPlan& plan, Transfer* transfer) {
  const RegisteredSet* set = MayTransfer(block);
  if (set == nullptr) return false;
  if (block.segments.capacity() == 0) TakeSpare(&spare_segments, &block.segments);
  const BlockPlace place{.part = block.wire.part,
                         .slots = absl::MakeConstSpan(block.slots.data(), block.slot_count),
                         .bytes = plan.local.size(),
                         .tokens = set->set.contiguous() ? 0 : plan.tokens};
  if (!set->set.Segments(place, &block.segments)) {
    return Finish(block, BlockResult::kInvalid), false;
  }
  *transfer = {.peer = peers[block.peer].id,
               .region_set = block.region_set,
               .segments = block.segments,
               .local = plan.local,
               .token = MakeToken(TokenKind::kBlock, block.id, block.generation)};
  return true;
}

// What was begun counts for its peer; what was refused waits or ends the block.
bool EngineImpl::BeginTransfer(Block& block, BlockResult begun) {
  if (begun == BlockResult::kBusy) return Wait(transfer_wait, block), false;
  if (begun != BlockResult::kOk) return Finish(block, begun), false;
  ++transfers;
  ++peers[block.peer].transfers;
  return true;
}

void EngineLent::EndTransfer(const Block& block) {
  --transfers;
  if (peers.Alive(block.peer, block.peer_generation)) --peers[block.peer].transfers;
}

void EngineImpl::StartTransfer(Block& block, const TransferPlan& plan) {
  Transfer transfer;
  if (!PrepareTransfer(block, plan, &transfer)) return;
  Transport& transport = *transports[peers[block.peer].transport];
  const bool pull = plan.way == Way::kPull;
  const bool begun =
      BeginTransfer(block, pull ? transport.Pull(transfer) : transport.Push(transfer));
  if (begun) block.pending = Pending::kTransfer;
}

void EngineImpl::OnTransferDone(uint64_t token, BlockResult result) {
  Block& block = blocks[IdOf(token)];
  CRUMB_CHECK(block.used && TokenIs(token, block.generation));
  CRUMB_CHECK(block.pending == Pending::kTransfer);
  EndTransfer(block);
  block.pending = Pending::kNone;
  EndPhase(block, Phase::kWire);
  if (block.doom != BlockResult::kOk) return Finish(block, block.doom);
  if (result != BlockResult::kOk) return Finish(block, BlockResult::kUnavailable);
  if (block.type == WireType::kGet) return OnGetPushed(block);
  block.pulled = true;
  block.step = Step::kPutEncode;
  Run(block);
}

MappedMemory* EngineLent::MappedFor(const Block& block) const {
  if (!peers.Alive(block.peer, block.peer_generation) || OnGpu(block)) return nullptr;
  return mapped[peers[block.peer].transport];
}

// Makes what the block's worker lends part of its next job. False: the block waits, or is finished.
bool EngineImpl::HoldLent(Block& block, const TransferPlan& plan) {
  if (block.lent.held()) return true;  // it waited for room in the queue
  Transfer transfer;
  if (!PrepareTransfer(block, plan, &transfer)) return false;
  if (block.lent.pieces.capacity() == 0) TakeSpare(&spare_lent, &block.lent);
  MappedMemory* memory = MappedFor(block);
  if (!BeginTransfer(block, memory->Hold(transfer, UseOf(block), &block.lent))) return false;
  block.lent_transport = peers[block.peer].transport;
  return true;
}

bool EngineLent::ReleaseLent(Block& block, uint64_t bytes) {
  EndTransfer(block);
  return mapped[block.lent_transport]->Release(&block.lent, UseOf(block), bytes);
}

void EngineLent::DropLent(Block& block) {
  if (block.lent.held()) (void)ReleaseLent(block, 0);
  if (block.lent.pieces.capacity() > 0 && spare_lent.size() < options.limits.transfers_max) {
    spare_lent.push_back(std::move(block.lent));
  }
  block.lent = {};
}

// After a job that used lent memory. False: the block is finished.
bool EngineImpl::EndLent(Block& block) {
  const PageJob& job = block.job;
  const bool moved = job.result == BlockResult::kOk && !job.lent_gone;
  const bool alive = ReleaseLent(block, moved ? job.lent_bytes : 0);
  if (block.doom != BlockResult::kOk) return Finish(block, block.doom), false;
  if (!alive) return Finish(block, BlockResult::kUnavailable), false;
  if (job.lent_gone) return Finish(block, BlockResult::kInvalid), false;
  if (block.type == WireType::kPut) block.pulled = true;
  return true;
}

MutableBytes EngineLent::RawOf(const Block& block) const {
  const uint64_t raw_bytes = block.binding->part(block.wire.part).raw_bytes;
  if (block.staging.valid()) return pool().memory(block.staging).subspan(0, raw_bytes);
  return pool().memory(block.page).subspan(kPageHeaderBytes, raw_bytes);
}

TransferPlan EngineLent::PullPlan(const Block& block) const {
  TransferPlan plan;
  if (block.form == PageForm::kRaw) {
    plan.local = RawOf(block);
    plan.tokens = block.wire.token_count;
  } else {
    const uint32_t skip = block.form == PageForm::kPacked ? kPageHeaderBytes : 0;
    plan.local = pool().memory(block.page).subspan(skip, block.wire.value_bytes);
  }
  return plan;
}

TransferPlan EngineLent::PushPlan(const Block& block) const {
  const PageJob& job = block.job;
  TransferPlan plan{.way = Way::kPush,
                    .local = job.page.subspan(kPageHeaderBytes, block.reply.value_bytes)};
  if (job.kind == PageJobKind::kCopyPage) plan.local = job.page.subspan(0, block.reply.value_bytes);
  const bool made = job.kind == PageJobKind::kDecode || job.kind == PageJobKind::kCopyPage;
  if (made && block.staging.valid()) plan.local = job.raw;
  if (block.form == PageForm::kRaw) plan.tokens = job.header.token_count;
  return plan;
}

}  // namespace crumb::core
