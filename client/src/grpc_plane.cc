// The gRPC plane: cuts requests into calls, keeps a bounded number of them going, and puts the
// outcomes together again. Queued blocks count against their request's deadline.
#include "client/src/grpc_plane.h"

#include <deque>
#include <unordered_map>
#include <utility>

#include "client/src/grpc_calls.h"

namespace crumb::client {
namespace {

constexpr size_t kCallsMax = 64;  // under the usual HTTP/2 limit of 100 streams

using TimePoint = std::chrono::system_clock::time_point;

struct QueuedCall {
  std::shared_ptr<const PlaneRequest> request;
  uint32_t block = 0;
  TimePoint deadline;
};

struct Assembly {
  std::vector<WireBlockReply> blocks;
  std::vector<std::string> notes;
  size_t missing = 0;
  bool heard = false;
};

class GrpcPlane final : public Plane {
 public:
  explicit GrpcPlane(Control* control) : control_(control), queue_(std::make_shared<CallQueue>()) {}
  ~GrpcPlane() override { queue_->CancelAllAndWait(); }

  BlockResult Submit(std::shared_ptr<const PlaneRequest> asked) override {
    if (losing_) return BlockResult::kUnavailable;
    const PlaneRequest& request = *asked;
    const uint32_t bound =
        request.wait_ms > request.deadline_ms ? request.wait_ms : request.deadline_ms;
    const TimePoint deadline = std::chrono::system_clock::now() + std::chrono::milliseconds(bound) +
                               std::chrono::milliseconds(request.grace_ms);
    const bool by_block = request.type == WireType::kPut || request.type == WireType::kGet;
    const auto calls = static_cast<uint32_t>(by_block ? request.blocks.size() : 1);
    Assembly assembly;
    assembly.blocks.resize(request.blocks.size());
    assembly.notes.resize(request.blocks.size());
    assembly.missing = calls;
    assemblies_[request.id] = std::move(assembly);
    for (uint32_t i = 0; i < calls; ++i) {
      waiting_.push_back({.request = asked, .block = i, .deadline = deadline});
    }
    StartCalls();
    return BlockResult::kOk;
  }

  // Calls that gRPC has are cancelled and end by themselves; those that still wait here end now.
  bool Cancel(uint64_t id, CancelKind) override {
    queue_->Cancel(id);
    for (const QueuedCall& call : waiting_) {
      if (call.request->id == id) queue_->Post(FailedCall(call, BlockResult::kCancelled));
    }
    std::erase_if(waiting_, [id](const QueuedCall& call) { return call.request->id == id; });
    return false;
  }

  void Poll(ReplyList* replies) override {
    done_.clear();
    queue_->Take(&done_);
    for (CallDone& done : done_) {
      if (done.lost) losing_ = true;
      Add(std::move(done), replies);
    }
    if (losing_) FailWaiting(replies);
    StartCalls();
  }

  bool Arm() override { return queue_->empty(); }
  int wake_fd() const override { return queue_->fd(); }
  bool lost() const override { return losing_ && queue_->active() == 0 && queue_->empty(); }

  absl::Status Lend(const LendOrder& order) override {
    return order.memory->gpu() ? MovesNoGpuMemory("grpc") : absl::OkStatus();
  }
  void Unlend(uint32_t) override {}

 private:
  void StartCalls() {
    if (losing_ || waiting_.empty()) return;
    size_t active = queue_->active();
    while (active < kCallsMax && !waiting_.empty()) {
      QueuedCall call = std::move(waiting_.front());
      waiting_.pop_front();
      const CallEnv env{.stub = control_->stub(),
                        .channel = &control_->channel(),
                        .queue = queue_,
                        .session = control_->session(),
                        .deadline = call.deadline};
      ++active;
      switch (call.request->type) {
        case WireType::kPut:
          StartPutCall(env, std::move(call.request), call.block);
          break;
        case WireType::kGet:
          StartGetCall(env, std::move(call.request), call.block);
          break;
        default:
          StartKeysCall(env, std::move(call.request));
      }
    }
  }

  void Add(CallDone done, ReplyList* replies) {
    const auto found = assemblies_.find(done.request);
    if (found == assemblies_.end()) return;
    Assembly& assembly = found->second;
    if (!done.unheard) assembly.heard = true;
    const bool by_block =
        done.replies.size() == 1 && assembly.missing > 0 && done.block < assembly.blocks.size();
    if (by_block) {
      assembly.blocks[done.block] = done.replies[0];
      assembly.notes[done.block] = std::move(done.note);
    } else {
      // A lookup that stops at a gap answers fewer blocks: the rest stays a miss.
      done.replies.resize(assembly.blocks.size());
      assembly.blocks = std::move(done.replies);
    }
    if (--assembly.missing != 0) return;
    PlaneReply& reply = replies->Next(done.request);
    reply.blocks = std::move(assembly.blocks);
    reply.notes = std::move(assembly.notes);
    reply.unheard = !assembly.heard;
    assemblies_.erase(found);
  }

  static CallDone FailedCall(const QueuedCall& call, BlockResult result) {
    const bool by_block =
        call.request->type == WireType::kPut || call.request->type == WireType::kGet;
    CallDone failed;
    failed.request = call.request->id;
    failed.block = call.block;
    failed.unheard = true;
    failed.replies = FailedReplies(by_block ? 1 : call.request->blocks.size(), result);
    return failed;
  }

  void FailWaiting(ReplyList* replies) {
    std::deque<QueuedCall> waiting;
    waiting.swap(waiting_);
    for (const QueuedCall& call : waiting) {
      Add(FailedCall(call, BlockResult::kUnavailable), replies);
    }
  }

  Control* control_;
  std::shared_ptr<CallQueue> queue_;
  std::deque<QueuedCall> waiting_;
  std::unordered_map<uint64_t, Assembly> assemblies_;
  std::vector<CallDone> done_;  // reused
  bool losing_ = false;
};

}  // namespace

NamedPlane OpenGrpcPlane(Control* control) {
  return {.plane = std::make_unique<GrpcPlane>(control), .name = "grpc"};
}

}  // namespace crumb::client
