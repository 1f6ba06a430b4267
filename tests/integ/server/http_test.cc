// HTTP of the real daemon: metrics that parse and add up, health, the status document and page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <regex>
#include <sstream>

#include "nlohmann/json.hpp"
#include "tests/integ/server/daemon_process.h"
#include "tests/integ/server/rpc_worker.h"
#include "tests/unit/cachesvc/server/temp_dir.h"

namespace crumb {
namespace {

using testing::DaemonProcess;
using ::testing::HasSubstr;
using testing::Http;
using testing::HttpBody;
using ::testing::Not;
using testing::RandomPage;
using testing::RpcWorker;
using testing::SmallModel;
using ::testing::StartsWith;

class HttpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.Start()) << daemon_.log();
    worker_ = std::make_unique<RpcWorker>(daemon_.grpc());
    ASSERT_TRUE(worker_->Connect());
    ASSERT_TRUE(worker_->Register(SmallModel(), "raw").ok());
  }
  // Every sample of /metrics by its name and labels; fails on a line that is none.
  std::map<std::string, double> Scrape() {
    static const std::regex sample(
        R"(([a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-zA-Z_]\w*="[^"]*"(,[a-zA-Z_]\w*="[^"]*")*\})?) (\S+))");
    std::map<std::string, double> values;
    std::istringstream lines(HttpBody(daemon_.http(), "/metrics"));
    std::string line;
    while (std::getline(lines, line)) {
      if (line.empty() || line[0] == '#') continue;
      std::smatch match;
      if (!std::regex_match(line, match, sample)) {
        ADD_FAILURE() << line;
        continue;
      }
      EXPECT_EQ(values.count(match[1]), 0u) << "twice: " << line;
      values[match[1]] = std::stod(match[4]);
    }
    return values;
  }

  TempDir temp_{TempDir::Place::kDisk};
  DaemonProcess daemon_{temp_.path()};
  std::unique_ptr<RpcWorker> worker_;
};

TEST_F(HttpTest, MetricsCountWhatHappened) {
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(worker_->Put(std::to_string(i), RandomPage(i), {.durable = true}), v1::RESULT_OK);
  }
  for (uint64_t i = 0; i < 7; ++i) worker_->Get(std::to_string(i));
  worker_->Lookup({"0", "1", "none"});
  worker_->Delete("4");
  std::map<std::string, double> m = Scrape();
  EXPECT_EQ(m["crumb_ready"], 1);
  EXPECT_EQ(m[R"(crumb_requests_total{op="put",tenant="default"})"], 5);
  EXPECT_EQ(m[R"(crumb_requests_total{op="get",tenant="default"})"], 7);
  EXPECT_EQ(m[R"(crumb_blocks_total{op="put",code="ok",tenant="default"})"], 5);
  EXPECT_EQ(m[R"(crumb_blocks_total{op="get",code="ok",tenant="default"})"], 5);
  EXPECT_EQ(m[R"(crumb_blocks_total{op="get",code="miss",tenant="default"})"], 2);
  EXPECT_EQ(m[R"(crumb_hits_total{tier="dram"})"], 5);
  EXPECT_EQ(m[R"(crumb_lookup_blocks_total{result="dram",tenant="default"})"], 2);
  EXPECT_EQ(m[R"(crumb_lookup_blocks_total{result="miss",tenant="default"})"], 1);
  EXPECT_EQ(m[R"(crumb_blocks_total{op="delete",code="ok",tenant="default"})"], 1);
  EXPECT_EQ(m["crumb_index_entries"], 4);
  EXPECT_GT(m[R"(crumb_nvme_bytes_total{op="write"})"], 5 * 65536);
  EXPECT_EQ(m[R"(crumb_request_seconds_count{op="put",tier="nvme"})"] +
                m[R"(crumb_request_seconds_count{op="put",tier="dram"})"],
            5);
  EXPECT_GT(m["process_resident_memory_bytes"], 1e6);
  EXPECT_GT(m["process_open_fds"], 3);
  EXPECT_GT(m["crumb_start_time_seconds"], 1.6e9);
  for (const char* tier : {"dram", "nvme"}) {
    const std::string label = std::string("{tier=\"") + tier + "\"}";
    EXPECT_GT(m["crumb_tier_used_bytes" + label], 0) << tier;
    EXPECT_LE(m["crumb_tier_used_bytes" + label], m["crumb_tier_capacity_bytes" + label]) << tier;
  }
  for (const char* name :
       {"crumb_build_info", "crumb_evicted_bytes_total", "crumb_checksum_failures_total",
        "crumb_codec_pages_total", "crumb_recovery_seconds", "crumb_nvme_errors_total",
        "crumb_ucx_enabled", "crumb_clients", "crumb_deadline_exceeded_total"}) {
    EXPECT_TRUE(std::any_of(m.begin(), m.end(), [&](const auto& entry) {
      return entry.first.rfind(name, 0) == 0;
    })) << name;
  }
}

TEST_F(HttpTest, HistogramsAreCumulativeAndEndInTheirCount) {
  for (uint64_t i = 0; i < 5; ++i) worker_->Put(std::to_string(i), RandomPage(i));
  std::istringstream lines(HttpBody(daemon_.http(), "/metrics"));
  std::string line;
  double last = 0;
  int buckets = 0;
  while (std::getline(lines, line)) {
    if (line.rfind("crumb_request_seconds_bucket{op=\"put\"", 0) != 0) continue;
    const double value = std::stod(line.substr(line.rfind(' ')));
    EXPECT_GE(value, last);
    last = value;
    ++buckets;
  }
  EXPECT_EQ(buckets, 21);
  EXPECT_EQ(last, 5);
}

TEST_F(HttpTest, AfterAFlushNothingIsUsed) {
  for (uint64_t i = 0; i < 5; ++i) {
    worker_->Put(std::to_string(i), RandomPage(i), {.durable = true});
  }
  v1::FlushReply reply;
  ASSERT_TRUE(worker_->admin().Flush(testing::Context().get(), {}, &reply).ok());
  std::map<std::string, double> m = Scrape();
  EXPECT_EQ(m[R"(crumb_tier_used_bytes{tier="dram"})"], 0);
  EXPECT_EQ(m[R"(crumb_tier_used_bytes{tier="nvme"})"], 0);
  EXPECT_EQ(m["crumb_index_entries"], 0);
}

TEST_F(HttpTest, OnlyGetAndHeadOfKnownPages) {
  const std::string place = daemon_.http();
  EXPECT_THAT(Http(place, "GET", "/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Http(place, "GET", "/readyz"), StartsWith("HTTP/1.1 200"));
  const std::string head = Http(place, "HEAD", "/metrics");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(head.substr(head.find("\r\n\r\n")), "\r\n\r\n");
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS"}) {
    EXPECT_THAT(Http(place, method, "/metrics"), StartsWith("HTTP/1.1 405")) << method;
  }
  for (const char* path : {"/nothing", "/metrics/", "/../metrics", "/x/../metrics", "/etc/passwd",
                           "/%2e%2e/metrics", "//", "/index.html"}) {
    EXPECT_THAT(Http(place, "GET", path), Not(StartsWith("HTTP/1.1 200"))) << path;
  }
  EXPECT_THAT(Http(place, "GET", "/readyz?x=1"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpTest, HalfOpenConnectionsDoNotDelayOthers) {
  std::vector<std::unique_ptr<testing::HalfOpen>> open;
  for (int i = 0; i < 50; ++i) {
    open.push_back(std::make_unique<testing::HalfOpen>(daemon_.http(), "GET / HTTP/1.1\r\nA: "));
    ASSERT_TRUE(open.back()->connected());
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(Http(daemon_.http(), "GET", "/healthz"), StartsWith("HTTP/1.1 200"));
  // 20 ms where nothing else runs; the machine of the tests may be busy.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
  for (const auto& one : open) EXPECT_TRUE(one->ClosedWithin(10'000));
}

TEST_F(HttpTest, TheStatusDocumentIsTheSameOverHttpAndGrpc) {
  worker_->Put("k", RandomPage(1));
  const auto http = nlohmann::json::parse(HttpBody(daemon_.http(), "/api/v1/status"));
  const auto rpc = nlohmann::json::parse(worker_->StatusJson());
  EXPECT_EQ(http["state"], "ready");
  EXPECT_EQ(http["tiers"], rpc["tiers"]);
  EXPECT_EQ(http["layouts"], rpc["layouts"]);
  EXPECT_EQ(http["layouts"][0]["model"], "example/small");
  EXPECT_EQ(http["operations"]["put"]["pages"]["ok"], 1);
  EXPECT_EQ(http["clients"]["sessions"], 1);
}

TEST_F(HttpTest, ThePageHasItsNumbersInTheMarkup) {
  v1::Identity identity = SmallModel();
  identity.set_model("<script>alert(1)</script>");
  ASSERT_TRUE(worker_->Register(identity, "raw").ok());
  const std::string page = HttpBody(daemon_.http(), "/");
  EXPECT_THAT(page, StartsWith("<!doctype html>"));
  EXPECT_THAT(page, HasSubstr("hit ratio"));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(1)"));
  EXPECT_THAT(page, Not(HasSubstr("<script>alert(1)")));
  EXPECT_THAT(page, Not(HasSubstr("http://")));  // self-contained
  EXPECT_THAT(page, Not(HasSubstr("https://")));
}

}  // namespace
}  // namespace crumb
