// crumb-demo's conversation against a daemon that stores raw pages and misbehaves on demand: what
// differs, is gone or is not durable must end in an error that names it.
#include "client/demo/demo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/integ/client/fake_daemon.h"
#include "tests/support/npz.h"

namespace crumb::demo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void NoProgress(uint64_t, uint64_t, const char*) {}

class Demo : public ::testing::TestWithParam<client::DataPlane> {
 protected:
  void SetUp() override {
    char path[] = "/tmp/crumb-demo-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    dir_ = path;
    daemon_ = FakeDaemon::Start({.socket = dir_ + "/s"});
    sample_ = *LoadSample(testing::TestDataPath("smollm2"));
    client::Options options;
    options.server = "unix:" + dir_ + "/s";
    options.data_plane = GetParam();
    options.connect_ms = 20'000;
    auto exchange = Exchange::Connect(options, sample_);
    ASSERT_TRUE(exchange.ok()) << exchange.status();
    exchange_ = *std::move(exchange);
  }
  void TearDown() override {
    exchange_.reset();
    daemon_.reset();
    std::filesystem::remove_all(dir_);
  }

  // Puts one chain and says what was put, as --save would.
  std::vector<SavedPage> PutChain(const std::string& name_space) {
    const auto layout = exchange_->Register("raw", name_space);
    EXPECT_TRUE(layout.ok()) << layout.status();
    const auto put = exchange_->PutAll(*layout, true);
    EXPECT_TRUE(put.ok()) << put.status();
    EXPECT_EQ(put->stored, 8u);
    EXPECT_EQ(put->not_durable, 0u);
    std::vector<SavedPage> saved;
    std::vector<uint8_t> raw(sample_.page_bytes());
    for (uint32_t page = 0; page < sample_.page_count(); ++page) {
      WritePage(sample_, page, absl::MakeSpan(raw));
      saved.push_back({"raw", name_space, page, Sha256Of(raw)});
    }
    return saved;
  }

  std::string RunError(const RunOptions& options) {
    const auto report = demo::Run(sample_, *exchange_, options, NoProgress);
    return report.ok() ? "" : std::string(report.status().message());
  }

  std::string dir_;
  std::unique_ptr<FakeDaemon> daemon_;
  Sample sample_;
  std::unique_ptr<Exchange> exchange_;
};

TEST_P(Demo, ChainsComeBackByteEqual) {
  const std::vector<SavedPage> saved = PutChain("a");
  const auto layout = exchange_->Register("raw", "a");
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto got = exchange_->GetPrefix(*layout, client::Form::kRaw);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->prefix, 8u);  // the ninth key was never put
  for (const SavedPage& page : saved) {
    EXPECT_EQ(Sha256Of(exchange_->slot(page.page, sample_.page_bytes())), page.hash);
  }
  const auto report = Verify(sample_, *exchange_, saved, NoProgress);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->pages, 8u);
}

TEST_P(Demo, NamespacesShareNothing) {
  PutChain("a");
  const auto layout = exchange_->Register("raw", "b");
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto got = exchange_->GetPrefix(*layout, client::Form::kRaw);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->prefix, 0u);
}

TEST_P(Demo, VerifyFindsWhatIsGoneOrDiffers) {
  std::vector<SavedPage> saved = PutChain("a");
  std::vector<SavedPage> never = saved;
  for (SavedPage& page : never) page.name_space = "never";
  EXPECT_THAT(std::string(Verify(sample_, *exchange_, never, NoProgress).status().message()),
              HasSubstr("never, page 0: was durable, and is gone"));
  saved[5].hash[0] ^= 1;
  EXPECT_THAT(std::string(Verify(sample_, *exchange_, saved, NoProgress).status().message()),
              HasSubstr("a, page 5: differs from what it was"));
}

TEST_P(Demo, DamageOnTheWayIsAnError) {
  const std::vector<SavedPage> saved = PutChain("a");
  daemon_->Set({.flip_byte = true});
  EXPECT_FALSE(Verify(sample_, *exchange_, saved, NoProgress).ok());
  EXPECT_THAT(RunError({.codecs = {"raw"}, .namespaces = 1, .durable = false, .run_id = "x"}),
              HasSubstr("raw, namespace 0, page 0: get says corrupt"));
}

TEST_P(Demo, PutsThatAreNotDurableAreAnErrorWhereItWasAsked) {
  daemon_->Set({.put_result = BlockResult::kNotDurable});
  const auto layout = exchange_->Register("raw", "a");
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto put = exchange_->PutAll(*layout, true);
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(put->not_durable, 8u);
  EXPECT_THAT(RunError({.codecs = {"raw"}, .namespaces = 1, .durable = true, .run_id = "x"}),
              HasSubstr("8 pages of this namespace were stored, but not durably"));
}

TEST_P(Demo, RefusedPutsAreNamed) {
  daemon_->Set({.put_result = BlockResult::kQuota});
  EXPECT_THAT(RunError({.codecs = {"raw"}, .namespaces = 1, .durable = false, .run_id = "x"}),
              HasSubstr("put: quota"));
}

TEST_P(Demo, PagesWithoutAHeaderAreFound) {
  // This daemon answers the page form with bare bytes; the demo must not take them for a page.
  EXPECT_THAT(RunError({.codecs = {"raw"}, .namespaces = 2, .durable = false, .run_id = "x"}),
              AllOf(HasSubstr("page 0"), HasSubstr("header or payload is bad: bad magic")));
}

INSTANTIATE_TEST_SUITE_P(Planes, Demo,
                         ::testing::Values(client::DataPlane::kUcx, client::DataPlane::kGrpc),
                         [](const auto& param) {
                           return param.param == client::DataPlane::kUcx ? "Ucx" : "Grpc";
                         });

}  // namespace
}  // namespace crumb::demo
