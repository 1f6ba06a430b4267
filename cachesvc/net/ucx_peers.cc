// Life of a UCX peer: hello, connect, lend, fail, leave, forget. Must never end a link from inside
// one of its callbacks: those mark the peer, Poll ends it. Transport's thread.
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/check.h"
#include "cachesvc/net/frames.h"
#include "cachesvc/net/ucx_core.h"
#include "cachesvc/net/ucx_ids.h"

namespace crumb {
namespace {

constexpr uint32_t kStrikesMax = 16;
constexpr uint32_t kHellosMax = 16;        // made and not connected; the oldest gives way
constexpr uint32_t kGoodbyePollsMax = 64;  // then it has had its chance to leave

}  // namespace

UcxPeer* UcxCore::Find(PeerId id) {
  const uint32_t slot = PeerSlot(id);
  if (slot >= peers_.size() || id.value == 0) return nullptr;
  return peers_[slot].id == id ? &peers_[slot] : nullptr;
}

UcxPeer* UcxCore::FindOpen(PeerId id) {
  UcxPeer* peer = Find(id);
  return peer != nullptr && peer->state == UcxPeerState::kOpen ? peer : nullptr;
}

UcxPeer* UcxCore::FindHello(uint64_t cookie) {
  const auto found = std::find_if(peers_.begin(), peers_.end(), [&](const UcxPeer& p) {
    return p.state == UcxPeerState::kHello && p.my_cookie == cookie;
  });
  return found == peers_.end() ? nullptr : &*found;
}

// A slot for a new hello: a free one, or that of the oldest hello if there are too many.
UcxPeer* UcxCore::FindFree() {
  UcxPeer* free = nullptr;
  UcxPeer* oldest = nullptr;
  uint32_t hellos = 0;
  for (UcxPeer& peer : peers_) {
    if (peer.state == UcxPeerState::kFree && free == nullptr) free = &peer;
    if (peer.state != UcxPeerState::kHello) continue;
    ++hellos;
    if (oldest == nullptr || peer.id.value < oldest->id.value) oldest = &peer;
  }
  return free == nullptr || hellos >= kHellosMax ? oldest : free;
}

std::string UcxCore::MakeHello(uint64_t* cookie) {
  *cookie = 0;
  UcxPeer* peer = FindFree();
  if (peer == nullptr) return {};
  auto link = UcxLink::Create(context_->handle(),
                              {.owner = peer, .on_body = &OnBody, .on_failed = &OnFailed});
  if (!link.ok()) return {};
  while (*cookie == 0) {
    const ssize_t got = getrandom(cookie, sizeof(*cookie), 0);
    CRUMB_CHECK(got == sizeof(*cookie));  // up to 256 bytes are never cut short
  }
  const bool ready = peer->ready, flush_wanted = peer->flush_wanted;
  *peer = UcxPeer{};
  peer->ready = ready;  // the slot may still be in these queues since its last life
  peer->flush_wanted = flush_wanted;
  peer->owner = this;
  peer->state = UcxPeerState::kHello;
  peer->id = MakePeerId(++serial_, SlotOf(*peer));
  peer->my_cookie = *cookie;
  peer->link = *std::move(link);
  return EncodeHello({.cookie = *cookie,
                      .queue_slots = kUcxFifoSlots,
                      .queue_bytes = kUcxSegmentBytes,
                      .one_sided = options_.one_sided,
                      .process = self_,
                      .address = AsBytes(peer->link->address())});
}

absl::StatusOr<PeerId> UcxCore::Connect(Bytes hello, uint64_t my_cookie) {
  CRUMB_ASSIGN(const HelloFrame frame, ParseHello(hello));
  if (frame.queue_slots != kUcxFifoSlots || frame.queue_bytes != kUcxSegmentBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hello: its shared-memory queue is ", frame.queue_slots, " x ", frame.queue_bytes,
        ", ours ", kUcxFifoSlots, " x ", kUcxSegmentBytes, "; run the same release on both sides"));
  }
  UcxPeer* peer = FindHello(my_cookie);
  if (peer == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("UCX: no hello with this cookie waits (used already, given up for a newer "
                     "one, or all ",
                     peers_.size(), " peers are in use); make another"));
  }
  CRUMB_TRY(Meet(frame, peer));
  peer->state = UcxPeerState::kOpen;
  peer->one_sided = options_.one_sided && frame.one_sided;
  peer->remote_cookie = frame.cookie;
  peer->connected_us = clock_.now_us();
  linked_.push_back(SlotOf(*peer));
  if (std::find(unheard_.begin(), unheard_.end(), SlotOf(*peer)) == unheard_.end()) {
    unheard_.push_back(SlotOf(*peer));
  }
  ++stats_.peers;
  SendBare(peer, kUcxGreeting);
  return peer->id;
}

absl::Status UcxCore::Meet(const HelloFrame& frame, UcxPeer* peer) {
  CRUMB_TRY(watch_->AddLibrary(SlotOf(*peer), peer->link->event_fd()));
  if (watch_->Watch(SlotOf(*peer), frame.process) == WatchResult::kGone) {
    return absl::UnavailableError("the process that made this hello has ended");
  }
  const absl::Status status = peer->link->Connect(frame.address);
  if (!status.ok()) watch_->Forget(SlotOf(*peer));
  return status;
}

absl::Status UcxCore::RegisterRegions(PeerId id, uint32_t region_set, const RegionSet& set) {
  UcxPeer* peer = FindOpen(id);
  if (peer == nullptr) return absl::UnavailableError("the peer is gone");
  const auto known = std::find_if(peer->sets.begin(), peer->sets.end(),
                                  [&](const UcxRemoteSet& s) { return s.number == region_set; });
  if (known == peer->sets.end() && peer->sets.size() >= kRegionSetsPerPeerMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("region_set ", region_set, ": a peer may have ", kRegionSetsPerPeerMax));
  }
  if (known != peer->sets.end() && peer->moves > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("region_set ", region_set, " is in use: wait for its requests to end"));
  }
  UcxRemoteSet remote;
  remote.number = region_set;
  remote.ranges = RangesOf(set);
  if (const absl::Status status = UnpackKeys(*peer, set, &remote); !status.ok()) {
    DestroySet(&remote);
    return status;
  }
  if (known != peer->sets.end()) {
    DestroySet(&*known);
    *known = std::move(remote);
  } else {
    peer->sets.push_back(std::move(remote));
  }
  return absl::OkStatus();
}

absl::Status UcxCore::UnpackKeys(const UcxPeer& peer, const RegionSet& set, UcxRemoteSet* out) {
  out->rkeys.reserve(set.spec().regions.size());
  for (const Region& region : set.spec().regions) {
    CRUMB_ASSIGN(const RkeyFrame frame, ParseRkey(AsBytes(region.rkey)));
    if (region.address < frame.address || region.bytes > frame.bytes ||
        region.address - frame.address > frame.bytes - region.bytes) {
      return absl::InvalidArgumentError("rkey: made for other memory than the region names");
    }
    if (!peer.one_sided) continue;
    if (frame.key.empty()) return absl::InvalidArgumentError("rkey: no key for one-sided access");
    const std::string padded = UcxPadded(frame.key);
    ucp_rkey_h rkey = nullptr;
    const ucs_status_t status = ucp_ep_rkey_unpack(peer.link->endpoint(), padded.data(), &rkey);
    if (status != UCS_OK) return UcxError("rkey: UCX refuses it", status);
    out->rkeys.push_back(rkey);
  }
  return absl::OkStatus();
}

void UcxCore::DestroySet(UcxRemoteSet* set) {
  for (ucp_rkey_h rkey : set->rkeys) ucp_rkey_destroy(rkey);
  set->rkeys.clear();
}

void UcxCore::ClosePeer(PeerId id) {
  UcxPeer* peer = Find(id);
  if (peer == nullptr) return;
  peer->report = false;  // if kPeerDown is in the ring, it finds nobody to go to
  Doom(peer, UcxReport::kNo);
}

// From here on nothing new begins with this peer; LeavePeers does the rest. Safe in callbacks.
void UcxCore::Doom(UcxPeer* peer, UcxReport report) {
  if (peer->state != UcxPeerState::kOpen) return;
  peer->state = UcxPeerState::kLeaving;
  peer->report = report == UcxReport::kYes;
  --stats_.peers;
  ++stats_.peers_closing;
  watch_->Forget(SlotOf(*peer));
  leaving_.push_back(SlotOf(*peer));
}

// There is nobody to say goodbye to.
void UcxCore::Lose(UcxPeer* peer) {
  peer->silent = true;
  Doom(peer, UcxReport::kYes);
}

void UcxCore::Refuse(UcxPeer* peer) {
  if (peer->state != UcxPeerState::kOpen) return;
  ++stats_.peers_refused;
  Doom(peer, UcxReport::kYes);
}

void UcxCore::Strike(UcxPeer* peer) {
  ++stats_.messages_dropped;
  if (++peer->strikes >= kStrikesMax) Refuse(peer);
}

void UcxCore::OnBody(void* owner, unsigned id, Bytes body) {
  UcxPeer* peer = static_cast<UcxPeer*>(owner);
  peer->owner->Dispatch(peer, id, body);
}

void UcxCore::OnFailed(void* owner) {
  UcxPeer* peer = static_cast<UcxPeer*>(owner);
  peer->owner->Lose(peer);
}

// UCX does not see that a peer dies before the two are fully connected, and looks after nobody
// while one that is stopped takes nothing.
void UcxCore::WatchPeers() {
  gone_.clear();
  readable_.clear();
  watch_->Take(&gone_, &readable_);
  for (uint32_t slot : gone_) Lose(&peers_[slot]);
  for (uint32_t slot : readable_) peers_[slot].idle_polls = 0;
  const uint64_t now_us = unheard_.empty() ? 0 : clock_.now_us();
  for (size_t i = 0; i < unheard_.size();) {
    UcxPeer& peer = peers_[unheard_[i]];
    const bool waiting = peer.state == UcxPeerState::kOpen && !peer.heard;
    if (waiting && now_us - peer.connected_us < options_.first_word_us) {
      ++i;
      continue;
    }
    if (waiting) Lose(&peer);
    unheard_[i] = unheard_.back();
    unheard_.pop_back();
  }
}

void UcxCore::LeavePeers() {
  for (size_t i = 0; i < leaving_.size();) {
    UcxPeer& peer = peers_[leaving_[i]];
    if (!Leave(&peer)) {
      ++i;
      continue;
    }
    leaving_[i] = leaving_.back();
    leaving_.pop_back();
    Release(&peer);
  }
}

// True when nothing is left to wait for.
bool UcxCore::Leave(UcxPeer* peer) {
  if (peer->leave_polls++ == 0) {
    FailMoves(peer);
    if (!peer->silent) SendBare(peer, kUcxGoodbye);
  }
  const bool goodbye = !peer->silent && peer->text_sends + peer->data_sends > 0;
  return !goodbye || peer->leave_polls > kGoodbyePollsMax;
}

// REQUIRES: not inside a callback. With the worker everything of UCX for this peer is gone, so what
// it did not give back is ours again.
void UcxCore::Release(UcxPeer* peer) {
  for (UcxRemoteSet& set : peer->sets) DestroySet(&set);
  peer->sets.clear();
  peer->link.reset();
  TakeBackSends(*peer);
  if (peer->one_sided) FailOneSided(peer);
  linked_.erase(std::find(linked_.begin(), linked_.end(), SlotOf(*peer)));
  --stats_.peers_closing;
  peer->state = UcxPeerState::kFree;
  if (!peer->report) {
    peer->id = PeerId{};
    return;
  }
  peer->state = UcxPeerState::kDown;
  UcxEvent event;
  event.event.kind = NetEventKind::kPeerDown;
  event.event.peer = peer->id;
  event.event.result = BlockResult::kUnavailable;
  PushEvent(event);
}

}  // namespace crumb
