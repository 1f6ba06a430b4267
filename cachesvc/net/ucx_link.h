// One UCX worker and its only endpoint: what one peer has of the library. Every peer has its own,
// so that whatever a dying peer leaves behind in shared memory or in the library's records is its
// own too and ends with the worker.
// Must never be closed from inside a callback of its own. One thread, the transport's.
#ifndef CRUMB_CACHESVC_NET_UCX_LINK_H_
#define CRUMB_CACHESVC_NET_UCX_LINK_H_

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

// One message being sent; what `done` needs stands behind it.
struct UcxSendBase {
  void (*done)(UcxSendBase* self, ucs_status_t status) = nullptr;
};

class UcxLink {
 public:
  // Called from Progress.
  struct Callbacks {
    void* owner = nullptr;                                            // first argument of both
    void (*on_body)(void* owner, unsigned id, Bytes body) = nullptr;  // empty: refused, unread
    void (*on_failed)(void* owner) = nullptr;
  };

  static absl::StatusOr<std::unique_ptr<UcxLink>> Create(ucp_context_h context,
                                                         const Callbacks& callbacks);
  explicit UcxLink(const Callbacks& callbacks) : callbacks_(callbacks) {}  // Create calls it
  // Ends everything of the library for this peer; sends that were under way may be done by it, the
  // rest never will be.
  ~UcxLink();
  UcxLink(const UcxLink&) = delete;
  UcxLink& operator=(const UcxLink&) = delete;

  const std::string& address() const { return address_; }
  int event_fd() const { return event_fd_; }
  // Opens the endpoint to the worker of `address` (untrusted).
  absl::Status Connect(Bytes address);
  ucp_ep_h endpoint() const { return endpoint_; }

  // Sends `body`, which stays valid until done(record) ran or the link is gone.
  void Send(unsigned id, Bytes body, UcxSendBase* record);
  // True if it did anything.
  bool Progress() { return ucp_worker_progress(worker_) != 0; }
  bool Arm() { return ucp_worker_arm(worker_) == UCS_OK; }

 private:
  absl::Status Init(ucp_context_h context);
  absl::Status SetHandlers();
  template <unsigned kId>
  static ucs_status_t OnId(void* arg, const void* header, size_t header_length, void* data,
                           size_t length, const ucp_am_recv_param_t* param);
  static void OnError(void* arg, ucp_ep_h endpoint, ucs_status_t status);
  static void OnSent(void* request, ucs_status_t status, void* user_data);

  const Callbacks callbacks_;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int event_fd_ = -1;
  std::string address_;
};

// UCX parses addresses and keys by the lengths they contain. A copy followed by zeros keeps what a
// forged one can make it read inside memory of ours.
std::string UcxPadded(Bytes bytes);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UCX_LINK_H_
