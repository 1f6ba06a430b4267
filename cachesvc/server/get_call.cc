// One Get. The shard answers, then gRPC threads write; a timer ends clients that do not read.
#include "cachesvc/server/get_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/server/rpc_convert.h"

namespace crumb {
namespace {

class GetCall final : public grpc::ServerWriteReactor<v1::GetChunk>,
                      public SharedCall,
                      public StreamCall {
 public:
  GetCall(RpcContext* context, grpc::CallbackServerContext* call, const v1::GetRequest& request)
      : SharedCall(context), call_(call) {
    const absl::Status started = Begin(request);
    if (!started.ok()) End(started);
  }

  void OnCancel() override {
    const uint64_t id = request_id_.load(std::memory_order_acquire);
    if (id == 0) return;
    context_->shard.Post([session = target_.session, id](const ShardView& view) {
      view.streams.Cancel(session, id);
    });
  }

  void OnDone() override {
    CancelTimer();
    Unref();
  }

  // Shard thread: touches none of the page's bytes.
  void OnReplies(BlockResult result, absl::Span<const WireBlockReply> replies) override {
    v1::GetHeader* header = chunk_.mutable_header();
    if (!replies.empty()) {
      const WireBlockReply& block = replies[0];
      result = block.result;
      header->set_tier(ToProto(block.tier));
      header->set_precision(ToProto(block.precision));
      header->set_lossy_depth(block.lossy_depth);
      if (result == BlockResult::kOk && block.value_bytes <= buffer_.memory().size()) {
        value_bytes_ = block.value_bytes;
        header->set_value_bytes(block.value_bytes);
        header->set_checksum(block.checksum);
      }
    }
    header->set_result(ToProto(result));
    if (call_->IsCancelled()) {
      End(absl::CancelledError("cancelled"));
    } else {
      SetTimer(context_->config.limits.deadline_us);
      StartWrite(&chunk_);
    }
    Unref();  // the shard's
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the client went away"));
    // A slow reader has the default deadline for each chunk.
    SetTimer(context_->config.limits.deadline_us);
    if (sent_ == value_bytes_) return End(absl::OkStatus());
    const uint64_t bytes = std::min<uint64_t>(kChunkBytesMax, value_bytes_ - sent_);
    chunk_.Clear();
    chunk_.set_data(buffer_.memory().data() + sent_, bytes);
    sent_ += bytes;
    StartWrite(&chunk_);
  }

 private:
  void OnTimer() override { call_->TryCancel(); }

  void End(const absl::Status& status) {
    if (!TakeFinish()) return;
    if (!status.ok()) context_->refused.fetch_add(1, std::memory_order_relaxed);
    Finish(ToGrpc(status));
  }

  absl::Status Begin(const v1::GetRequest& get) {
    CRUMB_ASSIGN(target_, FindTarget(context_, get.session(), get.layout_handle()));
    const BoundLayout& layout = *target_.layout;
    WireBlock block;
    CRUMB_ASSIGN(block.digest, DigestFrom(get.block()));
    if (get.block().part() >= layout.layout->part_count()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "part ", get.block().part(), ": the layout has ", layout.layout->part_count()));
    }
    block.part = static_cast<uint16_t>(get.block().part());
    CRUMB_ASSIGN(const PageForm form, FromProto(get.form()));
    buffer_ = context_->staging.Allocate(layout.value_bytes_max);
    if (!buffer_.valid()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "pages under way fill limits.staging_bytes (", context_->config.limits.staging_bytes,
          "): ask for fewer at once, or raise it"));
    }
    const uint64_t wait_ms = get.wait_ms();
    const uint64_t id = context_->next_request.fetch_add(1, std::memory_order_relaxed);
    StreamRequest request{.session = target_.session,
                          .request_id = id,
                          .type = WireType::kGet,
                          .flags = wait_ms > 0 ? kWireFlagWait : uint16_t{0},
                          .layout_handle = layout.handle,
                          .form = form,
                          .deadline_us = DeadlineUs(wait_ms > 0 ? wait_ms : get.deadline_ms(),
                                                    context_->config.limits.deadline_us_max),
                          .blocks = {block},
                          .slot_bytes = buffer_.slot_bytes(),
                          .slot = buffer_.slot()};
    request_id_.store(id, std::memory_order_release);
    Ref();  // the shard's
    const bool posted =
        context_->shard.Post([this, request = std::move(request)](const ShardView& view) {
          view.streams.Start(request, this);
        });
    if (posted) return absl::OkStatus();
    Unref();
    return absl::ResourceExhaustedError(kBusyMessage);
  }

  grpc::CallbackServerContext* const call_;
  CallTarget target_;
  StagingBuffer buffer_;
  v1::GetChunk chunk_;
  uint64_t value_bytes_ = 0;
  uint64_t sent_ = 0;
  std::atomic<uint64_t> request_id_{0};
};

}  // namespace

grpc::ServerWriteReactor<v1::GetChunk>* StartGet(RpcContext* context,
                                                 grpc::CallbackServerContext* call,
                                                 const v1::GetRequest* request) {
  return new GetCall(context, call, *request);  // deletes itself
}

}  // namespace crumb
