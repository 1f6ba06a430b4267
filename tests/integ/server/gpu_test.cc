// A daemon with GPUs that are memory of this process, its worker beside it: lent over the data
// socket, packed into the HBM tier, unpacked again; a lost GPU; offers where no GPU is used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/clock.h"
#include "cachesvc/base/keys.h"
#include "cachesvc/base/wire.h"
#include "cachesvc/net/uds_transport.h"
#include "cachesvc/server/daemon.h"
#include "nlohmann/json.hpp"
#include "tests/integ/server/rpc_worker.h"
#include "tests/support/fake_gpus.h"
#include "tests/unit/cachesvc/server/temp_dir.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;
using testing::kSmallPageBytes;
using ::testing::StartsWith;

constexpr uint32_t kSlots = 8;
constexpr uint32_t kSet = 1;

// The worker's half: one session, one connection, memory of kSlots pages.
class Worker {
 public:
  explicit Worker(const std::string& socket) : rpc_("unix:" + socket) {}

  void Connect() {
    ASSERT_TRUE(rpc_.Connect());
    const grpc::Status registered = rpc_.Register(testing::SmallModel(), "crumb-int4");
    ASSERT_TRUE(registered.ok()) << registered.error_message();
    auto made = UdsTransport::Create({.peers_max = 2, .transfers_max = 2});
    ASSERT_TRUE(made.ok());
    transport_ = *std::move(made);
    const auto daemon = transport_->Connect(rpc_.hello().data_socket());
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *daemon;
    (void)Ask(WireType::kHello, {}, {});
  }
  absl::StatusOr<Region> Lend(const GpuShare& share) {
    return transport_->LendGpu({.share = EncodeGpuShare(share),
                                .address = 1 << 20,
                                .bytes = share.bytes,
                                .offset = share.offset});
  }
  grpc::Status Register(const Region& region) {
    v1::RegisterRegionsRequest request;
    request.set_session(rpc_.session());
    request.set_region_set(kSet);
    request.set_layout_handle(rpc_.layout().handle());
    request.set_slots(kSlots);
    request.set_slots_per_block(1);
    request.set_slot_bytes(kSmallPageBytes);
    v1::Region* named = request.add_regions();
    named->set_address(region.address);
    named->set_bytes(region.bytes);
    named->set_rkey(region.rkey);
    v1::RegisterRegionsReply reply;
    return rpc_.cache().RegisterRegions(testing::Context().get(), request, &reply);
  }
  // One block for each slot, under keys of their own.
  std::vector<WireBlockReply> Ask(WireType type, std::vector<uint32_t> slots,
                                  std::vector<std::string> keys) {
    WireHeader header;
    header.type = type;
    header.request_id = ++last_request_;
    header.session_id = rpc_.session();
    header.layout_handle = rpc_.layout().handle();
    header.deadline_us = 10'000'000;
    if (!slots.empty()) {
      header.region_set = kSet;
      header.block_count = static_cast<uint16_t>(slots.size());
      header.slots_per_block = 1;
    }
    std::vector<uint8_t> out(RequestBytes(header.block_count, header.slots_per_block));
    WriteWireHeader(header, absl::MakeSpan(out));
    for (uint32_t i = 0; i < slots.size(); ++i) {
      WireBlock block;
      block.digest = DigestOf(AsBytes(keys[i]));
      block.token_start = kTokenStartUnknown;
      WriteWireBlock(i, block, {&slots[i], 1}, absl::MakeSpan(out));
    }
    FinishWireMessage(absl::MakeSpan(out));
    EXPECT_EQ(transport_->Send(daemon_, out), BlockResult::kOk);
    return Replies();
  }
  testing::RpcWorker& rpc() { return rpc_; }

 private:
  std::vector<WireBlockReply> Replies() {
    std::vector<WireBlockReply> blocks;
    for (int i = 0; i < 2000; ++i) {
      NetEvent event;
      if (transport_->Poll({&event, 1}) == 0) {
        pollfd wait = {.fd = transport_->wake_fd(), .events = POLLIN, .revents = 0};
        if (transport_->Arm()) poll(&wait, 1, 10);
        continue;
      }
      EXPECT_EQ(event.kind, NetEventKind::kMessage);
      WireReply reply;
      EXPECT_EQ(ParseReply(event.message, &reply), WireCheck::kOk);
      for (uint32_t b = 0; b < reply.header.block_count; ++b) blocks.push_back(reply.block(b));
      return blocks;
    }
    ADD_FAILURE() << "no answer";
    return blocks;
  }

  testing::RpcWorker rpc_;
  std::unique_ptr<UdsTransport> transport_;
  PeerId daemon_;
  uint64_t last_request_ = 0;
};

class GpuDaemonTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> sets = {"pool.hbm_bytes=64MiB"}) {
    Machine machine = DetectMachine();
    machine.built_with_cuda = true;
    ConfigInputs inputs;
    inputs.sets = {"data_dir=" + dir_.path() + "/data",
                   "listen.grpc=off",
                   "listen.http=off",
                   "listen.socket=" + socket(),
                   "pool.dram_bytes=32MiB",
                   "nvme.bytes=0",
                   "ucx.enabled=false",
                   "log.level=error"};
    inputs.sets.insert(inputs.sets.end(), sets.begin(), sets.end());
    auto config = LoadConfig(inputs, machine);
    ASSERT_TRUE(config.ok()) << config.status();
    config_ = *std::move(config);
    daemon_ = std::make_unique<Daemon>(config_, log_, clock_,
                                       [this]() -> absl::StatusOr<std::unique_ptr<Gpus>> {
                                         return std::make_unique<testing::FakeGpus>(&state_);
                                       });
    const absl::Status started = daemon_->Start();
    ASSERT_TRUE(started.ok()) << started;
  }
  ~GpuDaemonTest() override {
    daemon_.reset();
    EXPECT_EQ(state_.links + state_.mapped + state_.arenas + state_.registrations, 0);
  }
  std::string socket() const { return dir_.path() + "/crumbd.sock"; }
  MutableBytes Slot(uint32_t slot) {
    return absl::MakeSpan(memory_).subspan(slot * kSmallPageBytes, kSmallPageBytes);
  }
  void Fill(uint32_t slot, uint64_t seed) {
    const std::string page = testing::RandomPage(seed);
    std::memcpy(Slot(slot).data(), page.data(), page.size());
  }
  std::string Text(uint32_t slot) {
    return {reinterpret_cast<const char*>(Slot(slot).data()), kSmallPageBytes};
  }
  nlohmann::json Status() {
    return nlohmann::json::parse(daemon_->HandleHttp("/api/v1/status").body);
  }

  TempDir dir_;
  const SteadyClock clock_;
  Log log_{{.level = "error", .format = "text", .node = ""}, clock_};
  Config config_;
  testing::FakeGpuState state_;
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(kSlots * kSmallPageBytes);
  std::unique_ptr<Daemon> daemon_;
};

TEST_F(GpuDaemonTest, PagesGoFromAWorkersGpuIntoHbmAndBack) {
  Start();
  ASSERT_FALSE(HasFatalFailure());
  Worker worker(socket());
  worker.Connect();
  const auto region = worker.Lend(state_.Lend(absl::MakeSpan(memory_)));
  ASSERT_TRUE(region.ok()) << region.status();
  const grpc::Status registered = worker.Register(*region);
  ASSERT_TRUE(registered.ok()) << registered.error_message();
  for (uint32_t slot = 0; slot < 4; ++slot) Fill(slot, slot + 1);
  const std::vector<std::string> keys = {"a", "b", "c", "d"};
  for (const WireBlockReply& reply : worker.Ask(WireType::kPut, {0, 1, 2, 3}, keys)) {
    EXPECT_EQ(reply.result, BlockResult::kOk) << ToString(reply.result);
    EXPECT_EQ(reply.precision, Precision::kInt4);
  }
  nlohmann::json status = Status();
  EXPECT_EQ(status["tiers"]["hbm"]["pages"], 4) << status["tiers"];
  EXPECT_EQ(status["tiers"]["dram"]["pages"], 0);
  EXPECT_EQ(status["gpu"]["pages_encoded"], 4);
  EXPECT_EQ(status["gpu"]["workers"], 1);
  EXPECT_EQ(status["gpu"]["mapped_bytes"], memory_.size());
  for (const WireBlockReply& reply : worker.Ask(WireType::kGet, {4, 5, 6, 7}, keys)) {
    EXPECT_EQ(reply.result, BlockResult::kOk) << ToString(reply.result);
    EXPECT_EQ(reply.tier, Tier::kHbm);
  }
  for (uint32_t slot = 0; slot < 4; ++slot) {
    const double error = testing::RelativeError(Text(slot + 4), Text(slot));
    EXPECT_LT(error, 0.02) << slot;
    EXPECT_GT(error, 0) << "it was packed";
  }
  // Who has no GPU gets them, too.
  const testing::Got got = worker.rpc().Get("c");
  ASSERT_TRUE(got.ok()) << got.status.error_message();
  EXPECT_LT(testing::RelativeError(got.data, Text(2)), 0.02);
  const std::string metrics = daemon_->HandleHttp("/metrics").body;
  for (const char* line :
       {"crumb_gpu_enabled 1\n", "crumb_gpu_links 1\n", "crumb_gpu_lost 0\n",
        "crumb_gpu_pages_total{kind=\"encode\"} 4\n", "crumb_gpu_codec_place{place=\"worker\"} 1\n",
        "crumb_hits_total{tier=\"hbm\"} "}) {
    EXPECT_THAT(metrics, HasSubstr(line));
  }
  EXPECT_TRUE(daemon_->Stop().ok());
}

TEST_F(GpuDaemonTest, AWorkerThatGoesLeavesNothingOfItsGpu) {
  Start();
  ASSERT_FALSE(HasFatalFailure());
  {
    Worker worker(socket());
    worker.Connect();
    const auto region = worker.Lend(state_.Lend(absl::MakeSpan(memory_)));
    ASSERT_TRUE(region.ok()) << region.status();
    ASSERT_TRUE(worker.Register(*region).ok());
    EXPECT_EQ(state_.mapped, 1);
    EXPECT_EQ(state_.links, 3) << "two are the daemon's";
  }
  for (int i = 0; i < 3000 && state_.links + state_.mapped > 2; ++i) {
    (void)Status();  // the shard turns
  }
  EXPECT_EQ(state_.mapped, 0);
  EXPECT_EQ(state_.links, 2);
}

TEST_F(GpuDaemonTest, ALostGpuEndsTheDaemon) {
  Start();
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_EQ(daemon_->HandleHttp("/readyz").status, 200);
  EXPECT_EQ(daemon_->fault(), "");
  state_.lost = true;
  pollfd wait = {.fd = daemon_->fault_fd(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&wait, 1, 20'000), 1);
  EXPECT_THAT(daemon_->fault(), HasSubstr("CUDA device 0"));
  const HttpReply ready = daemon_->HandleHttp("/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body, StartsWith("a GPU is lost"));
  EXPECT_EQ(daemon_->HandleHttp("/healthz").status, 200) << "it ends by itself, after a drain";
  EXPECT_THAT(daemon_->HandleHttp("/metrics").body, HasSubstr("crumb_gpu_lost 1\n"));
  EXPECT_EQ(Status()["ready"], false);
  EXPECT_TRUE(daemon_->Stop().ok());
}

TEST_F(GpuDaemonTest, WhereNoGpuIsUsedOffersAreRefused) {
  Start({"gpu.enabled=false"});
  ASSERT_FALSE(HasFatalFailure());
  Worker worker(socket());
  worker.Connect();
  const auto region = worker.Lend(state_.Lend(absl::MakeSpan(memory_)));
  EXPECT_EQ(region.status().code(), absl::StatusCode::kFailedPrecondition) << region.status();
  EXPECT_THAT(std::string(region.status().message()), HasSubstr("uses no GPU"));
  EXPECT_EQ(Status()["gpu"]["description"], "off: gpu.enabled is false");
  EXPECT_EQ(Status()["gpu"]["offers_refused"], 1);
  EXPECT_THAT(daemon_->HandleHttp("/metrics").body, HasSubstr("crumb_gpu_enabled 0\n"));
}

TEST_F(GpuDaemonTest, WithoutAnHbmTierPagesLieInDram) {
  Start({"pool.hbm_bytes=0"});
  ASSERT_FALSE(HasFatalFailure());
  Worker worker(socket());
  worker.Connect();
  const auto region = worker.Lend(state_.Lend(absl::MakeSpan(memory_)));
  ASSERT_TRUE(region.ok()) << region.status();
  ASSERT_TRUE(worker.Register(*region).ok());
  Fill(0, 1);
  const auto put = worker.Ask(WireType::kPut, {0}, {"a"});
  ASSERT_EQ(put.size(), 1u);
  EXPECT_EQ(put[0].result, BlockResult::kOk) << ToString(put[0].result);
  EXPECT_EQ(Status()["tiers"]["hbm"]["capacity_bytes"], 0);
  EXPECT_EQ(Status()["tiers"]["dram"]["pages"], 1);
  const auto got = worker.Ask(WireType::kGet, {1}, {"a"});
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].tier, Tier::kDram);
  EXPECT_LT(testing::RelativeError(Text(1), Text(0)), 0.02);
}

}  // namespace
}  // namespace crumb
