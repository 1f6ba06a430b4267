// See nvme_call.h. Control thread and shard.
#include "cachesvc/server/nvme_call.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/server/nvme_space.h"
#include "cachesvc/server/rpc_convert.h"
#include "storage/device/block_device.h"
#include "storage/segment/log_format.h"

namespace crumb {
namespace {

class ResizeCall {
 public:
  ResizeCall(RpcContext* context, const NvmeResize& call, uint64_t bytes)
      : context_(context), call_(call), device_(context->shard.device()), wanted_(bytes) {}
  ~ResizeCall() { End(absl::UnavailableError("the daemon is stopping")); }

  static void Begin(const std::shared_ptr<ResizeCall>& self) {
    self->before_ = self->device_->size_bytes();
    if (self->wanted_ > self->before_) {
      const absl::Status grown = self->device_->Resize(self->wanted_);
      if (!grown.ok()) return self->End(grown);
    }
    const bool posted = self->context_->shard.Post([self](const ShardView& view) {
      view.engine.ResizeDisk(self->wanted_,
                             [self](const absl::Status& done) { AfterLog(self, done); });
    });
    if (!posted) self->Cut(absl::ResourceExhaustedError(kBusyMessage));
  }

 private:
  static void AfterLog(const std::shared_ptr<ResizeCall>& self, const absl::Status& done) {
    const bool longer = self->device_->size_bytes() > (done.ok() ? self->wanted_ : self->before_);
    if (!longer) return self->End(done);
    if (self->context_->control.Post([self, done] { self->Cut(done); })) return;
    self->End(done);  // the file keeps its length until the next start
  }

  // Down to what the log takes now.
  void Cut(const absl::Status& done) {
    const uint64_t bytes = done.ok() ? wanted_ : before_;
    const absl::Status cut =
        device_->size_bytes() > bytes ? device_->Resize(bytes) : absl::OkStatus();
    End(done.ok() ? cut : done);
  }

  void End(const absl::Status& status) {
    if (ended_.exchange(true)) return;
    call_.reply->set_bytes(status.ok() ? wanted_ : before_);
    call_.reply->set_bytes_before(before_);
    call_.reply->set_configured_bytes(
        NvmeDataBytes(context_->config.nvme.bytes, context_->config.nvme.paths.size()));
    context_->log.Info("nvme resize", {{"from", absl::StrCat(before_)},
                                       {"to", absl::StrCat(wanted_)},
                                       {"result", status.ok() ? "ok" : status.ToString()}});
    call_.under_way->store(false);
    call_.reactor->Finish(ToGrpc(status));
  }

  RpcContext* const context_;
  const NvmeResize call_;
  BlockDevice* const device_;
  const uint64_t wanted_;
  uint64_t before_ = 0;
  std::atomic<bool> ended_{false};
};

}  // namespace

void StartNvmeResize(RpcContext* context, const NvmeResize& call) {
  const auto refuse = [&call](const absl::Status& status) { call.reactor->Finish(ToGrpc(status)); };
  if (context->shard.device() == nullptr) {
    return refuse(absl::FailedPreconditionError(
        "there is no NVMe tier: set nvme.bytes and start the daemon anew"));
  }
  const uint64_t bytes = NvmeDataBytes(call.request->bytes(), context->config.nvme.paths.size());
  if (bytes < kSegmentsMin * context->config.nvme.segment_bytes) {
    return refuse(absl::InvalidArgumentError(
        absl::StrCat("bytes: ", call.request->bytes(), " is less than ", kSegmentsMin,
                     " segments of ", context->config.nvme.segment_bytes)));
  }
  if (call.under_way->exchange(true)) {
    return refuse(absl::ResourceExhaustedError("the tier is being resized: wait for that to end"));
  }
  const auto made = std::make_shared<ResizeCall>(context, call, bytes);
  (void)context->control.Post([made] { ResizeCall::Begin(made); });  // refused: it ends itself
}

}  // namespace crumb
