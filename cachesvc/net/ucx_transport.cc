// The turn of the UCX transport, its making and its end. Must never run UCX outside Poll, Arm and
// the calls of the owner. Transport's thread.
#include "cachesvc/net/ucx_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/net/ucx_core.h"

namespace crumb {
namespace {

constexpr int kRoundsPerPeer = 8;        // of one Poll
constexpr uint32_t kQuietPolls = 64;     // a peer that did nothing for so long ...
constexpr uint64_t kQuietStride = 16;    // ... is looked at in every so many Polls
constexpr uint64_t kPollsToWatch = 256;  // a system call is not made in every turn
constexpr uint32_t kAnswersMax = 4096;   // of all peers
constexpr int kEndRoundsMax = 256;       // of the destructor

absl::Status CheckLimit(const char* name, uint32_t value, uint32_t max) {
  if (value > 0 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", value, " given; 1 to ", max));
}

absl::Status CheckOptions(const UcxOptions& o) {
  CRUMB_TRY(CheckLimit("peers_max", o.peers_max, kPeersLimit - 1));
  CRUMB_TRY(CheckLimit("transfers_max", o.transfers_max, 1u << 20));
  CRUMB_TRY(CheckLimit("transfers_per_peer_max", o.transfers_per_peer_max, 1u << 20));
  CRUMB_TRY(CheckLimit("operations_max", o.operations_max, 1u << 20));
  CRUMB_TRY(CheckLimit("operations_per_peer_max", o.operations_per_peer_max, kUcxFifoSlots / 2));
  CRUMB_TRY(CheckLimit("messages_max", o.messages_max, 1u << 20));
  CRUMB_TRY(CheckLimit("messages_per_peer_max", o.messages_per_peer_max, 1u << 20));
  CRUMB_TRY(CheckLimit("sends_max", o.sends_max, 1u << 20));
  return CheckLimit("sends_per_peer_max", o.sends_per_peer_max, 1u << 20);
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxCore>> UcxCore::Create(const UcxOptions& options) {
  CRUMB_TRY(CheckOptions(options));
  CRUMB_ASSIGN(auto context, UcxContext::Create(options));
  CRUMB_ASSIGN(auto watch, ProcessWatch::Create(options.peers_max));
  return std::make_unique<UcxCore>(options, std::move(context), std::move(watch));
}

UcxCore::UcxCore(const UcxOptions& options, std::unique_ptr<UcxContext> context,
                 std::unique_ptr<ProcessWatch> watch)
    : options_(options),
      context_(std::move(context)),
      watch_(std::move(watch)),
      receive_slots_(options.messages_max),
      send_slots_(options.sends_max),
      data_slots_(kCopyMessageBytesMax, options.peers_max * kUcxDataSendsMax + 1),
      moves_(options.transfers_max),
      copies_(options.operations_max),
      text_sends_(send_slots_.total()),
      data_sends_(data_slots_.count()),
      peers_(options.peers_max),
      ready_(options.peers_max),
      flush_wanted_(options.peers_max),
      answers_(kAnswersMax),
      events_(size_t{receive_slots_.total()} + options.transfers_max + options.peers_max) {
  free_moves_.reserve(moves_.size());
  for (size_t i = moves_.size(); i > 0; --i) free_moves_.push_back(static_cast<uint32_t>(i - 1));
  free_copies_.reserve(copies_.size());
  for (size_t i = copies_.size(); i > 0; --i) free_copies_.push_back(static_cast<uint32_t>(i - 1));
  for (auto* list : {&linked_, &leaving_, &unheard_, &gone_, &readable_}) {
    list->reserve(peers_.size());
  }
  polled_.reserve(receive_slots_.total());
}

UcxCore::~UcxCore() {
  ending_ = true;
  for (UcxPeer& peer : peers_) {
    peer.report = false;
    Doom(&peer, UcxReport::kNo);
  }
  // Completions have nobody to go to any more: the ring is emptied as it fills.
  for (int round = 0; round < kEndRoundsMax && !leaving_.empty(); ++round) {
    Progress();
    LeavePeers();
    while (!events_.empty()) events_.Pop();
  }
  CRUMB_CHECK(leaving_.empty());  // none waits longer for its goodbye
}

uint32_t UcxCore::SlotOf(const UcxPeer& peer) const {
  return static_cast<uint32_t>(&peer - peers_.data());
}

void UcxCore::PushEvent(const UcxEvent& event) {
  const bool queued = events_.Push(event);
  CRUMB_CHECK(queued);  // one place for every message slot, move and peer
}

// Not while half of the message slots are taken: then the network itself holds the senders back.
void UcxCore::Progress() {
  ++polls_;
  for (uint32_t slot : linked_) {
    UcxPeer& peer = peers_[slot];
    if (peer.idle_polls > kQuietPolls && (polls_ + slot) % kQuietStride != 0) continue;
    ++peer.idle_polls;
    for (int round = 0; round < kRoundsPerPeer && !receive_slots_.low(); ++round) {
      if (!peer.link->Progress()) break;
      peer.idle_polls = 0;
    }
  }
}

size_t UcxCore::Poll(absl::Span<NetEvent> events) {
  ReleasePolled();
  if (armed_ || polls_ % kPollsToWatch == 0) WatchPeers();
  armed_ = false;
  Progress();
  LeavePeers();
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
bool UcxCore::TakeEvent(NetEvent* out) {
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
  peer->state = UcxPeerState::kFree;
  peer->id = PeerId{};
  if (wanted) ++stats_.peers_lost;
  return wanted;
}

bool UcxCore::Arm() {
  ReleasePolled();
  WatchPeers();
  if (!events_.empty() || !leaving_.empty()) return false;
  if (CanIssue() || !flush_wanted_.empty() || receive_slots_.low()) return false;
  if (!answers_.empty() && !answers_blocked_) return false;
  for (uint32_t slot : linked_) {
    if (peers_[slot].link->Arm()) continue;
    peers_[slot].idle_polls = 0;
    return false;
  }
  armed_ = true;
  return true;
}

NetStats UcxCore::stats() const {
  NetStats stats = stats_;
  stats.messages_held = receive_slots_.held() + send_slots_.held() + data_slots_.held();
  return stats;
}

UcxTransport::UcxTransport(std::unique_ptr<UcxCore> core) : core_(std::move(core)) {}
UcxTransport::~UcxTransport() = default;

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(const UcxOptions& options) {
  CRUMB_ASSIGN(auto core, UcxCore::Create(options));
  return std::make_unique<UcxTransport>(std::move(core));
}

std::string UcxTransport::MakeHello(uint64_t* cookie) { return core_->MakeHello(cookie); }
absl::StatusOr<PeerId> UcxTransport::Connect(Bytes hello, uint64_t my_cookie) {
  return core_->Connect(hello, my_cookie);
}
absl::StatusOr<Region> UcxTransport::Lend(MutableBytes memory) {
  return core_->context().Lend(memory);
}
void UcxTransport::Unlend(const Region& region) { core_->context().Unlend(region); }
std::string UcxTransport::Describe() const { return core_->context().Describe(); }
NetStats UcxTransport::stats() const { return core_->stats(); }
BlockResult UcxTransport::Send(PeerId peer, Bytes message) { return core_->Send(peer, message); }
BlockResult UcxTransport::Pull(const Transfer& transfer) {
  return core_->Start(UcxMoveKind::kPull, transfer);
}
BlockResult UcxTransport::Push(const Transfer& transfer) {
  return core_->Start(UcxMoveKind::kPush, transfer);
}
absl::Status UcxTransport::RegisterRegions(PeerId peer, uint32_t region_set, const RegionSet& set) {
  return core_->RegisterRegions(peer, region_set, set);
}
void UcxTransport::ClosePeer(PeerId peer) { core_->ClosePeer(peer); }
size_t UcxTransport::Poll(absl::Span<NetEvent> events) { return core_->Poll(events); }
bool UcxTransport::Arm() { return core_->Arm(); }
int UcxTransport::wake_fd() const { return core_->wake_fd(); }

}  // namespace crumb
