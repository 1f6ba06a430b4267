// The simulated seams themselves: a simulator that is kinder than it says finds nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <set>
#include <string>
#include <vector>

#include "cachesvc/base/identity.h"
#include "tests/sim/sim_core.h"
#include "tests/sim/sim_device_queue.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_transport.h"

namespace crumb::sim {
namespace {

struct alignas(kSimBlockBytes) AlignedPages {
  std::array<uint8_t, 4 * kSimBlockBytes> bytes{};
};

void RunAll(SimContext& context) {
  while (context.events.next_us() != UINT64_MAX) {
    context.clock.AdvanceTo(context.events.next_us());
    context.events.RunDue();
  }
}

TEST(EventQueue, RunsByTimeThenByOrderAndForgetsTheDead) {
  SimContext context(1, Echo::kQuiet);
  std::string log;
  int a = 0, b = 0;
  context.events.After(&a, 20, [&] { log += "late "; });
  context.events.After(&a, 10, [&] { log += "first "; });
  context.events.After(&b, 10, [&] { log += "never "; });
  context.events.After(&a, 10, [&] {
    log += "second ";
    context.events.After(&a, 0, [&] { log += "nested "; });
  });
  context.events.CancelAll(&b);
  EXPECT_EQ(context.events.RunDue(), 0u);
  RunAll(context);
  EXPECT_EQ(log, "first second nested late ");
}

std::array<uint8_t, kSimBlockBytes> Filled(uint8_t value) {
  std::array<uint8_t, kSimBlockBytes> block;
  block.fill(value);
  return block;
}

uint8_t FirstByte(const SimDisk& disk, uint64_t block) {
  std::array<uint8_t, kSimBlockBytes> data;
  disk.Read(block * kSimBlockBytes, absl::MakeSpan(data));
  return data[0];
}

TEST(SimDisk, ACrashPicksAnyVersionSinceTheLastSyncForEachBlock) {
  std::set<std::pair<int, int>> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SimDisk disk(1 << 20);
    Rng rng(seed);
    disk.WriteDurable(0, Filled(1));
    disk.WriteDurable(kSimBlockBytes, Filled(1));
    disk.Write(0, Filled(2));
    disk.Write(kSimBlockBytes, Filled(2));
    disk.Write(0, Filled(3));
    EXPECT_EQ(FirstByte(disk, 0), 3);
    disk.Crash(rng);
    seen.emplace(FirstByte(disk, 0), FirstByte(disk, 1));
  }
  EXPECT_EQ(seen.size(), 6u);  // {1, 2, 3} x {1, 2}
}

TEST(SimDisk, ASyncCoversWhatWasThereWhenItWasQueued) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SimDisk disk(1 << 20);
    Rng rng(seed);
    disk.Write(0, Filled(2));
    const uint64_t version = disk.version();
    disk.Write(kSimBlockBytes, Filled(2));
    disk.SyncTo(version);
    disk.Crash(rng);
    EXPECT_EQ(FirstByte(disk, 0), 2);
  }
}

TEST(SimDisk, RotIsOneBitOfWhatIsDurable) {
  SimDisk disk(1 << 20);
  EXPECT_FALSE(disk.FlipBit(0, 3));
  disk.Write(0, Filled(2));
  EXPECT_FALSE(disk.FlipBit(0, 3));
  disk.SyncTo(disk.version());
  EXPECT_TRUE(disk.FlipBit(0, 3));
  EXPECT_EQ(FirstByte(disk, 0), 2 ^ 8);
}

TEST(SimBlockDevice, APlainWriteCanBeLostAndADurableOneCannot) {
  bool lost = false, kept = false;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SimContext context(seed, Echo::kQuiet);
    SimDisk disk(1 << 20);
    SimBlockDevice device(&context, &disk, {});
    AlignedPages plain, durable;
    plain.bytes.fill(7);
    durable.bytes.fill(9);
    ASSERT_TRUE(device.Queue({IoOp::kWrite, 0, plain.bytes.data(), kSimBlockBytes, 1}));
    ASSERT_TRUE(device.Queue(
        {IoOp::kWriteDurable, 8 * kSimBlockBytes, durable.bytes.data(), kSimBlockBytes, 2}));
    device.Submit();
    RunAll(context);
    std::array<IoCompletion, 4> done;
    ASSERT_EQ(device.Poll(absl::MakeSpan(done)), 2u);
    EXPECT_EQ(done[0].error, 0);
    device.CutPower();
    (FirstByte(disk, 0) == 7 ? kept : lost) = true;
    EXPECT_EQ(FirstByte(disk, 8), 9);
    EXPECT_TRUE(context.failure.empty()) << context.failure;
  }
  EXPECT_TRUE(lost);
  EXPECT_TRUE(kept);
}

TEST(SimBlockDevice, AWriteInFlightIsTornByACrash) {
  std::set<std::pair<int, int>> seen;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SimContext context(seed, Echo::kQuiet);
    SimDisk disk(1 << 20);
    SimBlockDevice device(&context, &disk, {});
    AlignedPages data;
    data.bytes.fill(7);
    ASSERT_TRUE(device.Queue({IoOp::kWriteDurable, 0, data.bytes.data(), 2 * kSimBlockBytes, 1}));
    device.Submit();
    device.CutPower();
    std::array<IoCompletion, 4> done;
    ASSERT_EQ(device.Poll(absl::MakeSpan(done)), 1u);
    EXPECT_EQ(done[0].error, EIO);
    EXPECT_EQ(device.in_flight(), 0u);
    seen.emplace(FirstByte(disk, 0), FirstByte(disk, 1));
  }
  EXPECT_EQ(seen.size(), 4u);
}

TEST(SimBlockDevice, SeesABufferThatChangesUnderAWrite) {
  SimContext context(1, Echo::kQuiet);
  SimDisk disk(1 << 20);
  SimBlockDevice device(&context, &disk, {});
  AlignedPages data;
  ASSERT_TRUE(device.Queue({IoOp::kWrite, 0, data.bytes.data(), kSimBlockBytes, 1}));
  device.Submit();
  data.bytes[5] = 1;
  RunAll(context);
  EXPECT_THAT(context.failure, ::testing::HasSubstr("changed while the device"));
}

TEST(SimBlockDevice, TheFuseCutsPowerAtTheOperationNamed) {
  SimContext context(1, Echo::kQuiet);
  SimDisk disk(1 << 20);
  SimBlockDevice device(&context, &disk, {});
  device.SetInstant(true);
  device.CutPowerAfter(2);
  AlignedPages data;
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(device.Queue(
        {IoOp::kWriteDurable, i * kSimBlockBytes, data.bytes.data(), kSimBlockBytes, i}));
    device.Submit();
    std::array<IoCompletion, 1> done;
    ASSERT_EQ(device.Poll(absl::MakeSpan(done)), 1u);
    EXPECT_EQ(done[0].error, i < 2 ? 0 : EIO);
  }
}

struct Counting {
  int runs = 0;
  static void Run(void* arg, uint32_t) noexcept { ++static_cast<Counting*>(arg)->runs; }
};

TEST(SimDeviceQueue, RunsJobsLaterAndIsBounded) {
  SimContext context(3, Echo::kQuiet);
  SimDeviceQueue queue(&context, {.workers = 2, .jobs_max = 8});
  Counting counting;
  uint64_t submitted = 0;
  for (uint64_t i = 0; i < 200; ++i) submitted += queue.Submit({Counting::Run, &counting, i});
  EXPECT_EQ(submitted, 8u);
  EXPECT_EQ(counting.runs, 0);
  uint64_t tokens[3];
  EXPECT_EQ(queue.Poll(tokens), 0u);
  RunAll(context);
  EXPECT_EQ(counting.runs, 8);
  EXPECT_EQ(queue.Poll(tokens), 3u);
  EXPECT_EQ(queue.in_flight(), 5u);
}

class RecordingPeer : public SimPeer {
 public:
  void OnMessage(Bytes message) override { got.emplace_back(message.begin(), message.end()); }
  void OnClosed() override { ++closed; }
  std::vector<std::vector<uint8_t>> got;
  int closed = 0;
};

class SimTransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Identity identity;
    identity.model = "m";
    identity.revision = "1";
    identity.page_tokens = 16;
    identity.groups.push_back({.kind = AttentionKind::kGqa,
                               .kv_heads = 2,
                               .k_dim = 64,
                               .v_dim = 64,
                               .window = 0,
                               .layer_ids = {0}});
    const auto layout = Layout::Make(identity);
    ASSERT_TRUE(layout.ok());
    bytes_ = layout->parts()[0].raw_bytes;
    memory_.assign(4 * bytes_, 0x11);
    RegionSetSpec spec;
    spec.regions.push_back({.address = reinterpret_cast<uint64_t>(memory_.data()),
                            .bytes = memory_.size(),
                            .rkey = {}});
    spec.slots = 4;
    spec.slot_bytes = bytes_;
    auto set = RegionSet::Make(spec, *layout);
    ASSERT_TRUE(set.ok()) << set.status();
    peer_ = transport_.AddPeer(&worker_, absl::MakeSpan(memory_));
    ASSERT_TRUE(transport_.RegisterRegions(peer_, 1, *set).ok());
    // Several segments, so that a transfer has something to be torn between.
    const uint32_t slot = 2;
    ASSERT_TRUE(set->Segments(0, {&slot, 1}, bytes_, &whole_));
    for (uint64_t at = 0; at < bytes_; at += bytes_ / 8) {
      segments_.push_back({.region = 0,
                           .address = whole_[0].address + at,
                           .local_offset = at,
                           .bytes = bytes_ / 8});
    }
    local_.assign(bytes_, 0x22);
  }
  Transfer MakeTransfer(uint64_t token) {
    return {.peer = peer_,
            .region_set = 1,
            .segments = segments_,
            .local = absl::MakeSpan(local_),
            .token = token};
  }
  std::vector<NetEvent> PollAll() {
    std::vector<NetEvent> all;
    std::array<NetEvent, 4> some;
    while (const size_t count = transport_.Poll(absl::MakeSpan(some))) {
      all.insert(all.end(), some.begin(), some.begin() + static_cast<ptrdiff_t>(count));
    }
    return all;
  }

  SimContext context_{5, Echo::kQuiet};
  SimTransport transport_{&context_, {}};
  RecordingPeer worker_;
  PeerId peer_;
  uint64_t bytes_ = 0;
  std::vector<uint8_t> memory_, local_;
  std::vector<Segment> whole_, segments_;
};

TEST_F(SimTransportTest, MessagesOfAPeerKeepTheirOrder) {
  for (uint8_t i = 0; i < 50; ++i) {
    transport_.Inject(peer_, Bytes(&i, 1));
    while (transport_.Send(peer_, Bytes(&i, 1)) == BlockResult::kBusy) RunAll(context_);
  }
  RunAll(context_);
  ASSERT_EQ(worker_.got.size(), 50u);
  for (uint8_t i = 0; i < 50; ++i) EXPECT_EQ(worker_.got[i][0], i);
  std::array<NetEvent, 64> events;
  ASSERT_EQ(transport_.Poll(absl::MakeSpan(events)), 50u);
  for (uint8_t i = 0; i < 50; ++i) EXPECT_EQ(events[i].message[0], i);
}

TEST_F(SimTransportTest, APushIsSeenHalfDoneAndReportedWhenWhole) {
  bool half = false;
  for (uint64_t round = 0; round < 20; ++round) {
    std::fill(memory_.begin(), memory_.end(), 0x11);
    ASSERT_EQ(transport_.Push(MakeTransfer(round)), BlockResult::kOk);
    std::vector<NetEvent> events;
    while (events.empty()) {
      context_.clock.AdvanceTo(context_.events.next_us());
      context_.events.RunDue();
      events = PollAll();
      const auto fresh = std::count(memory_.begin(), memory_.end(), 0x22);
      if (events.empty()) half = half || (fresh > 0 && static_cast<uint64_t>(fresh) < bytes_);
    }
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].token, round);
    EXPECT_EQ(events[0].result, BlockResult::kOk);
    EXPECT_EQ(static_cast<uint64_t>(std::count(memory_.begin(), memory_.end(), 0x22)), bytes_);
  }
  EXPECT_TRUE(half);
}

TEST_F(SimTransportTest, ADeathFailsTransfersThenSaysSoAndTouchesNothingMore) {
  ASSERT_EQ(transport_.Push(MakeTransfer(1)), BlockResult::kOk);
  transport_.KillPeer(peer_);
  RunAll(context_);
  const std::vector<NetEvent> events = PollAll();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, NetEventKind::kTransferDone);
  EXPECT_EQ(events[0].result, BlockResult::kUnavailable);
  EXPECT_EQ(events[1].kind, NetEventKind::kPeerDown);
  EXPECT_EQ(std::count(memory_.begin(), memory_.end(), 0x22), 0);
  EXPECT_EQ(transport_.Push(MakeTransfer(2)), BlockResult::kUnavailable);
}

TEST_F(SimTransportTest, AClosedPeerIsToldAndGivesNoMoreEventsButItsTransfers) {
  const uint8_t byte = 1;
  transport_.Inject(peer_, Bytes(&byte, 1));
  ASSERT_EQ(transport_.Pull(MakeTransfer(9)), BlockResult::kOk);
  transport_.ClosePeer(peer_);
  RunAll(context_);
  const std::vector<NetEvent> events = PollAll();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].token, 9u);
  EXPECT_EQ(worker_.closed, 1);
}

TEST_F(SimTransportTest, NothingMovesWhileAPeerIsCutOff) {
  const uint64_t until = context_.clock.now_us() + 1'000'000;
  transport_.CutOff(peer_, 1'000'000);
  ASSERT_EQ(transport_.Pull(MakeTransfer(1)), BlockResult::kOk);
  while (context_.events.next_us() < until) {
    context_.clock.AdvanceTo(context_.events.next_us());
    context_.events.RunDue();
  }
  EXPECT_TRUE(PollAll().empty());
  RunAll(context_);
  EXPECT_EQ(PollAll().size(), 1u);
}

TEST_F(SimTransportTest, SeesABufferThatChangesUnderAPush) {
  ASSERT_EQ(transport_.Push(MakeTransfer(1)), BlockResult::kOk);
  local_[0] = 0x23;
  RunAll(context_);
  EXPECT_THAT(context_.failure, ::testing::HasSubstr("changed while it was being pushed"));
}

TEST_F(SimTransportTest, SeesATransferOutsideWhatWasLent) {
  Transfer transfer = MakeTransfer(1);
  segments_[0].address = reinterpret_cast<uint64_t>(memory_.data()) - 1;
  transfer.segments = segments_;
  EXPECT_EQ(transport_.Pull(transfer), BlockResult::kInvalid);
  EXPECT_THAT(context_.failure, ::testing::HasSubstr("outside the lent regions"));
}

}  // namespace
}  // namespace crumb::sim
