// GPU memory of a worker, over a GPU side and a plane of the test: what is lent and refused, in
// which order events are recorded and requests sent, and what a new session knows. No byte of GPU
// memory is touched: its addresses are nobody's here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "client/src/layout_spec.h"
#include "tests/unit/client/fake_plane.h"

namespace crumb::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kGpu = 0x7f0000000000, kAllocation = 1 << 20;
constexpr uint32_t kSlots = 4;

void* Address(uint64_t at) { return reinterpret_cast<void*>(static_cast<uintptr_t>(at)); }
void* Stream(uintptr_t number) { return reinterpret_cast<void*>(number); }

// What the fakes of one test did, in order.
struct GpuState {
  std::vector<std::string> log;
  uint64_t second_gpu_from = UINT64_MAX;  // addresses from here on lie on another GPU
  absl::Status share, make, record, wait;
  bool idle = false;
  std::vector<uint64_t> recorded;
  int made = 0;
};

class FakeMark final : public GpuMark {
 public:
  explicit FakeMark(GpuState* state) : state_(*state) { number_ = ++state_.made; }
  int word_fd() const override { return number_; }
  absl::StatusOr<bool> Idle(void*) override { return state_.idle; }
  absl::Status Record(void* stream, uint64_t value) override {
    state_.recorded.push_back(value);
    return Log("record", stream, state_.record);
  }
  absl::Status Wait(void* stream) override { return Log("wait", stream, state_.wait); }

 private:
  absl::Status Log(const char* what, void* stream, const absl::Status& status) {
    state_.log.push_back(absl::StrCat(what, " ", reinterpret_cast<uintptr_t>(stream)));
    return status;
  }
  GpuState& state_;
  int number_ = 0;
};

class FakeGpuSide final : public GpuSide {
 public:
  explicit FakeGpuSide(GpuState* state) : state_(*state) {}
  absl::StatusOr<GpuShare> Share(const void* address, uint64_t bytes) override {
    if (!state_.share.ok()) return state_.share;
    const auto at = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address));
    GpuShare share;
    share.device[0] = at < state_.second_gpu_from ? 1 : 2;
    share.allocation_bytes = kAllocation;
    share.offset = at % kAllocation;
    share.bytes = bytes;
    return share;
  }
  absl::StatusOr<std::unique_ptr<GpuMark>> MakeMark(const GpuUuid&) override {
    if (!state_.make.ok()) return state_.make;
    return std::make_unique<FakeMark>(&state_);
  }

 private:
  GpuState& state_;
};

class GpuRegionsTest : public ::testing::Test {
 protected:
  GpuRegionsTest() {
    options_.auto_reconnect = false;
    state_.on_submit = [this] { gpu_.log.push_back("send"); };
    state_.on_lend = [this](const LendOrder& order) {
      orders_.push_back({order.memory->gpu(), order.gate == nullptr ? -1 : order.gate->word_fd(),
                         order.memory->spec().regions.size()});
      return lend_;
    };
  }
  void SetUp() override {
    core_ = std::make_unique<ClientCore>(
        options_, "unix:/test",
        ClientCore::Seams{.clock = &clock_,
                          .opener = [this](const LinkPlan& plan) { return Open(plan); },
                          .gpu = &side_,
                          .seed = 1});
    ASSERT_TRUE(core_->OpenWaker().ok());
    ASSERT_TRUE(core_->Open().ok());
  }
  // As OpenLink does, without a daemon.
  absl::StatusOr<Link> Open(const LinkPlan& plan) {
    Link link;
    link.plane = std::make_unique<FakePlane>(&state_);
    link.name = "fake";
    link.layouts.push_back(MakeLayout());
    CRUMB_TRY(LendAgain(plan, &link));
    return link;
  }
  void TearDown() override {
    state_.lost = true;  // a clock that stands still waits for no goodbye
    core_.reset();
  }

  absl::StatusOr<uint32_t> LendPages(uint64_t address = kGpu) {
    auto places = LentMemory::Make(
        LentMemory::Pages{.base = Address(address), .bytes = kSlots * kValue, .slot_bytes = kValue},
        *MakeLayout().shape);
    EXPECT_TRUE(places.ok()) << places.status();
    return core_->LendGpu(1, **places);
  }
  uint32_t MustLend(uint64_t address = kGpu) {
    const auto set = LendPages(address);
    EXPECT_TRUE(set.ok()) << set.status();
    return set.ok() ? *set : 0;
  }
  Status Submit(WireType type, uint32_t set, void* stream, Ticket* ticket = nullptr) {
    blocks_.resize(1);
    blocks_[0].key = "key";
    blocks_[0].slot = slot_++ % kSlots;
    RequestOptions options;
    options.stream = stream;
    Ticket ignored = 0;
    return core_->Submit({type, 1, set, &blocks_, options}, ticket == nullptr ? &ignored : ticket);
  }
  void Put(uint32_t set, void* stream) {
    const Status status = Submit(WireType::kPut, set, stream);
    EXPECT_TRUE(status.ok()) << status.message;
  }

  struct Order {
    bool gpu = false;
    int event = -1;
    size_t regions = 0;
    bool operator==(const Order&) const = default;
  };
  TestClock clock_;
  PlaneState state_;
  GpuState gpu_;
  FakeGpuSide side_{&gpu_};
  Options options_;
  absl::Status lend_;
  std::vector<Order> orders_;
  std::vector<Block> blocks_;
  uint32_t slot_ = 0;
  std::unique_ptr<ClientCore> core_;
};

TEST_F(GpuRegionsTest, MemoryIsLentWithTheClientsOneWord) {
  const uint32_t first = MustLend();
  const uint32_t second = MustLend(kGpu + kAllocation);
  EXPECT_NE(first, second);
  EXPECT_THAT(orders_, ElementsAre(Order{true, 1, 1}, Order{true, 1, 1}));
  EXPECT_EQ(gpu_.made, 1);
  EXPECT_THAT(gpu_.log, IsEmpty());
}

TEST_F(GpuRegionsTest, TheWordIsRecordedBeforeARequestIsSent) {
  const uint32_t set = MustLend();
  Put(set, Stream(7));
  EXPECT_TRUE(Submit(WireType::kGet, set, Stream(7)).ok());
  EXPECT_THAT(gpu_.log, ElementsAre("record 7", "send", "record 7", "send"));
  EXPECT_THAT(gpu_.recorded, ElementsAre(1u, 2u));
}

TEST_F(GpuRegionsTest, AnIdleStreamRecordsNothing) {
  const uint32_t set = MustLend();
  gpu_.idle = true;
  Put(set, Stream(7));
  gpu_.idle = false;
  Put(set, Stream(9));
  EXPECT_THAT(gpu_.log, ElementsAre("send", "record 9", "send"));
}

TEST_F(GpuRegionsTest, AnotherStreamWaitsForWhatTheOneBeforeRecorded) {
  const uint32_t set = MustLend();
  for (const uintptr_t stream : {0, 0, 7, 9, 7}) Put(set, Stream(stream));
  EXPECT_THAT(gpu_.log,
              ElementsAre("record 0", "send", "record 0", "send", "wait 7", "record 7", "send",
                          "wait 9", "record 9", "send", "wait 7", "record 7", "send"));
}

TEST_F(GpuRegionsTest, WhatNamesNoGpuMemoryRecordsNothing) {
  MustLend();
  std::vector<uint8_t> host(kSlots * kValue);
  const auto places = LentMemory::Make(
      LentMemory::Pages{.base = host.data(), .bytes = host.size(), .slot_bytes = kValue},
      *MakeLayout().shape);
  ASSERT_TRUE(places.ok());
  const auto set = core_->session().Lend(1, *places);
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(orders_.back(), (Order{false, -1, 1}));
  Put(*set, Stream(7));
  EXPECT_TRUE(Submit(WireType::kLookup, 0, Stream(7)).ok());
  EXPECT_THAT(gpu_.log, ElementsAre("send", "send"));
}

TEST_F(GpuRegionsTest, ARefusedRequestRecordsNothing) {
  const uint32_t set = MustLend();
  EXPECT_EQ(Submit(WireType::kPut, set + 1, nullptr).code, Code::kInvalid);
  blocks_[0].slot = kSlots;
  Ticket ticket = 7;
  const Status refused = core_->Submit({WireType::kPut, 1, set, &blocks_, {}}, &ticket);
  EXPECT_EQ(refused.code, Code::kInvalid);
  EXPECT_THAT(refused.message, HasSubstr("slot 4 of lent memory with 4"));
  EXPECT_EQ(ticket, 0u);
  EXPECT_THAT(gpu_.log, IsEmpty());
}

TEST_F(GpuRegionsTest, AStreamOfAnotherGpuIsRefusedAndNothingIsSent) {
  const uint32_t set = MustLend();
  gpu_.record = absl::InvalidArgumentError("CUDA device 0: recording an event: error 400");
  const Status refused = Submit(WireType::kPut, set, Stream(7));
  EXPECT_EQ(refused.code, Code::kInvalid);
  EXPECT_THAT(refused.message, HasSubstr("RequestOptions::stream must be a stream of the GPU"));
  EXPECT_THAT(gpu_.log, ElementsAre("record 7"));
  EXPECT_EQ(core_->in_flight(), 0u);
  // What failed counts for nothing: the next stream has nobody to wait for.
  gpu_.record = absl::OkStatus();
  gpu_.log.clear();
  Put(set, Stream(9));
  EXPECT_THAT(gpu_.log, ElementsAre("record 9", "send"));
  gpu_.wait = absl::InternalError("CUDA device 0: the device is lost");
  gpu_.log.clear();
  EXPECT_EQ(Submit(WireType::kPut, set, Stream(7)).code, Code::kIo);
  EXPECT_THAT(gpu_.log, ElementsAre("wait 7"));
}

TEST_F(GpuRegionsTest, MemoryThatCannotBeSharedIsRefusedWithTheRemedy) {
  gpu_.share = absl::FailedPreconditionError("set expandable_segments:False");
  const auto set = LendPages();
  EXPECT_EQ(set.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(set.status().message(), HasSubstr("expandable_segments:False"));
  EXPECT_THAT(orders_, IsEmpty());
  gpu_.share = absl::OkStatus();
  gpu_.make = absl::ResourceExhaustedError("no event");
  EXPECT_FALSE(LendPages().ok());
  EXPECT_THAT(orders_, IsEmpty());
  gpu_.make = absl::OkStatus();
  EXPECT_TRUE(LendPages().ok());
}

TEST_F(GpuRegionsTest, AClientLendsMemoryOfOneGpu) {
  gpu_.second_gpu_from = kGpu + 2 * kAllocation;
  LentMemory::Tensors two;
  two.slots = 1;
  two.tokens_per_slot = 1;
  LayoutSpec spec;
  spec.model = "m";
  spec.revision = "r";
  spec.page_tokens = 1;
  LayerGroup& group = spec.groups.emplace_back();
  group.kv_heads = 1;
  group.k_dim = group.v_dim = 32;
  group.layer_ids = {0};
  for (const uint64_t at : {kGpu, kGpu + 2 * kAllocation}) {
    two.tensors.push_back({.base = Address(at),
                           .bytes = 64,
                           .slot_stride = 64,
                           .token_stride = 64,
                           .head_stride = 64});
  }
  const auto shape = CheckSpec(spec);
  ASSERT_TRUE(shape.ok()) << shape.status();
  const auto places = LentMemory::Make(two, *shape);
  ASSERT_TRUE(places.ok()) << places.status();
  auto status = core_->LendGpu(1, **places).status();
  EXPECT_THAT(status.message(), HasSubstr("one GPU: use a Client for each"));
  MustLend();
  status = LendPages(kGpu + 2 * kAllocation).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("one GPU: use a Client for each"));
  EXPECT_EQ(orders_.size(), 1u);
}

TEST_F(GpuRegionsTest, AnswersAreTakenAsTheyAreWithoutTouchingTheMemory) {
  const uint32_t set = MustLend();
  Ticket ticket = 0;
  ASSERT_TRUE(Submit(WireType::kGet, set, nullptr, &ticket).ok());
  PlaneReply reply;
  reply.id = ticket;
  reply.blocks.push_back(
      {.result = BlockResult::kOk, .tier = crumb::Tier::kHbm, .value_bytes = kValue});
  state_.replies.push_back(reply);
  std::vector<Completion> done;
  core_->Drain(0, &done);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].results[0].code, Code::kOk);
  EXPECT_EQ(done[0].results[0].tier, Tier::kHbm);
  // A length that no such page has is as wrong as ever.
  ASSERT_TRUE(Submit(WireType::kGet, set, nullptr, &ticket).ok());
  reply.id = ticket;
  reply.blocks[0].value_bytes = kValue - 1;
  state_.replies.push_back(reply);
  done.clear();
  core_->Drain(0, &done);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].results[0].code, Code::kCorrupt);
}

TEST_F(GpuRegionsTest, ANewSessionGetsTheMemoryAndTheSameEventAgain) {
  const uint32_t set = MustLend();
  Put(set, Stream(7));
  state_.lost = true;
  std::vector<Completion> done;
  core_->Drain(0, &done);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].code, Code::kUnavailable);
  state_.lost = false;
  orders_.clear();
  gpu_.log.clear();
  ASSERT_TRUE(core_->Open().ok());
  EXPECT_THAT(orders_, ElementsAre(Order{true, 1, 1}));
  EXPECT_EQ(gpu_.made, 1);
  Put(set, Stream(9));
  EXPECT_THAT(gpu_.log, ElementsAre("wait 9", "record 9", "send"));
}

TEST_F(GpuRegionsTest, ADaemonThatCameBackWithoutItsGpuServesTheRest) {
  const uint32_t set = MustLend();
  state_.lost = true;
  std::vector<Completion> done;
  core_->Drain(0, &done);
  state_.lost = false;
  lend_ = absl::FailedPreconditionError("the daemon has no GPU");
  ASSERT_TRUE(core_->Open().ok());
  const Status refused = Submit(WireType::kPut, set, nullptr);
  EXPECT_EQ(refused.code, Code::kInvalid);
  EXPECT_THAT(refused.message, HasSubstr("the daemon has no GPU"));
  EXPECT_TRUE(Submit(WireType::kLookup, 0, nullptr).ok());
  // The next one may have it again.
  state_.lost = true;
  core_->Drain(0, &done);
  state_.lost = false;
  lend_ = absl::OkStatus();
  ASSERT_TRUE(core_->Open().ok());
  Put(set, nullptr);
}

// The helper thread connects again with what was lent when it began.
TEST_F(GpuRegionsTest, ASetThatWasTakenBackMeanwhileLeavesNoRefusalToTheNext) {
  const uint32_t set = MustLend();
  lend_ = absl::FailedPreconditionError("the daemon has no GPU");
  state_.lost = true;
  std::vector<Completion> done;
  core_->Drain(0, &done);
  state_.lost = false;
  core_->session().StartOpen();
  ASSERT_TRUE(core_->Unlend(set).ok());
  pollfd wait{.fd = core_->session().helper_fd(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&wait, 1, 60'000), 1);
  ASSERT_TRUE(core_->session().Step());
  EXPECT_FALSE(core_->session().RefusalOf(set).empty());
  lend_ = absl::OkStatus();
  EXPECT_EQ(MustLend(), set);
  Put(set, nullptr);
}

TEST_F(GpuRegionsTest, ADaemonThatIsNotThereIsNoRefusal) {
  MustLend();
  state_.lost = true;
  std::vector<Completion> done;
  core_->Drain(0, &done);
  state_.lost = false;
  lend_ = absl::UnavailableError("the daemon is gone");
  EXPECT_EQ(core_->Open().code, Code::kUnavailable);
  EXPECT_FALSE(core_->session().open());
}

TEST(GpuPlanes, AnotherPlaneIsNamedWithTheRemedy) {
  const absl::Status status = MovesNoGpuMemory("ucx");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("data plane ucx"));
  EXPECT_THAT(status.message(), HasSubstr("unix socket"));
}

}  // namespace
}  // namespace crumb::client
