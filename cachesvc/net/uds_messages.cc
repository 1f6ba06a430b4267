// Packets in and out. What cannot be taken stays in the socket, what the socket does not take waits
// here; both are bounded per peer. A frame that does not add up ends its peer.
#include <unistd.h>

#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/net/uds_core.h"

namespace crumb {
namespace {
constexpr int kPacketsPerTurn = 32;  // of one peer
}  // namespace

bool UdsCore::CanReceive(const UdsPeerRecord& peer) const {
  return peer.messages < options_.messages_per_peer_max && !receive_slots_.low();
}

void UdsCore::ReceiveSome(UdsPeerRecord* peer) {
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    if (!CanReceive(*peer)) {
      peer->stopped = true;
      stopped_.push_back(SlotOf(*peer));
      return Watch(peer);
    }
    if (!ReceiveOne(peer)) return;
  }
}

void UdsCore::ResumeReading() {
  for (size_t i = stopped_.size(); i > 0; --i) {
    UdsPeerRecord& peer = peers_[stopped_[i - 1]];
    if (!CanReceive(peer)) continue;
    stopped_.erase(stopped_.begin() + static_cast<ptrdiff_t>(i - 1));
    peer.stopped = false;
    Watch(&peer);
  }
}

bool UdsCore::ReceiveOne(UdsPeerRecord* peer) {
  UdsPacket packet;
  const MutableBytes room(packet_.get(), kUdsFrameBytesMax + 1);
  switch (UdsReceive(peer->fd, room, &packet)) {
    case UdsIo::kAgain:
      return false;
    case UdsIo::kClosed:
      Fail(peer);
      return false;
    case UdsIo::kDone:
      break;
  }
  UdsFrame frame;
  if (!packet.whole || !ParseUdsFrame(room.first(packet.bytes), &frame)) {
    Malformed(peer);
  } else if (frame.kind != UdsFrameKind::kLendGpu &&
             (packet.fd >= 0 || packet.lost) != (frame.kind == UdsFrameKind::kLend)) {
    Malformed(peer);
  } else {
    HandleFrame(peer, frame, packet.fd);
  }
  if (packet.fd >= 0) close(packet.fd);  // a mapping needs it no more
  return peer->state == UdsPeerState::kOpen;
}

void UdsCore::HandleFrame(UdsPeerRecord* peer, const UdsFrame& frame, int fd) {
  const bool worker_half = peer->id == daemon_;
  switch (frame.kind) {
    case UdsFrameKind::kMessage:
      return TakeMessage(peer, frame.message);
    case UdsFrameKind::kLend:
    case UdsFrameKind::kLendGpu:
      return worker_half || !peer->heard ? Malformed(peer) : Accept(peer, frame, fd);
    case UdsFrameKind::kUnlend:
      return worker_half ? Malformed(peer) : ForgetFile(peer, frame.file);
    case UdsFrameKind::kLent:
      return worker_half ? TakeAnswer(peer, frame) : Malformed(peer);
  }
}

void UdsCore::Malformed(UdsPeerRecord* peer) {
  ++uds_stats.frames_refused;
  ++stats_.messages_dropped;
  ++stats_.peers_refused;
  Fail(peer);
}

void UdsCore::TakeMessage(UdsPeerRecord* peer, Bytes message) {
  if (!peer->heard) {
    peer->heard = true;
    std::erase(unheard_, peer->id);
  }
  const uint32_t slot = receive_slots_.Take(message.size());
  CRUMB_CHECK(slot != kSlotNone);  // CanReceive said so
  std::memcpy(receive_slots_.data(slot), message.data(), message.size());
  ++peer->messages;
  PushEvent({.event = {.kind = NetEventKind::kMessage,
                       .peer = peer->id,
                       .message = {receive_slots_.data(slot), message.size()}},
             .slot = slot});
}

BlockResult UdsCore::Send(PeerId id, Bytes message) {
  if (message.empty() || message.size() > kWireMessageBytesMax) return BlockResult::kInvalid;
  UdsPeerRecord* peer = FindOpen(id);
  if (peer == nullptr) return BlockResult::kUnavailable;
  const UdsFrameBytes header = MakeUdsFrame({.kind = UdsFrameKind::kMessage, .message = {}});
  const BlockResult result = QueueFrame(peer, header.span(), message);
  if (result == BlockResult::kOk) ++stats_.messages_sent;
  return result;
}

// Straight into the socket; behind what waits already, if there is any.
BlockResult UdsCore::QueueFrame(UdsPeerRecord* peer, Bytes header, Bytes body) {
  if (peer->sends.empty()) {
    switch (UdsSend(peer->fd, header, body, -1)) {
      case UdsIo::kDone:
        return BlockResult::kOk;
      case UdsIo::kClosed:
        Fail(peer);
        return BlockResult::kUnavailable;
      case UdsIo::kAgain:
        break;
    }
  }
  if (peer->sends.full()) return BlockResult::kBusy;
  const uint32_t slot = send_slots_.Take(header.size() + body.size());
  if (slot == kSlotNone) return BlockResult::kBusy;
  std::memcpy(send_slots_.data(slot), header.data(), header.size());
  if (!body.empty()) {
    std::memcpy(send_slots_.data(slot) + header.size(), body.data(), body.size());
  }
  const auto bytes = static_cast<uint32_t>(header.size() + body.size());
  CRUMB_CHECK(peer->sends.Push({.slot = slot, .bytes = bytes}));
  Watch(peer);
  return BlockResult::kOk;
}

void UdsCore::FlushSends(UdsPeerRecord* peer) {
  while (!peer->sends.empty()) {
    const UdsSendRecord& next = peer->sends.front();
    const UdsIo sent = UdsSend(peer->fd, {send_slots_.data(next.slot), next.bytes}, {}, -1);
    if (sent == UdsIo::kClosed) return Fail(peer);
    if (sent == UdsIo::kAgain) break;
    send_slots_.Give(peer->sends.Pop().slot);
  }
  Watch(peer);
}

void UdsCore::DropSends(UdsPeerRecord* peer) {
  while (!peer->sends.empty()) {
    send_slots_.Give(peer->sends.Pop().slot);
    ++stats_.messages_unsent;
  }
}

}  // namespace crumb
