// Transfers by ucp_get and ucp_put, for hardware that does them. Pushes of a peer that ended since
// its last flush share the next one; only then do they complete. Must never flush twice at a time.
// Transport's thread.
#include <algorithm>

#include "cachesvc/base/check.h"
#include "cachesvc/net/ucx_core.h"

namespace crumb {
namespace {

constexpr uint64_t kOperationBytesMax = 512 * 1024;

}  // namespace

// The next piece of a move; it counts as ended at once if UCX ended it or refused it.
uint64_t UcxCore::IssueOneSided(UcxPeer* peer, uint32_t index) {
  UcxMove& move = moves_[index];
  const uint64_t left = move.transfer.segments[move.segment].bytes - move.offset;
  PieceWalk walk(move.transfer.segments, {.segment = move.segment,
                                          .offset = move.offset,
                                          .bytes = std::min(left, kOperationBytesMax)});
  PieceWalk::Piece piece;
  const bool any = walk.Next(&piece);
  CRUMB_CHECK(any);
  OperationBegun(&move, walk.at(), piece.bytes);
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &OnOperation;
  param.user_data = &move;
  uint8_t* local = move.transfer.local.data() + piece.local_offset;
  const ucp_rkey_h rkey = peer->sets[move.set].rkeys[piece.region];
  const ucs_status_ptr_t request =
      move.kind == UcxMoveKind::kPull
          ? ucp_get_nbx(peer->link->endpoint(), local, piece.bytes, piece.address, rkey, &param)
          : ucp_put_nbx(peer->link->endpoint(), local, piece.bytes, piece.address, rkey, &param);
  if (!UCS_PTR_IS_PTR(request)) {
    const bool ok = UCS_PTR_STATUS(request) == UCS_OK;
    OperationDone(index, ok ? BlockResult::kOk : BlockResult::kUnavailable);
  }
  return piece.bytes;
}

void UcxCore::OnOperation(void* request, ucs_status_t status, void* user_data) {
  UcxMove* move = static_cast<UcxMove*>(user_data);
  UcxCore* self = move->owner;
  self->OperationDone(static_cast<uint32_t>(move - self->moves_.data()),
                      status == UCS_OK ? BlockResult::kOk : BlockResult::kUnavailable);
  ucp_request_free(request);
}

// INVARIANT: an open peer with pushes that wait and no flush in flight is in flush_wanted_.
void UcxCore::WantFlush(UcxPeer* peer) {
  if (peer->flush_wanted || peer->flushing || peer->unflushed.empty()) return;
  if (peer->state != UcxPeerState::kOpen) return;
  peer->flush_wanted = true;
  const bool queued = flush_wanted_.Push(SlotOf(*peer));
  CRUMB_CHECK(queued);  // as many places as peers
}

void UcxCore::FlushPeers() {
  const size_t budget = flush_wanted_.size();
  for (size_t i = 0; i < budget; ++i) {
    UcxPeer& peer = peers_[flush_wanted_.Pop()];
    peer.flush_wanted = false;
    if (peer.state != UcxPeerState::kOpen || peer.flushing || peer.unflushed.empty()) continue;
    peer.in_flush = peer.unflushed;
    peer.unflushed = UcxMoveList{};
    peer.flushing = true;
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = &OnFlushed;
    param.user_data = &peer;
    const ucs_status_ptr_t request = ucp_ep_flush_nbx(peer.link->endpoint(), &param);
    if (!UCS_PTR_IS_PTR(request)) FlushDone(&peer, UCS_PTR_STATUS(request));
  }
}

void UcxCore::OnFlushed(void* request, ucs_status_t status, void* user_data) {
  UcxPeer* peer = static_cast<UcxPeer*>(user_data);
  peer->owner->FlushDone(peer, status);
  ucp_request_free(request);
}

void UcxCore::FlushDone(UcxPeer* peer, ucs_status_t status) {
  peer->flushing = false;
  while (!peer->in_flush.empty()) {
    const uint32_t move = TakeFirst(&peer->in_flush);
    if (status != UCS_OK) moves_[move].result = BlockResult::kUnavailable;
    Complete(move);
  }
  WantFlush(peer);
}

// REQUIRES: the link is gone, and with it every operation, called back or not.
void UcxCore::FailOneSided(UcxPeer* peer) {
  const uint32_t slot = SlotOf(*peer);
  peer->in_flush = UcxMoveList{};
  for (uint32_t i = 0; i < moves_.size() && peer->moves > 0; ++i) {
    UcxMove& move = moves_[i];
    if (move.owner == nullptr || move.peer != slot) continue;
    stats_.operations_in_flight -= move.operations;
    move.result = BlockResult::kUnavailable;
    Complete(i);
  }
}

}  // namespace crumb
