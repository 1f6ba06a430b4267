// The UCX library behind RAII: configuration, context, lent memory.
// Must never own a peer or a transfer. One thread, the transport's.
#ifndef CRUMB_CACHESVC_NET_UCX_CONTEXT_H_
#define CRUMB_CACHESVC_NET_UCX_CONTEXT_H_

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/status.h"
#include "cachesvc/net/ucx_transport.h"

namespace crumb {

// "what: UCX's words"
absl::Status UcxError(const char* what, ucs_status_t status);

class UcxContext {
 public:
  UcxContext() = default;  // Create makes usable ones
  static absl::StatusOr<std::unique_ptr<UcxContext>> Create(const UcxOptions& options);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h handle() const { return context_; }
  absl::StatusOr<Region> Lend(MutableBytes memory);
  void Unlend(const Region& region);
  // True if all of [address, + bytes) was lent by one Lend and not taken back.
  bool IsLent(uint64_t address, uint64_t bytes);
  std::string Describe() const;

 private:
  struct Lent {
    uint64_t address = 0;
    uint64_t bytes = 0;
    ucp_mem_h handle = nullptr;  // one-sided only
  };
  absl::Status InitContext(const UcxOptions& options);
  absl::StatusOr<ucp_mem_h> Map(MutableBytes memory);
  absl::StatusOr<std::string> PackKey(ucp_mem_h handle) const;

  ucp_context_h context_ = nullptr;
  ucp_mem_h arena_ = nullptr;
  bool one_sided_ = false;
  std::vector<Lent> lent_;
  size_t lent_last_ = 0;  // where the last range was found: the next is often there too
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UCX_CONTEXT_H_
