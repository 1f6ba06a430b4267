// Pages from and to memory that the transport has mapped: the same promises as over transfers, with
// one job and no staging for raw pages; and what deadlines, deaths and memory taken away do to a
// job that holds lent memory.
#include <sys/mman.h>
#include <unistd.h>

#include "cachesvc/net/guarded_copy.h"
#include "tests/unit/cachesvc/core/engine_fixture.h"

namespace crumb::testing {
namespace {

// The lent memory of the rig's workers is this process's own, so it is mapped as it is.
class PlainMemory final : public MappedMemory {
 public:
  PlainMemory() { EXPECT_TRUE(InstallCopyGuard()); }

  BlockResult Hold(const Transfer& transfer, MappedUse, MappedHold* hold) override {
    if (refusal != BlockResult::kOk) return refusal;
    hold->pieces.clear();
    for (const Segment& segment : transfer.segments) {
      auto* data = reinterpret_cast<uint8_t*>(segment.address);
      if (taken != nullptr) data = taken;
      hold->pieces.push_back(
          {.data = data, .local_offset = segment.local_offset, .bytes = segment.bytes});
    }
    hold->peer = transfer.peer;
    hold->steady = steady;
    ++holds;
    ++held;
    return BlockResult::kOk;
  }
  bool Release(MappedHold* hold, MappedUse, uint64_t bytes) override {
    hold->peer = {};
    --held;
    moved += bytes;
    return !gone;
  }

  bool steady = false, gone = false;
  BlockResult refusal = BlockResult::kOk;
  uint8_t* taken = nullptr;  // memory that is not there any more
  int held = 0, holds = 0;
  uint64_t moved = 0;
};

class EngineMappedTest : public ::testing::Test {
 protected:
  void Start(CodecKind codec = CodecKind::kRaw) {
    RigOptions options;
    options.codec = codec;
    options.mapped = &memory_;
    rig_ = std::make_unique<Rig>(options);
  }
  RequestSpec Spec(WireType type, uint64_t key, uint32_t slot = 0) {
    return {.type = type, .blocks = {{.digest = DigestNumber(key), .slot = slot}}};
  }
  void ExpectAtRest() {
    rig_->ExpectAtRest();
    EXPECT_EQ(memory_.held, 0);
  }

  PlainMemory memory_;
  std::unique_ptr<Rig> rig_;
};

TEST_F(EngineMappedTest, RawPagesTakeOneJobAndNoStaging) {
  Start();
  rig_->queue.steps = 0;
  rig_->worker().Fill(0, PageOf(1));
  const uint64_t put = rig_->worker().Send(Spec(WireType::kPut, 1));
  rig_->Settle();
  EXPECT_EQ(rig_->queue.in_flight(), 1u);
  EXPECT_EQ(rig_->pool->staging_used_bytes(), 0u);
  rig_->queue.steps = 1;
  rig_->Turn();
  rig_->Turn();
  EXPECT_EQ(rig_->worker().Answer(put).result, BlockResult::kOk);
  std::vector<uint8_t> page;
  const WireBlockReply got = rig_->Get(1, &page);
  EXPECT_EQ(got.result, BlockResult::kOk);
  EXPECT_EQ(page, PageOf(1));
  EXPECT_EQ(got.checksum, Xxh3(page));
  EXPECT_EQ(memory_.moved, 2 * kRawBytes);
  ExpectAtRest();
}

TEST_F(EngineMappedTest, EveryFormAndCodecComesBackAsOverTransfers) {
  for (const CodecKind codec : {CodecKind::kRaw, CodecKind::kCrumbInt2}) {
    Start(codec);
    Rig plain({.codec = codec});
    for (Rig* rig : {rig_.get(), &plain}) {
      EXPECT_EQ(rig->Put(1, PageOf(1)).result, BlockResult::kOk);
    }
    for (const PageForm form : {PageForm::kRaw, PageForm::kPacked, PageForm::kPage}) {
      std::vector<uint8_t> mapped_page, page;
      const WireBlockReply mapped = rig_->Get(1, &mapped_page, form);
      const WireBlockReply moved = plain.Get(1, &page, form);
      EXPECT_EQ(mapped.result, BlockResult::kOk) << static_cast<int>(form);
      EXPECT_EQ(mapped_page, page);
      EXPECT_EQ(mapped.checksum, moved.checksum);
      EXPECT_EQ(mapped.checksum, Xxh3(mapped_page));
      if (form == PageForm::kRaw) continue;
      // And back under the same key, at a daemon that has it not.
      rig_->Delete(1);
      rig_->worker().Fill(0, mapped_page);
      RequestSpec put = Spec(WireType::kPut, 1);
      put.form = form;
      put.blocks[0].value_bytes = static_cast<uint32_t>(mapped_page.size());
      EXPECT_EQ(rig_->Ask(put).result, BlockResult::kOk) << static_cast<int>(form);
    }
    ExpectAtRest();
  }
}

TEST_F(EngineMappedTest, ShortPagesOfSteadyMemoryAreCopiedAtOnce) {
  Start();
  memory_.steady = true;
  rig_->queue.steps = 0;  // no worker thread does anything
  EXPECT_EQ(rig_->Put(1, PageOf(1)).result, BlockResult::kOk);
  std::vector<uint8_t> page;
  EXPECT_EQ(rig_->Get(1, &page).result, BlockResult::kOk);
  EXPECT_EQ(page, PageOf(1));
  ExpectAtRest();
}

TEST_F(EngineMappedTest, ADeadlineIsToldOnlyWhenTheWorkersMemoryIsFree) {
  Start();
  ASSERT_EQ(rig_->Put(1, PageOf(1)).result, BlockResult::kOk);
  rig_->queue.steps = 0;
  RequestSpec get = Spec(WireType::kGet, 1, 1), put = Spec(WireType::kPut, 2, 2);
  get.deadline_us = put.deadline_us = 1000;
  const uint64_t ids[] = {rig_->worker().Send(get), rig_->worker().Send(put)};
  rig_->Settle();
  rig_->clock.Advance(1'000'000);
  rig_->Settle();
  for (const uint64_t id : ids) EXPECT_FALSE(rig_->worker().Answered(id));
  EXPECT_EQ(memory_.held, 2);
  rig_->queue.steps = 64;
  rig_->Settle();
  for (const uint64_t id : ids) {
    EXPECT_EQ(rig_->worker().Answer(id).result, BlockResult::kTimeout);
  }
  EXPECT_EQ(rig_->Lookup(2).result, BlockResult::kMiss);
  ExpectAtRest();
}

TEST_F(EngineMappedTest, AWorkerThatDiesInTheMiddleLeavesNothing) {
  Start();
  ASSERT_EQ(rig_->Put(1, PageOf(1)).result, BlockResult::kOk);
  Worker& other = rig_->AddWorker({.session = 2});
  rig_->queue.steps = 0;
  other.Send(Spec(WireType::kGet, 1, 1));
  other.Send(Spec(WireType::kPut, 2, 2));
  rig_->Settle();
  EXPECT_EQ(memory_.held, 2);
  rig_->transport->KillPeer(other.peer);
  memory_.gone = true;
  rig_->Settle();
  EXPECT_EQ(memory_.held, 2) << "the jobs still use it";
  rig_->queue.steps = 64;
  rig_->Settle();
  memory_.gone = false;
  EXPECT_EQ(rig_->Lookup(2).result, BlockResult::kMiss);
  std::vector<uint8_t> page;
  EXPECT_EQ(rig_->Get(1, &page).result, BlockResult::kOk);
  ExpectAtRest();
}

TEST_F(EngineMappedTest, MemoryThatWasTakenAwayFailsItsBlockAlone) {
  Start();
  ASSERT_EQ(rig_->Put(1, PageOf(1)).result, BlockResult::kOk);
  const int fd = memfd_create("crumb-test", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, kRawBytes), 0);
  void* at = mmap(nullptr, kRawBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(at, MAP_FAILED);
  ASSERT_EQ(ftruncate(fd, 0), 0);
  memory_.taken = static_cast<uint8_t*>(at);
  EXPECT_EQ(rig_->Ask(Spec(WireType::kGet, 1)).result, BlockResult::kInvalid);
  EXPECT_EQ(rig_->Ask(Spec(WireType::kPut, 2)).result, BlockResult::kInvalid);
  memory_.taken = nullptr;
  EXPECT_EQ(rig_->Lookup(2).result, BlockResult::kMiss);
  std::vector<uint8_t> page;
  EXPECT_EQ(rig_->Get(1, &page).result, BlockResult::kOk) << "the page is as good as it was";
  EXPECT_EQ(page, PageOf(1));
  ExpectAtRest();
  munmap(at, kRawBytes);
  close(fd);
}

TEST_F(EngineMappedTest, APageThatDoesNotVerifyIsNeverShown) {
  Start();
  ASSERT_EQ(rig_->Put(1, PageOf(1)).result, BlockResult::kOk);
  for (uint8_t& byte : rig_->pool->arena().subspan(kPageHeaderBytes + 50, 1)) byte ^= 1;
  const std::vector<uint8_t> before(kRawBytes, 0x11);
  rig_->worker().Fill(3, before);
  EXPECT_EQ(rig_->Ask(Spec(WireType::kGet, 1, 3)).result, BlockResult::kMiss);
  EXPECT_EQ(rig_->worker().Read(3), before);
  ExpectAtRest();
}

TEST_F(EngineMappedTest, AFullQueueKeepsTheHoldUntilThereIsRoomOrNobodyWaits) {
  Start();
  ASSERT_EQ(rig_->Put(1, PageOf(1)).result, BlockResult::kOk);
  rig_->queue.jobs_max = 0;
  RequestSpec get = Spec(WireType::kGet, 1);
  get.deadline_us = 1000;
  const uint64_t late = rig_->worker().Send(get);
  rig_->Settle();
  EXPECT_EQ(memory_.held, 1);
  rig_->clock.Advance(10'000);
  rig_->Settle();
  EXPECT_EQ(rig_->worker().Answer(late).result, BlockResult::kTimeout);
  EXPECT_EQ(memory_.held, 0);
  const uint64_t patient = rig_->worker().Send(Spec(WireType::kGet, 1));
  rig_->Settle();
  rig_->queue.jobs_max = 64;
  rig_->Settle();
  EXPECT_EQ(rig_->worker().Answer(patient).result, BlockResult::kOk);
  ExpectAtRest();
}

TEST_F(EngineMappedTest, WhatTheTransportRefusesIsAnsweredOrWaits) {
  Start();
  ASSERT_EQ(rig_->Put(1, PageOf(1)).result, BlockResult::kOk);
  memory_.refusal = BlockResult::kInvalid;
  EXPECT_EQ(rig_->Ask(Spec(WireType::kGet, 1)).result, BlockResult::kInvalid);
  memory_.refusal = BlockResult::kUnavailable;
  EXPECT_EQ(rig_->Ask(Spec(WireType::kPut, 2)).result, BlockResult::kUnavailable);
  memory_.refusal = BlockResult::kBusy;
  const uint64_t id = rig_->worker().Send(Spec(WireType::kGet, 1));
  for (int i = 0; i < 10; ++i) rig_->Turn();
  EXPECT_FALSE(rig_->worker().Answered(id));
  memory_.refusal = BlockResult::kOk;
  rig_->Settle();
  EXPECT_EQ(rig_->worker().Answer(id).result, BlockResult::kOk);
  ExpectAtRest();
}

// A peer of mapped memory comes by itself: its first word names its session.
TEST(EngineIntroductionTest, OnlyAPeerThatNamesASessionMayStay) {
  PlainMemory memory;
  Rig rig;
  const auto socket = LoopbackTransport::Create(4);
  rig.engine->AddTransport(socket.get(), &memory);
  ASSERT_TRUE(rig.engine->OpenSession({77}, "t").ok());
  const auto say = [&](WireType type, uint64_t session) {
    const PeerId peer = socket->AddPeer([](void*, Bytes) {}, nullptr);
    std::vector<uint8_t> message(RequestBytes(0, 0));
    WireHeader header;
    header.type = type;
    header.session_id = session;
    WriteWireHeader(header, absl::MakeSpan(message));
    FinishWireMessage(absl::MakeSpan(message));
    EXPECT_EQ(socket->Inject(peer, message), BlockResult::kOk);
    rig.Settle();
    return socket->Send(peer, message) == BlockResult::kOk;
  };
  const uint64_t bad = rig.engine->stats().bad_messages;
  EXPECT_FALSE(say(WireType::kHello, 78)) << "no such session";
  EXPECT_FALSE(say(WireType::kGoodbye, 77)) << "no hello";
  EXPECT_EQ(rig.engine->stats().bad_messages, bad + 2);
  EXPECT_TRUE(say(WireType::kHello, 77));
  EXPECT_EQ(rig.engine->PeersOf({77}), 1u);
  // The rig's own worker has a peer of another transport.
  EXPECT_FALSE(say(WireType::kHello, 1));
}

}  // namespace
}  // namespace crumb::testing
