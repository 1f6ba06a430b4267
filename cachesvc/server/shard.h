// One shard: its thread, and everything that thread owns: loop, page pool, codec queue, disk, log,
// transports, engine. Built on that thread, ended on it. Others reach it by Post and Call only.
#ifndef CRUMB_CACHESVC_SERVER_SHARD_H_
#define CRUMB_CACHESVC_SERVER_SHARD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/keys.h"
#include "cachesvc/base/status.h"
#include "cachesvc/core/engine.h"
#include "cachesvc/net/ucx_transport.h"
#include "cachesvc/net/uds_transport.h"
#include "cachesvc/server/config.h"
#include "cachesvc/server/gpu_service.h"
#include "cachesvc/server/staging_pool.h"
#include "cachesvc/server/start_watch.h"
#include "cachesvc/server/stream_hub.h"
#include "storage/device/block_device.h"

namespace crumb {

struct ShardOptions {
  const Config* config = nullptr;
  ClusterSecret secret;
  const Clock* clock = nullptr;
  StagingPool* staging = nullptr;
  StartWatch* watch = nullptr;
  GpuService* gpu = nullptr;            // may be off
  std::vector<std::string> nvme_files;  // none: no NVMe tier; several are striped
};

// What a posted function gets to see, on the shard thread.
struct ShardView {
  Engine& engine;
  StreamHub& streams;
  UcxTransport* ucx;       // null: off
  uint32_t ucx_transport;  // its index in the engine
  UdsTransport* uds;       // null: off
  NetStats loopback;
  uint64_t busy_us = 0;  // of the loop
};

// What it takes to serve a recovered page.
struct RecoveredKind {
  uint64_t identity_prefix = 0;
  uint64_t codec_id = 0;
  friend auto operator<=>(const RecoveredKind&, const RecoveredKind&) = default;
};

// How the start went.
struct ShardReport {
  std::string nvme;  // one line, or why there is no tier
  std::string ucx;
  bool ucx_on = false;
  std::string data_socket;  // its path, or why it is off
  bool data_socket_on = false;
  std::vector<std::string> warnings;
  SegmentLogStats recovery;
  std::map<RecoveredKind, uint64_t> recovered;  // pages of each kind; the first few thousand kinds
};

class Shard {
 public:
  using Function = std::function<void(const ShardView&)>;

  // Returns when the log is recovered and the loop runs. `report` says what is on. CANCELLED soon
  // after the watch was cancelled.
  static absl::StatusOr<std::unique_ptr<Shard>> Start(const ShardOptions& options,
                                                      ShardReport* report);
  ~Shard();  // Stop

  // Any thread but the shard's. False when its mailbox is full; what was taken runs, also during
  // Stop.
  bool Post(Function function);
  // Post, then waits until it ran. UNAVAILABLE: mailbox full. DEADLINE_EXCEEDED: not within
  // `timeout_us`; it may still run later, so it must own what it touches.
  absl::Status Call(Function function, uint64_t timeout_us);
  // Of the NVMe tier; null: none. Others than the shard may only ask its size and Resize it.
  BlockDevice* device() const;
  // Ends the loop, closes the log (sealed, marked clean) and joins. What Close said.
  absl::Status Stop();

 private:
  struct Impl;
  explicit Shard(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_SHARD_H_
