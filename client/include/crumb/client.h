// crumb::Client: put, get, look up, prefetch and delete KV pages in a crumbd. One Client per worker
// thread; no call may be made from two threads at once. No third-party type appears here.
// docs/client.md has complete examples.
//
// Memory: lend it once (LendPages / LendTensors), then name slots in it. From Submit* until its
// completion is drained the named slots belong to the request. A timeout is not a cancel: when a
// completion says kTimeout for the request as a whole, its slots stay with it until the daemon
// answers or is gone; new requests that name them are refused (kBusy), and SlotIsOwned tells.
// Memory of a mapping that ShareMemory named is read and written by the daemon itself; other
// memory is copied here, into or out of a bounded area (kShm), or by the transport.
//
// Loss: when the daemon dies, everything in flight completes with kUnavailable in bounded time and
// every Submit* is refused at once with kUnavailable until the Client is connected again, by
// itself (Options::auto_reconnect) or by Reconnect. A new session knows every layout and all lent
// memory: handles stay valid.
#ifndef CRUMB_CLIENT_H_
#define CRUMB_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "crumb/options.h"
#include "crumb/shared_memory.h"
#include "crumb/types.h"

namespace crumb::client {

class CRUMB_API Client {
 public:
  static Status Connect(const Options& options, std::unique_ptr<Client>* out);
  // Says goodbye, which ends what is in flight (bounded by connect_ms + grace_ms). Lent memory must
  // outlive the Client.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const;
  // Blocks for one attempt (each step at most connect_ms, of restoring deadline_ms). Backs off by
  // itself: refused at once (kUnavailable) meanwhile, and while the helper thread is at it.
  Status Reconnect();

  // Control verbs: synchronous, each bounded by deadline_ms.
  Status RegisterLayout(const LayoutSpec& spec, Layout* out);
  Status ListLayouts(std::vector<Layout>* out);
  // Tells of a shared mapping, before memory in it is lent. The descriptor is duplicated; the
  // mapping must outlive the Client. Sends nothing.
  Status ShareMemory(const SharedRange& range);
  // Lends `bytes` at `base` as slots of `slot_bytes` each; `region_set` names them later.
  Status LendPages(const Layout& layout, void* base, uint64_t bytes, uint64_t slot_bytes,
                   uint32_t* region_set);
  // Lends paged tensors; a block then names page_tokens / tokens_per_slot slots.
  Status LendTensors(const Layout& layout, const std::vector<TensorMemory>& tensors, uint32_t slots,
                     uint32_t tokens_per_slot, uint32_t* region_set);
  // Lends GPU memory of this process to the daemon of this host (unix socket, CUDA on both sides):
  // pages move between it and the daemon's pool by kernels, and none of their bytes here. One GPU a
  // Client. Everything that the daemon does is ordered behind RequestOptions::stream, and an answer
  // says that it is done. kInvalid: a build without CUDA, another data plane, or memory that no
  // other process can map (expandable segments, cudaMallocAsync) unless the codec runs in the
  // worker; the message has the remedy.
  Status RegisterGpuRegions(const Layout& layout, const GpuRegions& regions, uint32_t* region_set);
  // Where the codec of such a region set runs in this session. kInvalid: it is not of GPU memory.
  Status DescribeGpuRegions(uint32_t region_set, GpuRegionsInfo* out) const;
  // Refused (kBusy) while a request owns slots of it. GPU memory may be freed afterwards.
  Status Unlend(uint32_t region_set);
  // True while a request that names this slot is unanswered and may touch it.
  bool SlotIsOwned(uint32_t region_set, uint32_t slot) const;
  // Holds pages in memory for ttl_ms; 0 lets them go. Pins are of the session: they end with it, at
  // the latest when the Client goes.
  Status Pin(const Layout& layout, const std::vector<Block>& blocks, uint32_t ttl_ms,
             std::vector<Result>* out);
  // Forgets every page of a layout in all tiers, durably. The daemon takes it from callers of its
  // own host alone (kDenied).
  Status Flush(const Layout& layout);

  // Asynchronous: queue, then Drain; never wait. Refused at once with kBusy (a bound of Options is
  // reached) or kUnavailable (no daemon, or the circuit is open). At most 256 blocks. Keys are
  // digested before these return; `slots` spans are copied.
  Status SubmitPut(const Layout& layout, uint32_t region_set, const std::vector<Block>& blocks,
                   const RequestOptions& options, Ticket* ticket);
  Status SubmitGet(const Layout& layout, uint32_t region_set, const std::vector<Block>& blocks,
                   const RequestOptions& options, Ticket* ticket);
  Status SubmitLookup(const Layout& layout, const std::vector<Block>& blocks,
                      const RequestOptions& options, Ticket* ticket);
  // Raises pages from NVMe to memory ahead of their gets. A result's tier says where the page is
  // now; kNoSpace: still on NVMe, as only hotter pages could make room.
  Status SubmitPrefetch(const Layout& layout, const std::vector<Block>& blocks,
                        const RequestOptions& options, Ticket* ticket);
  Status SubmitDelete(const Layout& layout, const std::vector<Block>& blocks, Ticket* ticket);
  // Asks that a request end early. Its completion still comes, exactly once, when its slots are the
  // worker's again: kCancelled, or its outcome if it was faster, or kTimeout if nobody answers.
  // kMiss: no such request is in flight.
  Status Cancel(Ticket ticket);

  // Progress; appends finished requests. Waits up to timeout_ms for the first one.
  size_t Drain(uint32_t timeout_ms, std::vector<Completion>* out);
  // Takes completions back, to be filled again: with it, Submit* and Drain allocate nothing once
  // they are warm. Clears the vector.
  void Recycle(std::vector<Completion>* completions);
  // Readable (level-triggered) when Drain may have something; the same fd for the Client's life.
  int event_fd() const;
  // Requests that were submitted and whose completion was not yet drained.
  size_t in_flight() const;
  ClientStats stats() const;
  // "shm /run/crumb/crumbd.sock.data", "ucx 1.13.1 (posix, cma)" or "grpc".
  std::string data_plane() const;

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_H_
