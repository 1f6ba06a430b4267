// The engine's verbs and its turn. Everything else is in the file of its path.
#include "cachesvc/core/engine.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cachesvc/core/engine_impl.h"

namespace crumb {

using namespace core;  // the names of the engine's own parts; this file only

namespace {

// As many as there are slots, and no more than there are entries.
uint32_t PagesMax(const EngineOptions& options) {
  uint64_t slots = options.pool->arena().size() / kPageAlignment;
  if (options.hbm.pool != nullptr) slots += options.hbm.pool->arena().size() / kPageAlignment;
  return static_cast<uint32_t>(std::min<uint64_t>(slots, options.limits.index_entries_max));
}

}  // namespace

class Engine::Impl final : public EngineImpl {
 public:
  using EngineImpl::EngineImpl;
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() {
  if (impl_->epoll_fd >= 0) close(impl_->epoll_fd);
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  if (options.clock == nullptr || options.pool == nullptr || options.queue == nullptr) {
    return absl::InvalidArgumentError("an engine needs a clock, a pool and a device queue");
  }
  if (options.fresh_percent > 100) {
    return absl::InvalidArgumentError("pool.fresh_percent must be between 0 and 100");
  }
  const EngineLimits& limits = options.limits;
  const std::pair<const char*, uint32_t> counts[] = {
      {"requests_max", limits.requests_max},
      {"requests_per_peer_max", limits.requests_per_peer_max},
      {"blocks_in_flight_max", limits.blocks_in_flight_max},
      {"peers_max", limits.peers_max},
      {"sessions_max", limits.sessions_max},
      {"layouts_max", limits.layouts_max},
      {"pins_max", limits.pins_max},
      {"transfers_max", limits.transfers_max},
      {"evictions_max", limits.evictions_max},
      {"prefetches_max", limits.prefetches_max}};
  constexpr uint32_t kCountMax = 1u << 20;
  for (const auto& [name, count] : counts) {
    if (count >= 1 && count <= kCountMax) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("limits.", name, " is ", count, "; it must be between 1 and ", kCountMax));
  }
  EngineBooks books;
  CRUMB_ASSIGN(books.index, Index::Create(limits.index_entries_max, nullptr));
  const uint32_t pages_max = PagesMax(options);
  CRUMB_ASSIGN(books.pages, Residents::Create(pages_max));
  CRUMB_ASSIGN(books.chains, Chains::Create(limits.index_entries_max, pages_max));
  CRUMB_ASSIGN(books.policy, MakePolicy(options.policy, pages_max));
  if (options.hbm.pool != nullptr) {
    if (options.hbm.lower == nullptr || options.hbm.raise == nullptr) {
      return absl::InvalidArgumentError("an HBM pool needs a link each way to the DRAM pool");
    }
    CRUMB_ASSIGN(books.hbm_policy, MakePolicy(options.policy, pages_max));
  }
  if (options.nvme_admission != NvmeAdmission::kAll ||
      options.nvme_promotion != NvmePromotion::kFirst) {
    const uint64_t keys = std::min<uint64_t>(uint64_t{kSeenWindow} * pages_max, 1u << 31);
    CRUMB_ASSIGN(books.seen_keys, GhostKeys::Create(static_cast<uint32_t>(keys)));
  }
  const uint64_t owners = options.pool->arena().size() / kPageAlignment;
  CRUMB_ASSIGN(books.owner_memory, Arena::Map(owners * sizeof(uint32_t), HugePages::kNo));
  books.slot_owner = {reinterpret_cast<uint32_t*>(books.owner_memory.bytes().data()), owners};
  return std::unique_ptr<Engine>(new Engine(std::make_unique<Impl>(options, std::move(books))));
}

SegmentLog::RecoverySink* Engine::recovery_sink() { return impl_.get(); }
void Engine::SetLog(SegmentLog* log) {
  impl_->log = log;
  impl_->LinkRecovered();
}

uint32_t Engine::AddTransport(Transport* transport, MappedMemory* mapped, GpuMemory* gpu) {
  impl_->transports.push_back(transport);
  impl_->mapped.push_back(mapped);
  impl_->gpus.push_back(gpu);
  impl_->polled.emplace_back();
  return static_cast<uint32_t>(impl_->transports.size()) - 1;
}

absl::Status Engine::CheckLayout(LayoutBinding binding) const {
  return Binding::Make(impl_->options.secret, std::move(binding), *impl_->options.pool).status();
}

absl::Status Engine::BindLayout(uint32_t handle, LayoutBinding binding) {
  CRUMB_ASSIGN(auto made,
               Binding::Make(impl_->options.secret, std::move(binding), *impl_->options.pool));
  const auto it = impl_->bindings.find(handle);
  if (it == impl_->bindings.end()) {
    if (impl_->bindings.size() >= impl_->options.limits.layouts_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat("limits.layouts_max: ", impl_->bindings.size(), " layouts are bound"));
    }
    impl_->layouts[{made->identity_prefix(), made->tenant_prefix()}] = made;
    impl_->bindings.emplace(handle, std::move(made));
    return absl::OkStatus();
  }
  if (it->second->layout().hash() != made->layout().hash() ||
      it->second->tenant() != made->tenant()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout handle ", handle, " belongs to another identity or tenant"));
  }
  impl_->layouts[{made->identity_prefix(), made->tenant_prefix()}] = made;
  it->second = std::move(made);
  return absl::OkStatus();
}

absl::Status Engine::OpenSession(SessionId session, std::string tenant) {
  if (session.value == 0) return absl::InvalidArgumentError("session 0 is no session");
  for (const std::unique_ptr<Session>& closing : impl_->closing) {
    if (closing->id == session) {
      return absl::AlreadyExistsError("the session of that id is still being closed: use a new id");
    }
  }
  if (impl_->sessions.size() + impl_->closing.size() >= impl_->options.limits.sessions_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("limits.sessions_max: ", impl_->sessions.size(), " sessions are open"));
  }
  auto made = std::make_unique<Session>(impl_->options.limits.served_per_session_max);
  made->id = session;
  made->tenant = std::move(tenant);
  if (!impl_->sessions.try_emplace(session.value, std::move(made)).second) {
    return absl::AlreadyExistsError("a session of that id is open");
  }
  return absl::OkStatus();
}

absl::Status Engine::AttachPeer(SessionId session, uint32_t transport, PeerId peer) {
  return impl_->AttachPeer(session, transport, peer);
}

absl::Status Engine::RegisterRegions(SessionId session_id, uint32_t region_set,
                                     uint32_t layout_handle, RegionSetSpec spec) {
  Session* session = impl_->FindSession(session_id);
  if (session == nullptr) return absl::NotFoundError("no such session: say Hello again");
  const auto binding = impl_->FindBinding(layout_handle, *session);
  if (binding == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("layout handle ", layout_handle, " is not registered for this tenant"));
  }
  CRUMB_ASSIGN(RegionSet set, RegionSet::Make(std::move(spec), binding->layout()));
  std::vector<RegisteredSet>& sets = session->region_sets;
  const auto old = std::find_if(sets.begin(), sets.end(), [region_set](const RegisteredSet& other) {
    return other.id == region_set;
  });
  const uint32_t most = impl_->options.limits.region_sets_per_session_max;
  if (old == sets.end() && sets.size() >= most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("limits.region_sets_per_session_max: the session has ", sets.size()));
  }
  RegisteredSet made{region_set, layout_handle, std::move(set)};
  for (const uint32_t peer : session->peers) {
    Peer& to = impl_->peers[peer];
    CRUMB_TRY(impl_->transports[to.transport]->RegisterRegions(to.id, region_set, made.set));
    CRUMB_TRY(impl_->RegisterGpu(&to, made));
  }
  if (old != sets.end()) sets.erase(old);
  sets.push_back(std::move(made));
  return absl::OkStatus();
}

void Engine::CloseSession(SessionId session_id) {
  Session* session = impl_->FindSession(session_id);
  if (session == nullptr) return;
  while (!session->peers.empty()) impl_->DropPeer(session->peers.back());
  const auto found = impl_->sessions.find(session_id.value);
  impl_->closing.push_back(std::move(found->second));  // its pins go a little per turn
  impl_->sessions.erase(found);
  impl_->RunClosing();
}

size_t Engine::PeersOf(SessionId session_id) const {
  const Session* session = impl_->FindSession(session_id);
  return session == nullptr ? 0 : session->peers.size();
}

BlockResults Engine::Pin(const PinRequest& request) {
  ++impl_->counts.requests[static_cast<size_t>(EngineOp::kPin)];
  BlockResults results(request.digests.size(), BlockResult::kInvalid);
  Session* session = impl_->FindSession(request.session);
  const auto binding =
      session == nullptr ? nullptr : impl_->FindBinding(request.layout_handle, *session);
  for (size_t i = 0; i < results.size() && binding != nullptr; ++i) {
    results[i] = impl_->PinBlock(*session, *binding, request.digests[i], request.ttl_us);
  }
  for (const BlockResult result : results) {
    ++impl_->counts.blocks[static_cast<size_t>(EngineOp::kPin)][static_cast<size_t>(result)];
  }
  return results;
}

void Engine::Flush(const FlushRequest& request, std::function<void(absl::Status)> done) {
  impl_->StartFlush(request, std::move(done));
}

void Engine::ResizeDisk(uint64_t bytes, std::function<void(absl::Status)> done) {
  impl_->StartResize(bytes, std::move(done));
}

void Engine::Drain(uint64_t deadline_us, std::function<void()> done) {
  impl_->StartDrain(deadline_us, std::move(done));
}

const std::vector<uint64_t>& Engine::unknown_position_layouts() const {
  return impl_->unknown_layouts;
}
EngineStats Engine::stats() const { return impl_->Stats(); }
int Engine::Poll() { return impl_->Poll(); }
int Engine::RunReady() { return impl_->RunReady(); }

bool Engine::Arm() {
  Impl& impl = *impl_;
  if (!impl.ready.empty() || !impl.links.empty() || !impl.gate_wait.empty()) return false;
  if (impl.options.queue->in_flight() > 0 && impl.options.queue->wake_fd() < 0) return false;
  if (impl.log != nullptr && !impl.log->idle() && impl.log->wake_fd() < 0) return false;
  bool armed = impl.options.queue->Arm();
  for (Transport* transport : impl.transports) armed = transport->Arm() && armed;
  return armed;
}

bool Engine::WorthSpinning() const { return impl_->options.queue->in_flight() == 0; }

int Engine::wake_fd() const {
  Impl& impl = *impl_;
  if (impl.epoll_fd >= 0) return impl.epoll_fd;
  std::vector<int> fds = {impl.options.queue->wake_fd()};
  if (impl.log != nullptr) fds.push_back(impl.log->wake_fd());
  for (Transport* transport : impl.transports) fds.push_back(transport->wake_fd());
  std::erase_if(fds, [](int fd) { return fd < 0; });
  if (fds.empty()) return -1;
  impl.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  CRUMB_CHECK(impl.epoll_fd >= 0);
  for (const int fd : fds) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    CRUMB_CHECK(epoll_ctl(impl.epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0);
  }
  return impl.epoll_fd;
}

uint64_t Engine::next_timer_us() const {
  const Impl& impl = *impl_;
  uint64_t next = std::min(impl.request_timers.next_us(), impl.pin_timers.next_us());
  next = std::min({next, impl.NextIdleUs(), impl.NextSpareUs()});
  if (impl.drain.active) next = std::min(next, impl.drain.deadline_us);
  const bool refused =
      !impl.transfer_wait.empty() || !impl.queue_wait.empty() || !impl.disk_wait.empty() ||
      !impl.share_wait.empty() || !impl.unsent.empty() || !impl.unverified.empty() ||
      !impl.forgets.empty() || !impl.slot_wait.empty() || !impl.fresh_wait.empty() ||
      !impl.prefetch_wait.empty() || impl.DemotionsWait() || impl.flushes.taken() > 0 ||
      !impl.closing.empty() || impl.moves.taken() > 0 || impl.drain.active;
  return refused ? std::min(next, impl.now() + kRetryUs) : next;
}

}  // namespace crumb
