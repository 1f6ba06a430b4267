// The sections of the configuration, as plain data. What each key means: docs/configuration.md.
#ifndef CRUMB_CACHESVC_SERVER_CONFIG_SECTIONS_H_
#define CRUMB_CACHESVC_SERVER_CONFIG_SECTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/pool/hbm_size.h"

namespace crumb {

struct ListenConfig {
  std::string grpc;         // HOST:PORT or "off"
  std::string http;         // HOST:PORT or "off"
  std::string socket;       // absolute path or "off"
  bool data_socket = true;  // workers of this host, beside `socket`
  std::string admin;  // local: unix socket and loopback callers; socket: the unix socket alone
  bool insecure = false;
};

struct PoolConfig {
  uint64_t dram_bytes = 0;
  std::string hbm_bytes;       // auto, a size, N% of the GPU's memory
  HbmWanted hbm;               // the same, read; kBytes of 0: no HBM tier
  uint64_t device = 0;         // whose memory that is
  uint64_t fresh_percent = 0;  // of the pool, for raw pages that wait for demotion
  bool hugepages = false;
  std::string policy;  // s3fifo, lru
};

struct NvmeConfig {
  // Each a directory (holds pages.log) or a block device; several are striped.
  std::vector<std::string> paths;
  uint64_t bytes = 0;  // hard cap over all of them; 0 = no NVMe tier
  uint64_t segment_bytes = 0;
  std::string admission, promotion;     // all, seen; first, second
  uint64_t write_bytes_per_day = 0;     // 0: no limit
  bool rescue = false;                  // pages that were read outlive their segment
  uint64_t scrub_bytes_per_second = 0;  // 0: off
  uint64_t scrub_interval_us = 0;
};

struct CodecConfig {
  std::string default_precision;           // raw, int4, k3v2, int2
  std::string int2;                        // require_evaluation, accept
  std::string unknown_position_precision;  // as default_precision
  uint64_t max_lossy_depth = 0;
  std::string windows;  // see windows.h
  uint64_t windows_idle_us = 0;
  std::string effort;   // draft, normal, best
  std::string backend;  // auto, reference, avx2, avx512
  uint64_t threads = 0;
};

struct GpuConfig {
  bool enabled = true;
  std::string codec_place;  // auto, daemon, worker
  std::string share_pool;   // off
  uint64_t staging_bytes = 0;
};

struct UcxConfig {
  bool enabled = true;
  std::string tls;
  std::string net_devices;
};

// What a recorded evaluation may say at most to allow 2-bit codecs.
struct QualityBounds {
  uint64_t perplexity_permille_max = 0;  // more perplexity than with raw pages
  uint64_t kl_millinats_max = 0;         // KL divergence from raw pages, a token
};

struct LimitsConfig {
  uint64_t requests = 0;  // in flight, all peers
  uint64_t requests_per_peer = 0;
  uint64_t blocks_in_flight = 0;
  uint64_t sessions = 0;
  uint64_t layouts = 0;
  uint64_t region_sets_per_session = 0;
  uint64_t waiters = 0;
  uint64_t pins = 0;
  uint64_t deadline_us = 0;  // where a request names none
  uint64_t deadline_us_max = 0;
  uint64_t pin_ttl_us_max = 0;
  uint64_t session_idle_us = 0;
  uint64_t staging_bytes = 0;  // pages of gRPC streams under way
  uint64_t grpc_bytes = 0;     // gRPC's own buffers
  uint64_t connections = 0;    // HTTP
  uint64_t spin_us = 0;        // the shard looks for work before it sleeps
};

struct LogConfig {
  std::string level;
  std::string format;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_CONFIG_SECTIONS_H_
