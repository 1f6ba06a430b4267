// Messages as UCX active messages. Sent eagerly in one piece and copied out in the callback: a
// rendezvous message is refused, which its sender sees as an error, since one that is dropped in
// the callback would be reported to it as delivered. Must never keep UCX's buffers. Transport's
// thread.
#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/net/ucx_worker.h"

namespace crumb {
namespace {

constexpr unsigned kMessageId = 1;
constexpr unsigned kGoodbyeId = 2;  // header only; the sender is about to close
constexpr size_t kCookieBytes = sizeof(uint64_t);
static_assert(kCookieBytes <= MessageSlots::kPrefixBytes);

uint64_t CookieOf(Bytes header) {  // 0: none
  uint64_t cookie = 0;
  if (header.size() == kCookieBytes) std::memcpy(&cookie, header.data(), kCookieBytes);
  return cookie;
}

}  // namespace

absl::Status UcxWorker::SetHandlers() {
  ucp_am_handler_param_t param = {};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                     UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.arg = this;
  param.id = kMessageId;
  param.cb = &OnMessage;
  ucs_status_t status = ucp_worker_set_am_recv_handler(context_->worker(), &param);
  param.id = kGoodbyeId;
  param.cb = &OnGoodbye;
  if (status == UCS_OK) status = ucp_worker_set_am_recv_handler(context_->worker(), &param);
  if (status == UCS_OK) return absl::OkStatus();
  return UcxError("UCX takes no message handler", status);
}

BlockResult UcxWorker::Send(PeerId id, Bytes message) {
  if (message.empty() || message.size() > kWireMessageBytesMax) return BlockResult::kInvalid;
  UcxPeer* peer = FindOpen(id);
  if (peer == nullptr) return BlockResult::kUnavailable;
  if (peer->sends >= options_.sends_per_peer_max) return BlockResult::kBusy;
  const uint32_t slot = send_slots_.Take(MessageSlots::kPrefixBytes + message.size());
  if (slot == kSlotNone) return BlockResult::kBusy;
  uint8_t* memory = send_slots_.data(slot);
  std::memcpy(memory, &peer->remote_cookie, kCookieBytes);
  std::memcpy(memory + MessageSlots::kPrefixBytes, message.data(), message.size());
  UcxSend& record = sends_[slot];
  record = {.owner = this, .peer = SlotOf(*peer), .slot = slot};
  ++peer->sends;

  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &OnSent;
  param.user_data = &record;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(peer->endpoint, kMessageId, memory, kCookieBytes,
                      memory + MessageSlots::kPrefixBytes, message.size(), &param);
  if (UCS_PTR_IS_PTR(request)) return BlockResult::kOk;
  const ucs_status_t status = UCS_PTR_STATUS(request);
  SendDone(&record, status);
  return status == UCS_OK ? BlockResult::kOk : BlockResult::kUnavailable;
}

void UcxWorker::OnSent(void* request, ucs_status_t status, void* user_data) {
  UcxSend* record = static_cast<UcxSend*>(user_data);
  record->owner->SendDone(record, status);
  ucp_request_free(request);
}

void UcxWorker::SendDone(UcxSend* record, ucs_status_t status) {
  ++(status == UCS_OK ? stats_.messages_sent : stats_.messages_unsent);
  --peers_[record->peer].sends;
  send_slots_.Give(record->slot);
}

ucs_status_t UcxWorker::OnMessage(void* arg, const void* header, size_t header_length, void* data,
                                  size_t length, const ucp_am_recv_param_t* param) {
  return static_cast<UcxWorker*>(arg)->Receive({static_cast<const uint8_t*>(header), header_length},
                                               {static_cast<const uint8_t*>(data), length},
                                               param->recv_attr);
}

// The status goes to the sender of a rendezvous message and nowhere else.
ucs_status_t UcxWorker::Receive(Bytes header, Bytes data, uint64_t attributes) {
  const bool rendezvous = (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const ucs_status_t refused = rendezvous ? UCS_ERR_REJECTED : UCS_OK;
  const auto found = cookies_.find(CookieOf(header));
  if (ending_ || found == cookies_.end()) {
    ++stats_.messages_dropped;
    return refused;
  }
  UcxPeer& peer = peers_[found->second];
  if (rendezvous || data.empty() || data.size() > kWireMessageBytesMax) {
    ++stats_.messages_dropped;
    Strike(&peer);
    return refused;
  }
  const uint32_t slot =
      peer.messages < options_.messages_per_peer_max ? receive_slots_.Take(data.size()) : kSlotNone;
  if (slot == kSlotNone) {
    // Progress stops while half of the slots are free, so only a flood comes here.
    ++stats_.messages_dropped;
    ++stats_.peers_refused;
    Doom(&peer, UcxReport::kYes);
    return refused;
  }
  std::memcpy(receive_slots_.data(slot), data.data(), data.size());
  ++peer.messages;
  ++stats_.messages_received;
  UcxEvent event;
  event.event.kind = NetEventKind::kMessage;
  event.event.peer = peer.id;
  event.event.message = {receive_slots_.data(slot), data.size()};
  event.slot = slot;
  PushEvent(event);
  return UCS_OK;
}

// WHY: over shared memory an endpoint that is closed by a process that lives on leaves no trace at
// the other side, which would keep the peer for ever. Best effort: DrainPeers does not wait for
// long.
void UcxWorker::SayGoodbye(UcxPeer* peer) {
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &OnGoodbyeSent;
  param.user_data = peer;
  ++peer->sends;
  const ucs_status_ptr_t request = ucp_am_send_nbx(peer->endpoint, kGoodbyeId, &peer->remote_cookie,
                                                   kCookieBytes, nullptr, 0, &param);
  peer->goodbye_in_flight = UCS_PTR_IS_PTR(request);
  if (!peer->goodbye_in_flight) --peer->sends;
}

void UcxWorker::OnGoodbyeSent(void* request, ucs_status_t, void* user_data) {
  UcxPeer* peer = static_cast<UcxPeer*>(user_data);
  peer->goodbye_in_flight = false;
  --peer->sends;
  ucp_request_free(request);
}

ucs_status_t UcxWorker::OnGoodbye(void* arg, const void* header, size_t header_length, void*,
                                  size_t, const ucp_am_recv_param_t* param) {
  const ucs_status_t status = static_cast<UcxWorker*>(arg)->ReceiveGoodbye(
      {static_cast<const uint8_t*>(header), header_length});
  return (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 ? UCS_ERR_REJECTED : status;
}

ucs_status_t UcxWorker::ReceiveGoodbye(Bytes header) {
  const auto found = cookies_.find(CookieOf(header));
  if (ending_ || found == cookies_.end()) return UCS_OK;
  UcxPeer& peer = peers_[found->second];
  peer.lost = true;
  Doom(&peer, UcxReport::kYes);
  return UCS_OK;
}

void UcxWorker::ReleasePolled() {
  for (uint32_t slot : polled_) receive_slots_.Give(slot);
  polled_.clear();
}

}  // namespace crumb
