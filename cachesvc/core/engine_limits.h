// Bounds of one engine: everything that can grow has one here. At a bound the answer is busy, at
// once. Immutable once the engine is made.
#ifndef CRUMB_CACHESVC_CORE_ENGINE_LIMITS_H_
#define CRUMB_CACHESVC_CORE_ENGINE_LIMITS_H_

#include <cstdint>

namespace crumb {

struct EngineLimits {
  uint32_t requests_max = 1024;  // in flight, all peers
  uint32_t requests_per_peer_max = 64;
  uint32_t blocks_in_flight_max = 4096;
  uint32_t peers_max = 2048;
  uint32_t sessions_max = 1024;
  uint32_t layouts_max = 1024;
  uint32_t region_sets_per_session_max = 16;
  uint32_t waiters_max = 256;            // gets that wait for a put
  uint32_t pins_max = 65536;             // client pins with a TTL
  uint32_t index_entries_max = 1 << 20;  // pages in all tiers; memory is touched as it fills
  uint32_t evictions_max = 32;           // writes to NVMe that make room, in flight
  uint32_t prefetches_max = 64, transfers_max = 512;  // NVMe reads; with peers' memory; in flight
  uint32_t served_per_session_max = 1024;  // remembered lossy pages that a session was served
  uint64_t default_deadline_us = 5'000'000;
  uint64_t deadline_us_max = 600'000'000;
  uint64_t transfer_grace_us = 10'000'000;  // past a deadline; then a peer that stalls is closed
  uint64_t pin_ttl_us_max = 3'600'000'000;
};

// What the NVMe tier may do beside serving.
struct DiskUpkeep {
  uint64_t write_bytes_per_day = 0;  // evicted and rescued pages beyond it are dropped; 0: no limit
  bool rescue = false;               // pages that were read are saved from reclaim
  uint64_t scrub_bytes_per_second = 0;          // 0: nothing is read that nobody asked for
  bool save = true;                             // a drain writes what lives in memory alone
  uint64_t scrub_interval_us = 86'400'000'000;  // between the starts of two passes, at least
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_CORE_ENGINE_LIMITS_H_
