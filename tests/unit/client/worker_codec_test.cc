// The codec in the worker, over a GPU of the host and a daemon that is a map: what is put comes
// back as the reference codec makes it, whatever the daemon wants raw or the kernels refuse, and
// nothing of a request that ended touches memory any more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/codec/host_gpu_codec.h"
#include "gpu/codec/host_link.h"
#include "gpu/device/host_stream_queue.h"
#include "tests/unit/client/codec_rig.h"

namespace crumb::client {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kSlots = 16;

// What the GPU of one test does; outlives the core.
struct HostGpuState {
  bool hold = false;  // work is begun and never seen to end
  bool fail = false;  // what waits for the worker's stream
  bool kernels = true;
  bool mappable = true;  // by another process
  int waits = 0;
  int registered = 0;
};

// Begins no work while held: as a stream that has other work ahead of it.
class HeldQueue final : public StreamQueue {
 public:
  explicit HeldQueue(const HostGpuState* state) : state_(*state) {}
  bool Submit(const StreamWork& work) override { return queue_.Submit(work); }
  size_t Poll(absl::Span<StreamDone> done) override { return state_.hold ? 0 : queue_.Poll(done); }
  size_t in_flight() const override { return queue_.in_flight(); }
  const absl::Status& health() const override { return queue_.health(); }

 private:
  const HostGpuState& state_;
  HostStreamQueue queue_{256};
};

class HostWorkerGpu final : public WorkerGpu {
 public:
  explicit HostWorkerGpu(HostGpuState* state) : state_(*state) {}
  void Run(const std::function<void()>& work) override { work(); }
  absl::StatusOr<std::shared_ptr<void>> RegisterHost(MutableBytes) override {
    ++state_.registered;
    return std::shared_ptr<void>(&state_, [](HostGpuState* state) { --state->registered; });
  }
  absl::StatusOr<std::shared_ptr<GpuLink>> MakeLink(
      std::function<absl::Status(StreamHandle)> wait_for_worker) override {
    GpuLinkParts parts = HostLinkParts(std::make_unique<HeldQueue>(&state_));
    parts.wait_for_worker = [this, wait = std::move(wait_for_worker)](StreamHandle stream) {
      if (state_.fail) return absl::InternalError("no wait");
      ++state_.waits;
      return wait(stream);
    };
    CRUMB_ASSIGN(std::unique_ptr<GpuLink> link, GpuLink::Create(std::move(parts)));
    return std::shared_ptr<GpuLink>(std::move(link));
  }
  std::vector<GpuCodecMade> MakeCodecs(
      const PartShape& shape, absl::Span<const CodecDescriptor> descriptors,
      const std::shared_ptr<const RotationSet>& rotations) override {
    std::vector<CodecDescriptor> all = {CodecDescriptor::Default(CodecKind::kRaw, {})};
    for (const CodecDescriptor& one : descriptors) {
      if (one.kind != CodecKind::kRaw) all.push_back(one);
    }
    std::vector<GpuCodecMade> out;
    for (const CodecDescriptor& one : all) {
      GpuCodecMade& made = out.emplace_back();
      made.descriptor = one;
      made.status = absl::UnimplementedError("this GPU is too small");
      if (one.kind != CodecKind::kRaw && !state_.kernels) continue;
      std::shared_ptr<const PageCodec> codec =
          *PageCodec::Create(shape, one, rotations, CodecBackend::kReference);
      made.codec = *HostGpuCodec::Make(std::move(codec), shape);
      made.status = absl::OkStatus();
    }
    return out;
  }

 private:
  HostGpuState& state_;
};

class NoMark final : public GpuMark {
 public:
  int word_fd() const override { return -1; }
  absl::StatusOr<bool> Idle(void*) override { return false; }
  absl::Status Record(void*, uint64_t) override { return absl::OkStatus(); }
  absl::Status Wait(void*) override { return absl::OkStatus(); }
};

class HostSide final : public GpuSide {
 public:
  explicit HostSide(HostGpuState* state) : state_(*state) {}
  absl::StatusOr<GpuUuid> DeviceOf(const void*) override { return GpuUuid{1}; }
  absl::StatusOr<GpuShare> Share(const void*, uint64_t bytes) override {
    if (!state_.mappable) return absl::FailedPreconditionError("expandable");
    GpuShare share;
    share.device[0] = 1;
    share.allocation_bytes = share.bytes = bytes;
    return share;
  }
  absl::StatusOr<std::unique_ptr<GpuMark>> MakeMark(const GpuUuid&) override {
    return std::make_unique<NoMark>();
  }
  absl::StatusOr<std::unique_ptr<WorkerGpu>> OpenWorkerGpu(const GpuUuid&) override {
    return std::make_unique<HostWorkerGpu>(&state_);
  }

 private:
  HostGpuState& state_;
};

class WorkerCodecTest : public ::testing::Test {
 protected:
  void SetUp() override { Begin({}); }
  void Begin(const Options& options, CodecPlace place = CodecPlace::kWorker) {
    rig_.reset();
    rig_ = std::make_unique<CodecRig>(&side_, options, place);
    memory_.assign(kSlots * rig_->raw_bytes(), 0);
    for (uint32_t slot = 0; slot < kSlots; ++slot) FillPage(Slot(slot), slot);
    before_ = memory_;
    set_ = rig_->Lend(memory_.data(), kSlots);
  }
  void TearDown() override {
    rig_.reset();
    EXPECT_EQ(gpu_.registered, 0);
  }
  MutableBytes Slot(uint32_t slot) {
    return absl::MakeSpan(memory_).subspan(slot * rig_->raw_bytes(), rig_->raw_bytes());
  }
  std::vector<uint8_t> Page(uint32_t slot) {
    const MutableBytes bytes = Slot(slot);
    return {bytes.begin(), bytes.end()};
  }
  void Put(const std::vector<std::string>& keys) {
    const Completion put = rig_->Do(WireType::kPut, set_, rig_->Blocks(keys, 0));
    EXPECT_EQ(put.prefix, keys.size());
  }
  static std::vector<Code> Codes(const Completion& completion) {
    std::vector<Code> out;
    for (const Result& result : completion.results) out.push_back(result.code);
    return out;
  }

  HostGpuState gpu_;
  HostSide side_{&gpu_};
  std::unique_ptr<CodecRig> rig_;
  std::vector<uint8_t> memory_, before_;
  uint32_t set_ = 0;
};

TEST_F(WorkerCodecTest, PagesComeBackAsTheReferenceCodecMakesThem) {
  Put({"a", "b", "c"});
  EXPECT_THAT(rig_->store.asked, ElementsAre(PageForm::kPacked));
  EXPECT_EQ(rig_->store.codec_tag_said, CodecTag(rig_->packed.id()));
  EXPECT_EQ(memory_, before_);
  const Completion got = rig_->Do(WireType::kGet, set_, rig_->Blocks({"a", "x", "b", "c"}, 4));
  EXPECT_THAT(Codes(got), ElementsAre(Code::kOk, Code::kMiss, Code::kOk, Code::kOk));
  EXPECT_EQ(got.results[0].tier, Tier::kDram);
  EXPECT_EQ(got.results[0].precision, Precision::kInt4);
  EXPECT_EQ(got.results[0].value_bytes, rig_->raw_bytes());
  EXPECT_EQ(Page(4), rig_->ThroughCodec(Slot(0), kRigTokens));
  EXPECT_EQ(Page(6), rig_->ThroughCodec(Slot(1), kRigTokens));
  EXPECT_EQ(Page(7), rig_->ThroughCodec(Slot(2), kRigTokens));
  EXPECT_EQ(gpu_.waits, 2);
  EXPECT_THAT(rig_->store.lent_gpu, Each(false));
}

TEST_F(WorkerCodecTest, APartialPageKeepsItsRowsAlone) {
  std::vector<Block> blocks = rig_->Blocks({"a"}, 0);
  blocks[0].token_count = 5;
  EXPECT_EQ(rig_->Do(WireType::kPut, set_, blocks).prefix, 1u);
  blocks[0].slot = 4;
  EXPECT_THAT(Codes(rig_->Do(WireType::kGet, set_, blocks)), ElementsAre(Code::kOk));
  const std::vector<uint8_t> wanted = rig_->ThroughCodec(Slot(0), 5);
  constexpr size_t kRows = 5 * 128;  // of the first head of K
  EXPECT_EQ(0, std::memcmp(Slot(4).data(), wanted.data(), kRows));
  EXPECT_EQ(0, std::memcmp(Slot(4).data() + kRows, before_.data() + 4 * rig_->raw_bytes() + kRows,
                           kRigTokens * 128 - kRows));
}

TEST_F(WorkerCodecTest, WhatTheDaemonWantsRawGoesRaw) {
  rig_->store.wants_raw = true;
  Put({"a", "b"});
  EXPECT_THAT(rig_->store.asked, ElementsAre(PageForm::kPacked, PageForm::kRaw));
  // Raw pages are longer than a slot for packed ones: they are asked for again.
  const Completion got = rig_->Do(WireType::kGet, set_, rig_->Blocks({"a", "b"}, 4));
  EXPECT_EQ(got.prefix, 2u);
  EXPECT_EQ(got.results[0].precision, Precision::kRaw);
  EXPECT_EQ(Page(4), Page(0));
  EXPECT_EQ(Page(5), Page(1));
}

TEST_F(WorkerCodecTest, PagesThatMustStayRawAreNotPacked) {
  rig_->codecs.packs_known = false;
  set_ = rig_->Lend(memory_.data(), kSlots);
  std::vector<Block> blocks = rig_->Blocks({"a", "b"}, 0);
  blocks[0].token_start = 64;
  EXPECT_EQ(rig_->Do(WireType::kPut, set_, blocks).prefix, 2u);
  EXPECT_THAT(rig_->store.asked, ElementsAre(PageForm::kPacked, PageForm::kRaw));
  EXPECT_EQ(rig_->store.pages.size(), 2u);
}

TEST_F(WorkerCodecTest, APageWithANaNGoesRawForTheDaemonToJudge) {
  Slot(1)[6] = 0xc0;
  Slot(1)[7] = 0x7f;
  Put({"a", "b"});
  EXPECT_THAT(rig_->store.asked, ElementsAre(PageForm::kPacked, PageForm::kRaw));
  EXPECT_EQ(rig_->Do(WireType::kGet, set_, rig_->Blocks({"b"}, 5)).prefix, 1u);
  EXPECT_EQ(Page(5), Page(1));
}

TEST_F(WorkerCodecTest, AnUnknownCodecIsUnpackedByTheDaemon) {
  Put({"a"});
  rig_->store.unknown_codec = 77;
  EXPECT_EQ(rig_->Do(WireType::kGet, set_, rig_->Blocks({"a"}, 4)).prefix, 1u);
  EXPECT_EQ(Page(4), rig_->ThroughCodec(Slot(0), kRigTokens));
  EXPECT_THAT(rig_->store.asked, ElementsAre(PageForm::kPacked, PageForm::kPage, PageForm::kRaw));
}

TEST_F(WorkerCodecTest, ADamagedPageIsNotUnpacked) {
  Put({"a"});
  rig_->store.damage = true;
  const Completion got = rig_->Do(WireType::kGet, set_, rig_->Blocks({"a"}, 4));
  EXPECT_THAT(Codes(got), ElementsAre(Code::kCorrupt));
  EXPECT_EQ(memory_, before_);
}

TEST_F(WorkerCodecTest, AGpuThatDoesNotWaitDoesNothing) {
  gpu_.fail = true;
  const Completion put = rig_->Do(WireType::kPut, set_, rig_->Blocks({"a"}, 0));
  EXPECT_THAT(Codes(put), ElementsAre(Code::kUnavailable));
  EXPECT_TRUE(rig_->store.asked.empty());
}

TEST_F(WorkerCodecTest, LittleRoomMeansSeveralPieces) {
  Options options;
  options.staging_bytes = 3 * 8192;  // three packed pages, one raw one
  Begin(options);
  Put({"a", "b", "c", "d", "e"});
  EXPECT_EQ(rig_->store.asked.size(), 2u);
  EXPECT_EQ(rig_->Do(WireType::kGet, set_, rig_->Blocks({"a", "b", "c", "d", "e"}, 8)).prefix, 5u);
  EXPECT_EQ(Page(12), rig_->ThroughCodec(Slot(4), kRigTokens));
  rig_->store.wants_raw = true;
  rig_->store.asked.clear();
  Put({"f", "g"});
  EXPECT_THAT(rig_->store.asked, ElementsAre(PageForm::kPacked, PageForm::kRaw, PageForm::kRaw));
}

TEST_F(WorkerCodecTest, WithoutRoomARequestIsRefusedAtOnce) {
  Options options;
  options.staging_bytes = 3 * 8192;
  Begin(options);
  rig_->store.hold = true;
  rig_->Start(WireType::kPut, set_, rig_->Blocks({"a", "b", "c"}, 0));
  const std::vector<Block> more = rig_->Blocks({"d"}, 3);
  Ticket ticket = 0;
  EXPECT_TRUE(rig_->Done().empty());
  EXPECT_EQ(rig_->core->Submit({WireType::kPut, 1, set_, &more, {}}, &ticket).code, Code::kBusy);
  rig_->store.hold = false;
  EXPECT_EQ(rig_->Done().size(), 1u);
  EXPECT_EQ(rig_->Do(WireType::kPut, set_, more).prefix, 1u);
}

TEST_F(WorkerCodecTest, ACancelledPutIsNotSentOnceItIsPacked) {
  gpu_.hold = true;
  const Ticket ticket = rig_->Start(WireType::kPut, set_, rig_->Blocks({"a"}, 0));
  EXPECT_TRUE(rig_->core->Cancel(ticket).ok());
  EXPECT_TRUE(rig_->Done().empty());
  EXPECT_TRUE(rig_->core->table().OwnsSlot(set_, 0));
  gpu_.hold = false;
  const std::vector<Completion> done = rig_->Done();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].code, Code::kCancelled);
  EXPECT_TRUE(rig_->store.asked.empty());
}

TEST_F(WorkerCodecTest, ACancelledGetWritesNothing) {
  Put({"a"});
  rig_->store.hold = true;
  const Ticket ticket = rig_->Start(WireType::kGet, set_, rig_->Blocks({"a"}, 4));
  EXPECT_TRUE(rig_->core->Cancel(ticket).ok());
  ASSERT_EQ(rig_->store.cancels.size(), 1u);
  EXPECT_EQ(rig_->store.cancels[0].first, rig_->store.last_id);
  rig_->store.hold = false;
  const std::vector<Completion> done = rig_->Done();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].code, Code::kCancelled);
  EXPECT_EQ(memory_, before_);
}

TEST_F(WorkerCodecTest, ADeadlineFreesSlotsThatNoKernelUses) {
  Put({"a"});
  rig_->store.hold = true;
  rig_->Start(WireType::kGet, set_, rig_->Blocks({"a"}, 4));
  rig_->clock.Advance(10'000'000);
  std::vector<Completion> done = rig_->Done();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].code, Code::kTimeout);
  EXPECT_FALSE(rig_->core->table().OwnsSlot(set_, 4));
  rig_->store.hold = false;
  EXPECT_TRUE(rig_->Done().empty());
  EXPECT_EQ(memory_, before_);
  EXPECT_EQ(rig_->core->stats().unanswered, 0u);
}

TEST_F(WorkerCodecTest, ADeadlineLeavesSlotsToKernelsInFlight) {
  gpu_.hold = true;
  rig_->Start(WireType::kPut, set_, rig_->Blocks({"a"}, 0));
  rig_->clock.Advance(10'000'000);
  ASSERT_EQ(rig_->Done().size(), 1u);
  EXPECT_TRUE(rig_->core->table().OwnsSlot(set_, 0));
  EXPECT_EQ(rig_->core->Unlend(set_).code, Code::kBusy);
  gpu_.hold = false;
  EXPECT_TRUE(rig_->Done().empty());
  EXPECT_FALSE(rig_->core->table().OwnsSlot(set_, 0));
  EXPECT_TRUE(rig_->core->Unlend(set_).ok());
}

TEST_F(WorkerCodecTest, ALostDaemonEndsTripsAndANewOneKnowsTheSet) {
  Put({"a"});
  rig_->store.hold = true;
  rig_->Start(WireType::kGet, set_, rig_->Blocks({"a"}, 4));
  rig_->store.lost = true;
  const std::vector<Completion> done = rig_->Done();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].code, Code::kUnavailable);
  EXPECT_EQ(gpu_.registered, 0);
  rig_->store.lost = rig_->store.hold = false;
  rig_->store.replies.clear();
  ASSERT_TRUE(rig_->core->Open().ok());
  EXPECT_EQ(rig_->core->session().PlacedAt(set_).place, CodecPlace::kWorker);
  EXPECT_EQ(rig_->Do(WireType::kGet, set_, rig_->Blocks({"a"}, 4)).prefix, 1u);
  EXPECT_EQ(Page(4), rig_->ThroughCodec(Slot(0), kRigTokens));
}

TEST_F(WorkerCodecTest, TheDaemonSaysWhereAndTheWorkerMayDiffer) {
  EXPECT_EQ(rig_->core->session().PlacedAt(set_).place, CodecPlace::kWorker);
  const uint32_t there = rig_->Lend(memory_.data(), kSlots, CodecPlace::kDaemon);
  EXPECT_EQ(rig_->core->session().PlacedAt(there).place, CodecPlace::kDaemon);
  EXPECT_TRUE(rig_->store.lent_gpu.back());
  Begin({}, CodecPlace::kDaemon);
  EXPECT_EQ(rig_->core->session().PlacedAt(set_).place, CodecPlace::kDaemon);
  const uint32_t here = rig_->Lend(memory_.data(), kSlots, CodecPlace::kWorker);
  EXPECT_EQ(rig_->core->session().PlacedAt(here).place, CodecPlace::kWorker);
}

TEST_F(WorkerCodecTest, WithoutAKernelTheDaemonDoesItAndTheNoteSaysWhy) {
  gpu_.kernels = false;
  const uint32_t set = rig_->Lend(memory_.data(), kSlots);
  const CodecPlaced placed = rig_->core->session().PlacedAt(set);
  EXPECT_EQ(placed.place, CodecPlace::kDaemon);
  EXPECT_THAT(placed.note, HasSubstr("no kernel for int4 on this GPU: this GPU is too small"));
  EXPECT_TRUE(rig_->store.lent_gpu.back());
}

TEST_F(WorkerCodecTest, MemoryThatNobodyElseMapsIsPackedHere) {
  gpu_.mappable = false;
  Begin({}, CodecPlace::kDaemon);
  EXPECT_EQ(rig_->core->session().PlacedAt(set_).place, CodecPlace::kWorker);
  Put({"a"});
  EXPECT_EQ(rig_->Do(WireType::kGet, set_, rig_->Blocks({"a"}, 4)).prefix, 1u);
  EXPECT_EQ(Page(4), rig_->ThroughCodec(Slot(0), kRigTokens));
}

TEST_F(WorkerCodecTest, AStagingAreaTooSmallForAPageNamesTheOption) {
  Options options;
  options.staging_bytes = 4096;
  Begin(options);
  EXPECT_THAT(rig_->core->session().PlacedAt(set_).note, HasSubstr("raise Options::staging_bytes"));
}

TEST_F(WorkerCodecTest, OtherFormsAreRefused) {
  const std::vector<Block> blocks = rig_->Blocks({"a"}, 0);
  RequestOptions options;
  options.form = Form::kPage;
  Ticket ticket = 0;
  const Status refused = rig_->core->Submit({WireType::kGet, 1, set_, &blocks, options}, &ticket);
  EXPECT_EQ(refused.code, Code::kInvalid);
  EXPECT_THAT(refused.message, HasSubstr("kDaemon"));
}

}  // namespace
}  // namespace crumb::client
