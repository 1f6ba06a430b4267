// Control over the generated stubs. Errors are made readable here: server, verb, remedy.
#include "client/src/control.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/wire.h"
#include "client/src/status_map.h"

namespace crumb::client {
namespace {

constexpr uint32_t kProbeMs = 500;
constexpr uint32_t kRegisterLayoutMs = 60'000;
constexpr size_t kHelloBlobBytesMax = 64 * 1024;

Control::Life LifeOf(const grpc::Status& status) {
  const auto code = status.error_code();
  if (code == grpc::StatusCode::UNAVAILABLE || SessionIsLost(status)) return Control::Life::kDead;
  if (code == grpc::StatusCode::DEADLINE_EXCEEDED || code == grpc::StatusCode::CANCELLED) {
    return Control::Life::kNone;
  }
  return Control::Life::kAlive;
}

}  // namespace

void CallStopper::Stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  if (under_way_ != nullptr) under_way_->TryCancel();
}

bool CallStopper::Enter(grpc::ClientContext* context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!stopped_) under_way_ = context;
  return !stopped_;
}

void CallStopper::Leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  under_way_ = nullptr;
}

// The context of one synchronous call, with a deadline and within reach of the stopper.
class Control::Call {
 public:
  Call(const Channel& channel, CallStopper* stopper, uint32_t deadline_ms) : stopper_(*stopper) {
    channel.Prepare(&context_, deadline_ms);
    if (!stopper_.Enter(&context_)) context_.TryCancel();
  }
  ~Call() { stopper_.Leave(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  grpc::ClientContext* context() { return &context_; }

 private:
  CallStopper& stopper_;
  grpc::ClientContext context_;
};

// A question under way; shared with its callback. Its context goes before the answer is told, as a
// context holds its channel (see CallQueue).
struct Control::Probe {
  std::mutex mutex;
  std::condition_variable answered;
  std::unique_ptr<grpc::ClientContext> context = std::make_unique<grpc::ClientContext>();
  v1::PinRequest request;
  v1::PinReply reply;
  Life life = Life::kAsking;

  void Answer(Life told) {
    std::unique_lock<std::mutex> lock(mutex);
    std::unique_ptr<grpc::ClientContext> gone = std::move(context);
    lock.unlock();
    gone.reset();
    lock.lock();
    life = told;
    answered.notify_all();
  }
  void CancelAndWait() {
    std::unique_lock<std::mutex> lock(mutex);
    if (context != nullptr) context->TryCancel();
    answered.wait(lock, [this] { return life != Life::kAsking; });
  }
};

Control::~Control() {
  if (probe_ != nullptr) probe_->CancelAndWait();
}

Control::Control(const ControlOptions& options, Channel channel)
    : options_(options), channel_(std::move(channel)), stub_(v1::Cache::NewStub(channel_.grpc())) {}

absl::StatusOr<std::unique_ptr<Control>> Control::Open(const ControlOptions& options) {
  CRUMB_ASSIGN(Channel channel, Channel::Open(options.channel));
  std::unique_ptr<Control> control(new Control(options, std::move(channel)));
  Call call(control->channel_, options.stopper.get(), options.connect_ms);
  v1::HelloRequest request;
  request.set_client(options.client_name.empty() ? "libcrumb" : options.client_name);
  request.set_wire_version(kWireVersion);
  const grpc::Status status = control->stub_->Hello(call.context(), request, &control->hello_);
  if (!status.ok()) return control->channel_.Explain(status, "Hello");
  if (control->hello_.wire_version() != kWireVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        options.channel.server, " speaks wire version ", control->hello_.wire_version(),
        ", this client ", kWireVersion, "; install matching versions"));
  }
  if (control->session() == 0) {
    return absl::DataLossError(absl::StrCat(options.channel.server, " opened no session"));
  }
  return control;
}

absl::StatusOr<v1::LayoutInfo> Control::RegisterLayout(v1::RegisterLayoutRequest request) {
  // The daemon makes codecs of every head: seconds for a large model.
  Call call(channel_, options_.stopper.get(), std::max(options_.deadline_ms, kRegisterLayoutMs));
  request.set_session(session());
  v1::RegisterLayoutReply reply;
  const grpc::Status status = stub_->RegisterLayout(call.context(), request, &reply);
  if (!status.ok()) return channel_.Explain(status, "RegisterLayout");
  return std::move(*reply.mutable_layout());
}

absl::StatusOr<std::vector<v1::LayoutInfo>> Control::ListLayouts() {
  Call call(channel_, options_.stopper.get(), options_.deadline_ms);
  v1::ListLayoutsRequest request;
  request.set_session(session());
  v1::ListLayoutsReply reply;
  const grpc::Status status = stub_->ListLayouts(call.context(), request, &reply);
  if (!status.ok()) return channel_.Explain(status, "ListLayouts");
  return std::vector<v1::LayoutInfo>(reply.layouts().begin(), reply.layouts().end());
}

absl::StatusOr<LayoutCodecs> Control::GetCodecs(uint32_t layout_handle) {
  Call call(channel_, options_.stopper.get(), options_.deadline_ms);
  v1::GetCodecsRequest request;
  request.set_session(session());
  request.set_layout_handle(layout_handle);
  const auto reader = stub_->GetCodecs(call.context(), request);
  CodecsReader codecs;
  v1::CodecsChunk chunk;
  absl::Status taken;
  while (taken.ok() && reader->Read(&chunk)) taken = codecs.Take(chunk);
  if (!taken.ok()) call.context()->TryCancel();
  const grpc::Status status = reader->Finish();
  CRUMB_TRY(taken);
  CRUMB_TRY(channel_.Explain(status, "GetCodecs"));
  return codecs.Finish();
}

absl::Status Control::RegisterRegions(v1::RegisterRegionsRequest request) {
  Call call(channel_, options_.stopper.get(), options_.deadline_ms);
  request.set_session(session());
  v1::RegisterRegionsReply reply;
  const grpc::Status status = stub_->RegisterRegions(call.context(), request, &reply);
  return channel_.Explain(status, "RegisterRegions");
}

absl::StatusOr<std::string> Control::ExchangeHello(const std::string& blob) {
  Call call(channel_, options_.stopper.get(), options_.connect_ms);
  v1::ConnectRequest request;
  request.set_session(session());
  request.set_hello(blob);
  v1::ConnectReply reply;
  const grpc::Status status = stub_->Connect(call.context(), request, &reply);
  if (!status.ok()) return channel_.Explain(status, "Connect");
  if (reply.hello().empty() || reply.hello().size() > kHelloBlobBytesMax) {
    return absl::DataLossError(absl::StrCat(channel_.server(), ": Connect: an address of ",
                                            reply.hello().size(), " bytes"));
  }
  return std::move(*reply.mutable_hello());
}

absl::StatusOr<v1::PinReply> Control::Pin(v1::PinRequest request) {
  Call call(channel_, options_.stopper.get(), options_.deadline_ms);
  request.set_session(session());
  v1::PinReply reply;
  const grpc::Status status = stub_->Pin(call.context(), request, &reply);
  if (!status.ok()) return channel_.Explain(status, "Pin");
  return reply;
}

absl::Status Control::Flush(v1::FlushRequest request) {
  Call call(channel_, options_.stopper.get(), options_.deadline_ms);
  const std::unique_ptr<v1::Admin::Stub> admin = v1::Admin::NewStub(channel_.grpc());
  v1::FlushReply reply;
  return channel_.Explain(admin->Flush(call.context(), request, &reply), "Flush");
}

void Control::Goodbye(uint32_t deadline_ms) {
  grpc::ClientContext context;
  channel_.Prepare(&context, deadline_ms);
  v1::GoodbyeRequest request;
  request.set_session(session());
  v1::GoodbyeReply reply;
  // Best effort: a daemon that does not hear it closes the session when the peer is gone.
  static_cast<void>(stub_->Goodbye(&context, request, &reply));
}

void Control::AskLife() {
  if (life() == Life::kAsking) return;
  auto probe = std::make_shared<Probe>();
  probe_ = probe;
  channel_.Prepare(probe->context.get(), kProbeMs);
  // WHY: a pin of nothing is the smallest verb that names the session. Whatever it answers, a
  // refusal too, comes from a daemon that lives.
  probe->request.set_session(session());
  stub_->async()->Pin(probe->context.get(), &probe->request, &probe->reply,
                      [probe](const grpc::Status& status) { probe->Answer(LifeOf(status)); });
}

Control::Life Control::life() const {
  if (probe_ == nullptr) return Life::kNone;
  const std::lock_guard<std::mutex> lock(probe_->mutex);
  return probe_->life;
}

}  // namespace crumb::client
