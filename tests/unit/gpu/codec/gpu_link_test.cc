// GpuLink over a queue and a codec of the test's: what is launched together, what comes back, and
// what happens where there is no room, no luck or no device.
#include "gpu/codec/gpu_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "cachesvc/base/check.h"
#include "gpu/codec/host_link.h"
#include "tests/unit/client/allocation_counter.h"
#include "tests/unit/gpu/codec/link_rig.h"

namespace crumb {
namespace {

using codec_test::NotingCodec;
using codec_test::TestQueue;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr uint32_t kPayloadBytes = 64;

class GpuLinkTest : public ::testing::Test {
 protected:
  void Make(uint64_t slice_bytes = 0) {
    auto queue = std::make_unique<TestQueue>();
    queue_ = queue.get();
    GpuLinkParts parts = HostLinkParts(std::move(queue));
    parts.wait_for_worker = [this](StreamHandle) {
      ++waits_;
      launched_before_wait_ += codec_.launches.size();
      return wait_status_;
    };
    parts.slice_bytes = slice_bytes;
    parts.slices_from = slice_bytes == 0 ? nullptr : Payload(0);
    auto link = GpuLink::Create(std::move(parts));
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = std::move(*link);
  }
  void SetUp() override { Make(); }

  uint8_t* Payload(size_t i) {
    return reinterpret_cast<uint8_t*>(payloads_.data()) + i * kPayloadBytes;
  }
  uint32_t Payload32(size_t i, size_t at) {
    uint32_t out = 0;
    std::memcpy(&out, Payload(i) + 4 * at, 4);
    return out;
  }
  uint32_t AddTable(uint64_t address = 4096, uint32_t tensors = 2) {
    const std::vector<CudaPlace> places(tensors, CudaPlace{address, 256, 64, 32});
    const auto table = link_->AddPlaces(places, 16);
    EXPECT_TRUE(table.ok()) << table.status();
    return table.value_or(0);
  }
  GpuJob Job(GpuJobKind kind, uint32_t table, uint64_t token) {
    slots_.push_back({static_cast<uint32_t>(1000 + token), 2});
    GpuJob job;
    job.kind = kind;
    job.codec = &codec_;
    job.table = table;
    job.tokens = static_cast<uint32_t>(1 + token % 32);
    job.slots = slots_.back();
    job.payload = Payload(token % kPayloads);
    job.token = token;
    return job;
  }
  bool Submit(GpuJobKind kind, uint32_t table, uint64_t token) {
    return link_->Submit(Job(kind, table, token));
  }
  bool SubmitCopy(size_t from, size_t to, uint64_t bytes, uint64_t token) {
    GpuJob job;
    job.kind = GpuJobKind::kCopy;
    job.payload = Payload(from);
    job.to = Payload(to);
    job.bytes = bytes;
    job.token = token;
    return link_->Submit(job);
  }
  // What came back: token to ok.
  std::map<uint64_t, bool> PollAll(size_t span = 64) {
    std::vector<GpuDone> done(span);
    while (const size_t count = link_->Poll(absl::MakeSpan(done))) {
      for (size_t i = 0; i < count; ++i) {
        EXPECT_TRUE(back_.emplace(done[i].token, done[i].ok).second) << "twice: " << done[i].token;
        reports_[done[i].token] = done[i].report;
      }
    }
    return back_;
  }

  static constexpr size_t kPayloads = 2048;
  struct alignas(16) Page {
    uint8_t bytes[kPayloadBytes];
  };
  std::vector<Page> payloads_ = std::vector<Page>(kPayloads);
  std::deque<std::array<uint32_t, 2>> slots_;
  NotingCodec codec_, other_;
  std::unique_ptr<GpuLink> link_;
  TestQueue* queue_ = nullptr;
  size_t waits_ = 0, launched_before_wait_ = 0;
  absl::Status wait_status_;
  std::map<uint64_t, bool> back_;
  std::map<uint64_t, EncodeReport> reports_;
};

TEST_F(GpuLinkTest, ABadlyMadeLinkIsRefused) {
  EXPECT_EQ(GpuLink::Create({}).status().code(), absl::StatusCode::kInvalidArgument);
  GpuLinkParts parts = HostLinkParts();
  parts.host = parts.host.first(parts.host.size() - 1);
  EXPECT_EQ(GpuLink::Create(std::move(parts)).status().code(), absl::StatusCode::kInvalidArgument);
  parts = HostLinkParts();
  parts.slice_bytes = 4096;
  EXPECT_EQ(GpuLink::Create(std::move(parts)).status().code(), absl::StatusCode::kInvalidArgument);
  parts = HostLinkParts();
  ++parts.device;
  EXPECT_EQ(GpuLink::Create(std::move(parts)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GpuLinkTest, JobsAreLaunchedTogetherByCodecDirectionTableAndEffort) {
  const uint32_t a = AddTable(4096);
  const uint32_t b = AddTable(8192 + 8);
  uint64_t token = 0;
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(Submit(GpuJobKind::kDecode, a, token++));
    EXPECT_TRUE(Submit(GpuJobKind::kEncode, a, token++));
    EXPECT_TRUE(Submit(GpuJobKind::kDecode, b, token++));
    GpuJob best = Job(GpuJobKind::kEncode, a, token++);
    best.effort = Effort::kBest;
    EXPECT_TRUE(link_->Submit(best));
    GpuJob other = Job(GpuJobKind::kDecode, a, token++);
    other.codec = &other_;
    EXPECT_TRUE(link_->Submit(other));
  }
  EXPECT_THAT(codec_.launches, SizeIs(0)) << "before Flush";
  link_->Flush();
  EXPECT_EQ(waits_, 1u);
  EXPECT_EQ(launched_before_wait_, 0u);
  ASSERT_THAT(codec_.launches, SizeIs(4));
  EXPECT_THAT(other_.launches, SizeIs(1));
  for (const NotingCodec::Launch& launch : codec_.launches) {
    EXPECT_EQ(launch.pages, 3u);
    EXPECT_EQ(launch.tokens_per_slot, 16u);
    EXPECT_TRUE(launch.fresh_reports);
    EXPECT_EQ(launch.aligned, launch.place == 4096);
  }
  EXPECT_FALSE(codec_.launches[0].encode);
  EXPECT_TRUE(codec_.launches[1].encode);
  EXPECT_EQ(codec_.launches[1].effort, Effort::kNormal);
  EXPECT_EQ(codec_.launches[2].place, 8200u);
  EXPECT_EQ(codec_.launches[3].effort, Effort::kBest);
  // A table's copy each, a launch each, and reports behind both kinds of encodes.
  EXPECT_EQ(queue_->submits, 2u + 5u + 2u);
  queue_->Finish();
  EXPECT_EQ(link_->in_flight(), 15u);
  EXPECT_THAT(PollAll(2), SizeIs(15));
  EXPECT_EQ(link_->in_flight(), 0u);
  for (const auto& [at, ok] : back_) {
    EXPECT_TRUE(ok);
    EXPECT_EQ(Payload32(at, 0), 1 + at % 32);
    EXPECT_EQ(Payload32(at, 1), 1000 + at);
    const bool encode = at % 5 == 1 || at % 5 == 3;
    EXPECT_EQ(reports_[at].rows_static, encode ? 1 + at % 32 : 0);
  }
}

TEST_F(GpuLinkTest, OneJobCostsOneWorkToDecodeAndTwoToEncode) {
  const uint32_t table = AddTable();
  size_t before = queue_->submits;
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, table, 1));
  link_->Flush();
  EXPECT_EQ(queue_->submits, before + 1);
  before = queue_->submits;
  EXPECT_TRUE(Submit(GpuJobKind::kEncode, table, 2));
  link_->Flush();
  EXPECT_EQ(queue_->submits, before + 2);
  link_->Flush();
  EXPECT_EQ(queue_->submits, before + 2) << "nothing to send";
  EXPECT_EQ(waits_, 2u) << "one for each turn with work";
  queue_->Finish(2);  // the table and the decode
  EXPECT_THAT(PollAll(), ElementsAre(std::pair(uint64_t{1}, true)));
  queue_->Finish(1);  // the encode, but not its report
  EXPECT_THAT(PollAll(), SizeIs(1));
  queue_->Finish(1);
  EXPECT_THAT(PollAll(), SizeIs(2));
}

TEST_F(GpuLinkTest, WhatIsFullSaysSo) {
  const uint32_t table = AddTable();
  uint64_t taken = 0;
  while (Submit(GpuJobKind::kDecode, table, taken)) ++taken;
  EXPECT_EQ(taken, kGpuJobsMax);
  link_->Flush();
  EXPECT_FALSE(Submit(GpuJobKind::kDecode, table, taken)) << "in flight until they are polled";
  queue_->Finish();
  EXPECT_FALSE(Submit(GpuJobKind::kDecode, table, taken));
  std::vector<GpuDone> done(1);
  EXPECT_EQ(link_->Poll(absl::MakeSpan(done)), 1u);
  back_[done[0].token] = done[0].ok;
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, table, taken));
  EXPECT_FALSE(Submit(GpuJobKind::kDecode, table, taken + 1));
  link_->Flush();
  queue_->Finish();
  EXPECT_THAT(PollAll(), SizeIs(kGpuJobsMax + 1));
}

TEST_F(GpuLinkTest, AsManyKindsOfLaunchesAsBatches) {
  std::vector<uint32_t> tables;
  for (uint64_t i = 0; i < 17; ++i) tables.push_back(AddTable(4096 * (i + 1)));
  for (uint64_t i = 0; i < 16; ++i) EXPECT_TRUE(Submit(GpuJobKind::kDecode, tables[i], i));
  EXPECT_FALSE(Submit(GpuJobKind::kDecode, tables[16], 16));
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, tables[3], 17)) << "joins one that is there";
  link_->Flush();
  queue_->Finish();
  EXPECT_THAT(PollAll(), SizeIs(17));
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, tables[16], 16));
}

TEST_F(GpuLinkTest, ARefusedLaunchSpoilsItsOwnJobsAndNothingElse) {
  const uint32_t table = AddTable();
  for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(Submit(GpuJobKind::kEncode, table, i));
  GpuJob other = Job(GpuJobKind::kEncode, table, 10);
  other.codec = &other_;
  EXPECT_TRUE(link_->Submit(other));
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, table, 11));
  codec_.refused = 1;
  link_->Flush();
  queue_->Finish();
  for (const auto& [token, ok] : PollAll()) EXPECT_EQ(ok, token >= 10) << token;
  EXPECT_THAT(back_, SizeIs(6));
  queue_->refused_copies = 1;
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, table, 20));
  EXPECT_TRUE(Submit(GpuJobKind::kEncode, table, 21));
  link_->Flush();
  queue_->Finish();
  PollAll();
  EXPECT_FALSE(back_[20]);
  EXPECT_TRUE(back_[21]);
}

TEST_F(GpuLinkTest, NothingRunsBeforeTheWorkerIsWaitedFor) {
  const uint32_t table = AddTable();
  wait_status_ = absl::InternalError("no such event");
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, table, 1));
  EXPECT_TRUE(Submit(GpuJobKind::kEncode, table, 2));
  EXPECT_TRUE(SubmitCopy(5, 6, 16, 3));
  link_->Flush();
  EXPECT_EQ(waits_, 3u);
  EXPECT_THAT(codec_.launches, SizeIs(0));
  queue_->Finish();
  for (const auto& [token, ok] : PollAll()) EXPECT_FALSE(ok) << token;
  EXPECT_THAT(back_, SizeIs(3));
  wait_status_ = absl::OkStatus();
  EXPECT_TRUE(SubmitCopy(5, 6, 16, 4));
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, table, 5));
  link_->Flush();
  EXPECT_EQ(waits_, 4u);
  queue_->Finish();
  PollAll();
  EXPECT_TRUE(back_[4] && back_[5]);
}

TEST_F(GpuLinkTest, ALostDeviceGivesEverythingBackOnce) {
  const uint32_t table = AddTable();
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, table, 1));
  link_->Flush();
  queue_->Finish();
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, table, 2));
  EXPECT_TRUE(Submit(GpuJobKind::kEncode, table, 3));
  link_->Flush();
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, table, 4));  // never sent
  EXPECT_TRUE(SubmitCopy(5, 6, 16, 5));
  queue_->Lose();
  EXPECT_FALSE(link_->health().ok());
  EXPECT_FALSE(Submit(GpuJobKind::kDecode, table, 6));
  EXPECT_FALSE(link_->AddPlaces(std::vector<CudaPlace>(1), 1).ok());
  link_->Flush();
  for (const auto& [token, ok] : PollAll(1)) EXPECT_EQ(ok, token == 1) << token;
  EXPECT_THAT(back_, SizeIs(5));
  EXPECT_EQ(link_->in_flight(), 0u);
}

TEST_F(GpuLinkTest, ADeviceLostBetweenALaunchAndItsReports) {
  const uint32_t table = AddTable();
  EXPECT_TRUE(Submit(GpuJobKind::kEncode, table, 1));
  queue_->room = 1;
  link_->Flush();
  EXPECT_THAT(codec_.launches, SizeIs(1));
  queue_->Finish();
  EXPECT_THAT(PollAll(), SizeIs(0));
  queue_->Lose();
  EXPECT_THAT(PollAll(), ElementsAre(std::pair(uint64_t{1}, false)));
}

TEST_F(GpuLinkTest, AFullQueueKeepsTheRestForTheNextFlush) {
  const uint32_t table = AddTable();
  uint64_t token = 0;
  for (const uint32_t of : {table, AddTable(16), AddTable(32)}) {
    EXPECT_TRUE(Submit(GpuJobKind::kEncode, of, token++));
  }
  EXPECT_TRUE(SubmitCopy(5, 6, 16, token++));
  for (size_t turn = 0; turn < 7; ++turn) {
    EXPECT_LT(back_.size(), token);
    queue_->room = 1;
    link_->Flush();
    if (turn == 0) {  // its launch is out: too late to join
      EXPECT_TRUE(Submit(GpuJobKind::kEncode, table, token++));
    }
    queue_->Finish();
    PollAll();
  }
  queue_->room = ~size_t{0};
  link_->Flush();
  queue_->Finish();
  for (const auto& [at, ok] : PollAll()) EXPECT_TRUE(ok) << at;
  EXPECT_THAT(back_, SizeIs(5));
  ASSERT_THAT(codec_.launches, SizeIs(4));
  for (const NotingCodec::Launch& launch : codec_.launches) EXPECT_EQ(launch.pages, 1u);
}

TEST_F(GpuLinkTest, CopiesShareAWorkAndAreCutWhereSlicesEnd) {
  Make(256);  // four payloads
  for (size_t i = 0; i < 64 * kPayloadBytes; ++i) Payload(0)[i] = static_cast<uint8_t>(i * 7);
  EXPECT_TRUE(SubmitCopy(1, 65, 256, 1));   // both ends cross at one place
  EXPECT_TRUE(SubmitCopy(2, 101, 640, 2));  // and here at different ones
  EXPECT_TRUE(SubmitCopy(8, 128, 256, 3));  // whole slices
  EXPECT_TRUE(SubmitCopy(8, 140, 0, 4));
  link_->Flush();
  EXPECT_EQ(queue_->submits, 2u) << "the wait, and one work for all";
  std::vector<std::pair<size_t, uint64_t>> pieces;
  for (const StreamCopy& copy : queue_->copied) {
    const auto at = static_cast<const uint8_t*>(copy.src) - Payload(0);
    pieces.emplace_back(at / kPayloadBytes, copy.bytes);
    EXPECT_LE(static_cast<uint64_t>(at) % 256 + copy.bytes, 256u);
    const auto to = static_cast<uint8_t*>(copy.dst) - Payload(0);
    EXPECT_LE(static_cast<uint64_t>(to) % 256 + copy.bytes, 256u);
  }
  EXPECT_THAT(pieces, ElementsAre(std::pair(1, 192), std::pair(4, 64),                     //
                                  std::pair(2, 128), std::pair(4, 64), std::pair(5, 192),  //
                                  std::pair(8, 64), std::pair(9, 192),                     //
                                  std::pair(8, 256)));
  EXPECT_EQ(std::memcmp(Payload(1), Payload(65), 256), 0);
  EXPECT_EQ(std::memcmp(Payload(2), Payload(101), 640), 0);
  EXPECT_EQ(std::memcmp(Payload(8), Payload(128), 256), 0);
  queue_->Finish();
  EXPECT_THAT(PollAll(), SizeIs(4));
}

TEST_F(GpuLinkTest, AStagedPayloadIsCopiedAndUnpackedFromThereByOneWork) {
  Make(96);  // the second payload crosses a border
  const uint32_t table = AddTable();
  for (size_t i = 0; i < 4 * kPayloadBytes; ++i) Payload(0)[i] = static_cast<uint8_t>(i * 7 + 1);
  for (uint64_t token = 0; token < 3; ++token) {
    GpuJob job = Job(GpuJobKind::kDecode, table, token);
    if (token != 2) job.stage = Payload(101 + token);
    EXPECT_TRUE(link_->Submit(job));
  }
  const std::vector<uint8_t> before(Payload(0), Payload(2));
  const size_t copies = queue_->copied.size();
  link_->Flush();
  ASSERT_THAT(codec_.launches, SizeIs(1));
  EXPECT_EQ(codec_.launches[0].pages, 3u);
  EXPECT_EQ(queue_->copied.size() - copies, 1u + 1 + 2) << "lists, one whole, one in two pieces";
  EXPECT_EQ(std::memcmp(Payload(0), before.data(), before.size()), 0) << "read alone";
  for (uint64_t token = 0; token < 2; ++token) {
    EXPECT_EQ(Payload32(101 + token, 0), 1 + token) << "unpacked from the stage";
    EXPECT_EQ(std::memcmp(Payload(101 + token) + 8, Payload(token) + 8, kPayloadBytes - 8), 0);
  }
  EXPECT_EQ(Payload32(2, 0), 3u) << "not staged";
  queue_->Finish();
  EXPECT_THAT(PollAll(), SizeIs(3));
}

TEST_F(GpuLinkTest, AStageThatIsNotCopiedSpoilsItsJobs) {
  const uint32_t table = AddTable();
  GpuJob job = Job(GpuJobKind::kDecode, table, 5);
  job.stage = Payload(100);
  queue_->refused_copies = 1;
  EXPECT_TRUE(link_->Submit(job));
  link_->Flush();
  queue_->Finish();
  EXPECT_FALSE(PollAll().at(5));
  EXPECT_THAT(codec_.launches, SizeIs(0));
}

TEST_F(GpuLinkTest, TablesAreCheckedCountedAndUsedAgain) {
  EXPECT_EQ(link_->AddPlaces({}, 1).status().code(), absl::StatusCode::kInvalidArgument);
  for (size_t field = 0; field < 4; ++field) {
    uint64_t words[4] = {0, 0, 0, 0};
    words[field] = 3;
    const CudaPlace odd = {words[0], words[1], words[2], words[3]};
    EXPECT_EQ(link_->AddPlaces({&odd, 1}, 1).status().code(), absl::StatusCode::kInvalidArgument);
  }
  const std::vector<CudaPlace> many(kGpuPlacesMax + 1, CudaPlace{});
  EXPECT_EQ(link_->AddPlaces(many, 1).status().code(), absl::StatusCode::kResourceExhausted);
  const uint32_t half = AddTable(16, kGpuPlacesMax / 2);
  const uint32_t quarter = AddTable(32, kGpuPlacesMax / 4);
  const uint32_t rest = AddTable(48, kGpuPlacesMax / 4);
  EXPECT_FALSE(link_->AddPlaces({many.data(), 1}, 1).ok());
  link_->DropPlaces(quarter);
  EXPECT_FALSE(link_->AddPlaces({many.data(), 1}, 1).ok()) << "its copy may still be read";
  queue_->Finish();
  const uint32_t small = AddTable(64, 8);
  const uint32_t next = AddTable(80, kGpuPlacesMax / 4 - 8);
  EXPECT_FALSE(link_->AddPlaces({many.data(), 1}, 1).ok());
  uint64_t token = 0;
  for (const uint32_t table : {half, small, next, rest}) {
    EXPECT_TRUE(Submit(GpuJobKind::kDecode, table, token++));
  }
  link_->Flush();
  std::vector<uint64_t> places;
  for (const NotingCodec::Launch& launch : codec_.launches) places.push_back(launch.place);
  EXPECT_THAT(places, ElementsAre(16, 64, 80, 48));
  queue_->Finish();
  PollAll();
  for (const uint32_t table : {half, small, next, rest}) link_->DropPlaces(table);
  queue_->Finish();
  PollAll();
  for (uint32_t i = 0; i < kGpuTablesMax; ++i) AddTable(16, 1);
  EXPECT_FALSE(link_->AddPlaces({many.data(), 1}, 1).ok());
}

TEST_F(GpuLinkTest, ATableThatFoundNoRoomGoesBeforeTheLaunch) {
  queue_->room = 0;
  const uint32_t table = AddTable(4096);
  const uint32_t dropped = AddTable(5000);
  link_->DropPlaces(dropped);
  const uint32_t after = AddTable(6000);
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, table, 1));
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, after, 2));
  queue_->room = 1;
  link_->Flush();
  EXPECT_THAT(codec_.launches, SizeIs(0));
  queue_->room = 10;
  link_->Flush();
  ASSERT_THAT(codec_.launches, SizeIs(2));
  EXPECT_EQ(codec_.launches[0].place, 4096u);
  EXPECT_EQ(codec_.launches[1].place, 6000u);
}

TEST_F(GpuLinkTest, ATableIsKeptWhileItsJobsRun) {
  const uint32_t table = AddTable(4096, kGpuPlacesMax);
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, table, 1));
  EXPECT_TRUE(Submit(GpuJobKind::kEncode, table, 2));
  link_->DropPlaces(table);
  const std::vector<CudaPlace> one(1, CudaPlace{});
  EXPECT_FALSE(link_->AddPlaces(one, 1).ok());
  link_->Flush();
  queue_->Finish();
  EXPECT_FALSE(link_->AddPlaces(one, 1).ok()) << "not polled";
  PollAll();
  EXPECT_TRUE(back_[1] && back_[2]);
  EXPECT_EQ(codec_.launches[0].place, 4096u);
  EXPECT_TRUE(link_->AddPlaces(one, 1).ok());
}

TEST_F(GpuLinkTest, ADroppedTableThatFoundNoRoomStillServesItsJobs) {
  queue_->room = 0;
  const uint32_t table = AddTable(4096, kGpuPlacesMax);
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, table, 1));
  link_->DropPlaces(table);
  queue_->room = 10;
  link_->Flush();
  queue_->Finish();
  EXPECT_THAT(PollAll(), ElementsAre(std::pair(uint64_t{1}, true)));
  EXPECT_EQ(codec_.launches[0].place, 4096u);
  AddTable(4096, kGpuPlacesMax);
}

TEST_F(GpuLinkTest, TablesComeAndGoWithoutAnyJob) {
  for (uint32_t i = 0; i < 3 * kGpuTablesMax; ++i) {
    link_->DropPlaces(AddTable(4096, 100));
    queue_->Finish();
  }
}

TEST_F(GpuLinkTest, ATableThatWasNotCopiedIsNeverRead) {
  queue_->refused_copies = 1;
  const std::vector<CudaPlace> places(2, CudaPlace{});
  EXPECT_EQ(link_->AddPlaces(places, 1).status().code(), absl::StatusCode::kUnavailable);
  queue_->room = 0;
  const uint32_t table = AddTable();
  EXPECT_TRUE(Submit(GpuJobKind::kDecode, table, 1));
  queue_->room = 10;
  queue_->refused_copies = 1;
  link_->Flush();
  EXPECT_THAT(codec_.launches, SizeIs(0));
  queue_->Finish();
  EXPECT_THAT(PollAll(), ElementsAre(std::pair(uint64_t{1}, false)));
  link_->DropPlaces(table);
}

TEST_F(GpuLinkTest, MoreSlotsThanABatchHoldsBeginAnother) {
  const uint32_t table = AddTable();
  const std::vector<uint32_t> slots(4096, 9);
  for (uint64_t i = 0; i < 5; ++i) {
    GpuJob job = Job(GpuJobKind::kDecode, table, i);
    job.slots = slots;
    EXPECT_TRUE(link_->Submit(job));
  }
  for (uint64_t i = 5; i < 5 + 256; ++i) EXPECT_TRUE(Submit(GpuJobKind::kEncode, table, i));
  EXPECT_TRUE(Submit(GpuJobKind::kEncode, table, 261));
  link_->Flush();
  ASSERT_THAT(codec_.launches, SizeIs(4));
  EXPECT_EQ(codec_.launches[0].pages, 4u);
  EXPECT_EQ(codec_.launches[1].pages, 1u);
  EXPECT_EQ(codec_.launches[2].pages, 256u);
  EXPECT_EQ(codec_.launches[3].pages, 1u);
  queue_->Finish();
  for (const auto& [at, ok] : PollAll()) EXPECT_TRUE(ok) << at;
  for (uint64_t i = 5; i < 262; ++i) EXPECT_EQ(reports_[i].rows_static, 1 + i % 32);
}

TEST(GpuLinkAllocationTest, NothingIsAllocatedAfterCreate) {
  auto made = MakeHostLink();
  ASSERT_TRUE(made.ok());
  GpuLink& link = **made;
  NotingCodec codec;
  codec.noting = false;
  struct alignas(16) Page {
    uint8_t bytes[kPayloadBytes];
  };
  std::vector<Page> pages(2);
  const std::vector<CudaPlace> places(160, CudaPlace{4096, 64, 32, 16});
  const std::vector<uint32_t> slots(4, 1);
  std::vector<GpuDone> done(64);
  const uint64_t before = testing::Allocations();
  uint64_t back = 0;
  for (int turn = 0; turn < 50; ++turn) {
    const auto table = link.AddPlaces(places, 16);
    CRUMB_CHECK(table.ok());
    for (uint64_t i = 0; i < 60; ++i) {
      GpuJob job;
      job.kind = static_cast<GpuJobKind>(i % 3);
      job.codec = &codec;
      job.table = *table;
      job.tokens = 64;
      job.slots = slots;
      job.payload = pages[0].bytes;
      job.to = pages[1].bytes;
      job.bytes = kPayloadBytes;
      CRUMB_CHECK(link.Submit(job));
    }
    link.Flush();
    while (const size_t count = link.Poll(absl::MakeSpan(done))) back += count;
    link.DropPlaces(*table);
  }
  EXPECT_EQ(testing::Allocations(), before);
  EXPECT_EQ(back, 50u * 60u);
}

}  // namespace
}  // namespace crumb
