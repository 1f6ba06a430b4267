// Messages: the receiver's cookie, then what belongs to the kind of message. Everything is copied
// into slots of ours on both sides. Must never give UCX memory that is not ours. Transport's
// thread.
#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/net/ucx_core.h"
#include "cachesvc/net/ucx_ids.h"

namespace crumb {
namespace {

constexpr size_t kCookieBytes = sizeof(uint64_t);
static_assert(kCookieBytes <= MessageSlots::kPrefixBytes);

}  // namespace

// A worker is reached by its peer, but also by whoever finds its address: the cookie tells.
void UcxCore::Dispatch(UcxPeer* peer, unsigned id, Bytes body) {
  uint64_t cookie = 0;
  if (body.size() >= kCookieBytes) std::memcpy(&cookie, body.data(), kCookieBytes);
  const bool known = cookie == peer->my_cookie && id != kUcxNoise;
  if (!known || ending_ || peer->state != UcxPeerState::kOpen) {
    ++stats_.messages_dropped;
    return;
  }
  peer->heard = true;
  switch (id) {
    case kUcxGreeting:
      return;
    case kUcxMessage:
      ReceiveMessage(peer, body.subspan(kCookieBytes));
      return;
    case kUcxGoodbye:
      Lose(peer);
      return;
    case kUcxRead:
      ReceiveRead(peer, body);
      return;
    case kUcxWrite:
      ReceiveWrite(peer, body);
      return;
    case kUcxData:
      ReceiveAnswer(peer, UcxMoveKind::kPull, body);
      return;
    default:
      ReceiveAnswer(peer, UcxMoveKind::kPush, body);
      return;
  }
}

void UcxCore::ReceiveMessage(UcxPeer* peer, Bytes data) {
  if (data.empty() || data.size() > kWireMessageBytesMax) {
    Strike(peer);
    return;
  }
  const uint32_t slot = peer->messages < options_.messages_per_peer_max
                            ? receive_slots_.Take(data.size())
                            : kSlotNone;
  if (slot == kSlotNone) {
    // Progress stops while half of the slots are taken, so only a flood comes here.
    ++stats_.messages_dropped;
    Refuse(peer);
    return;
  }
  std::memcpy(receive_slots_.data(slot), data.data(), data.size());
  ++peer->messages;
  ++stats_.messages_received;
  UcxEvent event;
  event.event.kind = NetEventKind::kMessage;
  event.event.peer = peer->id;
  event.event.message = {receive_slots_.data(slot), data.size()};
  event.slot = slot;
  PushEvent(event);
}

BlockResult UcxCore::Send(PeerId id, Bytes message) {
  if (message.empty() || message.size() > kWireMessageBytesMax) return BlockResult::kInvalid;
  UcxPeer* peer = FindOpen(id);
  if (peer == nullptr) return BlockResult::kUnavailable;
  if (peer->text_sends >= options_.sends_per_peer_max) return BlockResult::kBusy;
  const uint32_t slot = send_slots_.Take(MessageSlots::kPrefixBytes + message.size());
  if (slot == kSlotNone) return BlockResult::kBusy;
  std::memcpy(send_slots_.data(slot) + MessageSlots::kPrefixBytes, message.data(), message.size());
  SendText(peer, kUcxMessage, slot, message.size());
  return BlockResult::kOk;
}

// A message (or nothing) that stands behind the prefix of a send slot.
void UcxCore::SendText(UcxPeer* peer, unsigned id, uint32_t slot, size_t bytes) {
  uint8_t* body = send_slots_.data(slot) + MessageSlots::kPrefixBytes - kCookieBytes;
  std::memcpy(body, &peer->remote_cookie, kCookieBytes);
  UcxSend& record = text_sends_[slot];
  record.done = &OnSent;
  record.owner = this;
  record.kind = id == kUcxMessage ? UcxSendKind::kMessage : UcxSendKind::kBare;
  record.peer = SlotOf(*peer);
  record.slot = slot;
  ++peer->text_sends;
  peer->idle_polls = 0;
  peer->link->Send(id, {body, kCookieBytes + bytes}, &record);
}

// A cookie and nothing else: greeting or goodbye. Best effort, as both are.
// WHY a goodbye: over shared memory an endpoint that is closed by a process that lives on leaves no
// trace at the other side, which would keep the peer for ever.
void UcxCore::SendBare(UcxPeer* peer, unsigned id) {
  const uint32_t slot = send_slots_.Take(MessageSlots::kPrefixBytes);
  if (slot == kSlotNone) return;
  SendText(peer, id, slot, 0);
}

// Of the data path: a body of `bytes` in a data slot, whose owner it becomes.
void UcxCore::SendData(UcxPeer* peer, unsigned id, uint32_t slot, size_t bytes) {
  UcxSend& record = data_sends_[slot];
  record.done = &OnSent;
  record.owner = this;
  record.kind = UcxSendKind::kData;
  record.peer = SlotOf(*peer);
  record.slot = slot;
  ++peer->data_sends;
  peer->link->Send(id, {data_slots_.data(slot), bytes}, &record);
}

void UcxCore::OnSent(UcxSendBase* base, ucs_status_t status) {
  UcxSend* record = static_cast<UcxSend*>(base);
  record->owner->SendDone(record, status);
}

// One that UCX refuses is lost with its peer: UCX refuses only when the endpoint is gone.
void UcxCore::SendDone(UcxSend* record, ucs_status_t status) {
  UcxPeer& peer = peers_[record->peer];
  const UcxSendKind kind = record->kind;
  record->kind = UcxSendKind::kFree;
  if (status != UCS_OK) Lose(&peer);
  if (kind == UcxSendKind::kMessage) {
    ++(status == UCS_OK ? stats_.messages_sent : stats_.messages_unsent);
  }
  if (kind != UcxSendKind::kData) {
    --peer.text_sends;
    send_slots_.Give(record->slot);
    return;
  }
  --peer.data_sends;
  data_slots_.Give(record->slot);
  answers_blocked_ = false;
  MarkReady(&peer);
}

// REQUIRES: the link is gone. What it did not give back.
void UcxCore::TakeBackSends(const UcxPeer& peer) {
  const uint32_t slot = SlotOf(peer);
  for (UcxSend& record : text_sends_) {
    if (peer.text_sends == 0) break;
    if (record.kind != UcxSendKind::kFree && record.peer == slot) {
      SendDone(&record, UCS_ERR_CANCELED);
    }
  }
  for (UcxSend& record : data_sends_) {
    if (peer.data_sends == 0) break;
    if (record.kind != UcxSendKind::kFree && record.peer == slot) {
      SendDone(&record, UCS_ERR_CANCELED);
    }
  }
}

void UcxCore::ReleasePolled() {
  for (uint32_t slot : polled_) receive_slots_.Give(slot);
  polled_.clear();
}

}  // namespace crumb
