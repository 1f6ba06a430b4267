// crumbd and its workers on a GPU, as processes: pages of every kind against the reference codec,
// the order of streams, a pool that overflows, memory that goes away or was never there, a daemon
// that is killed. cuda_kill_test beside it kills workers.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/clock.h"
#include "client/cli/bench_device_check.h"
#include "client/cli/bench_values.h"
#include "client/src/client_core.h"
#include "client/src/layout_spec.h"
#include "gpu/device/cuda_busy.h"
#include "gpu/device/cuda_memory.h"
#include "tests/gpu/gpu_rig.h"
#include "tests/support/codec_sample.h"

namespace crumb {
namespace {

using client::Code;
using client::Tier;
using testing::CodecSample;
using ::testing::HasSubstr;

constexpr cli::DeviceShape kSample = {
    .layers = 3, .heads = testing::kSampleHeads, .dim = testing::kSampleDim};
constexpr cli::DeviceShape kLarge = {.layers = 32, .heads = 8, .dim = 128};  // 8 MiB a page
constexpr uint32_t kSamplePages = testing::kSampleTokens / 64;

#define ASSERT_OK(expression)                               \
  do {                                                      \
    const absl::Status status_ = (expression);              \
    ASSERT_TRUE(status_.ok()) << status_ << "\n" << Tail(); \
  } while (false)

class CudaDaemonTest : public ::testing::Test {
 protected:
  void Start(const GpuDaemon::Options& options = {}) {
    daemon_ = std::make_unique<GpuDaemon>(options);
    ASSERT_OK(daemon_->Start());
  }
  void Open(const client::LayoutSpec& spec, const cli::DeviceShape& shape, uint32_t pages) {
    auto rig = GpuRig::Open(daemon_->server(), spec, shape, pages);
    ASSERT_OK(rig.status());
    rig_ = *std::move(rig);
  }
  // The end of the daemon's log, for what a failure means.
  std::string Tail() const {
    const std::string log = daemon_ == nullptr ? "" : daemon_->Log();
    return log.size() < 4000 ? log : log.substr(log.size() - 4000);
  }
  void WriteSample() {
    const CodecSample sample;
    for (uint32_t i = 0; i < kSamplePages; ++i) {
      sources_.push_back(sample.RawPage({0, 15, 29}, i * 64, 64));
      ASSERT_OK(rig_->pages()->Write(i, Bytes(sources_[i].data(), sources_[i].size())));
    }
  }
  // What is put comes back as the reference says, out of HBM.
  void RoundTrip(const std::string& codec, const std::string& rotation) {
    client::LayoutSpec spec = SpecFor(codec, kSample, {0, 15, 29});
    spec.rotation = rotation;
    ASSERT_NO_FATAL_FAILURE(Open(spec, kSample, 2 * kSamplePages));
    ASSERT_EQ(rig_->layout().codec, codec) << rig_->layout().codec_note;
    sources_.clear();
    ASSERT_NO_FATAL_FAILURE(WriteSample());
    const std::vector<std::string> keys = Keys(codec, kSamplePages);
    ASSERT_EQ(CountOf(rig_->Put(keys, 0), Code::kOk), kSamplePages) << Tail();
    const std::vector<client::Result> got = rig_->Get(keys, kSamplePages);
    ASSERT_EQ(CountOf(got, Code::kOk), kSamplePages) << Tail();
    const auto shape = client::CheckSpec(spec);
    ASSERT_OK(shape.status());
    std::shared_ptr<const RotationSet> set;
    if (!rotation.empty()) {
      const auto loaded = RotationSet::Load(testing::TestDataPath("smollm2/smollm2_sample.rot"));
      ASSERT_OK(loaded.status());
      set = *loaded;
    }
    cli::DeviceReference reference(shape->parts()[0], *ParseCodecKind(codec), Effort::kNormal, set);
    cli::DeviceCheckTally tally;
    for (uint32_t i = 0; i < kSamplePages; ++i) {
      EXPECT_EQ(got[i].tier, codec == "raw" ? Tier::kDram : Tier::kHbm) << i;
      const std::vector<uint8_t> page = rig_->Page(kSamplePages + i);
      const auto right = reference.Check(Bytes(sources_[i].data(), sources_[i].size()),
                                         Bytes(page.data(), page.size()), got[i].precision, &tally);
      ASSERT_OK(right.status());
      EXPECT_TRUE(*right) << codec << " page " << i << ": " << tally.worst;
    }
    std::printf("%s: %d pages, %d exact, others differ by %.2e at most\n", codec.c_str(),
                static_cast<int>(tally.pages), static_cast<int>(tally.exact), tally.worst);
    // Another precision of the same page must not pass for it.
    EXPECT_EQ(rig_->Get(Keys("never", 1), 0)[0].code, Code::kMiss);
  }

  std::unique_ptr<GpuDaemon> daemon_;
  std::unique_ptr<GpuRig> rig_;
  std::vector<std::vector<uint8_t>> sources_;
};

TEST_F(CudaDaemonTest, PagesOfEveryKindAreWhatTheReferenceMakes) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto rotation =
      daemon_->ImportRotation(testing::TestDataPath("smollm2/smollm2_sample.rot"));
  ASSERT_OK(rotation.status());
  for (const char* codec : {"crumb-int2", "oscar-int2", "crumb-int4"}) {
    ASSERT_NO_FATAL_FAILURE(RoundTrip(codec, *rotation));
  }
  for (const char* codec : {"int4", "raw"}) ASSERT_NO_FATAL_FAILURE(RoundTrip(codec, ""));
}

// Work on a stream takes longer than a request does, and nobody waits for it here.
TEST_F(CudaDaemonTest, PutsAndGetsAreBehindTheirStream) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kSample), kSample, 3));
  const auto sink = DeviceBuffer::Create(0, sizeof(float));
  ASSERT_OK(sink.status());
  auto* const nowhere = reinterpret_cast<float*>(sink->data());
  cudaStream_t streams[2] = {};
  for (cudaStream_t& stream : streams) {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  }
  std::byte* const base = rig_->pages()->memory();
  const uint64_t bytes = rig_->pages()->bytes();
  constexpr uint64_t kSteps = 1 << 22;  // tens of milliseconds
  for (int turn = 0; turn < 6; ++turn) {
    cudaStream_t const stream = streams[turn % 2];
    rig_->stream = stream;
    const std::vector<std::string> key = {absl::StrCat("turn/", turn)};
    // Each stream alone orders what is on it: what the last turn left must have ended.
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(cudaMemset(base, 0, bytes), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_OK(LaunchBusy(8, kSteps, nowhere, stream));
    ASSERT_EQ(cudaMemsetAsync(base, 0x3c + turn % 3, bytes, stream), cudaSuccess);
    ASSERT_EQ(CountOf(rig_->Put(key, 0), Code::kOk), 1u) << Tail();

    ASSERT_OK(LaunchBusy(8, kSteps, nowhere, stream));
    ASSERT_EQ(cudaMemsetAsync(base, 0, bytes, stream), cudaSuccess);
    ASSERT_EQ(CountOf(rig_->Get(key, 2), Code::kOk), 1u) << Tail();
    const std::vector<uint8_t> page = rig_->Page(2);
    ASSERT_FALSE(page.empty());
    const auto fill = static_cast<uint8_t>(0x3c + turn % 3);
    EXPECT_EQ(page[1], fill) << "of turn " << turn << ": the put or the get came too early";
    EXPECT_EQ(page[page.size() - 1], fill);
  }
  rig_.reset();
  for (cudaStream_t const stream : streams) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// Two requests on two streams before the daemon comes to either: one event has to cover both.
TEST_F(CudaDaemonTest, ARequestOnAnotherStreamDoesNotHideTheFirst) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kSample), kSample, 3));
  const auto sink = DeviceBuffer::Create(0, sizeof(float));
  ASSERT_OK(sink.status());
  cudaStream_t slow = nullptr, quick = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&slow, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&quick, cudaStreamNonBlocking), cudaSuccess);
  std::byte* const base = rig_->pages()->memory();
  const uint64_t bytes = rig_->pages()->bytes();
  for (int turn = 0; turn < 4; ++turn) {
    ASSERT_EQ(cudaMemset(base, 0, bytes), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_OK(LaunchBusy(8, 1 << 22, reinterpret_cast<float*>(sink->data()), slow));
    ASSERT_EQ(cudaMemsetAsync(base, 0x3d, bytes, slow), cudaSuccess);
    client::Ticket first = 0, second = 0;
    const std::vector<std::string> key = {absl::StrCat("slow/", turn)};
    rig_->stream = slow;
    ASSERT_TRUE(rig_->Submit(true, key, 0, &first).ok());
    rig_->stream = quick;
    ASSERT_TRUE(rig_->Submit(true, {absl::StrCat("quick/", turn)}, 1, &second).ok());
    ASSERT_EQ(CountOf(rig_->Wait(first).results, Code::kOk), 1u) << Tail();
    ASSERT_EQ(CountOf(rig_->Wait(second).results, Code::kOk), 1u) << Tail();
    ASSERT_EQ(CountOf(rig_->Get(key, 2), Code::kOk), 1u) << Tail();
    EXPECT_EQ(rig_->Page(2)[1], 0x3d) << "the slow stream's put was not waited for";
  }
  rig_.reset();
  EXPECT_EQ(cudaStreamDestroy(slow), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(quick), cudaSuccess);
}

TEST_F(CudaDaemonTest, AFullPoolMovesPagesToDramAndTheyComeBackEqual) {
  constexpr uint32_t kSources = 8, kBatches = 40;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kLarge), kLarge, 2 * kSources));
  const cli::BenchValues values(cli::ValueKind::kBf16, kLarge.page_bytes(), 3);
  std::vector<uint8_t> raw(kLarge.page_bytes());
  for (uint32_t i = 0; i < kSources; ++i) {
    values.Fill(i, {raw.data(), raw.size()});
    ASSERT_OK(rig_->pages()->Write(i, Bytes(raw.data(), raw.size())));
  }
  std::vector<std::vector<uint8_t>> want;
  std::vector<std::string> all;
  for (uint32_t batch = 0; batch < kBatches; ++batch) {
    const std::vector<std::string> keys = Keys(absl::StrCat("fill/", batch), kSources);
    ASSERT_EQ(CountOf(rig_->Put(keys, 0), Code::kOk), kSources) << "batch " << batch << Tail();
    all.insert(all.end(), keys.begin(), keys.end());
    if (batch != 0) continue;
    ASSERT_EQ(CountOf(rig_->Get(keys, kSources), Code::kOk), kSources) << Tail();
    for (uint32_t i = 0; i < kSources; ++i) want.push_back(rig_->Page(kSources + i));
  }
  std::map<Tier, size_t> found;
  for (size_t at = 0; at < all.size(); at += kSources) {
    const std::vector<std::string> keys(all.begin() + static_cast<std::ptrdiff_t>(at),
                                        all.begin() + static_cast<std::ptrdiff_t>(at + kSources));
    for (const client::Result& result : rig_->Lookup(keys)) ++found[result.tier];
    ASSERT_OK(rig_->pages()->Fill(0));
    const std::vector<client::Result> got = rig_->Get(keys, kSources);
    ASSERT_EQ(CountOf(got, Code::kOk), kSources) << "pages from " << at << Tail();
    for (uint32_t i = 0; i < kSources; ++i) {
      EXPECT_EQ(rig_->Page(kSources + i), want[i])
          << all[at + i] << " out of " << client::ToString(got[i].tier);
    }
  }
  std::printf("%zu pages in HBM, %zu in DRAM\n", found[Tier::kHbm], found[Tier::kDram]);
  EXPECT_GT(found[Tier::kHbm], 0u);
  EXPECT_GT(found[Tier::kDram], 0u);
}

TEST_F(CudaDaemonTest, AKilledDaemonIsComeBackToWithTheSameMemory) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kSample), kSample, 2));
  ASSERT_OK(rig_->pages()->Fill(0x3c));
  for (int turn = 0; turn < 2; ++turn) {
    const std::vector<std::string> key = {absl::StrCat("life/", turn)};
    ASSERT_EQ(CountOf(rig_->Put(key, 0), Code::kOk), 1u) << Tail();
    daemon_->process()->Kill();
    ASSERT_OK(daemon_->Start());
    std::vector<client::Completion> none;
    const SteadyClock clock;
    const uint64_t until_us = clock.now_us() + 20'000'000;
    // A lost session is seen, then another is opened by itself.
    while (rig_->Lookup(key).empty() && clock.now_us() < until_us) rig_->client()->Drain(50, &none);
    ASSERT_TRUE(rig_->client()->connected());
    EXPECT_EQ(rig_->Get(key, 1)[0].code, Code::kMiss);
    ASSERT_EQ(CountOf(rig_->Put(key, 0), Code::kOk), 1u) << Tail();
    ASSERT_EQ(CountOf(rig_->Get(key, 1), Code::kOk), 1u) << Tail();
    EXPECT_EQ(rig_->Page(1)[1], 0x3c);
  }
}

// A GPU side that says of its memory what is not so.
class LyingSide final : public client::GpuSide {
 public:
  explicit LyingSide(std::function<void(GpuShare*)> lie) : lie_(std::move(lie)) {}
  absl::StatusOr<GpuShare> Share(const void* address, uint64_t bytes) override {
    CRUMB_ASSIGN(GpuShare share, true_->Share(address, bytes));
    lie_(&share);
    return share;
  }
  absl::StatusOr<std::unique_ptr<client::GpuMark>> MakeMark(const GpuUuid&) override {
    CRUMB_ASSIGN(const GpuUuid device, UuidOfFirst());
    return true_->MakeMark(device);
  }

 private:
  absl::StatusOr<GpuUuid> UuidOfFirst() {
    CRUMB_ASSIGN(const DeviceBuffer buffer, DeviceBuffer::Create(0, 4096));
    CRUMB_ASSIGN(const GpuShare share, true_->Share(buffer.data(), 4096));
    return share.device;
  }
  std::unique_ptr<client::GpuSide> true_ = client::MakeGpuSide();
  std::function<void(GpuShare*)> lie_;
};

TEST_F(CudaDaemonTest, LiesAboutMemoryAreRefusedAndHarmNobody) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kSample), kSample, 2));
  ASSERT_OK(rig_->pages()->Fill(0x3c));
  ASSERT_EQ(CountOf(rig_->Put({"mine"}, 0), Code::kOk), 1u) << Tail();
  const auto memory = DeviceBuffer::Create(0, 1 << 20);
  ASSERT_OK(memory.status());
  const std::vector<std::function<void(GpuShare*)>> lies = {
      [](GpuShare* share) { share->handle.fill(0xa5); },
      [](GpuShare* share) { share->handle.fill(0); },
      [](GpuShare* share) { share->device.fill(7); },
      [](GpuShare* share) { share->allocation_bytes <<= 8; },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    LyingSide side(lies[i]);
    const SteadyClock clock;
    client::Options options;
    options.auto_reconnect = false;
    client::ClientCore core(options, daemon_->server(),
                            {.clock = &clock, .opener = client::OpenLink, .gpu = &side, .seed = i});
    ASSERT_OK(core.OpenWaker());
    ASSERT_TRUE(core.Open().ok());
    const client::LayoutSpec spec = SpecFor("int4", kSample);
    const auto layout = core.session().RegisterLayout(spec);
    ASSERT_OK(layout.status());
    const auto places = client::LentMemory::Make(
        client::LentMemory::Pages{
            .base = memory->data(), .bytes = 1 << 20, .slot_bytes = kSample.page_bytes()},
        *client::CheckSpec(spec));
    ASSERT_OK(places.status());
    const auto set = core.LendGpu(layout->handle, **places);
    EXPECT_FALSE(set.ok()) << "lie " << i;
    std::printf("lie %zu: %s\n", i, std::string(set.status().message()).c_str());
    EXPECT_EQ(CountOf(rig_->Get({"mine"}, 1), Code::kOk), 1u) << "after lie " << i << Tail();
  }
  EXPECT_EQ(rig_->Page(1)[1], 0x3c);
}

// Memory of cudaMalloc, lent as contiguous pages.
struct Contiguous {
  uint8_t* memory = nullptr;
  uint32_t set = 0;
};

client::Status LendContiguous(GpuRig* rig, uint64_t slot_bytes, uint64_t slots, Contiguous* out) {
  if (cudaMalloc(reinterpret_cast<void**>(&out->memory), slots * slot_bytes) != cudaSuccess)
    return {Code::kNoSpace, "full"};
  client::GpuRegions regions;
  regions.base = out->memory;
  regions.bytes = slots * slot_bytes;
  regions.slot_bytes = slot_bytes;
  return rig->client()->RegisterGpuRegions(rig->layout(), regions, &out->set);
}

TEST_F(CudaDaemonTest, ContiguousPagesTravelInEveryForm) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kSample), kSample, kSamplePages));
  ASSERT_NO_FATAL_FAILURE(WriteSample());
  ASSERT_EQ(CountOf(rig_->Put({"form/raw"}, 0), Code::kOk), 1u) << Tail();
  ASSERT_EQ(CountOf(rig_->Get({"form/raw"}, 1), Code::kOk), 1u) << Tail();
  const std::vector<uint8_t> want = rig_->Page(1);
  Contiguous pages;
  const client::Status lent = LendContiguous(rig_.get(), kSample.page_bytes() + 4096, 2, &pages);
  ASSERT_TRUE(lent.ok()) << lent.message << Tail();
  for (const client::Form form : {client::Form::kRaw, client::Form::kPacked, client::Form::kPage}) {
    const std::string copy = absl::StrCat("form/copy/", static_cast<int>(form));
    client::RequestOptions options;
    options.form = form;
    client::Block block;
    block.key = "form/raw";
    client::Ticket ticket = 0;
    client::Client* const client = rig_->client();
    ASSERT_TRUE(client->SubmitGet(rig_->layout(), pages.set, {block}, options, &ticket).ok());
    const client::Completion got = rig_->Wait(ticket);
    ASSERT_EQ(got.prefix, 1u) << client::ToString(got.results[0].code) << Tail();
    block.key = copy;
    block.value_bytes = form == client::Form::kRaw ? 0 : got.results[0].value_bytes;
    ASSERT_TRUE(client->SubmitPut(rig_->layout(), pages.set, {block}, options, &ticket).ok());
    const client::Completion put = rig_->Wait(ticket);
    ASSERT_EQ(put.prefix, 1u) << client::ToString(put.results[0].code) << put.results[0].note;
    ASSERT_OK(rig_->pages()->Fill(0));
    ASSERT_EQ(CountOf(rig_->Get({copy}, 1), Code::kOk), 1u) << Tail();
    const std::vector<uint8_t> back = rig_->Page(1);
    if (form != client::Form::kRaw) {
      EXPECT_EQ(back, want) << copy;
    } else {
      EXPECT_EQ(back.size(), want.size());  // packed a second time
    }
  }
  EXPECT_TRUE(rig_->client()->Unlend(pages.set).ok());
  EXPECT_EQ(cudaFree(pages.memory), cudaSuccess);
}

TEST_F(CudaDaemonTest, MemoryThatIsFreedTooEarlyHarmsNobodyElse) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kSample), kSample, 2));
  ASSERT_OK(rig_->pages()->Fill(0x3c));
  ASSERT_EQ(CountOf(rig_->Put({"mine"}, 0), Code::kOk), 1u) << Tail();
  for (int turn = 0; turn < 10; ++turn) {
    auto rash = GpuRig::Open(daemon_->server(), SpecFor("int4", kLarge), kLarge, 1);
    ASSERT_OK(rash.status());
    Contiguous pages;
    const client::Status lent = LendContiguous(rash->get(), kLarge.page_bytes(), 8, &pages);
    ASSERT_TRUE(lent.ok()) << lent.message << Tail();
    ASSERT_EQ(cudaMemset(pages.memory, 0x3c, 8 * kLarge.page_bytes()), cudaSuccess);
    const std::vector<std::string> keys = Keys(absl::StrCat("rash/", turn), 8);
    std::vector<client::Block> blocks(8);
    for (uint32_t i = 0; i < 8; ++i) {
      blocks[i].key = keys[i];
      blocks[i].slot = i;
    }
    client::Ticket ticket = 0;
    client::Client* const client = (*rash)->client();
    ASSERT_TRUE(client->SubmitPut((*rash)->layout(), pages.set, blocks, {}, &ticket).ok());
    ASSERT_EQ(cudaFree(pages.memory), cudaSuccess);
    (*rash)->Wait(ticket);  // whatever it says: the memory was not there
    rash->reset();
    ASSERT_EQ(CountOf(rig_->Get({"mine"}, 1), Code::kOk), 1u) << "turn " << turn << Tail();
    EXPECT_EQ(rig_->Page(1)[1], 0x3c);
  }
}

TEST_F(CudaDaemonTest, MemoryOfCudasPoolsIsRefusedWithTheRemedy) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kSample), kSample, 1));
  void* memory = nullptr;
  ASSERT_EQ(cudaMallocAsync(&memory, 1 << 20, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  client::GpuRegions regions;
  regions.base = memory;
  regions.bytes = 1 << 20;
  regions.slot_bytes = kSample.page_bytes();
  uint32_t set = 0;
  const client::Status status = rig_->client()->RegisterGpuRegions(rig_->layout(), regions, &set);
  EXPECT_EQ(status.code, Code::kInvalid);
  EXPECT_THAT(status.message, HasSubstr("expandable_segments:False"));
  EXPECT_EQ(cudaFreeAsync(memory, nullptr), cudaSuccess);
}

TEST_F(CudaDaemonTest, TheDocumentedExampleRuns) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::string program = ProgramBeside("GPU_PAGES", "gpu_pages");
  EXPECT_EQ(std::system(absl::StrCat(program, " ", daemon_->server()).c_str()), 0) << Tail();
}

}  // namespace
}  // namespace crumb
