// Engine: every decision of one shard. Owns the index and the policies; borrows pool, device queue,
// log and transports. All data requests arrive as wire messages from a transport's peer (over UCX,
// or loopback peers that stand for gRPC streams), so there is exactly one data path.
// Thread: the shard. After start: no locks, no blocking; bounded by EngineLimits everywhere.
// PROMISE: a hit is an image of stated precision, by a named codec, of the bytes put under that
// key, tenant and identity. Every failure on a read path becomes a miss and a counter, here.
#ifndef CRUMB_CACHESVC_CORE_ENGINE_H_
#define CRUMB_CACHESVC_CORE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/identity.h"
#include "cachesvc/base/keys.h"
#include "cachesvc/base/loop.h"
#include "cachesvc/core/engine_options.h"
#include "cachesvc/core/engine_stats.h"
#include "cachesvc/core/layout_binding.h"
#include "cachesvc/core/nvme_rules.h"
#include "cachesvc/net/transport.h"
#include "gpu/codec/page_codec.h"
#include "gpu/device/device_queue.h"
#include "gpu/pool/page_pool.h"
#include "storage/segment/segment_log.h"

namespace crumb {

class GpuMemory;     // net/gpu_memory.h
class MappedMemory;  // net/mapped_memory.h

struct SessionId {
  uint64_t value = 0;  // random, unguessable; 0 = none
  friend bool operator==(const SessionId&, const SessionId&) = default;
};

struct PinRequest {
  uint32_t layout_handle = 0;
  SessionId session;
  std::vector<Digest> digests;
  uint64_t ttl_us = 0;  // 0 = unpin
};

struct FlushRequest {  // empty fields match everything
  std::string tenant = {};
  bool has_identity = false;
  IdentityHash identity = {};
};

using BlockResults = std::vector<BlockResult>;
// REQUIRES: clock, pools, links, queue, transports and log outlive the engine.
class Engine final : public Poller {
 public:
  // INVALID_ARGUMENT names the limit that is out of range.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  // REQUIRES: the device queue is idle (Drain), or its jobs will never run again.
  ~Engine() override;

  SegmentLog::RecoverySink* recovery_sink();  // for SegmentLog::Open, before the first Poll
  // Before the first Poll, after SegmentLog::Open. Without a log there is no NVMe tier.
  void SetLog(SegmentLog* log);

  // REQUIRES: before the first Poll. Returns the transport's index. With `mapped`, peers introduce
  // themselves (Hello), and pages are copied straight from and to what they lend; with `gpu`, they
  // may lend GPU memory.
  uint32_t AddTransport(Transport* transport, MappedMemory* mapped = nullptr,
                        GpuMemory* gpu = nullptr);

  // A handle may be bound again, with other codecs, to the same identity and tenant.
  // INVALID_ARGUMENT: no raw codec last in a ladder, codecs that do not fit the parts, or pages too
  // large for the pool, with the remedy.
  absl::Status BindLayout(uint32_t handle, LayoutBinding binding);
  // What BindLayout would say of the binding; binds nothing.
  absl::Status CheckLayout(LayoutBinding binding) const;
  absl::Status OpenSession(SessionId session, std::string tenant);
  // Ties a transport's peer to a session; its messages must carry that session's id.
  absl::Status AttachPeer(SessionId session, uint32_t transport, PeerId peer);
  // For every peer of the session, also later ones. A set that is there already is replaced,
  // unless transfers are in flight (FAILED_PRECONDITION).
  absl::Status RegisterRegions(SessionId session, uint32_t region_set, uint32_t layout_handle,
                               RegionSetSpec spec);
  // Frees everything of the session: pins, waiters, requests, peers (closed in their transport).
  void CloseSession(SessionId session);
  // Peers of the session that are still there; 0 for a session that nobody can use any more.
  size_t PeersOf(SessionId session) const;

  BlockResults Pin(const PinRequest& request);
  // Forgets matching pages in every tier; `done` runs on the shard once that is durable.
  void Flush(const FlushRequest& request, std::function<void(absl::Status)> done);
  // SegmentLog::Resize; `done` runs on the shard.
  void ResizeDisk(uint64_t bytes, std::function<void(absl::Status)> done);
  // Refuses new requests (kUnavailable); `done` runs when nothing is in flight and DRAM pages that
  // only live in memory have been offered to NVMe, or at the deadline (absolute).
  void Drain(uint64_t deadline_us, std::function<void()> done);

  EngineStats stats() const;
  // First bytes of the identities under which pages came without a position, oldest first.
  const std::vector<uint64_t>& unknown_position_layouts() const;

  int Poll() override;
  int RunReady() override;
  // An epoll descriptor over those of queue, log and transports; -1 if none of them has one.
  int wake_fd() const override;
  bool Arm() override;
  bool WorthSpinning() const override;
  uint64_t next_timer_us() const override;

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_CORE_ENGINE_H_
