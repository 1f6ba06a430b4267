// Opening the GPU step by step; see the header for what is an error and what is left out.
#include "cachesvc/server/gpu_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu/pool/cuda_registered.h"

namespace crumb {
namespace {

constexpr uint64_t kHbmStagingBytes = 2 * kPageAlignment;  // nothing is staged there
constexpr uint32_t kHbmWasteShare = 32;                    // of runs of slabs; HBM is dear

// WHY: without MPS kernels of two processes on one GPU take turns, milliseconds long, while copies
// between a worker and its host's memory do not.
const char* PlaceOf(const Config& config, bool mps) {
  if (config.gpu.codec_place == "daemon") return "daemon";
  return config.gpu.codec_place == "auto" && mps ? "daemon" : "worker";
}

absl::Status Named(const char* key, const absl::Status& status) {
  const std::string text(status.message());
  return absl::Status(status.code(), text.starts_with(key) ? text : absl::StrCat(key, ": ", text));
}

}  // namespace

GpuService::GpuService(const Config& config, Log* log)
    : config_(config), log_(log), device_(static_cast<int>(config.pool.device)) {
  report_.codec_place = PlaceOf(config_, false);
}

GpuService::~GpuService() { Detach(); }

absl::StatusOr<std::unique_ptr<GpuService>> GpuService::Open(const Config& config, Log* log,
                                                             const Opener& open) {
  std::unique_ptr<GpuService> service(new GpuService(config, log));
  if (!config.gpu.enabled) {
    service->report_.gpu = "off: gpu.enabled is false";
    service->report_.hbm = "off: no GPU is used";
    return service;
  }
  CRUMB_TRY(service->OpenDevice(open));
  if (service->on()) {
    service->MakeStage();  // first: an HBM tier of `auto` takes what is left
    CRUMB_TRY(service->MakeArena());
  }
  return service;
}

bool GpuService::asked() const {
  return config_.pool.hbm.wish != HbmWish::kAuto && config_.pool.hbm.value != 0;
}

absl::Status GpuService::Without(const absl::Status& why) {
  if (asked()) return Named("pool.hbm_bytes", why);
  report_.on = false;
  report_.codec_place = PlaceOf(config_, false);
  report_.gpu = absl::StrCat("off: ", std::string(why.message()));
  report_.hbm = "off: no GPU is used";
  report_.hbm_bytes = 0;
  return absl::OkStatus();
}

absl::Status GpuService::WithoutHbm(const absl::Status& why) {
  if (asked()) return Named("pool.hbm_bytes", why);
  report_.hbm = absl::StrCat("off: ", std::string(why.message()));
  report_.warnings.push_back(
      absl::StrCat("no HBM tier, GPUs are served from DRAM: ", std::string(why.message()),
                   " (pool.hbm_bytes: 0 says that it is meant)"));
  return absl::OkStatus();
}

absl::Status GpuService::OpenDevice(const Opener& open) {
  absl::StatusOr<std::unique_ptr<Gpus>> opened = open();
  if (!opened.ok()) return Without(opened.status());
  gpus_ = *std::move(opened);
  const std::vector<GpuInfo>& devices = gpus_->devices();
  if (config_.pool.device >= devices.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("pool.device: ", config_.pool.device, ": this process sees ", devices.size(),
                     " GPUs, numbered from 0: name one of them, or see CUDA_VISIBLE_DEVICES"));
  }
  const GpuInfo& info = devices[config_.pool.device];
  const absl::StatusOr<DeviceMemory> memory = gpus_->AskMemory(device_);
  if (!memory.ok()) {
    CRUMB_TRY(Without(memory.status()));
    report_.warnings.push_back(
        absl::StrCat("GPU ", device_, " cannot be used: ", std::string(memory.status().message()),
                     " (gpu.enabled: false says that it is meant)"));
    return absl::OkStatus();
  }
  free_bytes_.store(memory->free_bytes);
  report_.on = true;
  report_.codec_place = PlaceOf(config_, info.mps);
  report_.gpu = absl::StrCat("GPU ", device_, " ", info.name, ", ", info.memory_bytes >> 20, " MiB",
                             info.mps ? ", shared by MPS" : "", "; the codec runs in the ",
                             report_.codec_place,
                             config_.gpu.codec_place == "auto" ? "" : " (gpu.codec_place)");
  codecs_ = std::make_unique<GpuCodecs>(gpus_.get());
  codecs_->Use(device_);
  return absl::OkStatus();
}

void GpuService::MakeStage() {
  const uint64_t bytes = config_.gpu.staging_bytes / kPageAlignment * kPageAlignment;
  if (bytes == 0) return;
  absl::StatusOr<GpuArea> made = gpus_->MakeArena({.device = device_, .bytes = bytes});
  if (made.ok()) {
    stage_ = *std::move(made);
    return;
  }
  report_.warnings.push_back(absl::StrCat(
      "pages of DRAM are read over PCIe, at half its rate: ", std::string(made.status().message()),
      " (gpu.staging_bytes: 0 says that it is meant)"));
}

absl::Status GpuService::MakeArena() {
  const HbmWanted& wanted = config_.pool.hbm;
  if (wanted.wish == HbmWish::kBytes && wanted.value == 0) {
    report_.hbm = "off: pool.hbm_bytes is 0";
    return absl::OkStatus();
  }
  const absl::StatusOr<DeviceMemory> memory = gpus_->AskMemory(device_);
  if (!memory.ok()) return WithoutHbm(memory.status());
  const absl::StatusOr<HbmSize> size = SizeHbmPool(
      {.total_bytes = memory->total_bytes, .free_bytes = memory->free_bytes, .wanted = wanted});
  if (!size.ok()) return WithoutHbm(size.status());
  absl::StatusOr<GpuArea> arena = gpus_->MakeArena({.device = device_, .bytes = size->bytes});
  if (!arena.ok()) return WithoutHbm(arena.status());
  absl::StatusOr<std::unique_ptr<PagePool>> pool = PagePool::CreateOver(
      arena->memory, {.staging_bytes = kHbmStagingBytes, .waste_share = kHbmWasteShare});
  if (!pool.ok()) return WithoutHbm(pool.status());
  arena_ = *std::move(arena);
  hbm_ = *std::move(pool);
  report_.hbm = size->reason;
  report_.hbm_bytes = size->bytes;
  return absl::OkStatus();
}

absl::Status GpuService::MakeLinks(MutableBytes dram) {
  CRUMB_ASSIGN(registered_, gpus_->RegisterHost(device_, dram));
  if (hbm_ == nullptr) return absl::OkStatus();
  // WHY behind everything else: pages move when there is time, workers wait.
  const CudaLinkOptions own = {.device = device_,
                               .priority = StreamPriority::kLow,
                               .slices_from = dram.data(),
                               .slice_bytes = kRegisterSliceBytes};
  CRUMB_ASSIGN(lower_, gpus_->MakeLink(own));
  CRUMB_ASSIGN(raise_, gpus_->MakeLink(own));
  return absl::OkStatus();
}

absl::Status GpuService::Attach(MutableBytes dram, std::function<void()> wake) {
  if (!on()) return absl::OkStatus();
  if (const absl::Status made = MakeLinks(dram); !made.ok()) {
    Detach();
    report_.warnings.push_back(absl::StrCat("the GPU is not used: ", std::string(made.message()),
                                            " (gpu.enabled: false says that it is meant)"));
    return Without(made);
  }
  mapper_ = std::make_unique<WorkerGpus>(
      GpuMapperParts{.gpus = gpus_.get(),
                     .log = log_,
                     .dram = dram,
                     .prepare = [this](int device) -> absl::Status {
                       const std::lock_guard<std::mutex> lock(prepare_mutex_);
                       if (prepare_ == nullptr)
                         return absl::UnavailableError("the daemon is starting");
                       return prepare_(device);
                     },
                     .wake = std::move(wake)});
  return absl::OkStatus();
}

EngineHbm GpuService::hbm() const {
  return {.pool = hbm_.get(), .lower = lower_.get(), .raise = raise_.get()};
}

EngineGpuStage GpuService::stage() const {
  return {.memory = stage_.memory, .device = stage_.memory.empty() ? -1 : device_};
}

absl::Status GpuService::LinkHealth() const {
  if (lower_ != nullptr) CRUMB_TRY(lower_->health());
  if (raise_ != nullptr) CRUMB_TRY(raise_->health());
  return absl::OkStatus();
}

void GpuService::Hold() {
  if (mapper_ != nullptr) mapper_->Hold();
}

void GpuService::Detach() {
  mapper_.reset();
  lower_.reset();
  raise_.reset();
  registered_ = {};
  hbm_.reset();
  arena_ = {};
  stage_ = {};
}

void GpuService::SetPrepare(std::function<absl::Status(int device)> prepare) {
  const std::lock_guard<std::mutex> lock(prepare_mutex_);
  prepare_ = std::move(prepare);
}

absl::Status GpuService::Look() {
  if (!on()) return absl::OkStatus();
  for (const int device : codecs_->devices()) {
    CRUMB_ASSIGN(const DeviceMemory memory, gpus_->AskMemory(device));
    if (device == device_) free_bytes_.store(memory.free_bytes);
  }
  return absl::OkStatus();
}

}  // namespace crumb
