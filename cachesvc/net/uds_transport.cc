// The turn of the unix-socket transport: what epoll says, copies that ended, events out.
#include "cachesvc/net/uds_transport.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/net/guarded_copy.h"
#include "cachesvc/net/uds_core.h"

namespace crumb {
namespace {
constexpr int kReadyMax = 64;  // descriptors looked at in one Poll
}  // namespace

absl::StatusOr<std::unique_ptr<UdsCore>> UdsCore::Create(const UdsOptions& options) {
  const bool sane = options.peers_max >= 1 && options.peers_max < kPeersLimit &&
                    options.transfers_max >= 1 && options.messages_max >= 1 &&
                    options.sends_max >= 1 && options.sends_per_peer_max >= 1 &&
                    options.messages_per_peer_max >= 1 && options.copy_threads >= 1;
  if (!sane) return absl::InvalidArgumentError("unix sockets: a limit is 0 or too large");
  if (!InstallCopyGuard()) return absl::InternalError("unix sockets: no SIGBUS handler");
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (epoll < 0 || timer < 0) {
    const absl::Status status =
        absl::ResourceExhaustedError(absl::StrCat("unix sockets: epoll: ", std::strerror(errno)));
    if (epoll >= 0) close(epoll);
    if (timer >= 0) close(timer);
    return status;
  }
  return std::make_unique<UdsCore>(options, epoll, timer);
}

UdsCore::UdsCore(const UdsOptions& options, int epoll_fd, int timer_fd)
    : gpu(this, options),
      options_(options),
      epoll_(epoll_fd),
      timer_(timer_fd),
      receive_slots_(options.messages_max),
      send_slots_(options.sends_max),
      packet_(std::make_unique_for_overwrite<uint8_t[]>(kUdsFrameBytesMax + 1)),
      peers_(options.peers_max),
      events_(size_t{receive_slots_.total()} + options.transfers_max + options.peers_max) {
  unheard_.reserve(options.peers_max);
  stopped_.reserve(options.peers_max);
  polled_.reserve(receive_slots_.total());
  WatchTimer();
}

UdsCore::~UdsCore() {
  for (UdsPeerRecord& peer : peers_) {
    if (peer.state == UdsPeerState::kOpen) Close(peer.id);
  }
  // Copies hold pointers into this object; whoever holds mapped memory must have let go of it.
  std::array<uint64_t, 64> tokens{};
  while (pool_ != nullptr && pool_->in_flight() > 0) {
    if (pool_->Poll(absl::MakeSpan(tokens)) == 0) usleep(100);
  }
  pool_.reset();
  for (UdsPeerRecord& peer : peers_) gpu.Retire(&peer);
  gpu.TakeAnswers();
  for (UdsFile& file : files_) {
    if (file.used && file.gpu != nullptr) gpu.Unmap(&file);
    if (file.used) UdsUnmap(file.mapping);
  }
  if (listen_ >= 0) {
    close(listen_);
    unlink(path.c_str());
  }
  if (spare_fd_ >= 0) close(spare_fd_);
  close(timer_);
  close(epoll_);
}

uint32_t UdsCore::SlotOf(const UdsPeerRecord& peer) const {
  return static_cast<uint32_t>(&peer - peers_.data());
}

void UdsCore::Progress() {
  std::array<epoll_event, kReadyMax> ready;
  const int count = epoll_wait(epoll_, ready.data(), kReadyMax, 0);
  for (int i = 0; i < count; ++i) OnReady(ready[static_cast<size_t>(i)]);
  TakeJobs();
  gpu.TakeAnswers();
}

void UdsCore::OnReady(const epoll_event& ready) {
  switch (ready.data.u64) {
    case kUdsListener:
      return AcceptSome();
    case kUdsTimer:
      return CheckFirstWords();
    case kUdsPool:
      return;  // TakeJobs looks
    default:
      break;
  }
  UdsPeerRecord* peer = FindOpen(PeerId{ready.data.u64});
  if (peer == nullptr) return;
  if ((ready.events & (EPOLLHUP | EPOLLERR)) != 0) return Fail(peer);  // gone: nobody to answer
  if ((ready.events & EPOLLOUT) != 0) FlushSends(peer);
  if ((ready.events & EPOLLIN) != 0 && peer->state == UdsPeerState::kOpen) ReceiveSome(peer);
}

void UdsCore::PushEvent(const UdsEvent& event) {
  CRUMB_CHECK(events_.Push(event));  // sized for every slot, transfer and peer
}

// False: the event was of a peer that nobody wants to hear of any more.
bool UdsCore::TakeEvent(NetEvent* out) {
  const UdsEvent event = events_.Pop();
  *out = event.event;
  UdsPeerRecord* peer = Find(event.event.peer);
  switch (event.event.kind) {
    case NetEventKind::kTransferDone:
      --transfers_;
      return true;
    case NetEventKind::kMessage:
      polled_.push_back(event.slot);
      if (peer == nullptr) return false;
      --peer->messages;
      if (peer->state != UdsPeerState::kOpen && !peer->report) return false;
      ++stats_.messages_received;
      return true;
    case NetEventKind::kPeerDown:
      break;
  }
  CRUMB_CHECK(peer != nullptr && peer->state == UdsPeerState::kDown);
  const bool wanted = peer->report;
  if (wanted) ++stats_.peers_lost;
  Free(peer);
  return wanted;
}

size_t UdsCore::Poll(absl::Span<NetEvent> events) {
  for (const uint32_t slot : polled_) receive_slots_.Give(slot);
  polled_.clear();
  if (!stopped_.empty()) ResumeReading();
  Progress();
  size_t count = 0;
  while (count < events.size() && !events_.empty()) {
    if (TakeEvent(&events[count])) ++count;
  }
  return count;
}

bool UdsCore::Arm() {
  const bool copies = pool_ == nullptr || pool_->Arm();
  return copies && events_.empty() && (polled_.empty() || stopped_.empty());
}

NetStats UdsCore::stats() const {
  NetStats out = stats_;
  for (const UdsPeerRecord& peer : peers_) {
    if (peer.state == UdsPeerState::kOpen) ++out.peers;
    const bool ending = peer.state == UdsPeerState::kLeaving || peer.state == UdsPeerState::kDown;
    if (ending) ++out.peers_closing;
  }
  out.transfers_pending = transfers_;
  out.operations_in_flight = static_cast<uint32_t>(copies_.size() - free_copies_.size());
  out.messages_held = receive_slots_.held() + send_slots_.held();
  return out;
}

UdsTransport::UdsTransport(std::unique_ptr<UdsCore> core) : core_(std::move(core)) {}
UdsTransport::~UdsTransport() = default;

absl::StatusOr<std::unique_ptr<UdsTransport>> UdsTransport::Create(const UdsOptions& options) {
  CRUMB_ASSIGN(std::unique_ptr<UdsCore> core, UdsCore::Create(options));
  return std::make_unique<UdsTransport>(std::move(core));
}

absl::Status UdsTransport::Listen(const std::string& path) { return core_->Listen(path); }
PeerId UdsTransport::newest_peer() const { return core_->newest; }
UdsPeer UdsTransport::peer_info(PeerId peer) const {
  const UdsPeerRecord* found = core_->FindOpen(peer);
  return found == nullptr ? UdsPeer{} : found->process;
}
absl::StatusOr<PeerId> UdsTransport::Connect(const std::string& path) {
  return core_->Connect(path);
}
absl::StatusOr<Region> UdsTransport::Lend(const SharedRange& range) { return core_->Lend(range); }
void UdsTransport::Unlend(const Region& region) { core_->Unlend(region); }
std::string UdsTransport::Describe() const { return core_->path; }
NetStats UdsTransport::stats() const { return core_->stats(); }
UdsStats UdsTransport::uds_stats() const { return core_->uds_stats; }
BlockResult UdsTransport::Send(PeerId peer, Bytes message) { return core_->Send(peer, message); }
BlockResult UdsTransport::Pull(const Transfer& transfer) {
  return core_->StartCopy(transfer, MappedUse::kRead);
}
BlockResult UdsTransport::Push(const Transfer& transfer) {
  return core_->StartCopy(transfer, MappedUse::kWrite);
}
absl::Status UdsTransport::RegisterRegions(PeerId peer, uint32_t region_set, const RegionSet& set) {
  return core_->RegisterRegions(peer, region_set, set);
}
void UdsTransport::ClosePeer(PeerId peer) { core_->Close(peer); }
size_t UdsTransport::Poll(absl::Span<NetEvent> events) { return core_->Poll(events); }
bool UdsTransport::Arm() { return core_->Arm(); }
int UdsTransport::wake_fd() const { return core_->epoll_fd(); }
BlockResult UdsTransport::Hold(const Transfer& transfer, MappedUse use, MappedHold* hold) {
  return core_->Hold(transfer, use, hold);
}
bool UdsTransport::Release(MappedHold* hold, MappedUse use, uint64_t bytes) {
  return core_->Release(hold, use, bytes);
}
void UdsTransport::SetGpuMapper(GpuMapper* mapper) { core_->gpu.SetMapper(mapper); }
absl::StatusOr<Region> UdsTransport::LendGpu(const GpuRange& range) {
  return core_->LendGpu(range);
}
GpuLink* UdsTransport::LinkOf(PeerId peer, uint32_t region_set) const {
  return core_->gpu.LinkOf(peer, region_set);
}
std::vector<uint64_t> UdsTransport::AddressesOf(PeerId peer, uint32_t region_set) const {
  return core_->gpu.AddressesOf(peer, region_set);
}
bool UdsTransport::Reached(PeerId peer, uint64_t ticket) const {
  return core_->gpu.Reached(peer, ticket);
}

BlockResult UdsTransport::HoldGpu(PeerId peer, uint32_t region_set, GpuHold* hold) {
  return core_->gpu.Hold(peer, region_set, hold);
}
bool UdsTransport::ReleaseGpu(GpuHold* hold, MappedUse use, uint64_t bytes) {
  return core_->gpu.Release(hold, use, bytes);
}

}  // namespace crumb
