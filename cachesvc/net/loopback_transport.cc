// The in-process transport. Calls only queue; Poll does the work in the order of the calls.
// Must never touch a peer's memory after KillPeer or ClosePeer. One thread.
#include "cachesvc/net/loopback_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/net/bounded_ring.h"
#include "cachesvc/net/message_slots.h"
#include "cachesvc/net/peer_regions.h"

namespace crumb {
namespace {

constexpr uint32_t kPeersMax = 4096;
constexpr uint32_t kMessagesMin = 256;

// kDead: kPeerDown is still to be polled. kForgotten: it is in the ring, but nobody wants it.
enum class PeerState : uint8_t { kFree, kOpen, kDead, kForgotten };

struct NumberedRanges {
  uint32_t number = 0;
  std::vector<RegionRange> ranges;
};

struct Peer {
  PeerState state = PeerState::kFree;
  PeerId id;
  void (*on_message)(void* arg, Bytes message) = nullptr;
  void* arg = nullptr;
  std::vector<NumberedRanges> sets;
  uint32_t transfers = 0;  // in the ring
};

enum class OpKind : uint8_t { kSend, kInject, kPull, kPush, kDown };

struct Op {
  OpKind kind = OpKind::kSend;
  PeerId peer;
  uint32_t slot = kSlotNone;  // of a message
  uint32_t bytes = 0;
  Transfer transfer;
};

}  // namespace

class LoopbackTransport::Impl {
 public:
  explicit Impl(uint32_t transfers_max)
      : transfers_max_(transfers_max),
        messages_max_(std::max(kMessagesMin, transfers_max)),
        messages_(messages_max_),
        ops_(size_t{transfers_max} + messages_max_ * 2 + kPeersMax) {
    released_.reserve(messages_max_ * 2);
  }

  PeerId AddPeer(void (*on_message)(void* arg, Bytes message), void* arg);
  BlockResult QueueMessage(OpKind kind, PeerId id, Bytes message);
  BlockResult QueueTransfer(OpKind kind, const Transfer& transfer);
  absl::Status RegisterRegions(PeerId id, uint32_t region_set, const RegionSet& set);
  void Kill(PeerId id);
  void Close(PeerId id);
  size_t Poll(absl::Span<NetEvent> events);
  bool idle() const { return ops_.empty() && released_.empty(); }
  NetStats stats() const;

 private:
  Peer* Find(PeerId id) {
    const uint32_t slot = PeerSlot(id);
    return slot < peers_.size() && peers_[slot].id == id ? &peers_[slot] : nullptr;
  }
  Peer* FindOpen(PeerId id) {
    Peer* peer = Find(id);
    return peer != nullptr && peer->state == PeerState::kOpen ? peer : nullptr;
  }
  const std::vector<RegionRange>* FindRanges(const Peer& peer, uint32_t region_set) const;
  void Free(Peer* peer);
  // True if the operation gave an event.
  bool Run(const Op& op, NetEvent* event);
  bool RunDown(Peer* peer, NetEvent* event);
  BlockResult RunTransfer(const Op& op);

  const uint32_t transfers_max_;
  const uint32_t messages_max_;
  MessageSlots messages_;
  BoundedRing<Op> ops_;
  std::vector<Peer> peers_;
  std::vector<uint32_t> released_;  // slots of the events of the last Poll
  uint64_t serial_ = 0;
  NetStats stats_;
};

PeerId LoopbackTransport::Impl::AddPeer(void (*on_message)(void* arg, Bytes message), void* arg) {
  uint32_t slot = 0;
  while (slot < peers_.size() && peers_[slot].state != PeerState::kFree) ++slot;
  if (slot == kPeersMax) return {};
  if (slot == peers_.size()) peers_.emplace_back();
  Peer& peer = peers_[slot];
  peer = Peer{};
  peer.state = PeerState::kOpen;
  peer.id = MakePeerId(++serial_, slot);
  peer.on_message = on_message;
  peer.arg = arg;
  ++stats_.peers;
  return peer.id;
}

BlockResult LoopbackTransport::Impl::QueueMessage(OpKind kind, PeerId id, Bytes message) {
  if (message.empty() || message.size() > kWireMessageBytesMax) return BlockResult::kInvalid;
  if (FindOpen(id) == nullptr) return BlockResult::kUnavailable;
  const uint32_t slot = messages_.Take(message.size());
  if (slot == kSlotNone) return BlockResult::kBusy;
  std::memcpy(messages_.data(slot), message.data(), message.size());
  const bool queued = ops_.Push({.kind = kind,
                                 .peer = id,
                                 .slot = slot,
                                 .bytes = static_cast<uint32_t>(message.size()),
                                 .transfer = {}});
  CRUMB_CHECK(queued);  // the ring has room for every slot, transfer and peer
  return BlockResult::kOk;
}

const std::vector<RegionRange>* LoopbackTransport::Impl::FindRanges(const Peer& peer,
                                                                    uint32_t region_set) const {
  for (const NumberedRanges& set : peer.sets) {
    if (set.number == region_set) return &set.ranges;
  }
  return nullptr;
}

BlockResult LoopbackTransport::Impl::QueueTransfer(OpKind kind, const Transfer& transfer) {
  Peer* peer = FindOpen(transfer.peer);
  if (peer == nullptr) return BlockResult::kUnavailable;
  const std::vector<RegionRange>* ranges = FindRanges(*peer, transfer.region_set);
  if (ranges == nullptr || !SegmentsFit(*ranges, transfer)) return BlockResult::kInvalid;
  if (stats_.transfers_pending >= transfers_max_) return BlockResult::kBusy;
  const bool queued =
      ops_.Push({.kind = kind, .peer = transfer.peer, .bytes = 0, .transfer = transfer});
  CRUMB_CHECK(queued);
  ++peer->transfers;
  ++stats_.transfers_pending;
  return BlockResult::kOk;
}

absl::Status LoopbackTransport::Impl::RegisterRegions(PeerId id, uint32_t region_set,
                                                      const RegionSet& set) {
  Peer* peer = FindOpen(id);
  if (peer == nullptr) return absl::UnavailableError("the peer is gone");
  for (NumberedRanges& known : peer->sets) {
    if (known.number != region_set) continue;
    if (peer->transfers > 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("region_set ", region_set, " is in use: wait for its requests to end"));
    }
    known.ranges = RangesOf(set);
    return absl::OkStatus();
  }
  if (peer->sets.size() >= kRegionSetsPerPeerMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("region_set ", region_set, ": a peer may have ", kRegionSetsPerPeerMax));
  }
  peer->sets.push_back({region_set, RangesOf(set)});
  return absl::OkStatus();
}

void LoopbackTransport::Impl::Kill(PeerId id) {
  Peer* peer = FindOpen(id);
  if (peer == nullptr) return;
  peer->state = PeerState::kDead;
  --stats_.peers;
  ++stats_.peers_closing;
  const bool queued = ops_.Push({.kind = OpKind::kDown, .peer = id, .bytes = 0, .transfer = {}});
  CRUMB_CHECK(queued);
}

void LoopbackTransport::Impl::Close(PeerId id) {
  Peer* peer = Find(id);
  if (peer == nullptr) return;
  // INVARIANT: a slot has at most one kDown in the ring, so the ring cannot fill with them.
  if (peer->state == PeerState::kDead) peer->state = PeerState::kForgotten;
  if (peer->state != PeerState::kOpen) return;
  --stats_.peers;
  Free(peer);
}

// What is left in the ring finds no peer of that id and ends there.
void LoopbackTransport::Impl::Free(Peer* peer) { *peer = Peer{}; }

size_t LoopbackTransport::Impl::Poll(absl::Span<NetEvent> events) {
  for (uint32_t slot : released_) messages_.Give(slot);
  released_.clear();
  size_t count = 0;
  const size_t budget = ops_.size();  // what the callbacks add waits for the next Poll
  for (size_t i = 0; i < budget && count < events.size(); ++i) {
    const Op op = ops_.Pop();
    events[count] = NetEvent{};
    if (Run(op, &events[count])) ++count;
  }
  return count;
}

bool LoopbackTransport::Impl::Run(const Op& op, NetEvent* event) {
  event->peer = op.peer;
  Peer* peer = Find(op.peer);
  switch (op.kind) {
    case OpKind::kSend:
      if (peer != nullptr && peer->state == PeerState::kOpen) {
        ++stats_.messages_sent;
        peer->on_message(peer->arg, {messages_.data(op.slot), op.bytes});
      } else {
        ++stats_.messages_unsent;
      }
      messages_.Give(op.slot);
      return false;
    case OpKind::kInject:
      released_.push_back(op.slot);
      if (peer == nullptr || peer->state == PeerState::kForgotten) return false;
      ++stats_.messages_received;
      event->kind = NetEventKind::kMessage;
      event->message = {messages_.data(op.slot), op.bytes};
      return true;
    case OpKind::kPull:
    case OpKind::kPush:
      event->kind = NetEventKind::kTransferDone;
      event->token = op.transfer.token;
      event->result = RunTransfer(op);
      return true;
    case OpKind::kDown:
      return RunDown(peer, event);
  }
  return false;
}

bool LoopbackTransport::Impl::RunDown(Peer* peer, NetEvent* event) {
  const bool wanted = peer->state == PeerState::kDead;
  --stats_.peers_closing;
  Free(peer);
  if (!wanted) return false;
  ++stats_.peers_lost;
  event->kind = NetEventKind::kPeerDown;
  event->result = BlockResult::kUnavailable;
  return true;
}

BlockResult LoopbackTransport::Impl::RunTransfer(const Op& op) {
  --stats_.transfers_pending;
  Peer* peer = Find(op.peer);
  if (peer != nullptr) --peer->transfers;
  if (peer == nullptr || peer->state != PeerState::kOpen) return BlockResult::kUnavailable;
  for (const Segment& segment : op.transfer.segments) {
    uint8_t* local = op.transfer.local.data() + segment.local_offset;
    uint8_t* remote = reinterpret_cast<uint8_t*>(segment.address);
    if (op.kind == OpKind::kPull) {
      std::memcpy(local, remote, segment.bytes);
      stats_.bytes_pulled += segment.bytes;
    } else {
      std::memcpy(remote, local, segment.bytes);
      stats_.bytes_pushed += segment.bytes;
    }
  }
  return BlockResult::kOk;
}

NetStats LoopbackTransport::Impl::stats() const {
  NetStats stats = stats_;
  stats.messages_held = messages_.held();
  return stats;
}

LoopbackTransport::LoopbackTransport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LoopbackTransport::~LoopbackTransport() = default;

std::unique_ptr<LoopbackTransport> LoopbackTransport::Create(uint32_t transfers_max) {
  CRUMB_CHECK(transfers_max > 0);
  return std::make_unique<LoopbackTransport>(std::make_unique<Impl>(transfers_max));
}

PeerId LoopbackTransport::AddPeer(void (*on_message)(void* arg, Bytes message), void* arg) {
  return impl_->AddPeer(on_message, arg);
}
BlockResult LoopbackTransport::Inject(PeerId peer, Bytes message) {
  return impl_->QueueMessage(OpKind::kInject, peer, message);
}
void LoopbackTransport::KillPeer(PeerId peer) { impl_->Kill(peer); }
NetStats LoopbackTransport::stats() const { return impl_->stats(); }
BlockResult LoopbackTransport::Send(PeerId peer, Bytes message) {
  return impl_->QueueMessage(OpKind::kSend, peer, message);
}
BlockResult LoopbackTransport::Pull(const Transfer& transfer) {
  return impl_->QueueTransfer(OpKind::kPull, transfer);
}
BlockResult LoopbackTransport::Push(const Transfer& transfer) {
  return impl_->QueueTransfer(OpKind::kPush, transfer);
}
absl::Status LoopbackTransport::RegisterRegions(PeerId peer, uint32_t region_set,
                                                const RegionSet& set) {
  return impl_->RegisterRegions(peer, region_set, set);
}
void LoopbackTransport::ClosePeer(PeerId peer) { impl_->Close(peer); }
size_t LoopbackTransport::Poll(absl::Span<NetEvent> events) { return impl_->Poll(events); }
bool LoopbackTransport::Arm() { return impl_->idle(); }
int LoopbackTransport::wake_fd() const { return -1; }

}  // namespace crumb
