// What the daemon knows about itself at one moment: the one source of metrics, status document and
// status page. A value; made by the daemon, any thread.
#ifndef CRUMB_CACHESVC_SERVER_SNAPSHOT_H_
#define CRUMB_CACHESVC_SERVER_SNAPSHOT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cachesvc/core/engine_stats.h"
#include "cachesvc/net/transport.h"
#include "cachesvc/net/uds_transport.h"

namespace crumb {

enum class DaemonState : uint8_t { kStarting, kReady, kDraining };
const char* ToString(DaemonState state);

struct LayoutLine {
  std::string name;
  std::string hash;
  std::string model;
  std::string revision;
  std::string codec;
  std::string note;
  std::string windows;
  uint64_t raw_bytes = 0;  // of one block, all parts
  uint64_t payload_bytes = 0;
};

struct RotationLine {
  std::string hash;
  std::string model;
  std::string revision;
};

struct ProcessFacts {
  uint64_t resident_bytes = 0;
  uint64_t virtual_bytes = 0;
  uint64_t open_fds = 0;
  uint64_t fds_max = 0;
  uint64_t locked_bytes = 0;
  uint64_t threads = 0;
  double cpu_seconds = 0;
  double start_time = 0;  // Unix seconds
};
ProcessFacts ReadProcessFacts();

struct Snapshot {
  std::string version;
  std::string node;
  std::string codec_backend;
  DaemonState state = DaemonState::kStarting;
  uint64_t uptime_us = 0;
  bool alive = true;  // the shard answered in time; else the numbers below are the last known
  EngineStats engine;
  NetStats ucx;
  NetStats uds;   // the data socket
  UdsStats lent;  // memory that its peers lend
  NetStats loopback;
  uint64_t shard_busy_us = 0;  // of the shard's thread, in turns that found work
  bool ucx_on = false;
  std::string ucx_description;  // or why it is off
  bool gpu_on = false;
  std::string gpu_description;  // or why it is off
  std::string gpu_codec_place;  // "daemon" or "worker"
  std::string hbm_description;  // the same of the HBM tier
  uint64_t hbm_bytes = 0;
  uint64_t gpu_free_bytes = 0;
  std::string gpu_fault;  // not empty: the GPU is lost, and the process ends
  bool data_socket_on = false;
  std::string data_socket;       // its path, or why it is off
  std::string nvme_description;  // or why it is off
  std::vector<LayoutLine> layouts;
  std::vector<RotationLine> rotations;
  uint64_t catalog_bytes = 0;
  uint64_t catalog_dropped = 0;
  uint64_t clients = 0;
  uint64_t staging_capacity_bytes = 0;
  uint64_t staging_used_bytes = 0;
  uint64_t staging_refused = 0;
  uint64_t rpcs_in_flight = 0;
  uint64_t rpcs_refused = 0;  // malformed, over a limit, or of no session
  ProcessFacts process;
  std::vector<std::string> warnings;
};

inline bool IsReady(const Snapshot& snapshot) {
  return snapshot.state == DaemonState::kReady && snapshot.alive && snapshot.gpu_fault.empty();
}

// The Prometheus text format.
std::string MetricsText(const Snapshot& snapshot);
// The document of /api/v1/status and Admin.Status.
std::string StatusJson(const Snapshot& snapshot);
// One self-contained page; the numbers are in the markup.
std::string StatusPage(const Snapshot& snapshot);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_SNAPSHOT_H_
