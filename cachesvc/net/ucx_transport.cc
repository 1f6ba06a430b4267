// The turn of the UCX transport, its making and its end. Must never run UCX outside Poll, Arm and
// the calls of the owner. Transport's thread.
#include "cachesvc/net/ucx_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/net/ucx_worker.h"

namespace crumb {
namespace {

constexpr int kProgressRoundsMax = 64;       // of one Poll
constexpr uint32_t kDrainPollsEager = 4096;  // then a draining peer keeps nobody awake
constexpr int kEndRoundsMax = 1000;          // of the destructor
constexpr uint32_t kAnswersMax = 4096;       // of all peers

absl::Status CheckLimit(const char* name, uint32_t value, uint32_t max) {
  if (value > 0 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", value, " given; 1 to ", max));
}

absl::Status CheckOptions(const UcxOptions& o) {
  CRUMB_TRY(CheckLimit("peers_max", o.peers_max, kPeersLimit - 1));
  CRUMB_TRY(CheckLimit("transfers_max", o.transfers_max, 1u << 20));
  CRUMB_TRY(CheckLimit("transfers_per_peer_max", o.transfers_per_peer_max, 1u << 20));
  CRUMB_TRY(CheckLimit("operations_max", o.operations_max, 1u << 20));
  CRUMB_TRY(CheckLimit("operations_per_peer_max", o.operations_per_peer_max, 1u << 20));
  CRUMB_TRY(CheckLimit("messages_max", o.messages_max, 1u << 20));
  CRUMB_TRY(CheckLimit("messages_per_peer_max", o.messages_per_peer_max, 1u << 20));
  CRUMB_TRY(CheckLimit("sends_max", o.sends_max, 1u << 20));
  return CheckLimit("sends_per_peer_max", o.sends_per_peer_max, 1u << 20);
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(const UcxOptions& options) {
  CRUMB_TRY(CheckOptions(options));
  CRUMB_ASSIGN(auto context, UcxContext::Create(options));
  auto impl = std::make_unique<UcxWorker>(options, std::move(context));
  CRUMB_TRY(impl->SetHandlers());
  return impl;
}

UcxWorker::UcxWorker(const UcxOptions& options, std::unique_ptr<UcxContext> context)
    : options_(options),
      receive_slots_(options.messages_max),
      send_slots_(options.sends_max),
      data_slots_(kCopyMessageBytesMax, options.peers_max * kUcxDataSendsMax + 1),
      peers_(options.peers_max),
      moves_(options.transfers_max),
      copies_(options.operations_max),
      text_sends_(send_slots_.total()),
      data_sends_(data_slots_.count()),
      ready_(options.peers_max),
      flush_wanted_(options.peers_max),
      answers_(kAnswersMax),
      events_(size_t{receive_slots_.total()} + options.transfers_max + options.peers_max),
      context_(std::move(context)) {
  free_moves_.reserve(moves_.size());
  for (size_t i = moves_.size(); i > 0; --i) free_moves_.push_back(static_cast<uint32_t>(i - 1));
  free_copies_.reserve(copies_.size());
  for (size_t i = copies_.size(); i > 0; --i) free_copies_.push_back(static_cast<uint32_t>(i - 1));
  draining_.reserve(peers_.size());
  polled_.reserve(receive_slots_.total());
  cookies_.reserve(peers_.size());
}

UcxWorker::~UcxWorker() {
  ending_ = true;
  for (UcxPeer& peer : peers_) Doom(&peer, UcxReport::kNo);
  // Completions have nobody to go to any more: the ring is emptied as it fills. A peer that takes
  // nothing is not waited for: what UCX holds for it lies in our slots, which outlive UCX.
  for (int round = 0; round < kEndRoundsMax && !draining_.empty(); ++round) {
    DrainPeers();
    ucp_worker_progress(context_->worker());
    while (!events_.empty()) events_.Pop();
  }
}

void UcxWorker::PushEvent(const UcxEvent& event) {
  const bool queued = events_.Push(event);
  CRUMB_CHECK(queued);  // one place for every message slot, move and peer
}

// Not while half of the message slots are taken: then the network itself holds the senders back.
void UcxWorker::Progress() {
  for (int round = 0; round < kProgressRoundsMax && !receive_slots_.low(); ++round) {
    if (ucp_worker_progress(context_->worker()) == 0) return;
  }
}

size_t UcxWorker::Poll(absl::Span<NetEvent> events) {
  ReleasePolled();
  Progress();
  DrainPeers();
  SendAnswers();
  IssueMoves();
  FlushPeers();
  size_t count = 0;
  while (count < events.size() && !events_.empty()) {
    if (TakeEvent(&events[count])) ++count;
  }
  return count;
}

// False: the owner closed the peer in the meantime and wants to hear of its transfers only.
bool UcxWorker::TakeEvent(NetEvent* out) {
  const UcxEvent event = events_.Pop();
  *out = event.event;
  if (event.event.kind == NetEventKind::kTransferDone) return true;
  UcxPeer* peer = Find(event.event.peer);
  if (event.event.kind == NetEventKind::kMessage) {
    polled_.push_back(event.slot);
    if (peer == nullptr) return false;
    --peer->messages;
    return peer->state == UcxPeerState::kOpen || peer->report;
  }
  const bool wanted = peer->report;
  peer->report = false;
  peer->down_queued = false;
  if (peer->released) peer->state = UcxPeerState::kFree;
  if (wanted) ++stats_.peers_lost;
  return wanted;
}

bool UcxWorker::Arm() {
  ReleasePolled();
  if (!events_.empty() || CanIssue() || !flush_wanted_.empty() || receive_slots_.low())
    return false;
  for (uint32_t slot : draining_) {
    if (peers_[slot].drain_polls < kDrainPollsEager) return false;
  }
  return ucp_worker_arm(context_->worker()) == UCS_OK;
}

NetStats UcxWorker::stats() const {
  NetStats stats = stats_;
  stats.messages_held = receive_slots_.held() + send_slots_.held() + data_slots_.held();
  return stats;
}

UcxTransport::UcxTransport(std::unique_ptr<UcxWorker> impl) : worker_(std::move(impl)) {}
UcxTransport::~UcxTransport() = default;

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(const UcxOptions& options) {
  CRUMB_ASSIGN(auto impl, UcxWorker::Create(options));
  return std::make_unique<UcxTransport>(std::move(impl));
}

std::string UcxTransport::MakeHello(uint64_t* cookie) { return worker_->MakeHello(cookie); }
absl::StatusOr<PeerId> UcxTransport::Connect(Bytes hello, uint64_t my_cookie) {
  return worker_->Connect(hello, my_cookie);
}
absl::StatusOr<Region> UcxTransport::Lend(MutableBytes memory) {
  return worker_->context().Lend(memory);
}
void UcxTransport::Unlend(const Region& region) { worker_->context().Unlend(region); }
std::string UcxTransport::Describe() const { return worker_->context().Describe(); }
NetStats UcxTransport::stats() const { return worker_->stats(); }
BlockResult UcxTransport::Send(PeerId peer, Bytes message) { return worker_->Send(peer, message); }
BlockResult UcxTransport::Pull(const Transfer& transfer) {
  return worker_->Start(UcxMoveKind::kPull, transfer);
}
BlockResult UcxTransport::Push(const Transfer& transfer) {
  return worker_->Start(UcxMoveKind::kPush, transfer);
}
absl::Status UcxTransport::RegisterRegions(PeerId peer, uint32_t region_set, const RegionSet& set) {
  return worker_->RegisterRegions(peer, region_set, set);
}
void UcxTransport::ClosePeer(PeerId peer) { worker_->ClosePeer(peer); }
size_t UcxTransport::Poll(absl::Span<NetEvent> events) { return worker_->Poll(events); }
bool UcxTransport::Arm() { return worker_->Arm(); }
int UcxTransport::wake_fd() const { return worker_->context().event_fd(); }

}  // namespace crumb
