// The daemon's GPU: what is an error, what is left out and said; workers' memory on its thread;
// the order in which all of it ends.
#include "cachesvc/server/gpu_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>

#include "cachesvc/base/clock.h"
#include "tests/support/codec_sample.h"
#include "tests/support/fake_gpus.h"
#include "tests/unit/cachesvc/server/fake_machine.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class GpuServiceTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kMiB = 1 << 20;

  void Configure(const std::string& text) {
    Machine machine = FakeMachine();
    machine.built_with_cuda = true;
    ConfigInputs inputs;
    inputs.file_name = "c.yaml";
    inputs.file_text = text;
    const auto loaded = LoadConfig(inputs, machine);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    config_ = *loaded;
  }
  absl::Status Open() {
    CRUMB_ASSIGN(service_, GpuService::Open(config_, &log_, open_));
    return absl::OkStatus();
  }
  absl::Status Attach() {
    return service_->Attach(absl::MakeSpan(dram_), [this] {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++woken_;
      changed_.notify_all();
    });
  }
  void OpenAndAttach(const std::string& text) {
    Configure(text);
    const absl::Status opened = Open();
    ASSERT_TRUE(opened.ok()) << opened;
    const absl::Status attached = Attach();
    ASSERT_TRUE(attached.ok()) << attached;
  }
  GpuOffer Offer(uint64_t token, const GpuShare& share) {
    return {.token = token, .share = EncodeGpuShare(share), .link = nullptr};
  }
  // The next answer, waited for.
  GpuAnswer Answer() {
    GpuAnswer answer;
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      return service_->mapper()->Poll({&answer, 1}) == 1;
    }));
    return answer;
  }

  const SteadyClock clock_;
  Log log_{{.level = "error", .format = "text", .node = ""}, clock_};
  Config config_;
  testing::FakeGpuState state_;
  GpuService::Opener open_ = [this]() -> absl::StatusOr<std::unique_ptr<Gpus>> {
    return std::make_unique<testing::FakeGpus>(&state_);
  };
  std::vector<uint8_t> dram_ = std::vector<uint8_t>(64 * 1024);
  std::vector<uint8_t> worker_ = std::vector<uint8_t>(8192);
  std::mutex mutex_;
  std::condition_variable changed_;
  int woken_ = 0;
  std::unique_ptr<GpuService> service_;
};

TEST_F(GpuServiceTest, OffMeansThatNoGpuIsAskedFor) {
  Configure("gpu: {enabled: false}\n");
  open_ = []() -> absl::StatusOr<std::unique_ptr<Gpus>> {
    ADD_FAILURE() << "it was asked";
    return absl::UnknownError("");
  };
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Attach().ok());
  EXPECT_FALSE(service_->on());
  EXPECT_EQ(service_->report().gpu, "off: gpu.enabled is false");
  EXPECT_EQ(service_->mapper(), nullptr);
  EXPECT_EQ(service_->codecs(), nullptr);
  EXPECT_EQ(service_->hbm().pool, nullptr);
  EXPECT_TRUE(service_->Look().ok());
}

TEST_F(GpuServiceTest, NoGpuIsFineUnlessOneWasAskedFor) {
  open_ = []() -> absl::StatusOr<std::unique_ptr<Gpus>> {
    return absl::UnavailableError("no usable GPU: nvidia-smi has to work here");
  };
  Configure("");
  ASSERT_TRUE(Open().ok());
  EXPECT_THAT(service_->report().gpu, StartsWith("off: no usable GPU"));
  EXPECT_THAT(service_->report().warnings, IsEmpty());
  Configure("pool: {hbm_bytes: 10%}\n");
  EXPECT_THAT(std::string(Open().message()), StartsWith("pool.hbm_bytes: no usable GPU"));
}

TEST_F(GpuServiceTest, AStageIsMadeWithOrWithoutAnHbmTier) {
  OpenAndAttach("pool: {hbm_bytes: 0}\ngpu: {staging_bytes: 3MiB}\n");
  EXPECT_EQ(service_->stage().memory.size(), 3 * kMiB);
  EXPECT_EQ(service_->stage().device, 0);
  EXPECT_EQ(service_->hbm().pool, nullptr);
  service_.reset();
  EXPECT_EQ(state_.arenas, 0);
  OpenAndAttach("pool: {hbm_bytes: 0}\ngpu: {staging_bytes: 0}\n");
  EXPECT_TRUE(service_->stage().memory.empty());
  EXPECT_EQ(service_->stage().device, -1);
  EXPECT_THAT(service_->report().warnings, IsEmpty());
}

TEST_F(GpuServiceTest, AnHbmTierIsSizedAndMade) {
  OpenAndAttach("pool: {hbm_bytes: 64MiB}\n");
  EXPECT_TRUE(service_->on());
  EXPECT_EQ(service_->report().hbm_bytes, 64 * kMiB);
  EXPECT_THAT(service_->report().gpu, StartsWith("GPU 0 memory of this process, 16384 MiB"));
  const EngineHbm hbm = service_->hbm();
  ASSERT_NE(hbm.pool, nullptr);
  EXPECT_GE(hbm.pool->capacity_bytes(), 60 * kMiB);
  EXPECT_NE(hbm.lower, nullptr);
  EXPECT_NE(hbm.raise, nullptr);
  EXPECT_NE(hbm.lower, hbm.raise);
  EXPECT_EQ(state_.registrations, 1);
  EXPECT_EQ(service_->codecs()->devices(), std::vector<int>{0});
  EXPECT_TRUE(service_->LinkHealth().ok());
  EXPECT_TRUE(service_->Look().ok());
  EXPECT_EQ(service_->free_bytes(), state_.free_bytes);
  service_->Detach();
  EXPECT_EQ(state_.arenas + state_.registrations + state_.links, 0);
}

TEST_F(GpuServiceTest, WithoutRoomThereIsNoTierUnlessASizeWasAskedFor) {
  state_.free_bytes = 16 * kMiB;
  OpenAndAttach("");
  EXPECT_TRUE(service_->on()) << "GPUs are served from DRAM";
  EXPECT_EQ(service_->hbm().pool, nullptr);
  EXPECT_NE(service_->mapper(), nullptr);
  EXPECT_THAT(service_->report().hbm, StartsWith("off: "));
  ASSERT_EQ(service_->report().warnings.size(), 1u);
  EXPECT_THAT(service_->report().warnings[0], HasSubstr("pool.hbm_bytes: 0 says"));
  Configure("pool: {hbm_bytes: 256MiB}\n");
  EXPECT_THAT(std::string(Open().message()), StartsWith("pool.hbm_bytes: "));
}

TEST_F(GpuServiceTest, ZeroIsNoTierAndNoWarning) {
  OpenAndAttach("pool: {hbm_bytes: 0}\n");
  EXPECT_TRUE(service_->on());
  EXPECT_EQ(service_->report().hbm, "off: pool.hbm_bytes is 0");
  EXPECT_THAT(service_->report().warnings, IsEmpty());
  EXPECT_EQ(state_.arenas, 1) << "the stage alone";
  EXPECT_EQ(state_.links, 0);
}

TEST_F(GpuServiceTest, AGpuThatIsNotThereIsNamed) {
  Configure("pool: {device: 1}\n");
  const absl::Status status = Open();
  EXPECT_THAT(std::string(status.message()),
              StartsWith("pool.device: 1: this process sees 1 GPUs"));
}

TEST_F(GpuServiceTest, APoolThatCannotBeRegisteredLeavesTheGpuOut) {
  state_.refuse_host = true;
  OpenAndAttach("");
  EXPECT_FALSE(service_->on());
  EXPECT_EQ(service_->mapper(), nullptr);
  EXPECT_EQ(service_->hbm().pool, nullptr);
  EXPECT_EQ(service_->report().hbm_bytes, 0u);
  ASSERT_FALSE(service_->report().warnings.empty());
  EXPECT_THAT(service_->report().warnings.back(), HasSubstr("ulimit -l"));
  EXPECT_EQ(state_.arenas, 0) << "its memory is given back";
  Configure("pool: {hbm_bytes: 64MiB}\n");
  ASSERT_TRUE(Open().ok());
  EXPECT_THAT(std::string(Attach().message()), StartsWith("pool.hbm_bytes: locked memory"));
}

TEST_F(GpuServiceTest, ALostGpuIsSeen) {
  OpenAndAttach("pool: {hbm_bytes: 64MiB}\n");
  state_.lost = true;
  EXPECT_THAT(std::string(service_->Look().message()), HasSubstr("CUDA device 0"));
}

TEST_F(GpuServiceTest, WorkersMemoryIsMappedAndLetGo) {
  OpenAndAttach("pool: {hbm_bytes: 0}\n");
  std::vector<int> prepared;
  service_->SetPrepare([&](int device) {
    prepared.push_back(device);
    return absl::OkStatus();
  });
  GpuShare share = state_.Lend(absl::MakeSpan(worker_));
  ASSERT_TRUE(service_->mapper()->Map(Offer(5, share)));
  GpuAnswer first = Answer();
  EXPECT_EQ(first.token, 5u);
  EXPECT_EQ(first.refusal, UdsRefusal::kNone);
  EXPECT_EQ(first.mapping.address, reinterpret_cast<uint64_t>(worker_.data()));
  EXPECT_EQ(first.mapping.bytes, worker_.size());
  ASSERT_NE(first.mapping.link, nullptr);
  GpuOffer again = Offer(6, share);
  again.link = first.mapping.link;
  ASSERT_TRUE(service_->mapper()->Map(again));
  again.link.reset();
  GpuAnswer second = Answer();
  EXPECT_EQ(second.mapping.link, first.mapping.link);
  EXPECT_NE(second.mapping.id, first.mapping.id);
  EXPECT_EQ(state_.mapped, 2);
  EXPECT_EQ(state_.links, 1);
  EXPECT_EQ(prepared, std::vector<int>{testing::FakeGpus::kDevice}) << "once for each GPU";
  service_->mapper()->Unmap(std::move(first.mapping));
  service_->mapper()->Unmap(std::move(second.mapping));
  service_->Hold();
  service_->Detach();
  EXPECT_EQ(state_.mapped, 0);
  EXPECT_EQ(state_.links, 0);
}

TEST_F(GpuServiceTest, WhyMemoryIsRefused) {
  OpenAndAttach("pool: {hbm_bytes: 0}\n");
  const GpuShare lent = state_.Lend(absl::MakeSpan(worker_));
  const auto refused = [&](const GpuShare& share) {
    EXPECT_TRUE(service_->mapper()->Map(Offer(1, share)));
    GpuAnswer answer = Answer();
    EXPECT_EQ(answer.mapping.id, 0u);
    EXPECT_EQ(answer.mapping.link, nullptr);
    return answer.refusal;
  };
  EXPECT_EQ(refused(lent), UdsRefusal::kNoGpu) << "it is starting";
  GpuShare other = lent;
  other.handle.fill(9);
  EXPECT_EQ(refused(other), UdsRefusal::kNotShared);
  GpuShare outside = lent;
  outside.offset = 4096;
  EXPECT_EQ(refused(outside), UdsRefusal::kNotShared);
  service_->SetPrepare([](int) { return absl::UnavailableError("too much else is being done"); });
  EXPECT_EQ(refused(lent), UdsRefusal::kNoGpu);
  service_->SetPrepare([](int) { return absl::ResourceExhaustedError("no room for codecs"); });
  EXPECT_EQ(refused(lent), UdsRefusal::kTooMany);
  service_->SetPrepare([](int) { return absl::OkStatus(); });
  EXPECT_EQ(state_.mapped, 0) << "what was mapped for nothing is unmapped";
  EXPECT_TRUE(service_->mapper()->Map(Offer(1, lent)));
  GpuAnswer answer = Answer();
  EXPECT_EQ(answer.refusal, UdsRefusal::kNone);
  // Nobody ever asks for this one, nor gives the other back: the end takes both.
  EXPECT_TRUE(service_->mapper()->Map(Offer(2, lent)));
  service_->mapper()->Unmap(std::move(answer.mapping));
  service_->Detach();
  EXPECT_EQ(state_.mapped, 0);
  EXPECT_EQ(state_.links, 0);
}

TEST(GpuCodecsTest, OneForEachDescriptorPartAndDeviceWhileSomebodyUsesIt) {
  testing::FakeGpuState state;
  testing::FakeGpus gpus(&state);
  GpuCodecs codecs(&gpus);
  const PartShape shape = testing::MakePart({.layer_ids = {0}, .k_dim = 64, .v_dim = 64});
  const PartShape other = testing::MakePart({.layer_ids = {1}, .k_dim = 64, .v_dim = 64});
  const CodecDescriptor int4 = CodecDescriptor::Default(CodecKind::kCrumbInt4, {});
  std::vector<std::shared_ptr<const GpuCodec>> first, again, more, second_gpu;
  std::vector<std::string> notes;
  const auto build = [&](const PartShape& part, absl::Span<const CodecDescriptor> descriptors,
                         std::vector<std::shared_ptr<const GpuCodec>>* out) {
    codecs.Build(part, descriptors, nullptr, out, &notes);
  };
  build(shape, {&int4, 1}, &first);
  EXPECT_TRUE(first.empty()) << "no GPU is in use";
  EXPECT_TRUE(codecs.Use(0));
  EXPECT_FALSE(codecs.Use(0));
  build(shape, {&int4, 1}, &first);
  ASSERT_EQ(first.size(), 2u) << "raw pages, too";
  EXPECT_EQ(state.codecs, 2);
  build(shape, {&int4, 1}, &again);
  EXPECT_EQ(again, first);
  EXPECT_EQ(state.codecs, 2) << "made once";
  const CodecDescriptor hadamard = CodecDescriptor::Default(CodecKind::kHadamardInt4, {});
  const std::vector<CodecDescriptor> both = {int4, hadamard};
  build(shape, both, &more);
  EXPECT_EQ(more.size(), 3u);
  EXPECT_TRUE(codecs.Use(1));
  build(shape, {&int4, 1}, &second_gpu);
  EXPECT_EQ(second_gpu.size(), 4u);
  const int before = state.codecs;
  build(other, {&int4, 1}, &second_gpu);
  EXPECT_EQ(state.codecs, before + 4) << "another part";
  first.clear();
  again.clear();
  more.clear();
  second_gpu.clear();
  build(shape, {&int4, 1}, &first);
  EXPECT_EQ(state.codecs, before + 8) << "nobody kept them";
  EXPECT_TRUE(notes.empty());
}

}  // namespace
}  // namespace crumb
