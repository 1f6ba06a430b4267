// A plane, a clock and a layout of a test's own for the client's core. One thread, but for the
// clock.
#ifndef CRUMB_TESTS_UNIT_CLIENT_FAKE_PLANE_H_
#define CRUMB_TESTS_UNIT_CLIENT_FAKE_PLANE_H_

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "client/src/client_core.h"

namespace crumb::client {

inline constexpr uint64_t kValue = 64;

class TestClock final : public Clock {
 public:
  uint64_t now_us() const override { return now_us_.load(); }
  void Advance(uint64_t us) { now_us_ += us; }

 private:
  std::atomic<uint64_t> now_us_{1'000'000};
};

// What the fake planes of one test have in common; outlives them.
struct PlaneState {
  bool lost = false;
  bool forgets_at_once = false;  // abandoned memory is the worker's
  BlockResult submit = BlockResult::kOk;
  std::vector<std::shared_ptr<const PlaneRequest>> sent;
  std::vector<std::pair<uint64_t, CancelKind>> cancels;
  std::vector<PlaneReply> replies;  // of the next Poll
  std::map<uint32_t, uint32_t> lent;
  int opened = 0;
  bool refuse_open = false;
  std::function<absl::Status(const LendOrder&)> on_lend;  // empty: takes everything
  std::function<void()> on_submit;
};

class FakePlane final : public Plane {
 public:
  explicit FakePlane(PlaneState* state) : state_(*state), fd_(::eventfd(0, EFD_NONBLOCK)) {}
  ~FakePlane() override { ::close(fd_); }
  BlockResult Submit(std::shared_ptr<const PlaneRequest> request) override {
    if (state_.on_submit) state_.on_submit();
    if (state_.submit != BlockResult::kOk) return state_.submit;
    state_.sent.push_back(std::move(request));
    return BlockResult::kOk;
  }
  bool Cancel(uint64_t id, CancelKind kind) override {
    state_.cancels.emplace_back(id, kind);
    return kind == CancelKind::kAbandon && state_.forgets_at_once;
  }
  void Poll(ReplyList* replies) override {
    for (const PlaneReply& reply : state_.replies) {
      PlaneReply& out = replies->Next(reply.id);
      out.blocks = reply.blocks;
      out.unheard = reply.unheard;
    }
    state_.replies.clear();
  }
  bool Arm() override { return state_.replies.empty(); }
  int wake_fd() const override { return fd_; }
  absl::Status Lend(const LendOrder& order) override {
    if (state_.on_lend) CRUMB_TRY(state_.on_lend(order));
    state_.lent[order.region_set] = order.layout_handle;
    return absl::OkStatus();
  }
  void Unlend(uint32_t region_set) override { state_.lent.erase(region_set); }
  bool lost() const override { return state_.lost; }

 private:
  PlaneState& state_;
  int fd_;
};

// As the daemon answered for it.
inline LayoutEntry EntryOf(const LayoutSpec& spec) {
  auto shape = CheckSpec(spec);
  EXPECT_TRUE(shape.ok()) << shape.status();
  LayoutEntry entry;
  entry.shape = std::make_shared<const crumb::Layout>(*std::move(shape));
  entry.daemon_handle = 5;
  entry.info.handle = 1;
  return entry;
}

inline LayoutEntry MakeLayout() {
  LayoutSpec spec;
  spec.model = "m";
  spec.revision = "r";
  spec.dtype = "opaque";
  spec.rope_kind = "none";
  spec.page_tokens = 1;
  LayerGroup& group = spec.groups.emplace_back();
  group.kind = "mha";
  group.kv_heads = 1;
  group.k_dim = kValue;
  group.layer_ids = {0};
  return EntryOf(spec);
}

}  // namespace crumb::client

#endif  // CRUMB_TESTS_UNIT_CLIENT_FAKE_PLANE_H_
