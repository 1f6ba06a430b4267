// Calls with several holders. Any thread.
#include "cachesvc/server/rpc_context.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace crumb {

absl::StatusOr<CallTarget> FindTarget(RpcContext* context, uint64_t session, uint32_t handle) {
  if (context->draining.load(std::memory_order_relaxed)) {
    return absl::UnavailableError(kDrainingMessage);
  }
  CallTarget target{.session = {session}, .tenant = {}, .layout = nullptr};
  CRUMB_ASSIGN(target.tenant, context->sessions.Use(target.session));
  target.layout = context->layouts.Find(handle, target.tenant);
  if (target.layout == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout handle ", handle, " is not known: call RegisterLayout"));
  }
  return target;
}

SharedCall::SharedCall(RpcContext* context) : context_(context) {
  context_->in_flight.fetch_add(1, std::memory_order_relaxed);
}

SharedCall::~SharedCall() { context_->in_flight.fetch_sub(1, std::memory_order_relaxed); }

void SharedCall::Unref() {
  if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

bool SharedCall::TakeFinish() { return !finished_.exchange(true, std::memory_order_acq_rel); }

void SharedCall::SetTimer(uint64_t us) {
  auto alarm = std::make_unique<grpc::Alarm>();
  Ref();  // the alarm's: its function runs exactly once, also when it is cancelled
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t number = ++timer_;
  alarm->Set(std::chrono::system_clock::now() + std::chrono::microseconds(us),
             [this, number](bool expired) {
               bool in_force = false;
               {
                 const std::lock_guard<std::mutex> inner(mutex_);
                 in_force = expired && number == timer_;
               }
               if (in_force) OnTimer();
               Unref();
             });
  alarm_ = std::move(alarm);  // the previous one is cancelled
}

void SharedCall::CancelTimer() {
  std::unique_ptr<grpc::Alarm> alarm;
  const std::lock_guard<std::mutex> lock(mutex_);
  ++timer_;
  alarm = std::move(alarm_);
  if (alarm != nullptr) alarm->Cancel();
}

}  // namespace crumb
