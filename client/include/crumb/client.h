// crumb::Client: put, get, look up and delete KV pages in a crumbd. One Client per worker thread;
// no call may be made from two threads at once. No third-party type appears here. docs/client.md
// has a complete example.
//
// Memory: lend it once (LendPages / LendTensors), then name slots in it. The daemon reads and
// writes lent memory itself. From Submit* until its completion is drained the named slots belong
// to the request. A timeout is not a cancel: when a completion says kTimeout for the request as a
// whole, its slots stay with it until the daemon answers or is gone; new requests that name them
// are refused (kBusy), and SlotIsOwned tells.
//
// Loss: when the daemon dies, everything in flight completes with kUnavailable in bounded time and
// every Submit* is refused at once with kUnavailable until Reconnect succeeds. Reconnect opens a
// new session and registers every layout and all lent memory again: handles stay valid. It backs
// off by itself (refused at once while it does), so it may be called before any request.
#ifndef CRUMB_CLIENT_H_
#define CRUMB_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "crumb/types.h"

namespace crumb::client {

class CRUMB_API Client {
 public:
  static Status Connect(const Options& options, std::unique_ptr<Client>* out);
  // Waits for what is in flight (bounded by the deadlines), then says goodbye. Lent memory must
  // outlive the Client.
  virtual ~Client() = default;

  virtual bool connected() const = 0;
  virtual Status Reconnect() = 0;

  virtual Status RegisterLayout(const LayoutSpec& spec, Layout* out) = 0;
  virtual Status ListLayouts(std::vector<Layout>* out) = 0;

  // Lends `bytes` at `base` as slots of `slot_bytes` each; `region_set` names them later.
  virtual Status LendPages(const Layout& layout, void* base, uint64_t bytes, uint64_t slot_bytes,
                           uint32_t* region_set) = 0;
  // Lends paged tensors; a block then names page_tokens / tokens_per_slot slots.
  virtual Status LendTensors(const Layout& layout, const std::vector<TensorMemory>& tensors,
                             uint32_t slots, uint32_t tokens_per_slot, uint32_t* region_set) = 0;
  // Refused (kBusy) while a request owns slots of it.
  virtual Status Unlend(uint32_t region_set) = 0;
  // True while a request that names this slot is unanswered.
  virtual bool SlotIsOwned(uint32_t region_set, uint32_t slot) const = 0;

  // Asynchronous: queue, then Drain. Refused at once (kBusy) when requests_in_flight_max are out.
  // At most 256 blocks. Keys are digested before these return; `slots` spans are copied.
  virtual Status SubmitPut(const Layout& layout, uint32_t region_set,
                           const std::vector<Block>& blocks, const RequestOptions& options,
                           Ticket* ticket) = 0;
  virtual Status SubmitGet(const Layout& layout, uint32_t region_set,
                           const std::vector<Block>& blocks, const RequestOptions& options,
                           Ticket* ticket) = 0;
  virtual Status SubmitLookup(const Layout& layout, const std::vector<Block>& blocks,
                              const RequestOptions& options, Ticket* ticket) = 0;
  virtual Status SubmitDelete(const Layout& layout, const std::vector<Block>& blocks,
                              Ticket* ticket) = 0;
  // Progress; appends finished requests. Waits up to timeout_ms for the first one.
  virtual size_t Drain(uint32_t timeout_ms, std::vector<Completion>* out) = 0;
  // Readable (level-triggered) when Drain may have something; the same fd for the Client's life.
  virtual int event_fd() const = 0;
  // Requests that were submitted and whose completion was not yet drained.
  virtual size_t in_flight() const = 0;
  // "ucx 1.13.1 (posix, cma)" or "grpc".
  virtual std::string data_plane() const = 0;

  // Control verb, synchronous: holds pages in memory for ttl_ms; 0 lets them go.
  virtual Status Pin(const Layout& layout, const std::vector<Block>& blocks, uint32_t ttl_ms,
                     std::vector<Result>* out) = 0;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_H_
