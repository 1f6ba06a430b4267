// A UCX worker. Active messages have no header, as UCX computes where a header lies from a length
// on the wire; they are sent eagerly, and a rendezvous message is refused, which its sender sees as
// an error, since one that is dropped in the callback would be reported to it as delivered.
// Must never keep UCX's buffers. Transport's thread.
#include "cachesvc/net/ucx_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/net/frames.h"
#include "cachesvc/net/ucx_context.h"
#include "cachesvc/net/ucx_ids.h"

namespace crumb {
namespace {

constexpr unsigned kIdsMax = 1u << 16;
constexpr size_t kPaddingBytes = 64 * 1024;

}  // namespace

std::string UcxPadded(Bytes bytes) {
  std::string out(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  out.resize(bytes.size() + kPaddingBytes, '\0');
  return out;
}

absl::StatusOr<std::unique_ptr<UcxLink>> UcxLink::Create(ucp_context_h context,
                                                         const Callbacks& callbacks) {
  auto link = std::make_unique<UcxLink>(callbacks);
  CRUMB_TRY(link->Init(context));
  CRUMB_TRY(link->SetHandlers());
  return link;
}

absl::Status UcxLink::Init(ucp_context_h context) {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucs_status_t status = ucp_worker_create(context, &params, &worker_);
  if (status != UCS_OK) {
    worker_ = nullptr;
    return UcxError("UCX cannot make a worker (out of file descriptors or shared memory?)", status);
  }
  status = ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return UcxError("UCX gives no descriptor to wait on", status);
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  status = ucp_worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return UcxError("UCX gives no worker address", status);
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(worker_, address);
  if (!address_.empty() && address_.size() <= kHelloFrameBytesMax / 2) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("a UCX worker address of ", address_.size(),
                                             " bytes: name fewer devices in ucx.net_devices"));
}

template <unsigned kId>
ucs_status_t UcxLink::OnId(void* arg, const void*, size_t header_length, void* data, size_t length,
                           const ucp_am_recv_param_t* param) {
  const Callbacks& callbacks = static_cast<UcxLink*>(arg)->callbacks_;
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  Bytes body;
  if (header_length == 0 && !rendezvous) body = {static_cast<const uint8_t*>(data), length};
  callbacks.on_body(callbacks.owner, kId, body);
  // The status goes to the sender of a rendezvous message and nowhere else.
  return rendezvous ? UCS_ERR_REJECTED : UCS_OK;
}

// WHY: every id is taken, the highest first, since UCX looks up the handler of an id from the wire
// before it checks it, and leaves the ones in between unset.
absl::Status UcxLink::SetHandlers() {
  ucp_am_handler_param_t param = {};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                     UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.arg = this;
  const ucp_am_recv_callback_t known[] = {&OnId<kUcxNoise>, &OnId<kUcxMessage>, &OnId<kUcxGoodbye>,
                                          &OnId<kUcxRead>,  &OnId<kUcxData>,    &OnId<kUcxWrite>,
                                          &OnId<kUcxDone>,  &OnId<kUcxGreeting>};
  for (unsigned id = kIdsMax; id > 0; --id) {
    param.id = id - 1;
    param.cb = param.id < std::size(known) ? known[param.id] : known[kUcxNoise];
    const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_, &param);
    if (status != UCS_OK) return UcxError("UCX takes no message handler", status);
  }
  return absl::OkStatus();
}

UcxLink::~UcxLink() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
}

absl::Status UcxLink::Connect(Bytes address) {
  const std::string padded = UcxPadded(address);
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(padded.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &OnError;
  params.err_handler.arg = this;
  const ucs_status_t status = ucp_ep_create(worker_, &params, &endpoint_);
  if (status == UCS_OK) return absl::OkStatus();
  endpoint_ = nullptr;
  return UcxError("UCX cannot reach the other side (do both have a common transport in ucx.tls?)",
                  status);
}

void UcxLink::Send(unsigned id, Bytes body, UcxSendBase* record) {
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &OnSent;
  param.user_data = record;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, id, nullptr, 0, body.data(), body.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) record->done(record, UCS_PTR_STATUS(request));
}

void UcxLink::OnSent(void* request, ucs_status_t status, void* user_data) {
  UcxSendBase* record = static_cast<UcxSendBase*>(user_data);
  record->done(record, status);
  ucp_request_free(request);
}

void UcxLink::OnError(void* arg, ucp_ep_h, ucs_status_t) {
  const Callbacks& callbacks = static_cast<UcxLink*>(arg)->callbacks_;
  callbacks.on_failed(callbacks.owner);
}

}  // namespace crumb
