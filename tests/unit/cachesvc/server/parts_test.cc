// Small parts of the server: staging memory, sessions, log lines, snapshots as text, the socket's
// place, what RPC messages become.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <set>

#include "cachesvc/server/log.h"
#include "cachesvc/server/rotation_calls.h"
#include "cachesvc/server/rpc_convert.h"
#include "cachesvc/server/sessions.h"
#include "cachesvc/server/snapshot.h"
#include "cachesvc/server/staging_pool.h"
#include "cachesvc/server/unix_socket.h"
#include "nlohmann/json.hpp"
#include "tests/unit/cachesvc/server/temp_dir.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class FakeClock final : public Clock {
 public:
  uint64_t now_us() const override { return now; }
  uint64_t now = 1'000'000;
};

TEST(StagingPool, BuffersLieAtMultiplesOfTheirSizeAndNeverOverlap) {
  auto pool = StagingPool::Create(1 << 20);
  ASSERT_TRUE(pool.ok());
  std::vector<StagingBuffer> buffers;
  for (const uint64_t bytes : {100'000u, 4096u, 1u, 65'536u, 200'000u, 5'000u}) {
    buffers.push_back((*pool)->Allocate(bytes));
    ASSERT_TRUE(buffers.back().valid()) << bytes;
    EXPECT_EQ(buffers.back().slot_bytes(), StagingPool::SlotBytes(bytes));
    EXPECT_EQ(buffers.back().memory().data(),
              (*pool)->arena().data() + buffers.back().slot() * buffers.back().slot_bytes());
  }
  uint64_t sum = 0;
  for (size_t i = 0; i < buffers.size(); ++i) {
    std::memset(buffers[i].memory().data(), static_cast<int>(i + 1), buffers[i].slot_bytes());
    sum += buffers[i].slot_bytes();
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    for (const uint8_t byte : buffers[i].memory()) ASSERT_EQ(byte, i + 1);
  }
  EXPECT_EQ((*pool)->used_bytes(), sum);
  buffers.clear();
  EXPECT_EQ((*pool)->used_bytes(), 0u);
}

TEST(StagingPool, RefusesWhatDoesNotFitAndRecovers) {
  auto pool = StagingPool::Create(1 << 20);
  ASSERT_TRUE(pool.ok());
  EXPECT_FALSE((*pool)->Allocate((1 << 20) + 1).valid());
  EXPECT_FALSE((*pool)->Allocate(std::numeric_limits<uint64_t>::max()).valid());
  EXPECT_FALSE((*pool)->Allocate(0).valid());
  {
    std::vector<StagingBuffer> all;
    for (int i = 0; i < 16; ++i) all.push_back((*pool)->Allocate(65'536));
    EXPECT_TRUE(all.back().valid());
    EXPECT_FALSE((*pool)->Allocate(1).valid());
  }
  EXPECT_EQ((*pool)->refused(), 4u);
  EXPECT_TRUE((*pool)->Allocate(1 << 20).valid());
}

TEST(Sessions, AreRandomBoundedAndIdleOnesAreFound) {
  FakeClock clock;
  SessionTable table(3, clock);
  std::set<uint64_t> ids;
  for (int i = 0; i < 3; ++i) {
    const auto session = table.Add("client", "default");
    ASSERT_TRUE(session.ok());
    EXPECT_NE(session->value, 0u);
    ids.insert(session->value);
  }
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_EQ(table.Add("client", "default").status().code(), absl::StatusCode::kResourceExhausted);
  clock.now += 10'000'000;
  EXPECT_EQ(*table.Use({*ids.begin()}), "default");
  EXPECT_EQ(table.IdleFor(5'000'000).size(), 2u);
  EXPECT_TRUE(table.Remove({*ids.begin()}));
  EXPECT_FALSE(table.Remove({*ids.begin()}));
  EXPECT_EQ(table.Use({*ids.begin()}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(table.Use({0}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(table.count(), 2u);
}

TEST(Log, LinesCannotBeForged) {
  EXPECT_EQ(FormatText("a\nb", {{"k", "v w"}, {"n", "1"}, {"e", ""}}), "a?b k=\"v w\" n=1 e=\"\"");
  const std::string json = "{" + FormatJson("say \"hi\"\n", {{"k", "\xff\x01"}}) + "}";
  const auto parsed = nlohmann::json::parse(json);
  EXPECT_EQ(parsed["msg"], "say \"hi\"\n");
  EXPECT_THAT(json, Not(HasSubstr("\n")));
  EXPECT_LT(FormatText(std::string(100'000, 'x'), {}).size(), 5000u);
}

Snapshot Sample() {
  Snapshot snapshot;
  snapshot.version = "9.9";
  snapshot.node = "n<1>";
  snapshot.state = DaemonState::kReady;
  snapshot.engine.requests[0] = 3;
  snapshot.engine.blocks[1][0] = 7;
  snapshot.engine.hits[static_cast<size_t>(Tier::kNvme)] = 7;
  snapshot.engine.latency[1][static_cast<size_t>(Tier::kNvme)].Add(15);
  snapshot.engine.latency[1][static_cast<size_t>(Tier::kNvme)].Add(1u << 30);
  snapshot.engine.encode_raw_bytes = 700;
  snapshot.engine.encode_packed_bytes = 100;
  snapshot.layouts.push_back({.name = "l\"1",
                              .hash = "ab",
                              .model = "m\xff",
                              .revision = "r",
                              .codec = "raw",
                              .note = "<b>",
                              .windows = "64/256",
                              .raw_bytes = 5,
                              .payload_bytes = 5});
  snapshot.rotations.push_back({.hash = "cd", .model = "a\"b\\c\nd", .revision = "r"});
  snapshot.warnings = {"careful & slow"};
  return snapshot;
}

TEST(Snapshots, MetricsEscapeAndAddUp) {
  const std::string text = MetricsText(Sample());
  EXPECT_THAT(text, HasSubstr("crumb_requests_total{op=\"put\",tenant=\"default\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("crumb_hits_total{tier=\"nvme\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("crumb_compression_ratio 7\n"));
  EXPECT_THAT(text, HasSubstr("model=\"a\\\"b\\\\c\\nd\""));
  EXPECT_THAT(text, HasSubstr("crumb_request_seconds_bucket{op=\"get\",tier=\"nvme\",le=\"1e-05\"}"
                              " 0\n"));
  EXPECT_THAT(text, HasSubstr("crumb_request_seconds_bucket{op=\"get\",tier=\"nvme\",le=\"2e-05\"}"
                              " 1\n"));
  EXPECT_THAT(text, HasSubstr("crumb_request_seconds_bucket{op=\"get\",tier=\"nvme\",le=\"+Inf\"}"
                              " 2\n"));
  EXPECT_THAT(text, HasSubstr("crumb_request_seconds_count{op=\"get\",tier=\"nvme\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("crumb_ready 1\n"));
}

TEST(Snapshots, TheDocumentIsJsonWhateverNamesHold) {
  const auto json = nlohmann::json::parse(StatusJson(Sample()));
  EXPECT_EQ(json["node"], "n<1>");
  EXPECT_EQ(json["hit_ratio"], 1.0);
  EXPECT_EQ(json["codec"]["ratio"], 7.0);
  EXPECT_EQ(json["layouts"][0]["name"], "l\"1");
  const std::string page = StatusPage(Sample());
  EXPECT_THAT(page, HasSubstr("n&lt;1&gt;"));
  EXPECT_THAT(page, HasSubstr("careful &amp; slow"));
  EXPECT_THAT(page, Not(HasSubstr("<b>")));
}

TEST(Snapshots, NoRatioIsSaidBeforeTheFirstEncode) {
  const auto codec = nlohmann::json::parse(StatusJson(Snapshot()))["codec"];
  EXPECT_TRUE(codec["ratio"].is_null());
  EXPECT_TRUE(codec["relative_error_k"].is_null());
  EXPECT_THAT(StatusPage(Snapshot()), HasSubstr("<th>compression</th><td>-</td>"));
  EXPECT_THAT(StatusPage(Sample()), HasSubstr("<th>compression</th><td>7.00 x</td>"));
}

TEST(UnixSocket, TheFolderMustBeOurs) {
  TempDir temp;
  const std::string folder = temp / "open";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  EXPECT_THAT(std::string(PrepareSocket(folder + "/s").status().message()), HasSubstr("chmod 700"));
  ASSERT_EQ(chmod(folder.c_str(), 01777), 0);  // as /tmp is
  EXPECT_TRUE(PrepareSocket(folder + "/s").ok());
  EXPECT_FALSE(PrepareSocket(temp / "absent/deeper/s").ok());
  const auto made = PrepareSocket(temp / "fresh/s");
  ASSERT_TRUE(made.ok()) << made.status();
  struct stat info {};
  ASSERT_EQ(stat((temp / "fresh").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST(UnixSocket, AListenerIsRespectedAndADeadSocketRemoved) {
  TempDir temp;
  const std::string path = temp / "s";
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.c_str(), path.size());
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  EXPECT_THAT(std::string(PrepareSocket(path).status().message()),
              HasSubstr("another process listens"));
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  close(fd);
  EXPECT_TRUE(PrepareSocket(path).ok());
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  std::ofstream(path) << "a file";
  EXPECT_THAT(std::string(PrepareSocket(path).status().message()), HasSubstr("no socket"));
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
}

TEST(RpcConvert, DeadlinesAreBounded) {
  EXPECT_EQ(DeadlineUs(0, 600'000'000), 0u);
  EXPECT_EQ(DeadlineUs(5, 600'000'000), 5000u);
  EXPECT_EQ(DeadlineUs(~uint64_t{0}, 600'000'000), 600'000'000u);
  EXPECT_EQ(DeadlineUs(10'000'000, std::numeric_limits<uint64_t>::max()),
            std::numeric_limits<uint32_t>::max());
}

TEST(RpcConvert, IdentitiesSurviveTheRoundTrip) {
  v1::Identity in;
  in.set_model("m");
  in.set_revision("r");
  in.set_weights_dtype("fp8");
  in.mutable_rope()->set_kind("yarn");
  in.mutable_rope()->set_theta(1e6);
  in.mutable_rope()->set_factor(4);
  in.mutable_rope()->set_original_positions(4096);
  in.mutable_rope()->set_extra("beta=1");
  in.set_k_before_rope(true);
  in.set_dtype("fp16");
  v1::AttentionGroup* group = in.add_groups();
  group->set_kind("mha");
  group->set_kv_heads(4);
  group->set_k_dim(64);
  group->set_v_dim(32);
  group->set_window(512);
  group->add_layer_ids(3);
  in.set_page_tokens(16);
  in.set_name_space(std::string("n\0s", 3));
  in.set_head_groups(2);
  in.add_part_layer_counts(1);
  const auto identity = FromProto(in);
  ASSERT_TRUE(identity.ok());
  EXPECT_EQ(ToProto(*identity).SerializeAsString(), in.SerializeAsString());
}

TEST(RpcConvert, NonFinitePlacesAreSpelledOut) {
  const std::string text =
      DescribeNonFinite(PackPlace({.layer_id = 12, .is_v = true, .head = 3, .token = 44}));
  EXPECT_THAT(text, HasSubstr("layer 12, V, head 3, token 44"));
}

}  // namespace
}  // namespace crumb
