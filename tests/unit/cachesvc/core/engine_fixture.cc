// The rig and its workers. See the header.
#include "tests/unit/cachesvc/core/engine_fixture.h"

#include <algorithm>
#include <cstring>

namespace crumb::testing {

Worker::Worker(Engine* engine, LoopbackTransport* transport, const Options& options)
    : session{options.session},
      transport_(transport),
      slots_(options.slots),
      memory_(options.slots * slot_bytes_) {
  EXPECT_TRUE(engine->OpenSession(session, options.tenant).ok());
  peer = transport->AddPeer(&Worker::OnMessage, this);
  EXPECT_TRUE(engine->AttachPeer(session, 0, peer).ok());
  const absl::Status status = engine->RegisterRegions(session, kRegionSet, options.layout, Spec());
  EXPECT_TRUE(status.ok()) << status;
}

RegionSetSpec Worker::Spec() {
  RegionSetSpec spec;
  spec.regions.push_back(
      {.address = reinterpret_cast<uint64_t>(memory_.data()), .bytes = memory_.size(), .rkey = {}});
  spec.slots = slots_;
  spec.slot_bytes = slot_bytes_;
  return spec;
}

void Worker::OnMessage(void* arg, Bytes message) {
  auto* self = static_cast<Worker*>(arg);
  WireReply parsed;
  ASSERT_EQ(ParseReply(message, &parsed), WireCheck::kOk);
  Reply reply;
  reply.request_id = parsed.header.request_id;
  for (uint32_t i = 0; i < parsed.header.block_count; ++i) reply.blocks.push_back(parsed.block(i));
  EXPECT_TRUE(self->replies.emplace(reply.request_id, reply).second) << "answered twice";
}

std::vector<uint8_t> Worker::Message(RequestSpec spec) {
  const bool slots = spec.type == WireType::kPut || spec.type == WireType::kGet;
  const auto count = static_cast<uint16_t>(spec.blocks.size());
  std::vector<uint8_t> message(RequestBytes(count, slots ? 1 : 0));
  const MutableBytes out = absl::MakeSpan(message);
  WriteWireHeader({.type = spec.type,
                   .flags = spec.flags,
                   .block_count = count,
                   .request_id = spec.request_id != 0 ? spec.request_id : next_request_++,
                   .session_id = spec.session != 0 ? spec.session : session.value,
                   .deadline_us = spec.deadline_us,
                   .layout_handle = spec.layout,
                   .region_set = slots ? spec.region_set : 0,
                   .slots_per_block = static_cast<uint16_t>(slots ? 1 : 0),
                   .form = spec.form,
                   .gpu_ticket = spec.gpu_ticket},
                  out);
  for (uint32_t i = 0; i < count; ++i) {
    const BlockSpec& block = spec.blocks[i];
    const uint32_t slot[] = {block.slot};
    WriteWireBlock(i,
                   {.digest = block.digest,
                    .parent = block.parent,
                    .token_start = block.token_start,
                    .token_count = block.token_count,
                    .part = block.part,
                    .value_bytes = block.value_bytes},
                   absl::MakeConstSpan(slot, slots ? 1 : 0), out);
  }
  FinishWireMessage(out);
  return message;
}

uint64_t Worker::Send(const RequestSpec& spec) {
  const uint64_t id = spec.request_id != 0 ? spec.request_id : next_request_;
  EXPECT_EQ(SendBytes(Message(spec)), BlockResult::kOk);
  return id;
}

WireBlockReply Worker::Answer(uint64_t request_id) const {
  const auto it = replies.find(request_id);
  if (it != replies.end() && it->second.blocks.size() == 1) return it->second.blocks[0];
  ADD_FAILURE() << "no answer to request " << request_id;
  return {.result = BlockResult::kTimeout};
}

void Worker::Fill(uint32_t slot, const std::vector<uint8_t>& value) {
  ASSERT_LE(value.size(), slot_bytes_);
  std::memcpy(memory_.data() + slot * slot_bytes_, value.data(), value.size());
}

std::vector<uint8_t> Worker::Read(uint32_t slot, size_t bytes) const {
  const uint8_t* begin = memory_.data() + slot * slot_bytes_;
  return {begin, begin + bytes};
}

BlockResult HoldingTransport::Start(const Transfer& transfer, bool pull) {
  if (!hold && held_.empty()) return pull ? inner_->Pull(transfer) : inner_->Push(transfer);
  held_.push_back({transfer, pull});
  return BlockResult::kOk;
}

void HoldingTransport::ClosePeer(PeerId peer) {
  for (auto it = held_.begin(); it != held_.end();) {
    if (it->transfer.peer == peer) {
      failed_.push_back(it->transfer);
      it = held_.erase(it);
    } else {
      ++it;
    }
  }
  inner_->ClosePeer(peer);
}

size_t HoldingTransport::Poll(absl::Span<NetEvent> events) {
  size_t count = 0;
  for (; !failed_.empty() && count < events.size(); ++count) {
    events[count] = {.kind = NetEventKind::kTransferDone,
                     .peer = failed_.front().peer,
                     .token = failed_.front().token,
                     .result = BlockResult::kUnavailable,
                     .message = {}};
    failed_.pop_front();
  }
  while (!hold && !held_.empty()) {
    const Held next = held_.front();
    held_.pop_front();
    const BlockResult result =
        next.pull ? inner_->Pull(next.transfer) : inner_->Push(next.transfer);
    if (result != BlockResult::kOk) failed_.push_back(next.transfer);
  }
  return count + inner_->Poll(events.subspan(count));
}

Rig::Rig(const RigOptions& rig_options) : options(rig_options) {
  auto made_layout = Layout::Make(SmallIdentity(options.parts));
  EXPECT_TRUE(made_layout.ok()) << made_layout.status();
  layout = std::make_shared<const Layout>(std::move(made_layout).value());
  if (options.nvme_bytes > 0) {
    device = std::make_unique<MemDevice>(
        MemDeviceOptions{.bytes = options.nvme_bytes, .track_unsynced = true});
    faults = std::make_unique<FaultDevice>(device.get(),
                                           [](const IoRequest&, uint64_t) { return Fault{}; });
    options.log.bytes_max = options.nvme_bytes;
    options.log.segment_bytes = 1 << 20;
    options.log.format_seed = 1;
  }
  Start();
}

Rig::~Rig() = default;

void Rig::Start() {
  auto made_pool = PagePool::Create({.bytes = options.main_bytes + options.staging_bytes,
                                     .staging_bytes = options.staging_bytes,
                                     .slab_bytes = 64 << 10});
  EXPECT_TRUE(made_pool.ok()) << made_pool.status();
  pool = std::move(made_pool).value();
  queue = InlineQueue();
  transport = LoopbackTransport::Create(256);
  wire = std::make_unique<HoldingTransport>(transport.get());
  EngineOptions engine_options;
  engine_options.limits = options.limits;
  engine_options.policy = options.policy;
  engine_options.clock = &clock;
  engine_options.pool = pool.get();
  engine_options.queue = options.device_queue != nullptr ? options.device_queue : &queue;
  engine_options.max_lossy_depth = options.max_lossy_depth;
  engine_options.fresh_percent = options.fresh_percent;
  engine_options.fresh_idle_us = options.fresh_idle_us;
  engine_options.nvme_admission = options.nvme_admission;
  engine_options.nvme_promotion = options.nvme_promotion;
  engine_options.disk = options.disk;
  if (options.hbm_bytes > 0) {
    auto memory = Arena::Map(options.hbm_bytes, HugePages::kNo);
    EXPECT_TRUE(memory.ok()) << memory.status();
    hbm_memory = std::move(memory).value();
    auto made_hbm = PagePool::CreateOver(hbm_memory.bytes(),
                                         {.staging_bytes = kNoStaging, .slab_bytes = 64 << 10});
    EXPECT_TRUE(made_hbm.ok()) << made_hbm.status();
    hbm = std::move(made_hbm).value();
    lower = MoodyLink(&options.gpu->mood);
    raise = MoodyLink(&options.gpu->mood);
    engine_options.hbm = {.pool = hbm.get(), .lower = lower.get(), .raise = raise.get()};
  }
  if (options.gpu_stage_bytes > 0) {
    auto memory = Arena::Map(options.gpu_stage_bytes, HugePages::kNo);
    EXPECT_TRUE(memory.ok()) << memory.status();
    gpu_stage_memory = std::move(memory).value();
    engine_options.gpu_stage.memory = gpu_stage_memory.bytes();
  }
  auto made = Engine::Create(engine_options);
  EXPECT_TRUE(made.ok()) << made.status();
  engine = std::move(made).value();
  if (device != nullptr) {
    auto opened = SegmentLog::Open(options.log, faults.get(), &clock, engine->recovery_sink());
    EXPECT_TRUE(opened.ok()) << opened.status();
    log = std::move(opened).value();
    engine->SetLog(log.get());
  }
  wire->gpu = options.gpu;
  engine->AddTransport(wire.get(), options.mapped, options.gpu);
  const absl::Status bound = engine->BindLayout(kLayout, Bind(options.codec));
  EXPECT_TRUE(bound.ok()) << bound;
  AddWorker({});
}

void Rig::Restart(const MemDevice::Survives* crash) {
  if (crash != nullptr) {
    device->Crash(*crash);
    faults->Forget();
  } else if (log != nullptr) {
    EXPECT_TRUE(log->Close().ok());
  }
  engine.reset();
  log.reset();
  workers_.clear();
  wire.reset();
  transport.reset();
  pool.reset();
  Start();
}

LayoutBinding Rig::Bind(CodecKind kind, const std::string& tenant) const {
  LayoutBinding binding;
  binding.layout = layout;
  binding.tenant = tenant;
  binding.keep_non_finite_raw = options.keep_non_finite_raw;
  binding.windows = options.windows;
  for (const PartShape& part : layout->parts()) {
    std::vector<std::shared_ptr<const PageCodec>> ladder;
    for (CodecKind rung = kind; rung != CodecKind::kRaw; rung = StepUp(rung)) {
      ladder.push_back(std::make_shared<SampleCodec>(part, rung));
    }
    auto raw =
        PageCodec::Create(part, CodecDescriptor::Default(CodecKind::kRaw, Sha256{}), nullptr);
    EXPECT_TRUE(raw.ok()) << raw.status();
    ladder.push_back(std::move(raw).value());
    if (options.gpu != nullptr) {
      binding.gpu.emplace_back();
      for (const auto& codec : ladder) {
        binding.gpu.back().push_back(std::make_shared<SampleGpuCodec>(codec, part));
      }
    }
    binding.ladder.push_back(std::move(ladder));
    binding.readers.emplace_back();
  }
  return binding;
}

Worker& Rig::AddWorker(const Worker::Options& worker_options) {
  workers_.push_back(std::make_unique<Worker>(engine.get(), transport.get(), worker_options));
  return *workers_.back();
}

void Rig::Turn() {
  engine->Poll();
  engine->RunReady();
}

void Rig::Settle() {
  constexpr int kQuietTurns = 4;
  constexpr int kTurnsMax = 100'000;
  int quiet = 0;
  for (int turn = 0; turn < kTurnsMax && quiet < kQuietTurns; ++turn) {
    const int polled = engine->Poll();
    const int ran = engine->RunReady();
    const bool log_works = log != nullptr && !log->idle();
    quiet = polled + ran == 0 && !log_works ? quiet + 1 : 0;
  }
  EXPECT_EQ(quiet, kQuietTurns) << "the engine never comes to rest";
}

WireBlockReply Rig::Ask(const RequestSpec& spec, size_t index) {
  const uint64_t id = worker(index).Send(spec);
  Settle();
  return worker(index).Answer(id);
}

WireBlockReply Rig::Put(uint64_t key, const std::vector<uint8_t>& page, uint16_t flags) {
  worker().Fill(0, page);
  return Ask({.type = WireType::kPut, .blocks = {{.digest = DigestNumber(key)}}, .flags = flags});
}

WireBlockReply Rig::Get(uint64_t key, std::vector<uint8_t>* page, PageForm form) {
  const WireBlockReply reply = Ask(
      {.type = WireType::kGet, .blocks = {{.digest = DigestNumber(key), .slot = 1}}, .form = form});
  if (reply.result != BlockResult::kOk) return reply;
  *page = worker().Read(1, reply.value_bytes);
  EXPECT_EQ(Xxh3(*page), reply.checksum);
  return reply;
}

WireBlockReply Rig::PutChained(uint64_t key, uint64_t parent, uint32_t token_start) {
  worker().Fill(0, PageOf(key));
  BlockSpec block{.digest = DigestNumber(key), .token_start = token_start};
  if (parent != 0) block.parent = DigestNumber(parent);
  return Ask({.type = WireType::kPut, .blocks = {block}});
}

WireBlockReply Rig::Lookup(uint64_t key) {
  return Ask({.type = WireType::kLookup, .blocks = {{.digest = DigestNumber(key)}}});
}

WireBlockReply Rig::Delete(uint64_t key) {
  return Ask({.type = WireType::kDelete, .blocks = {{.digest = DigestNumber(key)}}});
}

void Rig::ExpectAtRest() const {
  const EngineStats stats = engine->stats();
  for (const uint64_t in_flight : stats.in_flight) EXPECT_EQ(in_flight, 0u);
  EXPECT_EQ(stats.staging_used_bytes, 0u);
  EXPECT_EQ(stats.gpu_stage_used_bytes, 0u);
  EXPECT_EQ(stats.waiters, 0u);
  EXPECT_EQ(queue.in_flight(), 0u);
  EXPECT_EQ(stats.moves_in_flight, 0u);
  EXPECT_TRUE(options.gpu == nullptr || options.gpu->held == 0);
  if (stats.pins == 0) {
    EXPECT_EQ(stats.pool_pinned, 0u);
    EXPECT_EQ(stats.hbm_pinned, 0u);
  }
}

}  // namespace crumb::testing
