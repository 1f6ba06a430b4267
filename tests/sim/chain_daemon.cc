// Building and turning the engine of a chain sequence; the liar among its seams.
#include "tests/sim/chain_daemon.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/core/page_job.h"
#include "tests/unit/cachesvc/core/fake_codec.h"

namespace crumb::sim {
namespace {

constexpr uint32_t kHandle = 1;
constexpr uint32_t kRegionSet = 1;
constexpr char kTenant[] = "t";
constexpr uint64_t kLentSlotBytes = kChainRawBytes + 2 * kPageHeaderBytes;
constexpr uint32_t kJobsMax = 16;

EngineLimits SmallLimits() {
  EngineLimits limits;
  limits.requests_max = 32;
  limits.requests_per_peer_max = 32;
  limits.blocks_in_flight_max = 64;
  limits.peers_max = 4;
  limits.sessions_max = 4;
  limits.layouts_max = 2;
  limits.pins_max = 16;
  limits.index_entries_max = 128;
  limits.evictions_max = 4;
  limits.transfers_max = 8;
  limits.served_per_session_max = 8;
  return limits;
}

// The codecs are stateless and the same in every sequence; made once, for speed.
const LayoutBinding& SampleBinding() {
  static const auto* const binding = [] {
    Identity identity;
    identity.model = "chains";
    identity.revision = "1";
    identity.weights_dtype = "bf16";
    identity.page_tokens = kChainTokens;
    identity.groups.push_back({.kind = AttentionKind::kGqa,
                               .kv_heads = 1,
                               .k_dim = 128,
                               .v_dim = 128,
                               .window = 0,
                               .layer_ids = {0}});
    auto layout = Layout::Make(identity);
    CRUMB_CHECK(layout.ok());
    auto* made = new LayoutBinding;
    made->layout = std::make_shared<const Layout>(*std::move(layout));
    made->tenant = kTenant;
    const PartShape& part = made->layout->parts()[0];
    CRUMB_CHECK(part.raw_bytes == kChainRawBytes);
    std::vector<std::shared_ptr<const PageCodec>> ladder;
    for (CodecKind kind = CodecKind::kCrumbInt2; kind != CodecKind::kRaw; kind = StepUp(kind)) {
      ladder.push_back(std::make_shared<testing::SampleCodec>(part, kind));
    }
    auto raw =
        PageCodec::Create(part, CodecDescriptor::Default(CodecKind::kRaw, Sha256{}), nullptr);
    CRUMB_CHECK(raw.ok());
    ladder.push_back(*std::move(raw));
    made->ladder = {std::move(ladder)};
    made->readers.resize(1);
    return made;
  }();
  return *binding;
}

// Gives the encoder of a demotion what a lossy page would decode to.
class LossySource final : public DeviceQueue {
 public:
  explicit LossySource(DeviceQueue* inner) : inner_(inner) {}
  bool Submit(const DeviceJob& job) override {
    auto& page = *static_cast<core::PageJob*>(job.arg);
    if (page.kind == core::PageJobKind::kDemote) {
      PageHeader header = LoadHeader(page.source);
      const MutableBytes payload = page.source.subspan(kPageHeaderBytes, header.payload_bytes);
      for (size_t i = 0; i < payload.size(); ++i) payload[i] = payload[i / 8 * 8];
      SealHeader(header, payload);
      StoreHeader(header, page.source);
    }
    return inner_->Submit(job);
  }
  size_t Poll(absl::Span<uint64_t> done) override { return inner_->Poll(done); }
  size_t in_flight() const override { return inner_->in_flight(); }
  uint32_t worker_count() const override { return inner_->worker_count(); }
  int wake_fd() const override { return inner_->wake_fd(); }

 private:
  DeviceQueue* const inner_;
};

WindowPolicy Planted(WindowPolicy windows, ChainPlant plant) {
  if (plant == ChainPlant::kDemoteEarly) windows.recent_tokens /= 2;
  if (plant == ChainPlant::kSinkPacked) windows.sink_tokens = 0;
  if (plant == ChainPlant::kNeverDemote) windows.recent_tokens *= 4;
  return windows;
}

}  // namespace

std::unique_ptr<ChainDaemon> ChainDaemon::Start(SimContext* context, SimDisk* disk,
                                                const ChainDaemonPlan& plan, OnReply on_reply) {
  std::unique_ptr<ChainDaemon> daemon(new ChainDaemon(context, std::move(on_reply)));
  if (const absl::Status status = daemon->Build(disk, plan); !status.ok()) {
    context->Fail(absl::StrCat("start: ", status.ToString()));
    return nullptr;
  }
  daemon->Connect();
  return daemon;
}

absl::Status ChainDaemon::Build(SimDisk* disk, const ChainDaemonPlan& plan) {
  CRUMB_ASSIGN(pool_, PagePool::Create({.bytes = 1 << 20}));
  queue_ = std::make_unique<SimDeviceQueue>(context_,
                                            SimQueueOptions{.workers = 2, .jobs_max = kJobsMax});
  DeviceQueue* queue = queue_.get();
  if (plan.plant == ChainPlant::kDemoteLossy) {
    lying_queue_ = std::make_unique<LossySource>(queue);
    queue = lying_queue_.get();
  }
  transport_ = std::make_unique<SimTransport>(context_, SimTransportOptions{});
  CRUMB_ASSIGN(engine_, Engine::Create({.limits = SmallLimits(),
                                        .secret = {},
                                        .clock = &context_->clock,
                                        .pool = pool_.get(),
                                        .queue = queue,
                                        .fresh_percent = plan.fresh_percent,
                                        .fresh_idle_us = plan.idle_us}));
  engine_->AddTransport(transport_.get());
  if (plan.tier) {
    device_ = std::make_unique<SimBlockDevice>(context_, disk, SimDeviceOptions{});
    device_->SetInstant(true);
    CRUMB_ASSIGN(log_, SegmentLog::Open({.bytes_max = disk->size_bytes(),
                                         .segment_bytes = 1 << 20,
                                         .format_seed = 1,
                                         .reads_max = 4,
                                         .appends_max = 4,
                                         .erases_max = 8},
                                        device_.get(), &context_->clock, engine_->recovery_sink()));
    device_->SetInstant(false);
    device_->SetErrors(plan.device);
    engine_->SetLog(log_.get());
  }
  LayoutBinding binding = SampleBinding();
  binding.windows = Planted(plan.windows, plan.plant);
  return engine_->BindLayout(kHandle, std::move(binding));
}

ChainDaemon::~ChainDaemon() {
  context_->events.CancelAll(static_cast<SimPeer*>(this));
  if (device_ != nullptr) device_->Kill();
  engine_.reset();
  log_.reset();
}

void ChainDaemon::StopFaults() {
  if (device_ != nullptr) device_->StopFaults();
}

void ChainDaemon::CutPower() {
  if (device_ != nullptr) device_->CutPower();
}

void ChainDaemon::Connect() {
  memory_.assign(kChainLentSlots * kLentSlotBytes, 0);
  session_ = SessionId{context_->rng.Next() | 1};
  peer_ = transport_->AddPeer(this, absl::MakeSpan(memory_));
  RegionSetSpec spec;
  spec.regions.push_back(
      {.address = reinterpret_cast<uint64_t>(memory_.data()), .bytes = memory_.size(), .rkey = {}});
  spec.slots = kChainLentSlots;
  spec.slot_bytes = kLentSlotBytes;
  absl::Status status = engine_->OpenSession(session_, kTenant);
  if (status.ok()) status = engine_->AttachPeer(session_, 0, peer_);
  if (status.ok()) status = engine_->RegisterRegions(session_, kRegionSet, kHandle, spec);
  if (!status.ok()) context_->Fail(absl::StrCat("connect: ", status.ToString()));
  connected_ = true;
}

void ChainDaemon::KillWorker() {
  context_->trace.Add("worker dies");
  transport_->KillPeer(peer_);
  engine_->CloseSession(session_);
  connected_ = false;
}

MutableBytes ChainDaemon::slot(uint32_t index) {
  return absl::MakeSpan(memory_).subspan(index * kLentSlotBytes, kLentSlotBytes);
}

void ChainDaemon::Send(const WireHeader& header, absl::Span<const WireBlock> blocks,
                       uint32_t first_slot) {
  const bool moves = header.type == WireType::kPut || header.type == WireType::kGet;
  const auto count = static_cast<uint16_t>(blocks.size());
  std::vector<uint8_t> message(RequestBytes(count, moves ? 1 : 0));
  WireHeader full = header;
  full.block_count = count;
  full.session_id = session_.value;
  full.layout_handle = kHandle;
  full.region_set = moves ? kRegionSet : 0;
  full.slots_per_block = moves ? 1 : 0;
  WriteWireHeader(full, absl::MakeSpan(message));
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t slot[] = {first_slot + i};
    WriteWireBlock(i, blocks[i], absl::MakeConstSpan(slot, moves ? 1 : 0), absl::MakeSpan(message));
  }
  FinishWireMessage(absl::MakeSpan(message));
  transport_->Inject(peer_, message);
}

BlockResults ChainDaemon::Pin(const Digest& digest, uint64_t ttl_us) {
  return engine_->Pin(
      {.layout_handle = kHandle, .session = session_, .digests = {digest}, .ttl_us = ttl_us});
}

int ChainDaemon::Turn() { return engine_->Poll() + engine_->RunReady(); }

bool ChainDaemon::idle() const {
  return (log_ == nullptr || log_->idle()) && queue_->in_flight() == 0 &&
         transport_->transfers_pending() == 0 && !transport_->has_ready() &&
         engine_->stats().demotions_in_flight == 0;
}

void ChainDaemon::OnMessage(Bytes message) {
  WireReply reply;
  if (ParseReply(message, &reply) != WireCheck::kOk) {
    return context_->Fail("a reply does not parse");
  }
  on_reply_(reply);
}

}  // namespace crumb::sim
