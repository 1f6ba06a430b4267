// The shard's thread: builds its parts in order, turns the loop, takes them down in reverse.
#include "cachesvc/server/shard.h"

#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cachesvc/base/loop.h"
#include "cachesvc/net/loopback_transport.h"
#include "cachesvc/server/nvme_space.h"
#include "cachesvc/server/pool_touch.h"
#include "cachesvc/server/unix_socket.h"
#include "gpu/device/host_queue.h"
#include "gpu/pool/page_pool.h"
#include "storage/device/file_device.h"
#include "storage/device/registered_slices.h"
#include "storage/device/stripe_set.h"
#include "storage/segment/segment_log.h"

namespace crumb {
namespace {

constexpr uint32_t kCodecJobsMax = 1024;
constexpr uint32_t kLoopbackTransfersMax = 512;
constexpr uint64_t kIndexEntriesMin = 1 << 16;
constexpr uint64_t kIndexEntriesMax = 1 << 24;
constexpr uint64_t kQuiesceUs = 2'000'000;
constexpr size_t kRecoveredKindsMax = 4096;

// Counts what comes back on its way to the engine.
class CountingSink final : public SegmentLog::RecoverySink {
 public:
  CountingSink(SegmentLog::RecoverySink* engine, std::map<RecoveredKind, uint64_t>* counts)
      : engine_(engine), counts_(counts) {}
  void Expect(uint64_t records) override { engine_->Expect(records); }
  void OnRecords(absl::Span<const RecoveredRecord> records) override {
    for (const RecoveredRecord& record : records) {
      const RecoveredKind kind{.identity_prefix = record.header.identity_prefix,
                               .codec_id = record.header.codec_id};
      if (count_ == nullptr || kind != last_) count_ = CountOf(kind);
      last_ = kind;
      if (count_ != nullptr) ++*count_;
    }
    engine_->OnRecords(records);
  }

 private:
  uint64_t* CountOf(const RecoveredKind& kind) {
    if (counts_->size() >= kRecoveredKindsMax && !counts_->contains(kind)) return nullptr;
    return &(*counts_)[kind];
  }

  SegmentLog::RecoverySink* engine_;
  std::map<RecoveredKind, uint64_t>* counts_;
  RecoveredKind last_;  // kinds come in rows
  uint64_t* count_ = nullptr;
};

std::string CutWarning(const std::vector<std::string>& files, uint64_t bytes, uint64_t missing) {
  return absl::StrCat("nvme.path: ", absl::StrJoin(files, ", "), ": the file was cut: it had ",
                      bytes, " bytes where its superblock says ", bytes + missing,
                      ": pages that lay beyond are misses, it has its full length again: restore "
                      "it from a copy (daemon stopped) if they matter, and find what cut it");
}

absl::Status AcceptLogAlone(Bytes head) {
  CRUMB_TRY(RefuseStripeMember(head));
  return SegmentLog::CheckHead(head);
}

absl::StatusOr<FileDevice> OpenNvme(const std::vector<std::string>& files, uint64_t bytes) {
  if (files.size() > 1) {
    return OpenStripeSet(
        {.paths = files, .bytes = bytes, .each = {.accept = &SegmentLog::CheckHead}});
  }
  return OpenFileDevice({.path = files.front(),
                         .bytes = bytes / kPageAlignment * kPageAlignment,
                         .accept = &AcceptLogAlone});
}

// 0: some is not there, or no regular file.
uint64_t LengthOf(const std::vector<std::string>& files) {
  uint64_t bytes = 0;
  for (const std::string& file : files) {
    struct stat info {};
    if (::lstat(file.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return 0;
    bytes += static_cast<uint64_t>(info.st_size) / kPageAlignment * kPageAlignment;
  }
  return bytes;
}

EngineLimits LimitsOf(const Config& config) {
  const LimitsConfig& from = config.limits;
  EngineLimits limits;
  limits.requests_max = static_cast<uint32_t>(from.requests);
  limits.requests_per_peer_max = static_cast<uint32_t>(from.requests_per_peer);
  limits.blocks_in_flight_max = static_cast<uint32_t>(from.blocks_in_flight);
  limits.sessions_max = static_cast<uint32_t>(2 * from.sessions);  // and their shadows
  limits.peers_max = static_cast<uint32_t>(2 * from.sessions);
  limits.layouts_max = static_cast<uint32_t>(from.layouts);
  limits.region_sets_per_session_max = static_cast<uint32_t>(from.region_sets_per_session);
  limits.waiters_max = static_cast<uint32_t>(from.waiters);
  limits.pins_max = static_cast<uint32_t>(from.pins);
  // As many pages of the smallest size as fit in all tiers.
  limits.index_entries_max = static_cast<uint32_t>(
      std::clamp((config.pool.dram_bytes + config.nvme.bytes) / kPageAlignment, kIndexEntriesMin,
                 kIndexEntriesMax));
  limits.default_deadline_us = from.deadline_us;
  limits.deadline_us_max = from.deadline_us_max;
  limits.pin_ttl_us_max = from.pin_ttl_us_max;
  return limits;
}

}  // namespace

struct Shard::Impl {
  explicit Impl(const ShardOptions& o) : options(o), loop(*o.clock) {}

  // Declared in the order in which they are made; destroyed in reverse.
  ShardOptions options;
  Loop loop;
  std::unique_ptr<PagePool> pool;
  bool pool_touched = false;
  std::unique_ptr<HostQueue> queue;
  FileDevice device;
  std::unique_ptr<LoopbackTransport> loopback;
  std::unique_ptr<UcxTransport> ucx;
  SocketPlace data_place;
  std::unique_ptr<UdsTransport> uds;
  std::unique_ptr<SegmentLog> log;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<StreamHub> streams;
  uint32_t ucx_index = 0;
  std::thread thread;
  absl::Status end;

  absl::Status Build(ShardReport* report);
  absl::Status AttachGpu();
  absl::Status OpenLog(ShardReport* report);
  absl::Status Shrink(uint64_t bytes);
  absl::Status RegisterBuffers(ShardReport* report);
  void OpenUcx(ShardReport* report);
  void OpenDataSocket(ShardReport* report);
  absl::Status ListenForData(const std::string& path);
  void Run(const std::shared_ptr<std::promise<absl::Status>>& started, ShardReport* report);
  absl::Status Quiesce();
  void EndTransports();
  bool Post(Shard::Function function);

  ShardView View() {
    return {.engine = *engine,
            .streams = *streams,
            .ucx = ucx.get(),
            .ucx_transport = ucx_index,
            .uds = uds.get(),
            .loopback = loopback->stats(),
            .busy_us = loop.busy_us()};
  }
};

absl::Status Shard::Impl::Build(ShardReport* report) {
  const Config& config = *options.config;
  CRUMB_ASSIGN(pool, PagePool::Create(
                         {.bytes = config.pool.dram_bytes, .hugepages = config.pool.hugepages}));
  CRUMB_TRY(AttachGpu());
  queue = std::make_unique<HostQueue>(HostQueueOptions{
      .threads = static_cast<uint32_t>(config.codec.threads), .jobs_max = kCodecJobsMax});
  loopback = LoopbackTransport::Create(kLoopbackTransfersMax);
  EngineOptions engine_options;
  engine_options.limits = LimitsOf(config);
  engine_options.policy = config.pool.policy == "lru" ? PolicyKind::kLru : PolicyKind::kS3Fifo;
  if (config.nvme.admission == "seen") engine_options.nvme_admission = NvmeAdmission::kSeen;
  if (config.nvme.promotion == "second") engine_options.nvme_promotion = NvmePromotion::kSecond;
  engine_options.secret = options.secret;
  engine_options.clock = options.clock;
  engine_options.pool = pool.get();
  engine_options.queue = queue.get();
  engine_options.hbm = options.gpu->hbm();
  engine_options.gpu_stage = options.gpu->stage();
  engine_options.disk = {.write_bytes_per_day = config.nvme.write_bytes_per_day,
                         .rescue = config.nvme.rescue,
                         .scrub_bytes_per_second = config.nvme.scrub_bytes_per_second,
                         .save = config.shutdown_save,
                         .scrub_interval_us = config.nvme.scrub_interval_us};
  engine_options.fresh_percent = static_cast<uint8_t>(config.pool.fresh_percent);
  engine_options.fresh_idle_us = config.codec.windows_idle_us;
  engine_options.max_lossy_depth = static_cast<uint8_t>(config.codec.max_lossy_depth);
  CRUMB_ASSIGN(engine, Engine::Create(engine_options));
  CRUMB_TRY(OpenLog(report));
  const uint32_t loopback_index = engine->AddTransport(loopback.get());
  streams = std::make_unique<StreamHub>(
      engine.get(), loopback.get(), loopback_index, options.staging->arena(),
      static_cast<uint32_t>(config.limits.region_sets_per_session));
  OpenUcx(report);
  OpenDataSocket(report);
  loop.AddPoller(engine.get());
  return absl::OkStatus();
}

// WHY touched before: see RegisterBuffers. CUDA, too, holds the memory map while it pins.
absl::Status Shard::Impl::AttachGpu() {
  if (!options.gpu->on()) return absl::OkStatus();
  CRUMB_TRY(TouchPool(pool->arena(), options.watch));
  pool_touched = true;
  options.watch->Say("registering the pool with CUDA");
  CRUMB_TRY(options.gpu->Attach(pool->arena(), [this] { (void)Post([](const ShardView&) {}); }));
  return options.watch->Check();
}

absl::Status Shard::Impl::OpenLog(ShardReport* report) {
  const Config& config = *options.config;
  if (options.nvme_files.empty()) {
    report->nvme = "off: nvme.bytes is 0";
    return absl::OkStatus();
  }
  options.watch->Say("opening the file of the NVMe tier");
  const uint64_t wanted = NvmeDataBytes(config.nvme.bytes, options.nvme_files.size());
  const uint64_t before = LengthOf(options.nvme_files);
  absl::StatusOr<FileDevice> opened =
      OpenNvme(options.nvme_files, std::max(config.nvme.bytes, before));
  if (absl::IsResourceExhausted(opened.status()) && before > config.nvme.bytes) {
    // A sparse file that has no room for the length it had.
    opened = OpenNvme(options.nvme_files, config.nvme.bytes);
  }
  if (!opened.ok()) {
    return absl::Status(opened.status().code(),
                        absl::StrCat("nvme.path: ", opened.status().message()));
  }
  device = *std::move(opened);
  report->nvme = device.description;
  CRUMB_TRY(RegisterBuffers(report));
  options.watch->Say("reading the log of the NVMe tier");
  CountingSink sink(engine->recovery_sink(), &report->recovered);
  absl::StatusOr<std::unique_ptr<SegmentLog>> log_or =
      SegmentLog::Open({.bytes_max = device.device->size_bytes(),
                        .segment_bytes = static_cast<uint32_t>(config.nvme.segment_bytes),
                        .secret_fingerprint = options.secret.fingerprint(),
                        .bytes_present = device.bytes_before,
                        .stop = options.watch->flag()},
                       device.device.get(), options.clock, &sink);
  if (!log_or.ok()) {
    return absl::Status(log_or.status().code(),
                        absl::StrCat("nvme.path: ", absl::StrJoin(options.nvme_files, ", "), ": ",
                                     log_or.status().message()));
  }
  log = *std::move(log_or);
  report->recovery = log->stats();
  if (const uint64_t missing = report->recovery.bytes_missing; missing != 0) {
    report->warnings.push_back(CutWarning(options.nvme_files, device.bytes_before, missing));
  }
  engine->SetLog(log.get());
  return device.device->size_bytes() > wanted ? Shrink(wanted) : absl::OkStatus();
}

// nvme.bytes was lowered. WHY not cut before the log is read: tombstones that lie behind the new
// end hide pages in front of it.
absl::Status Shard::Impl::Shrink(uint64_t bytes) {
  options.watch->Say("making the NVMe tier smaller");
  std::optional<absl::Status> done;
  engine->ResizeDisk(bytes, [&done](const absl::Status& status) { done = status; });
  while (!done.has_value()) {
    const absl::Status go_on = options.watch->Check();
    if (!go_on.ok()) {
      engine.reset();  // it would answer here
      return go_on;
    }
    engine->Poll();
    engine->RunReady();
    pollfd wake = {log->wake_fd(), POLLIN, 0};
    ::poll(&wake, wake.fd < 0 ? 0 : 1, 1);
  }
  CRUMB_TRY(*done);
  return device.device->Resize(bytes);
}

// WHY touched only where it will be pinned: elsewhere, memory that no page needs costs nothing.
absl::Status Shard::Impl::RegisterBuffers(ShardReport* report) {
  const MutableBytes arena = pool->arena();
  if (!pool_touched && device.uring && MayPin(arena)) CRUMB_TRY(TouchPool(arena, options.watch));
  const absl::Status registered = device.device->RegisterBuffers(CutForRegistering(arena));
  if (!registered.ok()) {
    absl::StrAppend(&report->nvme, "; buffers not registered: ", registered.message());
  }
  return options.watch->Check();
}

void Shard::Impl::OpenUcx(ShardReport* report) {
  const UcxConfig& config = options.config->ucx;
  options.watch->Say("starting UCX");
  if (!config.enabled) {
    report->ucx = "off: ucx.enabled is false";
    return;
  }
  absl::StatusOr<std::unique_ptr<UcxTransport>> made =
      UcxTransport::Create({.tls = config.tls,
                            .net_devices = config.net_devices,
                            .peers_max = static_cast<uint32_t>(options.config->limits.sessions),
                            .arena = pool->arena()});
  if (!made.ok()) {
    report->ucx = absl::StrCat("off: ", made.status().message());
    report->warnings.push_back(
        absl::StrCat("UCX did not start, only gRPC is served: ", made.status().message(),
                     " (ucx.tls, ucx.net_devices; ucx.enabled: false says that it is meant)"));
    return;
  }
  ucx = *std::move(made);
  ucx_index = engine->AddTransport(ucx.get());
  report->ucx = ucx->Describe();
  report->ucx_on = true;
}

absl::Status Shard::Impl::ListenForData(const std::string& path) {
  CRUMB_ASSIGN(data_place, PrepareSocket(path));
  CRUMB_ASSIGN(uds, UdsTransport::Create(
                        {.peers_max = static_cast<uint32_t>(options.config->limits.sessions)}));
  uds->SetGpuMapper(options.gpu->mapper());
  const absl::Status listening = uds->Listen(path);
  if (!listening.ok()) uds.reset();
  return listening;
}

// WHY the daemon starts without it: workers find their way over UCX or gRPC, only slower.
void Shard::Impl::OpenDataSocket(ShardReport* report) {
  const ListenConfig& listen = options.config->listen;
  if (listen.socket == kOff || !listen.data_socket) {
    report->data_socket =
        listen.data_socket ? "off: listen.socket is off" : "off: listen.data_socket is false";
    return;
  }
  const std::string path = absl::StrCat(listen.socket, kDataSocketSuffix);
  const absl::Status listening = ListenForData(path);
  if (!listening.ok()) {
    report->data_socket = absl::StrCat("off: ", listening.message());
    report->warnings.push_back(
        absl::StrCat("no data socket, workers of this host use UCX or gRPC: ", listening.message(),
                     " (listen.data_socket: false says that it is meant)"));
    return;
  }
  engine->AddTransport(uds.get(), uds.get(), uds.get());
  report->data_socket = path;
  report->data_socket_on = true;
}

void Shard::Impl::Run(const std::shared_ptr<std::promise<absl::Status>>& started,
                      ShardReport* report) {
  (void)pthread_setname_np(pthread_self(), "crumb-shard");
  const absl::Status built = Build(report);
  const bool ok = built.ok();
  if (!ok) {
    streams.reset();
    engine.reset();
    log.reset();
    EndTransports();
  }
  started->set_value(built);  // the starter goes on: `report` is gone
  if (!ok) return;
  loop.Run(static_cast<uint32_t>(options.config->limits.spin_us));
  streams.reset();
  end = Quiesce();
  if (!end.ok()) return;
  engine.reset();
  if (log != nullptr) end = log->Close();
  log.reset();
  EndTransports();
}

void Shard::Impl::EndTransports() {
  ucx.reset();  // on the thread that made it
  options.gpu->Hold();
  uds.reset();
  options.gpu->Detach();
}

// Codec jobs and disk requests hold memory of the pool: all must have ended before it goes.
absl::Status Shard::Impl::Quiesce() {
  const uint64_t until = options.clock->now_us() + kQuiesceUs;
  while (queue->in_flight() != 0 || (log != nullptr && !log->idle())) {
    if (options.clock->now_us() > until) {
      return absl::DeadlineExceededError("work did not end in time");
    }
    if (loop.Turn() == 0) std::this_thread::yield();
  }
  return absl::OkStatus();
}

bool Shard::Impl::Post(Shard::Function function) {
  struct Posted {
    Impl* impl;
    Shard::Function function;
  };
  auto job = std::make_unique<Posted>(Posted{this, std::move(function)});
  const Task task{.run =
                      [](void* arg) {
                        const std::unique_ptr<Posted> own(static_cast<Posted*>(arg));
                        own->function(own->impl->View());
                      },
                  .arg = job.get()};
  if (!loop.Post(task)) return false;
  job.release();
  return true;
}

Shard::Shard(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Shard::~Shard() {
  if (impl_ == nullptr) return;
  if (!Stop().ok()) impl_.release();  // something still uses the memory: the process is ending
}

absl::StatusOr<std::unique_ptr<Shard>> Shard::Start(const ShardOptions& options,
                                                    ShardReport* report) {
  std::unique_ptr<Shard> shard(new Shard(std::make_unique<Impl>(options)));
  const auto started = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> result = started->get_future();
  Impl* impl = shard->impl_.get();
  impl->thread = std::thread([impl, started, report] { impl->Run(started, report); });
  const absl::Status status = result.get();
  if (status.ok()) return shard;
  impl->thread.join();
  return status;
}

bool Shard::Post(Function function) { return impl_->Post(std::move(function)); }

absl::Status Shard::Call(Function function, uint64_t timeout_us) {
  struct Wait {
    std::mutex mutex;
    std::condition_variable done_changed;
    bool done = false;
  };
  auto wait = std::make_shared<Wait>();
  const bool posted = Post([wait, function = std::move(function)](const ShardView& view) {
    function(view);
    const std::lock_guard<std::mutex> lock(wait->mutex);
    wait->done = true;
    wait->done_changed.notify_all();
  });
  if (!posted) return absl::ResourceExhaustedError("the daemon is busy: try again");
  std::unique_lock<std::mutex> lock(wait->mutex);
  const bool done = wait->done_changed.wait_for(lock, std::chrono::microseconds(timeout_us),
                                                [&] { return wait->done; });
  if (!done) return absl::DeadlineExceededError("the shard does not answer");
  return absl::OkStatus();
}

BlockDevice* Shard::device() const { return impl_->device.device.get(); }

absl::Status Shard::Stop() {
  if (impl_->thread.joinable()) {
    impl_->loop.Stop();
    impl_->thread.join();
  }
  return impl_->end;
}

}  // namespace crumb
