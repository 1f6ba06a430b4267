// Connections: made, accepted, watched, ended. A peer's record goes from open over leaving (its
// transfers end) to down (its kPeerDown is in the ring) to free.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/net/uds_core.h"

namespace crumb {
namespace {

constexpr int kAcceptsPerTurn = 16;
constexpr size_t kJobsSpare = 1024;  // unmappings, beside the transfers

void WatchFd(int epoll, int fd, uint64_t name) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = name;
  CRUMB_CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}

}  // namespace

void UdsCore::WatchTimer() { WatchFd(epoll_, timer_, kUdsTimer); }

absl::Status UdsCore::Listen(const std::string& socket_path) {
  if (listen_ >= 0) return absl::FailedPreconditionError(absl::StrCat(path, ": listens already"));
  CRUMB_ASSIGN(listen_, UdsListen(socket_path));
  path = socket_path;
  spare_fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  copies_.resize(options_.transfers_max);
  for (uint32_t i = options_.transfers_max; i > 0; --i) {
    copies_[i - 1].owner = this;
    free_copies_.push_back(i - 1);
  }
  pool_ = std::make_unique<WorkerPool>(options_.copy_threads, options_.transfers_max + kJobsSpare);
  WatchFd(epoll_, listen_, kUdsListener);
  WatchFd(epoll_, pool_->wake_fd(), kUdsPool);
  return absl::OkStatus();
}

absl::StatusOr<PeerId> UdsCore::Connect(const std::string& socket_path) {
  if (Find(daemon_) != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": is connected: one connection at a time"));
  }
  CRUMB_ASSIGN(const int fd, UdsConnect(socket_path));
  UdsPeerRecord* peer = AddPeer(fd);
  if (peer == nullptr) {
    close(fd);
    return absl::ResourceExhaustedError(absl::StrCat(socket_path, ": too many connections"));
  }
  path = socket_path;
  peer->heard = true;  // the daemon speaks when spoken to
  lent_.clear();
  daemon_ = peer->id;
  return peer->id;
}

void UdsCore::AcceptSome() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    const int fd = UdsAccept(listen_);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
      // A connection that cannot be taken would wake us for ever: take it with the spare descriptor
      // and end it.
      close(spare_fd_);
      const int refused = UdsAccept(listen_);
      if (refused >= 0) close(refused);
      spare_fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
      ++stats_.peers_refused;
      return;
    }
    if (fd < 0) return;
    UdsPeerRecord* peer = AddPeer(fd);
    if (peer == nullptr) {
      close(fd);
      ++stats_.peers_refused;
      continue;
    }
    newest = peer->id;
    unheard_.push_back(peer->id);
    if (unheard_.size() == 1) SetTimer(peer->since_us + options_.first_word_us);
  }
}

// Null: no room, or not a process of ours.
UdsPeerRecord* UdsCore::AddPeer(int fd) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return nullptr;
  // The socket's mode says so already; a path that was made world-writable must not change it.
  if (credentials.uid != geteuid() && credentials.uid != 0) return nullptr;
  const auto place = std::find_if(peers_.begin(), peers_.end(), [](const UdsPeerRecord& peer) {
    return peer.state == UdsPeerState::kFree;
  });
  if (place == peers_.end()) return nullptr;
  UdsPeerRecord& peer = *place;
  peer = UdsPeerRecord{};
  peer.state = UdsPeerState::kOpen;
  peer.id = MakePeerId(++serial_, SlotOf(peer));
  peer.fd = fd;
  peer.process = {.pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid};
  peer.since_us = clock_.now_us();
  peer.sends = BoundedRing<UdsSendRecord>(options_.sends_per_peer_max);
  epoll_event event{};
  event.events = peer.watched = EPOLLIN;
  event.data.u64 = peer.id.value;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {  // max_user_watches, or no memory
    peer = UdsPeerRecord{};
    return nullptr;
  }
  return &peer;
}

void UdsCore::SetTimer(uint64_t at_us) {
  const uint64_t now = clock_.now_us();
  const uint64_t wait = at_us > now ? at_us - now : 1;
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(wait / 1'000'000);
  when.it_value.tv_nsec = static_cast<long>(wait % 1'000'000 * 1000);
  CRUMB_CHECK(timerfd_settime(timer_, 0, &when, nullptr) == 0);
}

void UdsCore::CheckFirstWords() {
  uint64_t expirations = 0;
  (void)!read(timer_, &expirations, sizeof(expirations));
  const uint64_t now = clock_.now_us();
  while (!unheard_.empty()) {
    UdsPeerRecord* peer = FindOpen(unheard_.front());
    CRUMB_CHECK(peer != nullptr);
    const uint64_t until = peer->since_us + options_.first_word_us;
    if (until > now) return SetTimer(until);
    ++stats_.peers_refused;
    peer->report = false;
    Leave(peer);  // also takes it off the list
  }
}

UdsPeerRecord* UdsCore::Find(PeerId id) {
  const uint32_t slot = PeerSlot(id);
  if (id.value == 0 || slot >= peers_.size() || peers_[slot].id != id) return nullptr;
  return &peers_[slot];
}

UdsPeerRecord* UdsCore::FindOpen(PeerId id) {
  UdsPeerRecord* peer = Find(id);
  return peer != nullptr && peer->state == UdsPeerState::kOpen ? peer : nullptr;
}

// Tells epoll what is of interest now.
void UdsCore::Watch(UdsPeerRecord* peer) {
  uint32_t wanted = 0;
  if (!peer->stopped) wanted |= EPOLLIN;
  if (!peer->sends.empty()) wanted |= EPOLLOUT;
  if (wanted == peer->watched) return;
  epoll_event event{};
  event.events = peer->watched = wanted;
  event.data.u64 = peer->id.value;
  CRUMB_CHECK(epoll_ctl(epoll_, EPOLL_CTL_MOD, peer->fd, &event) == 0);
}

void UdsCore::Fail(UdsPeerRecord* peer) {
  peer->report = true;
  Leave(peer);
}

void UdsCore::Close(PeerId id) {
  UdsPeerRecord* peer = Find(id);
  if (peer == nullptr) return;
  peer->report = false;
  if (peer->state == UdsPeerState::kOpen) Leave(peer);
}

void UdsCore::Leave(UdsPeerRecord* peer) {
  CRUMB_CHECK(peer->state == UdsPeerState::kOpen);
  peer->state = UdsPeerState::kLeaving;
  if (!peer->heard) std::erase(unheard_, peer->id);
  if (peer->stopped) std::erase(stopped_, SlotOf(*peer));
  DropSends(peer);
  close(peer->fd);  // epoll forgets it
  peer->fd = -1;
  ForgetAllFiles(peer);
  FinishLeaving(peer);
}

void UdsCore::FinishLeaving(UdsPeerRecord* peer) {
  if (peer->state != UdsPeerState::kLeaving || peer->transfers > 0) return;
  if (!peer->report && peer->messages == 0) return Free(peer);
  peer->state = UdsPeerState::kDown;
  PushEvent({.event = {.kind = NetEventKind::kPeerDown,
                       .peer = peer->id,
                       .result = BlockResult::kUnavailable,
                       .message = {}}});
}

void UdsCore::Free(UdsPeerRecord* peer) {
  gpu.Retire(peer);
  *peer = UdsPeerRecord{};
}

}  // namespace crumb
