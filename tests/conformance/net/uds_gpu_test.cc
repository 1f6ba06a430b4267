// GPU memory lent over the data socket, with a mapper that has no GPU: late answers, refusals and
// none at all, peers that die at every moment, holds, limits, and what must not be mixed.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "cachesvc/base/bytes.h"
#include "cachesvc/net/frames.h"
#include "gpu/device/gpu_share.h"
#include "tests/conformance/net/uds_gpu_fixture.h"

namespace crumb {
namespace {

TEST_F(UdsGpuTest, ThisLayerReadsSharesAsTheyAreWritten) {
  GpuShare share;
  share.handle.fill(3);
  share.device.fill(4);
  share.allocation_bytes = 1000;
  share.offset = 600;
  share.bytes = 400;
  UdsGpuShare read;
  ASSERT_TRUE(ParseUdsGpuShare(EncodeGpuShare(share), &read));
  EXPECT_EQ(read.device, share.device);
  EXPECT_EQ(read.allocation_bytes, 1000u);
  EXPECT_EQ(read.offset, 600u);
  EXPECT_EQ(read.bytes, 400u);
  share.offset = 0;
  share.bytes = 1000;
  EXPECT_EQ(WholeUdsGpuShare(EncodeGpuShare(share)), EncodeGpuShare(share));
  EXPECT_EQ(kUdsGpuShareBytes, kGpuShareBytes);
}

TEST_F(UdsGpuTest, AllocationsAreLentOnceAndRangesNamedByOffset) {
  StartGpu();
  Client client = ConnectOnly();
  const auto whole = LendGpu(&client, Range(1));
  const auto part = LendGpu(&client, Range(1, 4096, 8192));
  GpuRange by_part = Range(1, 512, 512);  // whose handle was made for another range
  GpuShare share;
  share.handle.fill(1);
  share.device.fill(1);
  share.allocation_bytes = kAllocation;
  share.offset = share.bytes = 512;
  by_part.share = EncodeGpuShare(share);
  const auto third = LendGpu(&client, by_part);
  const auto other = LendGpu(&client, Range(2));
  ASSERT_TRUE(whole.ok() && part.ok() && third.ok() && other.ok());
  EXPECT_EQ(mapper_.offered(), 2u);
  EXPECT_EQ(mapper_.links(), 1u) << "a peer's mappings share its link";
  EXPECT_EQ(server_->uds_stats().gpu_mapped, 2u);
  EXPECT_EQ(server_->uds_stats().gpu_bytes_mapped, 2 * kAllocation);
  EXPECT_EQ(server_->uds_stats().files_mapped, 0u);
  ASSERT_TRUE(RegisterAll(client, 1, {*whole, *part, *third, *other}).ok());
  const std::vector<uint64_t> places = server_->AddressesOf(client.peer, 1);
  const uint64_t first = uint64_t{1} << 40, second = uint64_t{2} << 40;
  EXPECT_EQ(places, (std::vector<uint64_t>{first, first + 4096, first + 512, second}));
  EXPECT_NE(server_->LinkOf(client.peer, 1), nullptr);
  EXPECT_EQ(server_->LinkOf(client.peer, 2), nullptr);
  for (const Region& region : {*whole, *part, *third, *other}) client.transport->Unlend(region);
  ASSERT_TRUE(Until([&] { return mapper_.mapped() == 0; }));
  EXPECT_EQ(mapper_.links(), 1u) << "whose memory it was may lend other memory";
  EXPECT_EQ(server_->LinkOf(client.peer, 1), nullptr);
  ASSERT_TRUE(LendGpu(&client, Range(1)).ok()) << "and again, with the same link";
  EXPECT_EQ(mapper_.links(), 1u);
  client.transport.reset();
  ASSERT_TRUE(Until([&] { return mapper_.links() == 0; }));
}

TEST_F(UdsGpuTest, NothingIsMovedByTheTransportItself) {
  StartGpu();
  const Client client = ConnectGpu();
  std::vector<uint8_t> local(kAllocation);
  EXPECT_EQ(server_->Pull(Whole(client, &local, 1)), BlockResult::kInvalid);
  EXPECT_EQ(server_->Push(Whole(client, &local, 1)), BlockResult::kInvalid);
  MappedHold hold;
  EXPECT_EQ(server_->Hold(Whole(client, &local, 1), MappedUse::kRead, &hold),
            BlockResult::kInvalid);
  EXPECT_FALSE(hold.held());
}

TEST_F(UdsGpuTest, HostAndGpuMemoryDoNotMix) {
  StartGpu();
  SharedMemory memory(64 * 1024, SharedKind::kSealed);
  Client client = Connect(memory);
  GpuHold hold;
  EXPECT_EQ(server_->LinkOf(client.peer, kSet), nullptr);
  EXPECT_EQ(server_->HoldGpu(client.peer, kSet, &hold), BlockResult::kInvalid);
  const auto gpu = LendGpu(&client, Range(1));
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  for (const auto& mixed : {std::vector<Region>{client.region, *gpu}, {*gpu, client.region}}) {
    const absl::Status status = RegisterAll(client, 9, mixed);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("one set of each"), std::string::npos) << status;
  }
  ASSERT_TRUE(RegisterAll(client, 9, {*gpu, *gpu}).ok());
  EXPECT_NE(server_->LinkOf(client.peer, 9), nullptr);
  EXPECT_TRUE(Served(client, memory)) << "host memory beside it is served as ever";
}

TEST_F(UdsGpuTest, RangesMustLieInWhatIsMapped) {
  StartGpu();
  const Client client = ConnectGpu();
  const auto forged = [&](uint64_t bytes, const UdsRkey& place) {
    const auto key = MakeUdsRkey(place);
    Region region{.address = client.region.address, .bytes = bytes, .rkey = {}};
    region.rkey = EncodeRkey({.address = region.address, .bytes = bytes, .key = key});
    return Register(client, region).code();
  };
  EXPECT_EQ(forged(kAllocation, {.file = 1, .offset = 0}), absl::StatusCode::kOk);
  EXPECT_EQ(forged(kAllocation, {.file = 1, .offset = 1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(forged(1, {.file = 1, .offset = kAllocation}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(forged(1, {.file = 1, .offset = UINT64_MAX}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(forged(1, {.file = 2, .offset = 0}), absl::StatusCode::kInvalidArgument);
}

TEST_F(UdsGpuTest, LendGpuSaysWhyItFails) {
  StartGpu();
  Client client = ConnectOnly();
  GpuRange range = Range(1, 1, kAllocation);
  EXPECT_EQ(LendGpu(&client, range).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LendGpu(&client, Range(1, 0, 0)).status().code(), absl::StatusCode::kInvalidArgument);
  range = Range(1);
  range.address = UINT64_MAX - 1;
  EXPECT_EQ(LendGpu(&client, range).status().code(), absl::StatusCode::kInvalidArgument);
  range = Range(1);
  range.share = {};
  EXPECT_EQ(LendGpu(&client, range).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(mapper_.offered(), 0u);
  struct Case {
    UdsRefusal refusal;
    absl::StatusCode code;
    const char* remedy;
  };
  const std::vector<Case> cases = {
      {UdsRefusal::kNoGpu, absl::StatusCode::kFailedPrecondition, "CUDA_VISIBLE_DEVICES"},
      {UdsRefusal::kNotShared, absl::StatusCode::kFailedPrecondition, "expandable_segments"},
      {UdsRefusal::kTooMany, absl::StatusCode::kResourceExhausted, "lend fewer"},
      {UdsRefusal::kOtherGpu, absl::StatusCode::kInvalidArgument, "for each GPU"}};
  mapper_.at_once = false;
  for (const Case& c : cases) {
    absl::StatusOr<Region> region = absl::UnknownError("not run");
    std::thread lender([&] { region = client.transport->LendGpu(Range(1)); });
    EXPECT_TRUE(Until([&] { return mapper_.offers() == 1; }));
    mapper_.Answer(c.refusal);
    Step();
    lender.join();
    EXPECT_EQ(region.status().code(), c.code) << region.status();
    EXPECT_NE(region.status().message().find(c.remedy), std::string::npos) << region.status();
  }
  EXPECT_EQ(server_->uds_stats().gpu_refused, cases.size());
  mapper_.at_once = true;
  EXPECT_TRUE(LendGpu(&client, Range(1)).ok()) << "and is none the worse for it";
}

TEST_F(UdsGpuTest, WithoutAMapperThereIsNoGpu) {
  Start();
  Client client = ConnectOnly();
  const auto region = LendGpu(&client, Range(1));
  EXPECT_EQ(region.status().code(), absl::StatusCode::kFailedPrecondition) << region.status();
  EXPECT_EQ(server_->uds_stats().gpu_refused, 1u);
}

TEST_F(UdsGpuTest, AMapperThatNeverAnswersEndsTheWaitAndTheConnection) {
  StartGpu();
  mapper_.at_once = false;
  Client client;
  auto made = UdsTransport::Create({.peers_max = 2, .lend_gpu_timeout_us = 50'000});
  ASSERT_TRUE(made.ok());
  client.transport = *std::move(made);
  const auto daemon = client.transport->Connect(path());
  ASSERT_TRUE(daemon.ok());
  ASSERT_EQ(client.transport->Send(*daemon, AsBytes("hello")), BlockResult::kOk);
  const auto region = LendGpu(&client, Range(1));
  EXPECT_EQ(region.status().code(), absl::StatusCode::kDeadlineExceeded) << region.status();
  ASSERT_TRUE(PeersGone()) << "an offer without an answer keeps no peer";
  EXPECT_EQ(mapper_.offers(), 1u);
  EXPECT_EQ(downs_.size(), 1u);
}

TEST_F(UdsGpuTest, AnswersForTheDeadAreUnmapped) {
  StartGpu();
  mapper_.at_once = false;
  for (const UdsRefusal refusal : {UdsRefusal::kNone, UdsRefusal::kNotShared}) {
    PeerId id;
    auto raw = Raw(&id);
    ASSERT_TRUE(raw->Send(LendPacket(1, 1)));
    ASSERT_TRUE(raw->Send(LendPacket(2, 2)));  // waits for the first
    ASSERT_TRUE(Until([&] { return mapper_.offers() == 1; }));
    raw.reset();
    ASSERT_TRUE(Until([&] { return downs_.contains(id.value); }));
    mapper_.Answer(refusal);
    ASSERT_TRUE(Until([&] { return mapper_.mapped() == 0; }));
    EXPECT_EQ(mapper_.offers(), 0u) << "what waited is dropped";
    EXPECT_EQ(mapper_.links(), 0u);
  }
  EXPECT_EQ(server_->uds_stats().gpu_mapped, 0u);
  EXPECT_EQ(server_->uds_stats().gpu_bytes_mapped, 0u);
}

TEST_F(UdsGpuTest, HoldsOutliveTheirPeerAndNothingElseDoes) {
  StartGpu();
  for (const bool killed : {true, false}) {
    Client client = ConnectGpu();
    GpuHold first, second;
    ASSERT_EQ(server_->HoldGpu(client.peer, kSet, &first), BlockResult::kOk);
    ASSERT_EQ(server_->HoldGpu(client.peer, kSet, &second), BlockResult::kOk);
    EXPECT_TRUE(first.held() && first.peer == client.peer);
    EXPECT_EQ(server_->stats().transfers_pending, 2u);
    EXPECT_EQ(server_->uds_stats().holds, 2u);
    client.transport.reset();
    if (!killed) server_->ClosePeer(client.peer);
    ASSERT_TRUE(Until([&] { return server_->stats().peers == 0; }));
    EXPECT_EQ(server_->HoldGpu(client.peer, kSet, &second), BlockResult::kUnavailable);
    EXPECT_EQ(server_->LinkOf(client.peer, kSet), nullptr);
    EXPECT_FALSE(server_->ReleaseGpu(&first, MappedUse::kRead, 10));
    EXPECT_FALSE(first.held());
    Step();
    EXPECT_EQ(mapper_.mapped(), 1u) << "one hold is left";
    EXPECT_EQ(mapper_.links(), 1u);
    EXPECT_FALSE(downs_.contains(client.peer.value)) << "before its transfers have ended";
    EXPECT_FALSE(server_->ReleaseGpu(&second, MappedUse::kWrite, 20));
    EXPECT_EQ(mapper_.mapped(), 0u);
    ASSERT_TRUE(PeersGone());
    ASSERT_TRUE(Until([&] { return mapper_.links() == 0; }));
    EXPECT_EQ(downs_.contains(client.peer.value), killed);
  }
  EXPECT_EQ(server_->uds_stats().holds_outlived, 4u);
  EXPECT_EQ(server_->stats().transfers_pending, 0u);
}

TEST_F(UdsGpuTest, WhatIsTakenBackStaysWhileItIsHeld) {
  StartGpu();
  Client client = ConnectGpu();
  GpuHold hold, other;
  ASSERT_EQ(server_->HoldGpu(client.peer, kSet, &hold), BlockResult::kOk);
  client.transport->Unlend(client.region);
  ASSERT_TRUE(Until([&] { return server_->LinkOf(client.peer, kSet) == nullptr; }));
  EXPECT_EQ(mapper_.mapped(), 1u);
  EXPECT_EQ(server_->HoldGpu(client.peer, kSet, &other), BlockResult::kInvalid);
  EXPECT_TRUE(server_->ReleaseGpu(&hold, MappedUse::kWrite, 5)) << "its peer is there";
  EXPECT_EQ(mapper_.mapped(), 0u);
  EXPECT_EQ(server_->stats().bytes_pushed, 5u);
  EXPECT_EQ(server_->stats().bytes_pulled, 0u);
  // Lent again it is other memory: the set still names the old.
  const auto again = LendGpu(&client, Range(1));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(server_->LinkOf(client.peer, kSet), nullptr);
  ASSERT_TRUE(Register(client, *again).ok());
  EXPECT_NE(server_->LinkOf(client.peer, kSet), nullptr);
}

TEST_F(UdsGpuTest, ASetIsReplacedOnlyWhenNothingHoldsIt) {
  StartGpu();
  Client client = ConnectGpu();
  const auto part = LendGpu(&client, Range(1, 4096, 4096));
  ASSERT_TRUE(part.ok());
  GpuHold hold;
  ASSERT_EQ(server_->HoldGpu(client.peer, kSet, &hold), BlockResult::kOk);
  EXPECT_EQ(Register(client, *part).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(server_->ReleaseGpu(&hold, MappedUse::kRead, 0));
  ASSERT_TRUE(Register(client, *part).ok());
  EXPECT_EQ(server_->AddressesOf(client.peer, kSet),
            (std::vector<uint64_t>{(uint64_t{1} << 40) + 4096}));
  SharedMemory memory(4096, SharedKind::kSealed);
  const auto host = Lend(&client, memory.range());
  ASSERT_TRUE(host.ok());
  ASSERT_TRUE(Register(client, *host).ok()) << "also by one in host memory";
  EXPECT_EQ(server_->LinkOf(client.peer, kSet), nullptr);
}

TEST_F(UdsGpuTest, HoldsAreBounded) {
  StartGpu({.transfers_max = 3, .transfers_per_peer_max = 2});
  const Client client = ConnectGpu(1), other = ConnectGpu(2);
  GpuHold holds[4];
  ASSERT_EQ(server_->HoldGpu(client.peer, kSet, &holds[0]), BlockResult::kOk);
  ASSERT_EQ(server_->HoldGpu(client.peer, kSet, &holds[1]), BlockResult::kOk);
  EXPECT_EQ(server_->HoldGpu(client.peer, kSet, &holds[2]), BlockResult::kBusy);
  EXPECT_FALSE(holds[2].held());
  ASSERT_EQ(server_->HoldGpu(other.peer, kSet, &holds[2]), BlockResult::kOk);
  EXPECT_EQ(server_->HoldGpu(other.peer, kSet, &holds[3]), BlockResult::kBusy);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(server_->ReleaseGpu(&holds[i], MappedUse::kRead, 1));
  EXPECT_EQ(server_->stats().bytes_pulled, 3u);
}

TEST_F(UdsGpuTest, OffersOfAPeerGoOneAfterTheOtherAndAreBounded) {
  StartGpu({.files_per_peer_max = 6, .gpu_offers_per_peer_max = 3});
  mapper_.at_once = false;
  PeerId id, other_id;
  const auto raw = Raw(&id), other = Raw(&other_id);
  for (uint8_t i = 1; i <= 4; ++i) ASSERT_TRUE(raw->Send(LendPacket(i, i)));
  EXPECT_EQ(Answer(raw.get()).file, 4u) << "the fourth is too many";
  ASSERT_TRUE(other->Send(LendPacket(1, 9)));
  ASSERT_TRUE(Until([&] { return mapper_.offers() == 2; })) << "one of each peer";
  EXPECT_EQ(mapper_.first().link, nullptr);
  mapper_.Answer();
  EXPECT_EQ(Answer(raw.get()).file, 1u);
  mapper_.Answer();
  EXPECT_EQ(Refusal(other.get()), UdsRefusal::kNone);
  ASSERT_TRUE(Until([&] { return mapper_.offers() == 1; }));
  EXPECT_NE(mapper_.first().link, nullptr) << "the second goes with the link of the first";
  mapper_.Answer(UdsRefusal::kNotShared);
  EXPECT_EQ(Refusal(raw.get()), UdsRefusal::kNotShared);
  ASSERT_TRUE(Until([&] { return mapper_.offers() == 1; }));
  mapper_.Answer();
  EXPECT_EQ(Refusal(raw.get()), UdsRefusal::kNone);
  EXPECT_EQ(mapper_.links(), 2u);
  // The name of one that was refused is free again; files count as ever.
  mapper_.at_once = true;
  for (const uint64_t name : {2, 5, 6, 7}) {
    ASSERT_TRUE(raw->Send(LendPacket(name, 20)));
    EXPECT_EQ(Refusal(raw.get()), UdsRefusal::kNone);
  }
  ASSERT_TRUE(raw->Send(LendPacket(8, 21)));
  EXPECT_EQ(Refusal(raw.get()), UdsRefusal::kTooMany);
}

TEST_F(UdsGpuTest, ABusyMapperIsAskedAgain) {
  StartGpu();
  mapper_.at_once = false;
  mapper_.most = 1;
  PeerId id, other_id;
  const auto raw = Raw(&id), other = Raw(&other_id);
  ASSERT_TRUE(raw->Send(LendPacket(1, 1)));
  ASSERT_TRUE(Until([&] { return mapper_.offers() == 1; }));
  ASSERT_TRUE(other->Send(LendPacket(1, 2)));
  Step();
  EXPECT_EQ(mapper_.offered(), 1u);
  mapper_.Answer();
  ASSERT_TRUE(Until([&] { return mapper_.offered() == 2; }));
  mapper_.Answer();
  EXPECT_EQ(Refusal(raw.get()), UdsRefusal::kNone);
  EXPECT_EQ(Refusal(other.get()), UdsRefusal::kNone);
  mapper_.most = 0;
  ASSERT_TRUE(raw->Send(LendPacket(2, 3)));
  EXPECT_EQ(Refusal(raw.get()), UdsRefusal::kTooMany) << "nothing is under way that would help";
  EXPECT_FALSE(raw->closed());
}

TEST_F(UdsGpuTest, BytesAndOffersOfAllAreBounded) {
  StartGpu({.mapped_bytes_per_peer_max = kAllocation, .gpu_offers_max = 2});
  mapper_.at_once = false;
  PeerId id;
  const auto first = Raw(&id), second = Raw(&id), third = Raw(&id);
  ASSERT_TRUE(first->Send(LendPacket(1, 1)));
  ASSERT_TRUE(Until([&] { return mapper_.offers() == 1; }));
  ASSERT_TRUE(first->Send(LendPacket(2, 2)));
  EXPECT_EQ(Refusal(first.get()), UdsRefusal::kTooMany) << "bytes count from the offer on";
  ASSERT_TRUE(second->Send(LendPacket(1, 3)));
  ASSERT_TRUE(Until([&] { return mapper_.offers() == 2; }));
  ASSERT_TRUE(third->Send(LendPacket(1, 4)));
  EXPECT_EQ(Refusal(third.get()), UdsRefusal::kTooMany) << "offers of all";
  mapper_.Answer();
  EXPECT_EQ(Refusal(first.get()), UdsRefusal::kNone);
  ASSERT_TRUE(first->Send(LendPacket(2, 2)));
  EXPECT_EQ(Refusal(first.get()), UdsRefusal::kTooMany);
  ASSERT_TRUE(first->SendFrame({.kind = UdsFrameKind::kUnlend, .file = 1}));
  mapper_.at_once = true;
  ASSERT_TRUE(first->Send(LendPacket(2, 2)));
  EXPECT_EQ(Refusal(first.get()), UdsRefusal::kNone);
}

TEST_F(UdsGpuTest, AWordSaysHowFarTheWorkersGpuHasCome) {
  StartGpu();
  Client client = ConnectOnly();
  const int fd = memfd_create("crumb-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  GpuRange range = Range(1);
  range.word_fd = fd;
  EXPECT_NE(LendGpu(&client, range).status().message().find("sealed"), std::string::npos);
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  ASSERT_TRUE(LendGpu(&client, range).ok());
  EXPECT_TRUE(server_->Reached(client.peer, 0));
  EXPECT_FALSE(server_->Reached(client.peer, 5));
  const uint64_t five = 5;
  ASSERT_EQ(pwrite(fd, &five, sizeof(five), 0), 8);
  EXPECT_TRUE(server_->Reached(client.peer, 5));
  EXPECT_FALSE(server_->Reached(client.peer, 6));
  close(fd);
  // One without a word is waited for in vain.
  Client other = ConnectGpu(2);
  EXPECT_FALSE(server_->Reached(other.peer, 1));
  const PeerId gone = client.peer;
  client.transport.reset();
  EXPECT_TRUE(Until([&] { return !server_->Reached(gone, 0); }));
}

TEST_F(UdsGpuTest, OneGpuForEachPeer) {
  StartGpu();
  PeerId id;
  const auto raw = Raw(&id), other = Raw(&id);
  ASSERT_TRUE(raw->Send(LendPacket(1, 1, 1)));
  EXPECT_EQ(Refusal(raw.get()), UdsRefusal::kNone);
  ASSERT_TRUE(raw->Send(LendPacket(2, 2, 2)));
  EXPECT_EQ(Refusal(raw.get()), UdsRefusal::kOtherGpu);
  ASSERT_TRUE(other->Send(LendPacket(1, 4, 2)));
  EXPECT_EQ(Refusal(other.get()), UdsRefusal::kNone);
  EXPECT_EQ(server_->uds_stats().gpu_refused, 1u);
  // That holds as long as it is connected; what was refused binds nobody.
  ASSERT_TRUE(raw->SendFrame({.kind = UdsFrameKind::kUnlend, .file = 1}));
  ASSERT_TRUE(raw->Send(LendPacket(4, 2, 2)));
  EXPECT_EQ(Refusal(raw.get()), UdsRefusal::kOtherGpu);
  mapper_.at_once = false;
  const auto third = Raw(&id);
  ASSERT_TRUE(third->Send(LendPacket(1, 5, 1)));
  ASSERT_TRUE(Until([&] { return mapper_.offers() == 1; }));
  ASSERT_TRUE(third->Send(LendPacket(2, 6, 2)));
  EXPECT_EQ(Refusal(third.get()), UdsRefusal::kOtherGpu) << "while the first may yet be mapped";
  mapper_.Answer(UdsRefusal::kNotShared);
  EXPECT_EQ(Refusal(third.get()), UdsRefusal::kNotShared);
  mapper_.at_once = true;
  ASSERT_TRUE(third->Send(LendPacket(3, 6, 2)));
  EXPECT_EQ(Refusal(third.get()), UdsRefusal::kNone);
}

TEST_F(UdsGpuTest, FramesThatDoNotAddUpEndTheirPeerAlone) {
  StartGpu();
  const Client honest = ConnectGpu();
  std::vector<uint8_t> outside = LendPacket(1, 1);
  std::memset(outside.data() + kUdsHeaderBytes + 88, 0xff, 8);  // the offset
  std::vector<uint8_t> empty = LendPacket(1, 1);
  std::memset(empty.data() + kUdsHeaderBytes + 96, 0, 8);  // the size
  std::vector<uint8_t> cut = LendPacket(1, 1);
  cut.pop_back();
  const std::vector<std::vector<uint8_t>> bad = {outside, empty, cut, LendPacket(0, 1)};
  for (size_t i = 0; i < bad.size(); ++i) {
    PeerId id;
    const auto raw = Raw(&id);
    ASSERT_TRUE(raw->Send(bad[i]));
    ASSERT_TRUE(Until([&] { return downs_.contains(id.value); })) << i;
    EXPECT_EQ(server_->uds_stats().frames_refused, i + 1);
  }
  mapper_.at_once = false;
  PeerId twice, early;
  const auto raw = Raw(&twice);
  ASSERT_TRUE(raw->Send(LendPacket(1, 1)));
  ASSERT_TRUE(raw->Send(LendPacket(1, 2)));  // its name is taken from the offer on
  ASSERT_TRUE(Until([&] { return downs_.contains(twice.value); }));
  const auto hasty = Raw(&early);
  ASSERT_TRUE(hasty->Send(LendPacket(1, 1)));
  ASSERT_TRUE(hasty->SendFrame({.kind = UdsFrameKind::kUnlend, .file = 1}));  // before its answer
  ASSERT_TRUE(Until([&] { return downs_.contains(early.value); }));
  UdsRawPeer silent(path());
  ASSERT_TRUE(silent.Send(LendPacket(1, 1)));  // before its first word
  ASSERT_TRUE(Until([&] { return silent.closed(); }));
  mapper_.at_once = true;
  GpuHold hold;
  EXPECT_EQ(server_->HoldGpu(honest.peer, kSet, &hold), BlockResult::kOk);
  EXPECT_TRUE(server_->ReleaseGpu(&hold, MappedUse::kRead, 1));
}

TEST_F(UdsGpuTest, TwoWorkersHaveALinkEachAndDoNotSeeEachOthersMemory) {
  StartGpu();
  Client one = ConnectGpu(1);
  const Client two = ConnectGpu(2);
  EXPECT_NE(server_->LinkOf(one.peer, kSet), server_->LinkOf(two.peer, kSet));
  EXPECT_NE(server_->AddressesOf(one.peer, kSet), server_->AddressesOf(two.peer, kSet));
  GpuHold hold;
  ASSERT_EQ(server_->HoldGpu(two.peer, kSet, &hold), BlockResult::kOk);
  one.transport.reset();
  ASSERT_TRUE(Until([&] { return mapper_.links() == 1; }));
  EXPECT_EQ(mapper_.mapped(), 1u);
  EXPECT_NE(server_->LinkOf(two.peer, kSet), nullptr);
  EXPECT_TRUE(server_->ReleaseGpu(&hold, MappedUse::kRead, 1));
}

// A process that lends two allocations and lives until it is killed.
class Lender {
 public:
  explicit Lender(const std::string& path) {
    pid_ = fork();
    if (pid_ != 0) return;
    const UdsRawPeer raw(path);  // the sockets alone: nothing of this process is used
    UdsRawPeer* peer = const_cast<UdsRawPeer*>(&raw);
    bool sent = peer->Say("hello");
    for (uint8_t i = 1; i <= 2; ++i) sent = peer->Send(LendPacket(i, i)) && sent;
    while (sent) pause();
    _exit(1);
  }
  ~Lender() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    EXPECT_EQ(kill(pid_, SIGKILL), 0);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it ended by itself";
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

TEST_F(UdsGpuTest, KilledWorkersLeaveNothingWhereverItHitsThem) {
  StartGpu();
  for (int round = 0; round < 60; ++round) {
    const int moment =
        round % 3;  // before the first answer, between the two, in the middle of holds
    mapper_.at_once = moment == 2;
    const PeerId before = server_->newest_peer();
    Lender lender(path());
    ASSERT_TRUE(Until([&] { return server_->newest_peer() != before; }));
    Client client;
    client.peer = server_->newest_peer();
    const size_t offered = mapper_.offered();
    GpuHold hold;
    if (moment == 2) {
      ASSERT_TRUE(Until([&] { return mapper_.mapped() == 2; }));
      const auto key = MakeUdsRkey({.file = 1, .offset = 0});
      client.region = {.address = 64, .bytes = kAllocation, .rkey = {}};
      client.region.rkey = EncodeRkey({.address = 64, .bytes = kAllocation, .key = key});
      ASSERT_TRUE(Register(client, client.region).ok());
      ASSERT_EQ(server_->HoldGpu(client.peer, kSet, &hold), BlockResult::kOk);
    } else {
      ASSERT_TRUE(Until([&] { return mapper_.offers() == 1; }));
      if (moment == 1) {
        mapper_.Answer();
        ASSERT_TRUE(Until([&] { return mapper_.offered() > offered && mapper_.offers() == 1; }));
      }
    }
    lender.Kill();
    ASSERT_TRUE(Until([&] { return server_->stats().peers == 0; }));
    if (moment == 2) {
      EXPECT_EQ(mapper_.mapped(), 1u) << "the one that is held";
      EXPECT_FALSE(server_->ReleaseGpu(&hold, MappedUse::kRead, 1));
    } else {
      mapper_.Answer();
    }
    ASSERT_TRUE(Until([&] { return mapper_.mapped() == 0; }));
    ASSERT_TRUE(Until([&] { return downs_.contains(client.peer.value); }));
    ASSERT_TRUE(Until([&] { return mapper_.links() == 0; }));
    EXPECT_EQ(server_->uds_stats().holds, 0u);
    EXPECT_EQ(server_->uds_stats().gpu_bytes_mapped, 0u);
  }
  EXPECT_EQ(downs_.size(), 60u);
}

}  // namespace
}  // namespace crumb
