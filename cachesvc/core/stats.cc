// Counters as they are, gauges from the state of the moment.
#include "cachesvc/core/engine_impl.h"

namespace crumb::core {

EngineStats EngineImpl::Stats() const {
  EngineStats stats = counts;
  stats.policy = options.policy;
  stats.in_flight = {};
  for (uint32_t id = 0; id < requests.size(); ++id) {
    if (requests[id].used) ++stats.in_flight[static_cast<size_t>(requests[id].op)];
  }
  stats.pool_capacity_bytes = pool().capacity_bytes();
  stats.pool_used_bytes = pool().used_bytes();
  stats.pool_pages = pool().used_slots();
  stats.pool_pinned = pool().pinned_slots();
  if (has_hbm()) {
    stats.hbm_capacity_bytes = hbm().capacity_bytes();
    stats.hbm_used_bytes = hbm().used_bytes();
    stats.hbm_pages = hbm().used_slots();
    stats.hbm_pinned = hbm().pinned_slots();
  }
  stats.gpu_stage_used_bytes = uint64_t{gpu_stage.used()} * kPageAlignment;
  stats.moves_in_flight = moves.taken();
  stats.staging_capacity_bytes = pool().staging_capacity_bytes();
  stats.staging_used_bytes = pool().staging_used_bytes();
  stats.fresh_capacity_bytes = FreshLimit();
  stats.fresh_used_bytes = pool().fresh_used_bytes();
  stats.fresh_slab_bytes = pool().fresh_slab_bytes();
  stats.demotions_in_flight = demotions.taken();
  stats.fresh_pages = chains.size(FreshQueue::kGrowing) + chains.size(FreshQueue::kDue);
  if (const PageId oldest = chains.front(FreshQueue::kGrowing); oldest != kNoId) {
    stats.fresh_oldest_us = now() - chains.queued_us(oldest);
  }
  stats.index_entries = index.size();
  stats.index_bytes = index.bytes_used() + pages.bytes_used();
  stats.sessions = sessions.size();
  stats.peers = peers.taken();
  stats.pins = pins.taken();
  stats.waiters = parked.size();
  stats.prefetches = prefetches;
  stats.nvme_present = log != nullptr;
  if (log == nullptr) return stats;
  stats.nvme = log->stats();
  WriteBudget today = write_budget;
  today.Charge(stats.nvme.bytes_issued, now());
  stats.write_budget_left = today.left_bytes();
  stats.write_budget_per_day = today.bytes_per_day();
  if (scrub.segment < stats.nvme.segments) {
    stats.scrub_progress =
        static_cast<double>(scrub.segment) / static_cast<double>(stats.nvme.segments);
  }
  return stats;
}

}  // namespace crumb::core
