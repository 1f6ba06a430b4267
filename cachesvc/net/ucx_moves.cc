// Transfers ("moves"): segments become operations within bounds, round robin over peers, so that a
// slow peer holds only its own. Must never issue for a peer that is not open. Transport's thread.
#include <algorithm>

#include "cachesvc/base/check.h"
#include "cachesvc/net/ucx_core.h"

namespace crumb {
namespace {

// A turn of the shard must stay short.
constexpr uint64_t kIssueBytesPerPoll = 2 * 1024 * 1024;
constexpr uint32_t kIssueOperationsPerPoll = 256;
constexpr uint32_t kIssuePerVisit = 16;  // then the next peer's turn

}  // namespace

void UcxCore::Append(UcxMoveList* list, uint32_t move) {
  moves_[move].next = kNoIndex;
  if (list->empty()) {
    list->first = move;
  } else {
    moves_[list->last].next = move;
  }
  list->last = move;
}

uint32_t UcxCore::TakeFirst(UcxMoveList* list) {
  const uint32_t move = list->first;
  list->first = moves_[move].next;
  if (list->empty()) list->last = kNoIndex;
  moves_[move].next = kNoIndex;
  return move;
}

BlockResult UcxCore::Start(UcxMoveKind kind, const Transfer& transfer) {
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
void UcxCore::MarkReady(UcxPeer* peer) {
  if (peer->ready || peer->queue.empty() || peer->state != UcxPeerState::kOpen) return;
  if (!HasRoom(*peer)) return;
  peer->ready = true;
  const bool queued = ready_.Push(SlotOf(*peer));
  CRUMB_CHECK(queued);  // as many places as peers
}

bool UcxCore::HasRoom(const UcxPeer& peer) const {
  return peer.operations < options_.operations_per_peer_max && peer.data_sends < kUcxDataSendsMax;
}

bool UcxCore::CanIssue() const {
  return !ready_.empty() && stats_.operations_in_flight < options_.operations_max;
}

void UcxCore::IssueMoves() {
  uint32_t operations = 0;
  uint64_t bytes = 0;
  while (CanIssue() && operations < kIssueOperationsPerPoll && bytes < kIssueBytesPerPoll) {
    UcxPeer& peer = peers_[ready_.Pop()];
    peer.ready = false;
    IssueFromPeer(&peer, &operations, &bytes);
    MarkReady(&peer);
  }
}

void UcxCore::IssueFromPeer(UcxPeer* peer, uint32_t* operations, uint64_t* bytes) {
  for (uint32_t i = 0; i < kIssuePerVisit && *bytes < kIssueBytesPerPoll; ++i) {
    if (peer->state != UcxPeerState::kOpen || peer->queue.empty() || !HasRoom(*peer)) return;
    if (stats_.operations_in_flight >= options_.operations_max) return;
    const uint32_t move = peer->queue.first;
    *bytes += peer->one_sided ? IssueOneSided(peer, move) : IssueCopy(peer, move);
    ++*operations;
    const bool failed = moves_[move].result != BlockResult::kOk;  // then the rest is pointless
    if (!failed && moves_[move].segment < moves_[move].transfer.segments.size()) continue;
    TakeFirst(&peer->queue);
    MoveIssued(move);
  }
}

void UcxCore::OperationBegun(UcxMove* move, const PieceWalk::Start& next, uint64_t bytes) {
  move->segment = next.segment;
  move->offset = next.offset;
  move->bytes += bytes;
  ++move->operations;
  ++peers_[move->peer].operations;
  peers_[move->peer].idle_polls = 0;
  ++stats_.operations_in_flight;
}

void UcxCore::OperationDone(uint32_t index, BlockResult result) {
  UcxMove& move = moves_[index];
  UcxPeer& peer = peers_[move.peer];
  --move.operations;
  --peer.operations;
  --stats_.operations_in_flight;
  if (result != BlockResult::kOk) move.result = result;
  MarkReady(&peer);
  SettleMove(index);
}

void UcxCore::MoveIssued(uint32_t index) {
  moves_[index].issued = true;
  SettleMove(index);
}

// A move whose last operation ended: done, or waiting for a flush.
void UcxCore::SettleMove(uint32_t index) {
  UcxMove& move = moves_[index];
  if (!move.issued || move.operations > 0) return;
  UcxPeer& peer = peers_[move.peer];
  if (peer.one_sided && move.kind == UcxMoveKind::kPush && move.result == BlockResult::kOk) {
    if (peer.state == UcxPeerState::kOpen) {
      Append(&peer.unflushed, index);
      WantFlush(&peer);
      return;
    }
    move.result = BlockResult::kUnavailable;
  }
  Complete(index);
}

void UcxCore::Complete(uint32_t index) {
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
  move.owner = nullptr;  // free
  free_moves_.push_back(index);
}

// Of a peer that is not open any more. What UCX holds of one-sided moves fails by its own callback.
void UcxCore::FailMoves(UcxPeer* peer) {
  while (!peer->queue.empty()) {
    const uint32_t move = TakeFirst(&peer->queue);
    moves_[move].result = BlockResult::kUnavailable;
    MoveIssued(move);
  }
  while (!peer->unflushed.empty()) {
    const uint32_t move = TakeFirst(&peer->unflushed);
    moves_[move].result = BlockResult::kUnavailable;
    Complete(move);
  }
  if (!peer->one_sided) FailCopies(*peer);
}

}  // namespace crumb
