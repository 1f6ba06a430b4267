// What the engine counts: plain numbers, copied out on the shard thread for metrics and status.
// Gauges are derived from allocator state when asked for, never kept by pairs of inc and dec.
#ifndef CRUMB_CACHESVC_CORE_ENGINE_STATS_H_
#define CRUMB_CACHESVC_CORE_ENGINE_STATS_H_

#include <array>
#include <cstdint>

#include "cachesvc/base/types.h"
#include "cachesvc/core/policy_kind.h"
#include "storage/segment/segment_log.h"

namespace crumb {

// Why a fresh page was demoted.
enum class DemotionReason : uint8_t {
  kDescendant = 0,  // its chain went on
  kFull = 1,        // the fresh share was full
  kIdle = 2,        // its chain did not grow for a while
  kDrain = 3,
  kRoom = 4,  // its slab was wanted
};
inline constexpr size_t kDemotionReasonCount = 5;
inline constexpr size_t kPrecisionCount = 4;

enum class EngineOp : uint8_t {
  kPut = 0,
  kGet = 1,
  kLookup = 2,
  kDelete = 3,
  kPin = 4,
  kPrefetch = 5
};
inline constexpr size_t kEngineOpCount = 6;
enum class Phase : uint8_t { kQueue = 0, kIndex = 1, kIo = 2, kCodec = 3, kWire = 4 };
inline constexpr size_t kPhaseCount = 5;
inline constexpr size_t kTierCount = 5;  // indexed by Tier

// Buckets 10 us x 2^i, the last one open; seconds = sum.
struct LatencyHistogram {
  static constexpr size_t kBuckets = 21;
  std::array<uint64_t, kBuckets> counts{};
  uint64_t sum_us = 0;
  void Add(uint64_t us) {
    size_t bucket = 0;
    for (uint64_t bound = 10; bucket + 1 < kBuckets && us > bound; bound *= 2) ++bucket;
    ++counts[bucket];
    sum_us += us;
  }
};

struct EngineStats {
  // [op][result]: one count per block.
  std::array<std::array<uint64_t, kBlockResultCount>, kEngineOpCount> blocks{};
  std::array<uint64_t, kEngineOpCount> requests{};
  std::array<std::array<LatencyHistogram, kTierCount>, kEngineOpCount> latency{};  // per request
  std::array<LatencyHistogram, kPhaseCount> phases{};
  std::array<uint64_t, kEngineOpCount> in_flight{};
  std::array<uint64_t, kTierCount> lookup_blocks{};  // kNone = miss
  std::array<uint64_t, kTierCount> hits{};           // gets served from
  std::array<uint64_t, kTierCount> bytes_in{}, bytes_out{};
  uint64_t pool_capacity_bytes = 0, pool_used_bytes = 0, pool_pages = 0, pool_pinned = 0;
  uint64_t staging_capacity_bytes = 0, staging_used_bytes = 0;
  PolicyKind policy = PolicyKind::kS3Fifo;
  uint64_t evicted_to_nvme = 0, evicted_dropped = 0, evicted_bytes = 0, eviction_failures = 0;
  uint64_t evicted_unseen = 0;  // of those that were dropped: not worth a write (nvme.admission)
  // NVMe -> DRAM, whoever asked: read and in memory; the record failed; left where it is because
  // only hotter pages could make room (prefetch alone); left there as a first get (nvme.promotion).
  uint64_t promoted = 0, promotions_failed = 0, promotions_rejected = 0, promotions_deferred = 0;
  uint64_t alloc_failures = 0;
  uint64_t hbm_capacity_bytes = 0, hbm_used_bytes = 0, hbm_pages = 0, hbm_pinned = 0;
  uint64_t lowered = 0, lowered_bytes = 0, raised = 0, raised_bytes = 0;  // HBM to DRAM, and back
  uint64_t moves_failed = 0, moves_in_flight = 0;
  uint64_t gpu_encode_pages = 0, gpu_decode_pages = 0, gpu_copies = 0, gpu_failures = 0;
  uint64_t gpu_staged = 0, gpu_stage_used_bytes = 0;  // of decodes, those that were staged
  uint64_t index_entries = 0, index_bytes = 0;
  uint64_t checksum_failures_dram = 0, checksum_failures_nvme = 0, checksum_failures_peer = 0;
  uint64_t hit_then_failed = 0;
  uint64_t abandoned_puts = 0, bad_messages = 0, deadline_exceeded = 0, cancelled = 0;
  uint64_t sessions = 0, peers = 0, pins = 0, waiters = 0, prefetches = 0;
  uint64_t encode_pages = 0, decode_pages = 0, encode_us = 0, decode_us = 0;
  uint64_t encode_raw_bytes = 0, encode_packed_bytes = 0;
  uint64_t ladder_steps = 0, non_finite_pages = 0;
  std::array<uint64_t, kDemotionReasonCount> demotions{};
  uint64_t demotion_failures = 0;  // the page kept its precision, or was forgotten
  uint64_t demotions_in_flight = 0, fresh_dropped = 0;
  uint64_t fresh_pages = 0, fresh_used_bytes = 0, fresh_slab_bytes = 0, fresh_capacity_bytes = 0;
  uint64_t fresh_oldest_us = 0;                   // since the chain of the oldest fresh page grew
  uint64_t unknown_position_pages = 0;            // encoded at once for want of a position
  std::array<uint64_t, kPrecisionCount> pages{};  // in all tiers, by precision
  // The NVMe tier beside serving: disk_spare.cc.
  uint64_t nvme_page_bytes = 0;  // written because of a put: headers and payloads alone
  int64_t write_budget_left = 0;
  uint64_t write_budget_per_day = 0;                          // 0: no budget
  uint64_t evicted_over_budget = 0, unsaved_over_budget = 0;  // dropped by eviction; by drain
  uint64_t rescued = 0, rescued_bytes = 0, rescues_failed = 0;
  uint64_t rescues_over_share = 0, rescues_over_budget = 0;
  uint64_t scrubbed_pages = 0, scrubbed_bytes = 0, scrub_bad_pages = 0, scrub_passes = 0;
  double scrub_progress = 0;  // of the pass under way
  uint64_t checksum_failures_scrub = 0;
  double error_k = 0, energy_k = 0, error_v = 0, energy_v = 0;  // summed over encoded pages
  SegmentLogStats nvme;
  bool nvme_present = false;

  // Bytes given to the device per byte of pages; 0 before the first.
  double write_amplification() const {
    if (nvme_page_bytes == 0) return 0;
    return static_cast<double>(nvme.bytes_written) / static_cast<double>(nvme_page_bytes);
  }
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_CORE_ENGINE_STATS_H_
