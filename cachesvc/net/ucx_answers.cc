// Transfers by copy messages, the side that lends: every range is checked against what is lent at
// that moment, then copied. Lent memory is touched inside Poll only. Must never hold more than
// kAnswersPerPeerMax answers for a peer. Transport's thread.
#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/net/ucx_core.h"
#include "cachesvc/net/ucx_ids.h"

namespace crumb {
namespace {

constexpr uint32_t kAnswersPerPeerMax = 256;

}  // namespace

// Kept until Poll: what answers it is longer than what came.
void UcxCore::ReceiveRead(UcxPeer* peer, Bytes body) {
  CopyRequest request;
  if (!ParseCopyRequest(body, CopyKind::kRead, &request)) {
    Strike(peer);
    return;
  }
  const uint32_t slot = receive_slots_.Take(body.size());
  if (slot == kSlotNone) {
    ++stats_.messages_dropped;
    Refuse(peer);
    return;
  }
  std::memcpy(receive_slots_.data(slot), body.data(), body.size());
  UcxAnswer answer;
  answer.kind = CopyKind::kRead;
  answer.slot = slot;
  answer.bytes = static_cast<uint32_t>(body.size());
  QueueAnswer(peer, answer);
}

void UcxCore::ReceiveWrite(UcxPeer* peer, Bytes body) {
  CopyRequest request;
  if (!ParseCopyRequest(body, CopyKind::kWrite, &request)) {
    Strike(peer);
    return;
  }
  UcxAnswer answer;
  answer.kind = CopyKind::kWrite;
  answer.operation = request.header.operation;
  answer.outcome = AllLent(request) ? kCopyDone : kCopyRefused;
  Bytes payload = request.payload;
  for (uint32_t i = 0; i < request.header.count && answer.outcome == kCopyDone; ++i) {
    const CopyRange range = request.range(i);
    std::memcpy(reinterpret_cast<uint8_t*>(range.address), payload.data(), range.bytes);
    payload.remove_prefix(range.bytes);
  }
  QueueAnswer(peer, answer);
}

bool UcxCore::AllLent(const CopyRequest& request) {
  for (uint32_t i = 0; i < request.header.count; ++i) {
    const CopyRange range = request.range(i);
    if (!context_->IsLent(range.address, range.bytes)) return false;
  }
  return true;
}

void UcxCore::QueueAnswer(UcxPeer* peer, const UcxAnswer& answer) {
  UcxAnswer queued = answer;
  queued.peer = peer->id;
  if (peer->answers < kAnswersPerPeerMax && answers_.Push(queued)) {
    ++peer->answers;
    answers_blocked_ = false;
    return;
  }
  if (answer.slot != kSlotNone) receive_slots_.Give(answer.slot);
  ++stats_.messages_dropped;
  Refuse(peer);
}

// One pass: what a peer cannot take now goes to the back.
void UcxCore::SendAnswers() {
  if (answers_blocked_) return;
  const size_t budget = answers_.size();
  size_t sent = 0;
  for (size_t i = 0; i < budget; ++i) {
    const UcxAnswer answer = answers_.Pop();
    UcxPeer* peer = FindOpen(answer.peer);
    if (peer != nullptr && peer->data_sends >= kUcxDataSendsMax) {
      const bool queued = answers_.Push(answer);
      CRUMB_CHECK(queued);  // its place was just taken out
      continue;
    }
    if (peer != nullptr) SendAnswer(peer, answer);
    if (answer.slot != kSlotNone) receive_slots_.Give(answer.slot);
    ++sent;
  }
  answers_blocked_ = sent == 0 && !answers_.empty();
}

void UcxCore::SendAnswer(UcxPeer* peer, const UcxAnswer& answer) {
  --peer->answers;
  const uint32_t slot = data_slots_.Take();
  CRUMB_CHECK(slot != kSlotNone);  // enough for what UCX can hold of every peer
  uint8_t* body = data_slots_.data(slot);
  if (answer.kind == CopyKind::kWrite) {
    WriteCopyHeader({.cookie = peer->remote_cookie,
                     .operation = answer.operation,
                     .count = answer.outcome,
                     .bytes = 0},
                    body);
    SendData(peer, kUcxDone, slot, sizeof(CopyHeader));
    return;
  }
  const size_t bytes = WriteData(*peer, {receive_slots_.data(answer.slot), answer.bytes}, body);
  SendData(peer, kUcxData, slot, bytes);
}

size_t UcxCore::WriteData(const UcxPeer& peer, Bytes message, uint8_t* body) {
  CopyRequest request;
  const bool parsed = ParseCopyRequest(message, CopyKind::kRead, &request);
  CRUMB_CHECK(parsed);  // it did when it came
  const bool lent = AllLent(request);
  WriteCopyHeader({.cookie = peer.remote_cookie,
                   .operation = request.header.operation,
                   .count = lent ? kCopyDone : kCopyRefused,
                   .bytes = lent ? request.header.bytes : 0},
                  body);
  size_t at = sizeof(CopyHeader);
  for (uint32_t i = 0; i < request.header.count && lent; ++i) {
    const CopyRange range = request.range(i);
    std::memcpy(body + at, reinterpret_cast<const uint8_t*>(range.address), range.bytes);
    at += range.bytes;
  }
  return at;
}

}  // namespace crumb
