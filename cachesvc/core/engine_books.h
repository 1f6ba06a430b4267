// What an engine keeps for every page, in all tiers or in memory: sized once, touched as it fills.
// Plain data; its invariants are kept by engine_basics. One thread (the shard).
#ifndef CRUMB_CACHESVC_CORE_ENGINE_BOOKS_H_
#define CRUMB_CACHESVC_CORE_ENGINE_BOOKS_H_

#include <cstdint>
#include <memory>
#include <span>

#include "cachesvc/core/chains.h"
#include "cachesvc/core/eviction_policy.h"
#include "cachesvc/core/ghost_keys.h"
#include "cachesvc/core/index.h"
#include "cachesvc/core/residents.h"
#include "gpu/pool/arena.h"

namespace crumb::core {

struct EngineBooks {
  Index index;
  Residents pages;
  Chains chains;
  std::unique_ptr<EvictionPolicy> policy, hbm_policy;  // the second only with HBM
  GhostKeys seen_keys;  // evicted unwritten, or read from NVMe and left there
  Arena owner_memory;
  std::span<uint32_t> slot_owner;  // by slot: entry id + 1
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_ENGINE_BOOKS_H_
