// Life of a UCX peer: connect, lend, fail, drain, forget. Must never close an endpoint from inside
// one of UCX's callbacks: those mark the peer, Poll closes. Transport's thread.
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/check.h"
#include "cachesvc/net/frames.h"
#include "cachesvc/net/ucx_worker.h"

namespace crumb {
namespace {

// UCX parses addresses and keys by the lengths they contain. A copy followed by zeros keeps what a
// forged one can make it read inside memory of ours.
constexpr size_t kPaddingBytes = 64 * 1024;
constexpr uint32_t kStrikesMax = 16;

std::vector<uint8_t> Padded(Bytes bytes) {
  std::vector<uint8_t> out(bytes.size() + kPaddingBytes, 0);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

}  // namespace

UcxPeer* UcxWorker::Find(PeerId id) {
  const uint32_t slot = PeerSlot(id);
  if (slot >= peers_.size() || peers_[slot].state == UcxPeerState::kFree) return nullptr;
  return peers_[slot].id == id ? &peers_[slot] : nullptr;
}

UcxPeer* UcxWorker::FindOpen(PeerId id) {
  UcxPeer* peer = Find(id);
  return peer != nullptr && peer->state == UcxPeerState::kOpen ? peer : nullptr;
}

// INVARIANT: cookies_ holds open peers only.
UcxPeer* UcxWorker::FindByCookie(Bytes body) {
  uint64_t cookie = 0;
  if (body.size() < sizeof(cookie)) return nullptr;
  std::memcpy(&cookie, body.data(), sizeof(cookie));
  const auto found = cookies_.find(cookie);
  return found == cookies_.end() ? nullptr : &peers_[found->second];
}

std::string UcxWorker::MakeHello(uint64_t* cookie) {
  *cookie = 0;
  while (*cookie == 0) {
    const ssize_t got = getrandom(cookie, sizeof(*cookie), 0);
    CRUMB_CHECK(got == sizeof(*cookie));  // up to 256 bytes are never cut short
  }
  return EncodeHello({.cookie = *cookie,
                      .queue_slots = kUcxFifoSlots,
                      .queue_bytes = kUcxSegmentBytes,
                      .one_sided = options_.one_sided,
                      .address = AsBytes(context_->address())});
}

absl::StatusOr<PeerId> UcxWorker::Connect(Bytes hello, uint64_t my_cookie) {
  CRUMB_ASSIGN(const HelloFrame frame, ParseHello(hello));
  if (frame.queue_slots != kUcxFifoSlots || frame.queue_bytes != kUcxSegmentBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hello: its shared-memory queue is ", frame.queue_slots, " x ", frame.queue_bytes,
        ", ours ", kUcxFifoSlots, " x ", kUcxSegmentBytes, "; run the same release on both sides"));
  }
  if (my_cookie == 0 || cookies_.contains(my_cookie)) {
    return absl::InvalidArgumentError("this cookie is not a fresh one of MakeHello");
  }
  const auto free = std::find_if(peers_.begin(), peers_.end(),
                                 [](const UcxPeer& p) { return p.state == UcxPeerState::kFree; });
  if (free == peers_.end()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", peers_.size(), " UCX peers are in use; close one or raise the limit"));
  }
  UcxPeer& peer = *free;
  const bool ready = peer.ready, flush_wanted = peer.flush_wanted;
  peer = UcxPeer{};
  peer.ready = ready;  // the slot may still be in these queues since its last life
  peer.flush_wanted = flush_wanted;
  peer.owner = this;
  CRUMB_TRY(OpenEndpoint(frame.address, &peer));
  peer.state = UcxPeerState::kOpen;
  peer.one_sided = options_.one_sided && frame.one_sided;
  peer.id = MakePeerId(++serial_, SlotOf(peer));
  peer.my_cookie = my_cookie;
  peer.remote_cookie = frame.cookie;
  cookies_[my_cookie] = SlotOf(peer);
  ++stats_.peers;
  return peer.id;
}

absl::Status UcxWorker::OpenEndpoint(Bytes address, UcxPeer* peer) {
  const std::vector<uint8_t> padded = Padded(address);
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(padded.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &OnEndpointError;
  params.err_handler.arg = peer;
  const ucs_status_t status = ucp_ep_create(context_->worker(), &params, &peer->endpoint);
  if (status == UCS_OK) return absl::OkStatus();
  return UcxError("UCX cannot reach the other side (do both have a common transport in ucx.tls?)",
                  status);
}

absl::Status UcxWorker::RegisterRegions(PeerId id, uint32_t region_set, const RegionSet& set) {
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

absl::Status UcxWorker::UnpackKeys(const UcxPeer& peer, const RegionSet& set, UcxRemoteSet* out) {
  out->rkeys.reserve(set.spec().regions.size());
  for (const Region& region : set.spec().regions) {
    CRUMB_ASSIGN(const RkeyFrame frame, ParseRkey(AsBytes(region.rkey)));
    if (region.address < frame.address || region.bytes > frame.bytes ||
        region.address - frame.address > frame.bytes - region.bytes) {
      return absl::InvalidArgumentError("rkey: made for other memory than the region names");
    }
    if (!peer.one_sided) continue;
    if (frame.key.empty()) return absl::InvalidArgumentError("rkey: no key for one-sided access");
    const std::vector<uint8_t> padded = Padded(frame.key);
    ucp_rkey_h rkey = nullptr;
    const ucs_status_t status = ucp_ep_rkey_unpack(peer.endpoint, padded.data(), &rkey);
    if (status != UCS_OK) return UcxError("rkey: UCX refuses it", status);
    out->rkeys.push_back(rkey);
  }
  return absl::OkStatus();
}

void UcxWorker::DestroySet(UcxRemoteSet* set) {
  for (ucp_rkey_h rkey : set->rkeys) ucp_rkey_destroy(rkey);
  set->rkeys.clear();
}

void UcxWorker::ClosePeer(PeerId id) {
  UcxPeer* peer = Find(id);
  if (peer == nullptr) return;
  peer->report = false;  // if kPeerDown is in the ring, it finds nobody to go to
  Doom(peer, UcxReport::kNo);
}

// From here on nothing new begins with this peer; DrainPeers does the rest. Safe in callbacks.
void UcxWorker::Doom(UcxPeer* peer, UcxReport report) {
  if (peer->state != UcxPeerState::kOpen) return;
  peer->state = UcxPeerState::kDraining;
  peer->report = report == UcxReport::kYes;
  cookies_.erase(peer->my_cookie);
  --stats_.peers;
  ++stats_.peers_closing;
  draining_.push_back(SlotOf(*peer));
}

void UcxWorker::Refuse(UcxPeer* peer) {
  if (peer->state != UcxPeerState::kOpen) return;
  ++stats_.peers_refused;
  Doom(peer, UcxReport::kYes);
}

void UcxWorker::Strike(UcxPeer* peer) {
  ++stats_.messages_dropped;
  if (++peer->strikes >= kStrikesMax) Refuse(peer);
}

void UcxWorker::OnEndpointError(void* arg, ucp_ep_h, ucs_status_t) {
  UcxPeer* peer = static_cast<UcxPeer*>(arg);
  peer->failed = true;
  peer->owner->Doom(peer, UcxReport::kYes);
}

void UcxWorker::OnClosed(void* request, ucs_status_t, void* user_data) {
  static_cast<UcxPeer*>(user_data)->endpoint = nullptr;
  ucp_request_free(request);
}

// REQUIRES: not inside a callback. Forced: UCX ends every operation of the endpoint, with an error
// where it did not finish.
void UcxWorker::CloseEndpoint(UcxPeer* peer) {
  peer->closed = true;
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = &OnClosed;
  param.user_data = peer;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(peer->endpoint, &param);
  if (!UCS_PTR_IS_PTR(request)) peer->endpoint = nullptr;  // closed, or beyond closing
}

void UcxWorker::DrainPeers() {
  for (size_t i = 0; i < draining_.size();) {
    UcxPeer& peer = peers_[draining_[i]];
    DrainPeer(&peer);
    if (!Drained(peer)) {
      ++i;
      continue;
    }
    draining_[i] = draining_.back();
    draining_.pop_back();
    --stats_.peers_closing;
    for (UcxRemoteSet& set : peer.sets) DestroySet(&set);
    peer.sets.clear();
    peer.released = true;
    if (!peer.down_queued) peer.state = UcxPeerState::kFree;  // else TakeEvent frees it
  }
}

void UcxWorker::DrainPeer(UcxPeer* peer) {
  if (peer->drain_polls++ == 0) {
    FailMoves(peer);
    if (!peer->left && !peer->failed) SayGoodbye(peer);
  }
  // WHY: UCX over tcp uses freed memory when an endpoint that was closed with sends under way is
  // closed by the other side too. So one that only sleeps is kept until it takes them or dies.
  const bool may_close = peer->failed || peer->one_sided || peer->sends == 0;
  if (!peer->closed && may_close) CloseEndpoint(peer);
  if (!peer->report || peer->down_queued || peer->moves > 0) return;
  peer->down_queued = true;
  UcxEvent event;
  event.event.kind = NetEventKind::kPeerDown;
  event.event.peer = peer->id;
  event.event.result = BlockResult::kUnavailable;
  PushEvent(event);
}

// UCX holds nothing of it any more.
bool UcxWorker::Drained(const UcxPeer& peer) const {
  return peer.closed && peer.endpoint == nullptr && peer.sends == 0 && peer.operations == 0 &&
         !peer.flushing && peer.moves == 0;
}

}  // namespace crumb
