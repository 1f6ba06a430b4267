// Active messages: the body is a cookie of the receiver and what belongs to the kind of message; no
// header, as UCX computes where a header lies from a length on the wire. Sent eagerly in one piece
// and copied out in the callback: a rendezvous message is refused, which its sender sees as an
// error, since one that is dropped in the callback would be reported to it as delivered.
// Must never keep UCX's buffers, nor give UCX memory that is not ours. Transport's thread.
#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/net/ucx_ids.h"
#include "cachesvc/net/ucx_worker.h"

namespace crumb {
namespace {

constexpr size_t kCookieBytes = sizeof(uint64_t);
static_assert(kCookieBytes <= MessageSlots::kPrefixBytes);
constexpr unsigned kIdsMax = 1u << 16;

// The status goes to the sender of a rendezvous message and nowhere else.
ucs_status_t Outcome(const ucp_am_recv_param_t* param) {
  return (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 ? UCS_ERR_REJECTED : UCS_OK;
}

// The body of an eager message without a header; empty for any other, which is not looked into.
Bytes BodyOf(size_t header_length, const void* data, size_t length,
             const ucp_am_recv_param_t* param) {
  if (header_length != 0 || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return {};
  return {static_cast<const uint8_t*>(data), length};
}

}  // namespace

template <unsigned kId>
ucs_status_t UcxWorker::OnId(void* arg, const void*, size_t header_length, void* data,
                             size_t length, const ucp_am_recv_param_t* param) {
  static_cast<UcxWorker*>(arg)->Dispatch(kId, BodyOf(header_length, data, length, param));
  return Outcome(param);
}

// WHY: every id is taken, the highest first, since UCX looks up the handler of an id from the wire
// before it checks it, and leaves the ones in between unset.
absl::Status UcxWorker::SetHandlers() {
  ucp_am_handler_param_t param = {};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                     UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.arg = this;
  const ucp_am_recv_callback_t known[] = {&OnId<kUcxNoise>, &OnId<kUcxMessage>, &OnId<kUcxGoodbye>,
                                          &OnId<kUcxRead>,  &OnId<kUcxData>,    &OnId<kUcxWrite>,
                                          &OnId<kUcxDone>};
  for (unsigned id = kIdsMax; id > 0; --id) {
    param.id = id - 1;
    param.cb = param.id < std::size(known) ? known[param.id] : known[kUcxNoise];
    const ucs_status_t status = ucp_worker_set_am_recv_handler(context_->worker(), &param);
    if (status != UCS_OK) return UcxError("UCX takes no message handler", status);
  }
  return absl::OkStatus();
}

void UcxWorker::Dispatch(unsigned id, Bytes body) {
  UcxPeer* peer = ending_ || id == kUcxNoise ? nullptr : FindByCookie(body);
  if (peer == nullptr) {
    ++stats_.messages_dropped;
    return;
  }
  switch (id) {
    case kUcxMessage:
      ReceiveMessage(peer, body.subspan(kCookieBytes));
      return;
    case kUcxGoodbye:
      peer->left = true;
      Doom(peer, UcxReport::kYes);
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

void UcxWorker::ReceiveMessage(UcxPeer* peer, Bytes data) {
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

BlockResult UcxWorker::Send(PeerId id, Bytes message) {
  if (message.empty() || message.size() > kWireMessageBytesMax) return BlockResult::kInvalid;
  UcxPeer* peer = FindOpen(id);
  if (peer == nullptr) return BlockResult::kUnavailable;
  if (peer->text_sends >= options_.sends_per_peer_max) return BlockResult::kBusy;
  const uint32_t slot = send_slots_.Take(MessageSlots::kPrefixBytes + message.size());
  if (slot == kSlotNone) return BlockResult::kBusy;
  uint8_t* body = send_slots_.data(slot) + MessageSlots::kPrefixBytes - kCookieBytes;
  std::memcpy(body, &peer->remote_cookie, kCookieBytes);
  std::memcpy(body + kCookieBytes, message.data(), message.size());
  UcxSend& record = text_sends_[slot];
  record = {.owner = this, .kind = UcxSendKind::kMessage, .peer = SlotOf(*peer), .slot = slot};
  ++peer->text_sends;
  SendBody(peer, kUcxMessage, &record, {body, kCookieBytes + message.size()});
  return BlockResult::kOk;
}

// Of the data path: a body of `bytes` in a data slot, whose owner it becomes.
void UcxWorker::SendData(UcxPeer* peer, unsigned id, uint32_t slot, size_t bytes) {
  UcxSend& record = data_sends_[slot];
  record = {.owner = this, .kind = UcxSendKind::kData, .peer = SlotOf(*peer), .slot = slot};
  ++peer->data_sends;
  SendBody(peer, id, &record, {data_slots_.data(slot), bytes});
}

// One that UCX refuses counts as lost with its peer: UCX refuses only when the endpoint is gone.
void UcxWorker::SendBody(UcxPeer* peer, unsigned id, UcxSend* record, Bytes body) {
  ++peer->sends;
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &OnSent;
  param.user_data = record;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(peer->endpoint, id, nullptr, 0, body.data(), body.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) SendDone(record, UCS_PTR_STATUS(request));
}

void UcxWorker::OnSent(void* request, ucs_status_t status, void* user_data) {
  UcxSend* record = static_cast<UcxSend*>(user_data);
  record->owner->SendDone(record, status);
  ucp_request_free(request);
}

void UcxWorker::SendDone(UcxSend* record, ucs_status_t status) {
  UcxPeer& peer = peers_[record->peer];
  --peer.sends;
  if (status != UCS_OK && peer.state == UcxPeerState::kOpen) {
    peer.failed = true;
    Doom(&peer, UcxReport::kYes);
  }
  if (record->kind == UcxSendKind::kMessage) {
    ++(status == UCS_OK ? stats_.messages_sent : stats_.messages_unsent);
  }
  if (record->kind != UcxSendKind::kData) {
    --peer.text_sends;
    send_slots_.Give(record->slot);
    return;
  }
  --peer.data_sends;
  data_slots_.Give(record->slot);
  answers_blocked_ = false;
  MarkReady(&peer);
}

// WHY: over shared memory an endpoint that is closed by a process that lives on leaves no trace at
// the other side, which would keep the peer for ever.
void UcxWorker::SayGoodbye(UcxPeer* peer) {
  const uint32_t slot = send_slots_.Take(kCookieBytes);
  if (slot == kSlotNone) return;
  std::memcpy(send_slots_.data(slot), &peer->remote_cookie, kCookieBytes);
  UcxSend& record = text_sends_[slot];
  record = {.owner = this, .kind = UcxSendKind::kGoodbye, .peer = SlotOf(*peer), .slot = slot};
  ++peer->text_sends;
  SendBody(peer, kUcxGoodbye, &record, {send_slots_.data(slot), kCookieBytes});
}

void UcxWorker::ReleasePolled() {
  for (uint32_t slot : polled_) receive_slots_.Give(slot);
  polled_.clear();
}

}  // namespace crumb
