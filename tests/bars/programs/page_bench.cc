// The engine's turn by hand. See the header.
#include "tests/bars/programs/page_bench.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "cachesvc/base/check.h"
#include "cachesvc/base/wire.h"

namespace crumb::bars {
namespace {

constexpr uint32_t kHandle = 1, kRegionSet = 1;
constexpr SessionId kSession{1};
constexpr uint32_t kJobsMax = 64;

Digest DigestNumber(uint64_t number) {
  return number == 0 ? Digest{}
                     : DigestOf(Bytes(reinterpret_cast<const uint8_t*>(&number), sizeof(number)));
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  CRUMB_CHECK(value.ok());
  return *std::move(value);
}

}  // namespace

PageBench::PageBench(const PageBenchOptions& options) {
  pool_ = Must(PagePool::Create({.bytes = options.pool_bytes}));
  const uint32_t threads = std::max(1u, std::thread::hardware_concurrency());
  queue_ = std::make_unique<HostQueue>(HostQueueOptions{.threads = threads, .jobs_max = kJobsMax});
  transport_ = LoopbackTransport::Create(64);
  engine_ = Must(Engine::Create({.limits = {.index_entries_max = options.index_entries_max},
                                 .secret = {},
                                 .clock = &clock_,
                                 .pool = pool_.get(),
                                 .queue = queue_.get(),
                                 .fresh_idle_us = options.idle_us}));
  if (options.nvme != nullptr) {
    SegmentLogOptions log_options;
    log_options.bytes_max = options.nvme->size_bytes();
    log_ = Must(SegmentLog::Open(log_options, options.nvme, &clock_, engine_->recovery_sink()));
    engine_->SetLog(log_.get());
  }
  engine_->AddTransport(transport_.get());
  LayoutBinding binding;
  binding.layout = options.layout;
  binding.tenant = "bar";
  binding.effort = options.effort;
  binding.windows = options.windows;
  for (const PartShape& part : options.layout->parts()) {
    binding.ladder.push_back(Must(PageCodec::CreateAll(part, options.ladder, options.rotations)));
    binding.readers.emplace_back();
  }
  CRUMB_CHECK(engine_->BindLayout(kHandle, std::move(binding)).ok());
  CRUMB_CHECK(engine_->OpenSession(kSession, "bar").ok());
  peer_ = transport_->AddPeer(&PageBench::OnMessage, this);
  CRUMB_CHECK(engine_->AttachPeer(kSession, 0, peer_).ok());
  memory_.resize(options.layout->parts()[0].raw_bytes + 2 * kPageHeaderBytes);
  RegionSetSpec spec;
  spec.regions.push_back(
      {.address = reinterpret_cast<uint64_t>(memory_.data()), .bytes = memory_.size(), .rkey = {}});
  spec.slots = 1;
  spec.slot_bytes = memory_.size();
  CRUMB_CHECK(engine_->RegisterRegions(kSession, kRegionSet, kHandle, spec).ok());
}

PageBench::~PageBench() {
  Settle();
  engine_.reset();
}

void PageBench::Close() {
  bool drained = false;
  engine_->Drain(UINT64_MAX, [&drained] { drained = true; });
  while (!drained || !log_->idle()) Turn();
  CRUMB_CHECK(log_->Close().ok());
}

void PageBench::OnMessage(void* arg, Bytes message) {
  auto* self = static_cast<PageBench*>(arg);
  WireReply reply;
  CRUMB_CHECK(ParseReply(message, &reply) == WireCheck::kOk && reply.header.block_count == 1);
  self->answer_ = reply.block(0);
  self->answered_ = true;
}

void PageBench::Turn() {
  const int work = engine_->Poll() + engine_->RunReady();
  if (work == 0 && queue_->in_flight() > 0) std::this_thread::yield();
}

void PageBench::Settle() {
  while (engine_->stats().demotions_in_flight > 0 || queue_->in_flight() > 0) Turn();
  for (int quiet = 0; quiet < 8; ++quiet) Turn();
  while (engine_->stats().demotions_in_flight > 0 || queue_->in_flight() > 0) Turn();
}

WireBlockReply PageBench::Ask(WireHeader header, const WireBlock& block) {
  const bool moves = header.type == WireType::kPut || header.type == WireType::kGet;
  std::vector<uint8_t> message(RequestBytes(1, moves ? 1 : 0));
  header.block_count = 1;
  header.request_id = next_request_++;
  header.session_id = kSession.value;
  header.layout_handle = kHandle;
  header.region_set = moves ? kRegionSet : 0;
  header.slots_per_block = moves ? 1 : 0;
  WriteWireHeader(header, absl::MakeSpan(message));
  const uint32_t slot[] = {0};
  WriteWireBlock(0, block, absl::MakeConstSpan(slot, moves ? 1 : 0), absl::MakeSpan(message));
  FinishWireMessage(absl::MakeSpan(message));
  answered_ = false;
  CRUMB_CHECK(transport_->Inject(peer_, message) == BlockResult::kOk);
  while (!answered_) Turn();
  return answer_;
}

WireBlockReply PageBench::Put(const Page& page, Bytes raw) {
  std::memcpy(memory_.data(), raw.data(), raw.size());
  WireBlock block{.digest = DigestNumber(page.key), .parent = DigestNumber(page.parent)};
  block.token_start = page.token_start;
  block.token_count = page.token_count;
  return Ask({.type = WireType::kPut}, block);
}

WireBlockReply PageBench::Get(uint64_t key, PageForm form, std::vector<uint8_t>* value) {
  const WireBlockReply reply = Ask({.type = WireType::kGet, .form = form},
                                   WireBlock{.digest = DigestNumber(key), .parent = {}});
  value->assign(memory_.begin(), memory_.begin() + reply.value_bytes);
  return reply;
}

WireBlockReply PageBench::Lookup(uint64_t key) {
  return Ask({.type = WireType::kLookup}, WireBlock{.digest = DigestNumber(key), .parent = {}});
}

}  // namespace crumb::bars
