// One Put. gRPC threads read, then the shard answers; a timer ends uploads that stall.
#include "cachesvc/server/put_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/server/rpc_convert.h"

namespace crumb {
namespace {

class PutCall final : public grpc::ServerReadReactor<v1::PutChunk>,
                      public SharedCall,
                      public StreamCall {
 public:
  PutCall(RpcContext* context, grpc::CallbackServerContext* call, v1::PutReply* reply)
      : SharedCall(context), call_(call), reply_(reply) {
    SetTimer(context_->config.limits.deadline_us);
    StartRead(&chunk_);
  }

  void OnReadDone(bool ok) override {
    if (finished()) return;
    if (!ok) {
      if (call_->IsCancelled()) return End(absl::CancelledError("cancelled"));
      return Submit();
    }
    absl::Status status = seen_header_ ? absl::OkStatus() : TakeHeader();
    if (status.ok() && seen_header_ && chunk_count_ > 0 && chunk_.has_header()) {
      status = absl::InvalidArgumentError("header: in the first chunk only");
    }
    if (status.ok()) status = TakeData();
    if (!status.ok()) return End(status);
    ++chunk_count_;
    StartRead(&chunk_);
  }

  void OnCancel() override {
    const uint64_t id = request_id_.load(std::memory_order_acquire);
    if (id == 0) return;  // still reading: OnReadDone sees it
    // The answer of the engine ends the call; if the mailbox is full, its deadline does.
    context_->shard.Post([session = target_.session, id](const ShardView& view) {
      view.streams.Cancel(session, id);
    });
  }

  void OnDone() override {
    CancelTimer();
    Unref();
  }

  // Shard thread. `call_` and `reply_` are gRPC's: only whoever answers may touch them.
  void OnReplies(BlockResult result, absl::Span<const WireBlockReply> replies) override {
    const WireBlockReply block = replies.empty() ? WireBlockReply{.result = result} : replies[0];
    if (TakeFinish()) {
      reply_->set_result(ToProto(block.result));
      reply_->set_tier(ToProto(block.tier));
      reply_->set_precision(ToProto(block.precision));
      if (block.result == BlockResult::kNonFinite) {
        reply_->set_message(DescribeNonFinite(block.checksum));
      }
      Finish(call_->IsCancelled() ? grpc::Status::CANCELLED : grpc::Status::OK);
    }
    Unref();  // the shard's
  }

 private:
  void OnTimer() override {
    if (request_id_.load(std::memory_order_acquire) != 0) return;  // the engine's deadline rules
    End(absl::DeadlineExceededError(
        absl::StrCat("the page did not arrive in time: ", received_.load(), " bytes came")));
  }

  void End(const absl::Status& status) {
    if (!TakeFinish()) return;
    if (!status.ok()) context_->refused.fetch_add(1, std::memory_order_relaxed);
    Finish(ToGrpc(status));
  }

  absl::Status TakeHeader() {
    if (!chunk_.has_header()) {
      return absl::InvalidArgumentError("header: missing in the first chunk");
    }
    const v1::PutHeader& header = chunk_.header();
    CRUMB_ASSIGN(target_, FindTarget(context_, header.session(), header.layout_handle()));
    CRUMB_ASSIGN(plan_, PlanPut(header, *target_.layout));
    buffer_ = context_->staging.Allocate(target_.layout->value_bytes_max);
    if (!buffer_.valid()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "pages under way fill limits.staging_bytes (", context_->config.limits.staging_bytes,
          "): send fewer at once, or raise it"));
    }
    const LimitsConfig& limits = context_->config.limits;
    deadline_us_ = DeadlineUs(header.deadline_ms(), limits.deadline_us_max);
    SetTimer(deadline_us_ != 0 ? deadline_us_ : limits.deadline_us);
    seen_header_ = true;
    return absl::OkStatus();
  }

  absl::Status TakeData() {
    const std::string& data = chunk_.data();
    if (data.size() > kChunkBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("data: a chunk of ", data.size(), " bytes; at most ", kChunkBytesMax));
    }
    const uint64_t have = received_.load(std::memory_order_relaxed);
    if (data.size() > plan_.value_bytes - have) {
      return absl::InvalidArgumentError(
          absl::StrCat("data: more than the ", plan_.value_bytes, " bytes of value_bytes"));
    }
    std::copy(data.begin(), data.end(), buffer_.memory().begin() + static_cast<int64_t>(have));
    received_.store(have + data.size(), std::memory_order_relaxed);
    return absl::OkStatus();
  }

  // The client has sent everything.
  void Submit() {
    if (!seen_header_) return End(absl::InvalidArgumentError("the stream ended without a header"));
    if (received_.load() != plan_.value_bytes) {
      return End(absl::InvalidArgumentError(absl::StrCat(
          "the stream ended after ", received_.load(), " of ", plan_.value_bytes, " bytes")));
    }
    const uint64_t id = context_->next_request.fetch_add(1, std::memory_order_relaxed);
    request_id_.store(id, std::memory_order_release);
    if (finished()) return;  // the timer was faster
    StreamRequest request{.session = target_.session,
                          .request_id = id,
                          .type = WireType::kPut,
                          .flags = plan_.flags,
                          .layout_handle = target_.layout->handle,
                          .form = plan_.form,
                          .deadline_us = deadline_us_,
                          .blocks = {plan_.block},
                          .slot_bytes = buffer_.slot_bytes(),
                          .slot = buffer_.slot()};
    Ref();  // the shard's
    const bool posted =
        context_->shard.Post([this, request = std::move(request)](const ShardView& view) {
          view.streams.Start(request, this);
        });
    if (posted) return;
    End(absl::ResourceExhaustedError(kBusyMessage));
    Unref();
  }

  grpc::CallbackServerContext* const call_;
  v1::PutReply* const reply_;
  v1::PutChunk chunk_;
  CallTarget target_;
  PutPlan plan_;
  StagingBuffer buffer_;
  uint32_t deadline_us_ = 0;
  uint64_t chunk_count_ = 0;
  bool seen_header_ = false;
  std::atomic<uint64_t> received_{0};
  std::atomic<uint64_t> request_id_{0};  // 0 until the engine has it
};

}  // namespace

grpc::ServerReadReactor<v1::PutChunk>* StartPut(RpcContext* context,
                                                grpc::CallbackServerContext* call,
                                                v1::PutReply* reply) {
  return new PutCall(context, call, reply);  // deletes itself
}

}  // namespace crumb
