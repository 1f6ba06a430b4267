// GPU memory over the real data socket, with a mapper that has no GPU: what a worker's plane
// offers, what the control plane is told, and what refusals say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "cachesvc/base/bytes.h"
#include "cachesvc/net/frames.h"
#include "client/src/layout_spec.h"
#include "client/src/uds_plane.h"
#include "crumb/shared_memory.h"
#include "tests/conformance/net/fake_gpu_mapper.h"
#include "tests/conformance/net/shared_memory.h"
#include "tests/unit/client/fake_plane.h"

namespace crumb::client {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGpu = 0x7f0000000000, kAllocation = 1 << 20, kTensor = 1 << 12;

class Mark final : public GpuMark {
 public:
  Mark() { EXPECT_TRUE(SharedMemory::Create(4096, &memory_).ok()); }
  int word_fd() const override { return memory_->range().fd; }
  absl::StatusOr<bool> Idle(void*) override { return true; }
  absl::Status Record(void*, uint64_t) override { return absl::OkStatus(); }
  absl::Status Wait(void*) override { return absl::OkStatus(); }

 private:
  std::unique_ptr<SharedMemory> memory_;
};

class Side final : public GpuSide {
 public:
  absl::StatusOr<GpuShare> Share(const void*, uint64_t) override {
    return absl::UnimplementedError("the test makes them");
  }
  absl::StatusOr<std::unique_ptr<GpuMark>> MakeMark(const GpuUuid&) override {
    return std::make_unique<Mark>();
  }
};

// K and V of one layer, tensors of one allocation, with one head group of two.
absl::StatusOr<std::shared_ptr<const LentMemory>> TwoTensors() {
  LayoutSpec spec;
  spec.model = "m";
  spec.revision = "r";
  spec.page_tokens = 4;
  spec.head_groups = 2;
  LayerGroup& group = spec.groups.emplace_back();
  group.kv_heads = 2;
  group.k_dim = group.v_dim = 64;
  group.layer_ids = {0};
  CRUMB_ASSIGN(const crumb::Layout layout, CheckSpec(spec));
  LentMemory::Tensors two;
  two.slots = 8;
  two.tokens_per_slot = 2;
  two.head_group_first = two.head_group_count = 1;
  std::vector<GpuShare> shares;
  for (uint64_t i = 0; i < 2; ++i) {
    const uint64_t offset = 4096 + i * kTensor;
    two.tensors.push_back({.base = reinterpret_cast<void*>(kGpu + offset),
                           .bytes = kTensor,
                           .slot_stride = 256,
                           .token_stride = 128,
                           .head_stride = 128});
    GpuShare& share = shares.emplace_back();
    share.device.fill(1);
    share.handle.fill(5);
    share.allocation_bytes = kAllocation;
    share.offset = offset;
    share.bytes = kTensor;
  }
  CRUMB_ASSIGN(const auto places, LentMemory::Make(two, layout));
  return LentMemory::OnGpu(*places, std::move(shares));
}

// Turns the daemon's half while a call of the worker's waits for it.
class UdsGpuPlane : public ::testing::Test {
 protected:
  void SetUp() override {
    Restart(&mapper_);
    auto gate = GpuGate::Open(&side_, GpuUuid{});
    ASSERT_TRUE(gate.ok());
    gate_ = *gate;
  }
  void Restart(GpuMapper* mapper) {
    plane_.reset();
    EndDaemon();
    stop_.store(false);
    auto made = UdsTransport::Create({});
    ASSERT_TRUE(made.ok()) << made.status();
    server_ = *std::move(made);
    if (mapper != nullptr) server_->SetGpuMapper(mapper);
    ASSERT_TRUE(server_->Listen(folder_.path("data")).ok());
    thread_ = std::thread([this] {
      std::array<NetEvent, 16> events;
      while (!stop_.load()) server_->Poll(absl::MakeSpan(events));
      server_.reset();
    });
    auto plane = OpenUdsPlane({.data_socket = folder_.path("data"),
                               .session = 3,
                               .register_regions = [this](v1::RegisterRegionsRequest request) {
                                 if (!refusal_.ok()) return refusal_;
                                 told_.push_back(std::move(request));
                                 return absl::OkStatus();
                               }});
    ASSERT_TRUE(plane.ok()) << plane.status();
    plane_ = std::move(plane->plane);
  }
  // The mapper is the daemon's thread's until then.
  void EndDaemon() {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  void TearDown() override {
    plane_.reset();
    EndDaemon();
    EXPECT_EQ(mapper_.mapped(), 0u);
  }
  absl::Status Lend() {
    auto memory = TwoTensors();
    CRUMB_TRY(memory.status());
    memory_ = *std::move(memory);
    return plane_->Lend({.region_set = 4,
                         .layout_handle = 6,
                         .value_bytes_max = 1024,
                         .memory = memory_.get(),
                         .shared = &shared_,
                         .gate = gate_.get()});
  }

  crumb::SocketFolder folder_;
  FakeGpuMapper mapper_;
  std::unique_ptr<UdsTransport> server_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
  Side side_;
  std::shared_ptr<GpuGate> gate_;
  SharedMap shared_;
  std::shared_ptr<const LentMemory> memory_;
  absl::Status refusal_;  // of the control plane
  std::vector<v1::RegisterRegionsRequest> told_;
  std::unique_ptr<Plane> plane_;
};

TEST_F(UdsGpuPlane, TensorsOfOneAllocationAreOfferedOnceAndNamedEach) {
  const absl::Status status = Lend();
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].region_set(), 4u);
  EXPECT_EQ(told_[0].head_group_first(), 1u);
  EXPECT_EQ(told_[0].head_group_count(), 1u);
  EXPECT_EQ(told_[0].slots_per_block(), 2u);
  ASSERT_EQ(told_[0].regions_size(), 2);
  for (int i = 0; i < 2; ++i) {
    const uint64_t offset = 4096 + static_cast<uint64_t>(i) * kTensor;
    EXPECT_EQ(told_[0].regions(i).address(), kGpu + offset);
    EXPECT_EQ(told_[0].regions(i).bytes(), kTensor);
    const auto frame = ParseRkey(AsBytes(told_[0].regions(i).rkey()));
    ASSERT_TRUE(frame.ok()) << frame.status();
    UdsRkey key;
    ASSERT_TRUE(ParseUdsRkey(frame->key, &key));
    EXPECT_EQ(key.offset, offset);
  }
  EXPECT_FALSE(plane_->lost());
  plane_->Unlend(4);
  EndDaemon();
  EXPECT_EQ(mapper_.offered(), 1u);
}

TEST_F(UdsGpuPlane, ADaemonWithoutAGpuIsNamedAndNothingStaysLent) {
  Restart(nullptr);
  const absl::Status status = Lend();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("no GPU"));
  EXPECT_TRUE(told_.empty());
  EXPECT_FALSE(plane_->lost());
}

TEST_F(UdsGpuPlane, ARefusalOfTheControlPlaneGivesTheMemoryBack) {
  refusal_ = absl::InvalidArgumentError("no");
  EXPECT_EQ(Lend(), refusal_);
  refusal_ = absl::OkStatus();
  EXPECT_TRUE(Lend().ok());
}

}  // namespace
}  // namespace crumb::client
