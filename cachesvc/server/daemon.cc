// Wiring: who is made in what order, and who is told what on the way down.
#include "cachesvc/server/daemon.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cachesvc/server/catalog.h"
#include "cachesvc/server/control_thread.h"
#include "cachesvc/server/data_dir.h"
#include "cachesvc/server/files.h"
#include "cachesvc/server/gpu_service.h"
#include "cachesvc/server/grpc_server.h"
#include "cachesvc/server/housekeeping.h"
#include "cachesvc/server/layouts.h"
#include "cachesvc/server/rpc_context.h"
#include "cachesvc/server/secret.h"
#include "cachesvc/server/sessions.h"
#include "cachesvc/server/shard.h"
#include "cachesvc/server/staging_pool.h"
#include "cachesvc/server/start_watch.h"

namespace crumb {
namespace {

constexpr size_t kControlJobsMax = 1024;
constexpr size_t kStrayFilesNamed = 3;
constexpr uint64_t kBindTimeoutUs = 30'000'000;
constexpr uint64_t kGpuPrepareUs = 50'000'000;  // less than a worker waits for its answer
constexpr uint64_t kSnapshotTimeoutUs = 1'000'000;
constexpr uint64_t kHangUpUs = 100'000;  // for clients to take their last answers

absl::Status Named(const char* key, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(key, ": ", std::string(status.message())));
}

std::string HashText(const BoundLayout& layout) { return Hex(layout.layout->hash().bytes); }

uint64_t Total(absl::Span<const uint64_t> values) {
  uint64_t sum = 0;
  for (const uint64_t value : values) sum += value;
  return sum;
}

}  // namespace

struct Daemon::Impl {
  Impl(const Config& c, Log& l, const Clock& k, GpuService::Opener g)
      : config(c),
        log(l),
        clock(k),
        open_gpus(std::move(g)),
        sessions(c.limits.sessions, k),
        tier(&l),
        started_us(k.now_us()),
        fault(eventfd(0, EFD_CLOEXEC)) {}

  const Config& config;
  Log& log;
  const Clock& clock;
  const GpuService::Opener open_gpus;

  // Declared in the order in which they are made; destroyed in reverse.
  StartWatch watch;
  DataDir data_dir;
  std::vector<Directory> nvme_dirs;
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<Catalog> catalog;
  LayoutTable layouts;
  SessionTable sessions;
  std::unique_ptr<StagingPool> staging;
  ShardReport report;
  std::unique_ptr<GpuService> gpu;
  std::unique_ptr<Shard> shard;
  std::unique_ptr<Registrar> registrar;
  TrimTimer trim;  // control thread, as is `tier`
  TierWatch tier;
  std::unique_ptr<ControlThread> control;
  std::unique_ptr<RpcContext> rpc;
  std::unique_ptr<GrpcServer> grpc;

  const uint64_t started_us;
  std::atomic<DaemonState> state{DaemonState::kStarting};
  std::atomic<bool> serving{false};  // shard and rpc are there to be asked

  uint64_t records_dropped = 0;  // by reading the catalog

  bool stopped = false;  // by Stop

  const UniqueFd fault;  // readable: see fault_text
  mutable std::mutex fault_mutex;
  std::string fault_text;

  std::mutex snapshot_mutex;
  Snapshot last;  // engine's part of the last one that worked

  absl::Status OpenGpu();
  absl::Status PrepareGpu(int device);
  void LookAfterGpu(const absl::Status& links);
  absl::StatusOr<std::vector<std::string>> NvmeFiles();
  absl::Status StartShard();
  void StartControl();
  void Tick();
  absl::Status Bind(uint32_t handle, LayoutBinding binding, Registrar::BindStep step);
  void AskShard(Snapshot* snapshot, absl::Status* links = nullptr);
  void WarnOfUnknownPositions(const std::vector<uint64_t>& identities);
  size_t positions_warned = 0;  // by snapshot_mutex
  void FillTables(Snapshot* snapshot);
  void AwaitCalls(uint64_t until_us) const;
  std::vector<std::string> LostPages() const;
  std::vector<std::string> DamagedSets(absl::Span<const std::string> said);
  void LogStart();
};

absl::Status Daemon::Impl::OpenGpu() {
  if (config.gpu.enabled) watch.Say("opening the GPU");
  CRUMB_ASSIGN(gpu, GpuService::Open(config, &log, open_gpus));
  return watch.Check();
}

// The mapper's thread: codecs of known layouts for a GPU that was of no use before.
absl::Status Daemon::Impl::PrepareGpu(int device) {
  auto bound = std::make_shared<std::promise<void>>();
  std::future<void> done = bound->get_future();
  const bool posted = control->Post([this, bound, device] {
    for (const std::string& problem : registrar->UseGpu(device)) log.Warning(problem);
    bound->set_value();
  });
  const auto most = std::chrono::microseconds(kGpuPrepareUs);
  if (posted && done.wait_for(most) == std::future_status::ready) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("GPU ", device, " is not ready: too much else is being done: try again"));
}

void Daemon::Impl::LookAfterGpu(const absl::Status& links) {
  const absl::Status seen = links.ok() ? gpu->Look() : links;
  if (seen.ok()) return;
  {
    const std::lock_guard<std::mutex> lock(fault_mutex);
    if (!fault_text.empty()) return;
    fault_text = absl::StrCat("a GPU is lost, the process has to end: ", seen.message());
  }
  log.Error("a GPU is lost, the process has to end", {{"why", seen.ToString()}});
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = write(fault.get(), &one, sizeof(one));
}

// The log's files, their folders made; none if there is no NVMe tier.
absl::StatusOr<std::vector<std::string>> Daemon::Impl::NvmeFiles() {
  std::vector<std::string> files;
  if (config.nvme.bytes == 0) return files;
  const Machine machine = DetectMachine();
  for (const std::string& path : config.nvme.paths) {
    if (machine.path_kind(path) == PathKind::kBlockDevice) {
      files.push_back(path);
      continue;
    }
    absl::StatusOr<Directory> folder = Directory::Open(path);
    if (!folder.ok()) return Named("nvme.path", folder.status());
    nvme_dirs.push_back(*std::move(folder));
    files.push_back(absl::StrCat(path, "/", kNvmeFileName));
  }
  return files;
}

absl::Status Daemon::Impl::StartShard() {
  // Touching and registering a large pool takes a while: say so before, not after.
  log.Info("preparing the pool and reading the log",
           {{"dram_bytes", absl::StrCat(config.pool.dram_bytes)},
            {"nvme_bytes", absl::StrCat(config.nvme.bytes)}});
  absl::StatusOr<ClusterSecret> secret = LoadOrMakeSecret(data_dir.directory());
  if (!secret.ok()) return Named("data_dir", secret.status());
  CRUMB_ASSIGN(staging, StagingPool::Create(config.limits.staging_bytes));
  CRUMB_ASSIGN(std::vector<std::string> nvme_files, NvmeFiles());
  CRUMB_ASSIGN(shard, Shard::Start({.config = &config,
                                    .secret = *secret,
                                    .clock = &clock,
                                    .staging = staging.get(),
                                    .watch = &watch,
                                    .gpu = gpu.get(),
                                    .nvme_files = std::move(nvme_files)},
                                   &report));
  return absl::OkStatus();
}

absl::Status Daemon::Impl::Bind(uint32_t handle, LayoutBinding binding, Registrar::BindStep step) {
  auto bound = std::make_shared<absl::Status>();
  CRUMB_TRY(shard->Call(
      [handle, binding = std::move(binding), bound, step](const ShardView& view) {
        *bound = step == Registrar::BindStep::kCheck ? view.engine.CheckLayout(binding)
                                                     : view.engine.BindLayout(handle, binding);
      },
      kBindTimeoutUs));
  return *bound;
}

void Daemon::Impl::StartControl() {
  control = std::make_unique<ControlThread>(kControlJobsMax, [this] {
    if (serving.load()) Tick();
  });
}

void Daemon::Impl::Tick() {
  CloseIdleSessions(rpc.get());
  Snapshot now;
  absl::Status links;
  AskShard(&now, &links);
  if (now.alive) tier.Look(now.engine);
  LookAfterGpu(links);
  if (trim.Due(sessions.count(), Total(now.engine.requests), clock.now_us())) TrimHeap();
}

// WHY not gRPC's own wait: that one also waits for idle connections, which nobody may be reading.
void Daemon::Impl::AwaitCalls(uint64_t until_us) const {
  while (rpc->in_flight.load() != 0 && clock.now_us() < until_us) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// One line for each file without which recovered pages cannot be served.
std::vector<std::string> Daemon::Impl::LostPages() const {
  std::map<std::string, uint64_t> pages_by_file;
  for (const auto& [kind, pages] : report.recovered) {
    const std::string file = registrar->MissingFile(kind.identity_prefix, kind.codec_id);
    if (!file.empty()) pages_by_file[file] += pages;
  }
  std::vector<std::string> lines;
  for (const auto& [file, pages] : pages_by_file) {
    const bool catalog_itself = file == kCatalogName;
    lines.push_back(absl::StrCat(config.data_dir, "/", file, ": lost, or not of this log: ", pages,
                                 " pages of the log cannot be served: ",
                                 catalog_itself
                                     ? "restore it from a copy, or register their layouts again"
                                     : "import that rotation set again",
                                 "; crumbctl flush gives their room back"));
  }
  return lines;
}

// One line for each rotation set whose file is damaged or gone and of which `said` has no word.
std::vector<std::string> Daemon::Impl::DamagedSets(absl::Span<const std::string> said) {
  std::vector<std::string> lines;
  for (const CatalogRotation& rotation : catalog->rotations()) {
    if (!watch.Check().ok()) break;
    const std::string file = RotationFileName(rotation.hash);
    const bool known = std::any_of(said.begin(), said.end(), [&](const std::string& line) {
      return absl::StrContains(line, file);
    });
    if (known) continue;  // and counted
    const absl::Status loaded = catalog->LoadRotation(rotation.hash).status();
    if (loaded.ok()) continue;
    lines.push_back(absl::StrCat(std::string(loaded.message()),
                                 " (crumbctl rotation import): until then no layout can use it"));
  }
  return lines;
}

void Daemon::Impl::LogStart() {
  for (const std::string& note : data_dir.notes()) log.Warning(note);
  for (const std::string& warning : config.warnings) log.Warning(warning);
  for (const std::string& warning : report.warnings) log.Warning(warning);
  log.Info("gpu", {{"device", gpu->report().gpu}, {"hbm", gpu->report().hbm}});
  log.Info("nvme", {{"tier", report.nvme}});
  log.Info("ucx", {{"transports", report.ucx}});
  log.Info("data socket", {{"path", report.data_socket}});
  const SegmentLogStats& r = report.recovery;
  log.Info("recovery", {{"pages", absl::StrCat(r.recovered)},
                        {"ms", absl::StrCat(r.recovery_us / 1000)},
                        {"clean", r.clean_start ? "yes" : "no"}});
  if (const uint64_t bad = r.dropped_checksum + r.dropped_format + r.dropped_stamp; bad != 0) {
    log.Warning("recovery: records that do not verify were dropped; they are misses now",
                {{"records", absl::StrCat(bad)}});
  }
  if (const std::vector<std::string>& stray = catalog->stray_files(); !stray.empty()) {
    const size_t named = std::min(stray.size(), kStrayFilesNamed);
    log.Warning(
        absl::StrCat(
            config.data_dir, "/", kRotationsName, ": ", stray.size(),
            " files there are no rotation set of the catalog and are ignored: import the sets "
            "(crumbctl rotation import), move the rest away"),
        {{"files",
          absl::StrJoin(stray.begin(), stray.begin() + static_cast<ptrdiff_t>(named), ", ")}});
  }
  if (records_dropped != 0) {  // files of rotation sets have lines of their own
    log.Warning("catalog: corrupt records dropped", {{"records", absl::StrCat(records_dropped)}});
  }
}

// Once per layout. REQUIRES: snapshot_mutex.
void Daemon::Impl::WarnOfUnknownPositions(const std::vector<uint64_t>& identities) {
  for (; positions_warned < identities.size(); ++positions_warned) {
    for (const std::shared_ptr<const BoundLayout>& layout : layouts.List()) {
      if (layout->layout->hash().prefix64() != identities[positions_warned]) continue;
      log.Warning(
          "pages come without a position and are encoded at once, also the newest ones: name "
          "token_start and parent in puts",
          {{"layout", layout->name}, {"hash", HashText(*layout)}});
      break;
    }
  }
}

void Daemon::Impl::AskShard(Snapshot* snapshot, absl::Status* links) {
  struct Answer {
    EngineStats engine;
    std::vector<uint64_t> unknown_layouts;
    NetStats ucx;
    NetStats uds;
    UdsStats lent;
    NetStats loopback;
    uint64_t busy_us = 0;
    absl::Status links;
  };
  auto answer = std::make_shared<Answer>();
  const absl::Status asked = shard->Call(
      [answer, gpus = gpu.get()](const ShardView& view) {
        answer->engine = view.engine.stats();
        answer->links = gpus->LinkHealth();
        answer->unknown_layouts = view.engine.unknown_position_layouts();
        answer->loopback = view.loopback;
        answer->busy_us = view.busy_us;
        if (view.ucx != nullptr) answer->ucx = view.ucx->stats();
        if (view.uds == nullptr) return;
        answer->uds = view.uds->stats();
        answer->lent = view.uds->uds_stats();
      },
      kSnapshotTimeoutUs);
  const std::lock_guard<std::mutex> lock(snapshot_mutex);
  snapshot->alive = asked.ok();
  if (asked.ok()) {
    last.engine = answer->engine;
    WarnOfUnknownPositions(answer->unknown_layouts);
    last.ucx = answer->ucx;
    last.uds = answer->uds;
    last.lent = answer->lent;
    last.loopback = answer->loopback;
    last.shard_busy_us = answer->busy_us;
    if (links != nullptr) *links = answer->links;
  }
  snapshot->engine = last.engine;
  snapshot->ucx = last.ucx;
  snapshot->uds = last.uds;
  snapshot->lent = last.lent;
  snapshot->loopback = last.loopback;
  snapshot->shard_busy_us = last.shard_busy_us;
}

void Daemon::Impl::FillTables(Snapshot* snapshot) {
  for (const std::shared_ptr<const BoundLayout>& layout : layouts.List()) {
    snapshot->layouts.push_back({.name = layout->name,
                                 .hash = HashText(*layout),
                                 .model = layout->layout->identity().model,
                                 .revision = layout->layout->identity().revision,
                                 .codec = layout->codec,
                                 .note = layout->note,
                                 .windows = layout->windows,
                                 .raw_bytes = Total(layout->raw_bytes),
                                 .payload_bytes = Total(layout->payload_bytes)});
  }
  const CatalogFacts facts = catalog->facts();
  for (const CatalogRotation& rotation : facts.rotations) {
    snapshot->rotations.push_back(
        {.hash = Hex(rotation.hash), .model = rotation.model, .revision = rotation.revision});
  }
  snapshot->catalog_bytes = facts.bytes;
  snapshot->catalog_dropped = facts.dropped;
  snapshot->clients = sessions.count();
  snapshot->staging_capacity_bytes = staging->capacity_bytes();
  snapshot->staging_used_bytes = staging->used_bytes();
  snapshot->staging_refused = staging->refused();
  snapshot->rpcs_in_flight = rpc->in_flight.load(std::memory_order_relaxed);
  snapshot->rpcs_refused = rpc->refused.load(std::memory_order_relaxed);
  snapshot->gpu_on = gpu->on();
  snapshot->gpu_description = gpu->report().gpu;
  snapshot->gpu_codec_place = gpu->report().codec_place;
  snapshot->hbm_description = gpu->report().hbm;
  snapshot->hbm_bytes = gpu->report().hbm_bytes;
  snapshot->gpu_free_bytes = gpu->free_bytes();
  snapshot->ucx_on = report.ucx_on;
  snapshot->ucx_description = report.ucx;
  snapshot->data_socket_on = report.data_socket_on;
  snapshot->data_socket = report.data_socket;
  snapshot->nvme_description = report.nvme;
}

const char* Version() { return CRUMB_VERSION; }

Daemon::Daemon(const Config& config, Log& log, const Clock& clock, GpuService::Opener open_gpus)
    : impl_(std::make_unique<Impl>(config, log, clock, std::move(open_gpus))) {}

Daemon::~Daemon() { static_cast<void>(Stop()); }  // said already

int Daemon::fault_fd() const { return impl_->fault.get(); }

std::string Daemon::fault() const {
  const std::lock_guard<std::mutex> lock(impl_->fault_mutex);
  return impl_->fault_text;
}

void Daemon::CancelStart() { impl_->watch.Cancel(); }

absl::Status Daemon::Start() {
  Impl& d = *impl_;
  if (const std::string few = FileLimitWarning(RaiseFileLimit()); !few.empty()) {
    d.log.Warning(few);  // of the host, so not repeated in the status document
  }
  absl::StatusOr<DataDir> data_dir = DataDir::Open(d.config.data_dir);
  if (!data_dir.ok()) return Named("data_dir", data_dir.status());
  d.data_dir = *std::move(data_dir);
  if (d.config.listen.http != kOff) {
    CRUMB_ASSIGN(const HostPort place, ParseHostPort(d.config.listen.http));
    absl::StatusOr<std::unique_ptr<HttpServer>> http = HttpServer::Start(
        {.place = place,
         .threads = static_cast<uint32_t>(d.config.limits.connections),
         .handler = [this](const std::string& path) { return HandleHttp(path); }});
    if (!http.ok()) return Named("listen.http", http.status());
    d.http = *std::move(http);
    d.log.Info("http", {{"place", FormatHostPort(d.http->place())}});
  }
  d.watch.Say("reading the catalog");
  absl::StatusOr<std::unique_ptr<Catalog>> catalog = Catalog::Open(d.config.data_dir);
  if (!catalog.ok()) return Named("data_dir", catalog.status());
  d.catalog = *std::move(catalog);
  d.records_dropped = d.catalog->dropped();
  CRUMB_TRY(d.watch.Check());
  CRUMB_TRY(d.OpenGpu());
  CRUMB_TRY(d.StartShard());
  const std::vector<std::string>& of_gpu = d.gpu->report().warnings;
  d.report.warnings.insert(d.report.warnings.end(), of_gpu.begin(), of_gpu.end());
  d.watch.Say("building the codecs of known layouts");
  d.registrar = std::make_unique<Registrar>(Registrar::Parts{
      .config = d.config,
      .catalog = d.catalog.get(),
      .table = &d.layouts,
      .gpu = d.gpu->codecs(),
      .bind = [&d](uint32_t handle, LayoutBinding binding, Registrar::BindStep step) {
        return d.Bind(handle, std::move(binding), step);
      }});
  std::vector<std::string> said = d.registrar->BindAll();
  for (const std::string& problem : said) d.log.Warning(problem);
  for (const std::string& lost : d.LostPages()) {
    d.report.warnings.push_back(lost);
    said.push_back(lost);
  }
  for (const std::string& damaged : d.DamagedSets(said)) d.report.warnings.push_back(damaged);
  CRUMB_TRY(d.watch.Check());
  d.watch.Say("opening the gRPC port");
  d.StartControl();
  d.rpc.reset(new RpcContext{.config = d.config,
                             .log = d.log,
                             .shard = *d.shard,
                             .staging = *d.staging,
                             .sessions = d.sessions,
                             .layouts = d.layouts,
                             .control = *d.control,
                             .registrar = *d.registrar,
                             .catalog = *d.catalog,
                             .snapshot = [this] { return TakeSnapshot(); },
                             .version = Version(),
                             .ucx = d.report.ucx_on,
                             .ucx_transports = d.report.ucx_on ? d.report.ucx : "",
                             .data_socket = d.report.data_socket_on ? d.report.data_socket : "",
                             .codec_place = d.gpu->report().codec_place});
  d.gpu->SetPrepare([&d](int device) { return d.PrepareGpu(device); });
  CRUMB_ASSIGN(d.grpc, GrpcServer::Start(d.rpc.get()));
  d.LogStart();
  d.serving.store(true);
  d.state.store(DaemonState::kReady);
  d.grpc->SetHealth(GrpcServer::Health::kServing);
  return absl::OkStatus();
}

std::string Daemon::ReadyLine() const {
  return absl::StrCat("crumbd ready grpc=", impl_->grpc->grpc_place(), " http=",
                      impl_->http == nullptr ? kOff : FormatHostPort(impl_->http->place()),
                      " socket=", impl_->grpc->socket_place());
}

absl::Status Daemon::Stop() {
  Impl& d = *impl_;
  if (std::exchange(d.stopped, true)) return absl::OkStatus();  // the destructor calls it again
  d.state.store(DaemonState::kDraining);
  const uint64_t grace_us = d.config.shutdown_grace_us;
  if (d.grpc != nullptr) {
    d.grpc->SetHealth(GrpcServer::Health::kNotServing);
    d.rpc->draining.store(true);
    // The engine refuses what is new from here on, and offers to NVMe what lives in memory alone.
    auto drained = std::make_shared<std::promise<void>>();
    std::future<void> done = drained->get_future();
    const uint64_t deadline_us = d.clock.now_us() + grace_us * 6 / 10;
    const bool posted = d.shard->Post([drained, deadline_us](const ShardView& view) {
      view.engine.Drain(deadline_us, [drained] { drained->set_value(); });
    });
    d.AwaitCalls(d.clock.now_us() + grace_us / 2);
    d.grpc->Stop(std::min(grace_us / 10, kHangUpUs));
    const uint64_t now_us = d.clock.now_us();
    if (posted && now_us < deadline_us + grace_us / 10) {
      done.wait_for(std::chrono::microseconds(deadline_us + grace_us / 10 - now_us));
    }
  }
  d.serving.store(false);
  if (d.control != nullptr) d.control->Stop();
  d.http.reset();
  if (d.shard == nullptr) return absl::OkStatus();
  absl::Status closed = d.shard->Stop();
  if (!closed.ok()) d.log.Error("the log was not closed cleanly", {{"why", closed.ToString()}});
  return closed;
}

Snapshot Daemon::TakeSnapshot() {
  Impl& d = *impl_;
  Snapshot snapshot;
  snapshot.version = Version();
  snapshot.node = d.config.node;
  snapshot.codec_backend = ToString(BackendOf(d.config.codec));
  snapshot.state = d.state.load();
  snapshot.uptime_us = d.clock.now_us() - d.started_us;
  snapshot.process = ReadProcessFacts();
  snapshot.warnings = d.config.warnings;
  snapshot.gpu_fault = fault();
  if (!snapshot.gpu_fault.empty()) snapshot.warnings.push_back(snapshot.gpu_fault);
  if (!d.serving.load()) return snapshot;
  snapshot.warnings.insert(snapshot.warnings.end(), d.report.warnings.begin(),
                           d.report.warnings.end());
  d.AskShard(&snapshot);
  d.FillTables(&snapshot);
  if (const std::string why = d.tier.Warning(snapshot.engine); !why.empty()) {
    snapshot.warnings.push_back(why);
  }
  return snapshot;
}

HttpReply Daemon::HandleHttp(const std::string& path) {
  const std::string text = "text/plain; charset=utf-8";
  if (path == "/metrics") {
    return {.status = 200,
            .type = "text/plain; version=0.0.4; charset=utf-8",
            .body = MetricsText(TakeSnapshot())};
  }
  if (path == "/api/v1/status") {
    return {.status = 200, .type = "application/json", .body = StatusJson(TakeSnapshot())};
  }
  if (path == "/") {
    return {.status = 200, .type = "text/html; charset=utf-8", .body = StatusPage(TakeSnapshot())};
  }
  if ((path == "/healthz" || path == "/readyz") && impl_->state.load() == DaemonState::kStarting) {
    // Alive, so that no probe restarts a daemon for having much memory to pin.
    return {.status = path == "/healthz" ? 200 : 503,
            .type = text,
            .body = absl::StrCat("starting: ", impl_->watch.what(), "\n")};
  }
  if (path == "/healthz") {
    const bool alive = TakeSnapshot().alive;
    return {.status = alive ? 200 : 503, .type = text, .body = alive ? "alive\n" : "stuck\n"};
  }
  if (path == "/readyz") {
    const Snapshot snapshot = TakeSnapshot();
    const bool ready = IsReady(snapshot);
    if (!snapshot.gpu_fault.empty()) {
      return {.status = 503, .type = text, .body = absl::StrCat(snapshot.gpu_fault, "\n")};
    }
    return {.status = ready ? 200 : 503,
            .type = text,
            .body = absl::StrCat(snapshot.alive ? ToString(snapshot.state) : "stuck", "\n")};
  }
  return {};
}

}  // namespace crumb
