// The gRPC plane alone against a daemon that takes calls and answers none: what gRPC ends on this
// side must not look like the daemon's word.
#include "client/src/grpc_plane.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cstdlib>
#include <filesystem>

#include "tests/integ/client/fake_daemon.h"

namespace crumb::client {
namespace {

class GrpcPlaneTest : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/crumb-plane-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    dir_ = path;
    daemon_ = FakeDaemon::Start({.socket = dir_ + "/s"});
    ControlOptions options;
    options.channel.server = "unix:" + dir_ + "/s";
    options.client_name = "plane";
    auto control = Control::Open(options);
    ASSERT_TRUE(control.ok()) << control.status();
    control_ = *std::move(control);
    plane_ = OpenGrpcPlane(control_.get()).plane;
  }
  void TearDown() override {
    if (daemon_ != nullptr) daemon_->Set({});
    plane_.reset();
    control_.reset();
    daemon_.reset();
    std::filesystem::remove_all(dir_);
  }
  // A prefetch: one call for all blocks, and no memory.
  void Submit(uint64_t id, uint32_t deadline_ms) {
    auto request = std::make_shared<PlaneRequest>();
    request->id = id;
    request->type = WireType::kPrefetch;
    request->layout_handle = 1;
    request->deadline_ms = deadline_ms;
    request->blocks.resize(1);
    ASSERT_EQ(plane_->Submit(request), BlockResult::kOk);
  }
  PlaneReply Next() {
    ReplyList replies;
    for (int turn = 0; turn < 1000 && replies.size() == 0; ++turn) {
      pollfd poll{.fd = plane_->wake_fd(), .events = POLLIN, .revents = 0};
      EXPECT_EQ(::poll(&poll, 1, 30'000), 1);
      plane_->Poll(&replies);
    }
    EXPECT_EQ(replies.size(), 1u);
    return replies.size() == 1 ? replies.at(0) : PlaneReply();
  }

  std::string dir_;
  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Plane> plane_;
};

TEST_F(GrpcPlaneTest, AnAnswerIsHeard) {
  Submit(1, 20'000);
  const PlaneReply reply = Next();
  EXPECT_EQ(reply.id, 1u);
  EXPECT_FALSE(reply.unheard);
}

TEST_F(GrpcPlaneTest, ACallThatEndsAtItsOwnDeadlineIsUnheard) {
  daemon_->Set({.hold = true});
  Submit(2, 50);
  const PlaneReply reply = Next();
  EXPECT_TRUE(reply.unheard);
  ASSERT_EQ(reply.blocks.size(), 1u);
  EXPECT_EQ(reply.blocks[0].result, BlockResult::kTimeout);
}

TEST_F(GrpcPlaneTest, ACancelledCallIsUnheard) {
  daemon_->Set({.hold = true});
  Submit(3, 20'000);
  EXPECT_FALSE(plane_->Cancel(3, CancelKind::kAnswer));
  const PlaneReply reply = Next();
  EXPECT_TRUE(reply.unheard);
  ASSERT_EQ(reply.blocks.size(), 1u);
  EXPECT_EQ(reply.blocks[0].result, BlockResult::kCancelled);
}

TEST_F(GrpcPlaneTest, ARefusalIsHeard) {
  daemon_->Set({.drop_session = true});
  Submit(4, 20'000);
  const PlaneReply reply = Next();
  EXPECT_FALSE(reply.unheard);
}

}  // namespace
}  // namespace crumb::client
