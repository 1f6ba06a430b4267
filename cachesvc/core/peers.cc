// Peers come and go: tied to a session by the control plane or by their own first word, dropped
// with everything they hold.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/core/engine_impl.h"

namespace crumb::core {

absl::Status EngineImpl::AttachPeer(SessionId session_id, uint32_t transport, PeerId peer) {
  Session* session = FindSession(session_id);
  if (session == nullptr) return absl::NotFoundError("no such session: say Hello again");
  if (transport >= transports.size() || peer.value == 0) {
    return absl::InvalidArgumentError("no such transport or peer");
  }
  if (FindPeer(transport, peer) != kNoId) {
    return absl::AlreadyExistsError("the peer belongs to a session already");
  }
  // Addresses that a session lends mean something to one transport only.
  if (!session->peers.empty() && peers[session->peers[0]].transport != transport) {
    return absl::FailedPreconditionError("the session's peers belong to another transport");
  }
  for (const RegisteredSet& set : session->region_sets) {
    CRUMB_TRY(transports[transport]->RegisterRegions(peer, set.id, set.set));
  }
  const uint32_t id = peers.Take();
  if (id == Slab<Peer>::kNone) {
    return absl::ResourceExhaustedError(
        absl::StrCat("limits.peers_max: ", peers.size(), " peers are connected"));
  }
  Peer& made = peers[id];
  made.transport = transport;
  made.id = peer;
  made.session = session_id;
  made.blocks = made.transfers = 0;
  made.staged_bytes = {};
  made.gpu_sets.clear();
  made.requests.reserve(options.limits.requests_per_peer_max);
  peer_ids[{transport, peer.value}] = id;
  session->peers.push_back(id);
  for (const RegisteredSet& set : session->region_sets) {
    const absl::Status registered = RegisterGpu(&made, set);
    if (registered.ok()) continue;
    DropPeer(id);
    return registered;
  }
  return absl::OkStatus();
}

// The first message of a peer that came by itself: it names a session, which only its worker knows.
// kNoId: it may not stay.
uint32_t EngineImpl::Introduce(uint32_t transport, PeerId id, const WireHeader& header) {
  const bool hello = header.type == WireType::kHello;
  if (!hello || !AttachPeer(SessionId{header.session_id}, transport, id).ok()) {
    ++counts.bad_messages;
    return kNoId;
  }
  return FindPeer(transport, id);
}

void EngineImpl::DropPeer(uint32_t peer_id) {
  Peer& peer = peers[peer_id];
  transports[peer.transport]->ClosePeer(peer.id);
  peer_ids.erase({peer.transport, peer.id.value});
  if (Session* session = FindSession(peer.session); session != nullptr) {
    std::erase(session->peers, peer_id);
  }
  std::vector<uint32_t> orphans;
  orphans.swap(peer.requests);
  for (const uint32_t id : orphans) {
    requests[id].peer = kNoId;
    const bool answered = requests[id].blocks_left == 0;
    if (answered) {
      std::erase(unsent, id);
      FreeRequest(id);
    } else {
      CancelRequest(id, BlockResult::kCancelled);
    }
  }
  peer.gpu_sets.clear();
  orphans.clear();
  peer.requests.swap(orphans);  // keeps its capacity
  peers.Give(peer_id);
}

}  // namespace crumb::core
