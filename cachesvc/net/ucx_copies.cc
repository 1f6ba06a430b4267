// Transfers by copy messages, the side that drives: a read is answered with data, a write with
// done. UCX never sees the memory of a transfer: bytes pass through data slots, so a transfer can
// end whenever we say so. Transport's thread.
#include <algorithm>
#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/net/ucx_core.h"
#include "cachesvc/net/ucx_ids.h"

namespace crumb {

// The next piece of a move, as one read or write.
uint64_t UcxCore::IssueCopy(UcxPeer* peer, uint32_t index) {
  UcxMove& move = moves_[index];
  const uint32_t slot = data_slots_.Take();
  // As many copies as operations; enough slots for what UCX can hold of every peer.
  CRUMB_CHECK(slot != kSlotNone && !free_copies_.empty());
  const uint32_t number = free_copies_.back();
  free_copies_.pop_back();
  UcxCopy& copy = copies_[number];
  copy.move = index;
  const size_t body_bytes = WriteRequest(number, data_slots_.data(slot));
  const uint64_t bytes = copy.start.bytes;
  SendData(peer, move.kind == UcxMoveKind::kPull ? kUcxRead : kUcxWrite, slot, body_bytes);
  return bytes;
}

// Begins the copy: header and ranges, for a write also the bytes themselves.
size_t UcxCore::WriteRequest(uint32_t number, uint8_t* body) {
  UcxCopy& copy = copies_[number];
  UcxMove& move = moves_[copy.move];
  copy.start = {.segment = move.segment, .offset = move.offset, .bytes = 0};
  PieceWalk walk(move.transfer.segments,
                 {.segment = move.segment, .offset = move.offset, .bytes = kCopyBytesMax});
  PieceWalk::Start next = walk.at();
  CopyHeader header = {.cookie = peers_[move.peer].remote_cookie,
                       .operation = (uint64_t{copy.generation} << 32) | number,
                       .count = 0,
                       .bytes = 0};
  PieceWalk::Piece piece;
  while (header.count < kCopyRangesMax && walk.Next(&piece)) {
    WriteCopyRange(header.count++, {.address = piece.address, .bytes = piece.bytes}, body);
    header.bytes += static_cast<uint32_t>(piece.bytes);
    next = walk.at();
  }
  copy.start.bytes = header.bytes;
  WriteCopyHeader(header, body);
  size_t body_bytes = sizeof(CopyHeader) + header.count * sizeof(CopyRange);
  if (move.kind == UcxMoveKind::kPush) {
    PieceWalk payload(move.transfer.segments, copy.start);
    while (payload.Next(&piece)) {
      std::memcpy(body + body_bytes, move.transfer.local.data() + piece.local_offset, piece.bytes);
      body_bytes += piece.bytes;
    }
  }
  OperationBegun(&move, next, header.bytes);
  return body_bytes;
}

// An answer that fits no copy under way of this peer counts as malformed: an open peer answers
// once, and copies of a closed one are not found by cookie.
void UcxCore::ReceiveAnswer(UcxPeer* peer, UcxMoveKind kind, Bytes body) {
  CopyAnswer answer;
  if (!ParseCopyAnswer(body, &answer)) {
    Strike(peer);
    return;
  }
  const auto number = static_cast<uint32_t>(answer.header.operation);
  const auto generation = static_cast<uint32_t>(answer.header.operation >> 32);
  if (number >= copies_.size() || copies_[number].move == kNoIndex ||
      copies_[number].generation != generation) {
    Strike(peer);
    return;
  }
  const UcxCopy& copy = copies_[number];
  const UcxMove& move = moves_[copy.move];
  const bool refused = answer.header.count == kCopyRefused;
  const uint64_t expected = kind == UcxMoveKind::kPull && !refused ? copy.start.bytes : 0;
  if (move.peer != SlotOf(*peer) || move.kind != kind || answer.payload.size() != expected) {
    Strike(peer);
    return;
  }
  PieceWalk walk(move.transfer.segments, copy.start);
  PieceWalk::Piece piece;
  Bytes payload = answer.payload;
  while (!payload.empty() && walk.Next(&piece)) {
    std::memcpy(move.transfer.local.data() + piece.local_offset, payload.data(), piece.bytes);
    payload.remove_prefix(piece.bytes);
  }
  EndCopy(number, refused ? BlockResult::kInvalid : BlockResult::kOk);
}

void UcxCore::EndCopy(uint32_t number, BlockResult result) {
  UcxCopy& copy = copies_[number];
  const uint32_t move = copy.move;
  copy.move = kNoIndex;
  ++copy.generation;
  free_copies_.push_back(number);
  OperationDone(move, result);
}

void UcxCore::FailCopies(const UcxPeer& peer) {
  const uint32_t slot = SlotOf(peer);
  for (uint32_t i = 0; i < copies_.size() && peer.operations > 0; ++i) {
    if (copies_[i].move == kNoIndex || moves_[copies_[i].move].peer != slot) continue;
    EndCopy(i, BlockResult::kUnavailable);
  }
}

}  // namespace crumb
