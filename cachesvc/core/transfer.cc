// Moving bytes between page memory and what a worker lent. Memory named by a transfer is neither
// released nor answered for before the transfer's own completion.
#include "cachesvc/core/engine_impl.h"

namespace crumb::core {

void EngineImpl::StartTransfer(Block& block, const TransferPlan& plan) {
  const Session* session = FindSession(block.session);
  if (session == nullptr || !peers.Alive(block.peer, block.peer_generation)) {
    return Finish(block, BlockResult::kUnavailable);
  }
  const RegisteredSet* set = session->FindSet(block.region_set);
  if (set == nullptr) return Finish(block, BlockResult::kInvalid);
  const uint32_t left = options.limits.transfers_max - transfers;
  if (peers[block.peer].transfers > left) return Wait(share_wait, block);
  if (left == 0 || (!transfer_wait.empty() && retrying != &transfer_wait)) {
    return Wait(transfer_wait, block);
  }
  if (block.segments.capacity() == 0 && !spare_segments.empty()) {
    block.segments = std::move(spare_segments.back());
    spare_segments.pop_back();
  }
  const BlockPlace place{.part = block.wire.part,
                         .slots = absl::MakeConstSpan(block.slots.data(), block.slot_count),
                         .bytes = plan.local.size(),
                         .tokens = set->set.contiguous() ? 0 : plan.tokens};
  if (!set->set.Segments(place, &block.segments)) return Finish(block, BlockResult::kInvalid);
  const Peer& peer = peers[block.peer];
  const Transfer transfer{.peer = peer.id,
                          .region_set = block.region_set,
                          .segments = block.segments,
                          .local = plan.local,
                          .token = MakeToken(TokenKind::kBlock, block.id, block.generation)};
  Transport& transport = *transports[peer.transport];
  const BlockResult result =
      plan.way == Way::kPull ? transport.Pull(transfer) : transport.Push(transfer);
  if (result == BlockResult::kBusy) return Wait(transfer_wait, block);
  if (result != BlockResult::kOk) return Finish(block, result);
  ++transfers;
  ++peers[block.peer].transfers;
  block.pending = Pending::kTransfer;
}

void EngineImpl::OnTransferDone(uint64_t token, BlockResult result) {
  Block& block = blocks[IdOf(token)];
  CRUMB_CHECK(block.used && TokenIs(token, block.generation));
  CRUMB_CHECK(block.pending == Pending::kTransfer);
  --transfers;
  if (peers.Alive(block.peer, block.peer_generation)) --peers[block.peer].transfers;
  block.pending = Pending::kNone;
  EndPhase(block, Phase::kWire);
  if (block.doom != BlockResult::kOk) return Finish(block, block.doom);
  if (result != BlockResult::kOk) return Finish(block, BlockResult::kUnavailable);
  if (block.type == WireType::kGet) return OnGetPushed(block);
  block.pulled = true;
  block.step = Step::kPutEncode;
  Run(block);
}

}  // namespace crumb::core
