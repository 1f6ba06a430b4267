// Transfers ("moves"): segments become ucp_get / ucp_put operations within bounds, round robin over
// peers, so that a slow peer holds only its own. Pushes of a peer that ended since its last flush
// share the next one; only then do they complete. Must never issue for a peer that is not open.
// Transport's thread.
#include <algorithm>

#include "cachesvc/base/check.h"
#include "cachesvc/net/ucx_worker.h"

namespace crumb {
namespace {

// One operation is at most this long: shared memory copies inside the call, and a turn of the
// shard must stay short.
constexpr uint64_t kOperationBytesMax = 512 * 1024;
constexpr uint64_t kIssueBytesPerPoll = 4 * 1024 * 1024;
constexpr uint32_t kIssueOperationsPerPoll = 512;
constexpr uint32_t kIssuePerVisit = 32;  // then the next peer's turn

}  // namespace

void UcxWorker::Append(UcxMoveList* list, uint32_t move) {
  moves_[move].next = kNoIndex;
  if (list->empty()) {
    list->first = move;
  } else {
    moves_[list->last].next = move;
  }
  list->last = move;
}

uint32_t UcxWorker::TakeFirst(UcxMoveList* list) {
  const uint32_t move = list->first;
  list->first = moves_[move].next;
  if (list->empty()) list->last = kNoIndex;
  moves_[move].next = kNoIndex;
  return move;
}

BlockResult UcxWorker::Start(UcxMoveKind kind, const Transfer& transfer) {
  UcxPeer* peer = FindOpen(transfer.peer);
  if (peer == nullptr) return BlockResult::kUnavailable;
  const auto set = std::find_if(peer->sets.begin(), peer->sets.end(), [&](const UcxRemoteSet& s) {
    return s.number == transfer.region_set;
  });
  if (set == peer->sets.end() || !SegmentsFit(set->ranges, transfer)) return BlockResult::kInvalid;
  if (free_moves_.empty() || peer->moves >= options_.transfers_per_peer_max) {
    return BlockResult::kBusy;
  }
  const uint32_t index = free_moves_.back();
  free_moves_.pop_back();
  UcxMove& move = moves_[index];
  move = UcxMove{};
  move.owner = this;
  move.kind = kind;
  move.peer = SlotOf(*peer);
  move.set = static_cast<uint32_t>(set - peer->sets.begin());
  move.transfer = transfer;
  ++peer->moves;
  ++stats_.transfers_pending;
  Append(&peer->queue, index);
  MarkReady(peer);
  return BlockResult::kOk;
}

// INVARIANT: an open peer with a non-empty queue and room for operations is in ready_.
void UcxWorker::MarkReady(UcxPeer* peer) {
  if (peer->ready || peer->queue.empty() || peer->state != UcxPeerState::kOpen) return;
  if (peer->operations >= options_.operations_per_peer_max) return;
  peer->ready = true;
  const bool queued = ready_.Push(SlotOf(*peer));
  CRUMB_CHECK(queued);  // as many places as peers
}

bool UcxWorker::CanIssue() const {
  return !ready_.empty() && stats_.operations_in_flight < options_.operations_max;
}

void UcxWorker::IssueMoves() {
  uint32_t operations = 0;
  uint64_t bytes = 0;
  while (CanIssue() && operations < kIssueOperationsPerPoll && bytes < kIssueBytesPerPoll) {
    UcxPeer& peer = peers_[ready_.Pop()];
    peer.ready = false;
    IssueFromPeer(&peer, &operations, &bytes);
    MarkReady(&peer);
  }
}

void UcxWorker::IssueFromPeer(UcxPeer* peer, uint32_t* operations, uint64_t* bytes) {
  for (uint32_t i = 0; i < kIssuePerVisit && *bytes < kIssueBytesPerPoll; ++i) {
    if (peer->state != UcxPeerState::kOpen || peer->queue.empty()) return;
    if (peer->operations >= options_.operations_per_peer_max) return;
    if (stats_.operations_in_flight >= options_.operations_max) return;
    const uint32_t move = peer->queue.first;
    *bytes += IssueOne(peer, move);
    ++*operations;
    if (moves_[move].segment < moves_[move].transfer.segments.size()) continue;
    TakeFirst(&peer->queue);
    MoveIssued(move);
  }
}

// Issues the next piece of a move and steps past it; past all of it if UCX refuses.
uint64_t UcxWorker::IssueOne(UcxPeer* peer, uint32_t index) {
  UcxMove& move = moves_[index];
  const Segment& segment = move.transfer.segments[move.segment];
  const uint64_t bytes = std::min(segment.bytes - move.offset, kOperationBytesMax);
  uint8_t* local = move.transfer.local.data() + segment.local_offset + move.offset;
  const uint64_t remote = segment.address + move.offset;
  const ucp_rkey_h rkey = peer->sets[move.set].rkeys[segment.region];
  move.offset += bytes;
  if (move.offset == segment.bytes) {
    ++move.segment;
    move.offset = 0;
  }
  ++move.operations;
  ++peer->operations;
  ++stats_.operations_in_flight;

  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &OnOperation;
  param.user_data = &move;
  const ucs_status_ptr_t request =
      move.kind == UcxMoveKind::kPull
          ? ucp_get_nbx(peer->endpoint, local, bytes, remote, rkey, &param)
          : ucp_put_nbx(peer->endpoint, local, bytes, remote, rkey, &param);
  if (!UCS_PTR_IS_PTR(request)) OperationDone(index, UCS_PTR_STATUS(request));
  if (move.result != BlockResult::kOk) move.segment = move.transfer.segments.size();
  move.bytes += bytes;
  return bytes;
}

void UcxWorker::OnOperation(void* request, ucs_status_t status, void* user_data) {
  UcxMove* move = static_cast<UcxMove*>(user_data);
  UcxWorker* self = move->owner;
  self->OperationDone(static_cast<uint32_t>(move - self->moves_.data()), status);
  ucp_request_free(request);
}

void UcxWorker::OperationDone(uint32_t index, ucs_status_t status) {
  UcxMove& move = moves_[index];
  UcxPeer& peer = peers_[move.peer];
  --move.operations;
  --peer.operations;
  --stats_.operations_in_flight;
  if (status != UCS_OK) move.result = BlockResult::kUnavailable;
  MarkReady(&peer);
  SettleMove(index);
}

void UcxWorker::MoveIssued(uint32_t index) {
  moves_[index].issued = true;
  SettleMove(index);
}

// A move whose last operation ended: done, or waiting for a flush.
void UcxWorker::SettleMove(uint32_t index) {
  UcxMove& move = moves_[index];
  if (!move.issued || move.operations > 0) return;
  UcxPeer& peer = peers_[move.peer];
  const bool failed = move.result != BlockResult::kOk || peer.state != UcxPeerState::kOpen;
  if (move.kind == UcxMoveKind::kPush && !failed) {
    Append(&peer.unflushed, index);
    WantFlush(&peer);
    return;
  }
  if (move.kind == UcxMoveKind::kPush && failed) move.result = BlockResult::kUnavailable;
  Complete(index);
}

void UcxWorker::Complete(uint32_t index) {
  UcxMove& move = moves_[index];
  --peers_[move.peer].moves;
  --stats_.transfers_pending;
  if (move.result == BlockResult::kOk) {
    (move.kind == UcxMoveKind::kPull ? stats_.bytes_pulled : stats_.bytes_pushed) += move.bytes;
  }
  UcxEvent event;
  event.event.kind = NetEventKind::kTransferDone;
  event.event.peer = move.transfer.peer;
  event.event.token = move.transfer.token;
  event.event.result = move.result;
  PushEvent(event);
  free_moves_.push_back(index);
}

// INVARIANT: an open peer with pushes that wait and no flush in flight is in flush_wanted_.
void UcxWorker::WantFlush(UcxPeer* peer) {
  if (peer->flush_wanted || peer->flushing || peer->unflushed.empty()) return;
  if (peer->state != UcxPeerState::kOpen) return;
  peer->flush_wanted = true;
  const bool queued = flush_wanted_.Push(SlotOf(*peer));
  CRUMB_CHECK(queued);  // as many places as peers
}

// One flush per peer at a time; what ends while it runs shares the next.
void UcxWorker::FlushPeers() {
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
    const ucs_status_ptr_t request = ucp_ep_flush_nbx(peer.endpoint, &param);
    if (!UCS_PTR_IS_PTR(request)) FlushDone(&peer, UCS_PTR_STATUS(request));
  }
}

void UcxWorker::OnFlushed(void* request, ucs_status_t status, void* user_data) {
  UcxPeer* peer = static_cast<UcxPeer*>(user_data);
  peer->owner->FlushDone(peer, status);
  ucp_request_free(request);
}

void UcxWorker::FlushDone(UcxPeer* peer, ucs_status_t status) {
  peer->flushing = false;
  while (!peer->in_flush.empty()) {
    const uint32_t move = TakeFirst(&peer->in_flush);
    if (status != UCS_OK) moves_[move].result = BlockResult::kUnavailable;
    Complete(move);
  }
  WantFlush(peer);
}

}  // namespace crumb
