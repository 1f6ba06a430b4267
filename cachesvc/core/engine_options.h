// What an engine is made of and how it decides. Plain data, immutable once the engine is made.
#ifndef CRUMB_CACHESVC_CORE_ENGINE_OPTIONS_H_
#define CRUMB_CACHESVC_CORE_ENGINE_OPTIONS_H_

#include <cstdint>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/keys.h"
#include "cachesvc/core/engine_limits.h"
#include "cachesvc/core/nvme_rules.h"
#include "cachesvc/core/policy_kind.h"
#include "gpu/device/device_queue.h"
#include "gpu/pool/page_pool.h"

namespace crumb {

class GpuLink;  // gpu/codec/gpu_link.h

// The HBM tier. All null: there is none, and workers' GPU memory is served from the DRAM pool,
// which then must be registered with CUDA, too.
struct EngineHbm {
  PagePool* pool = nullptr;
  GpuLink* lower = nullptr;  // HBM to DRAM
  GpuLink* raise = nullptr;  // DRAM to HBM
};

// Device memory that packed pages of DRAM pass through on their way into a worker's memory on that
// GPU; empty: kernels read them over PCIe.
struct EngineGpuStage {
  MutableBytes memory;  // never touched here
  int device = -1;
};

struct EngineOptions {
  EngineLimits limits;
  ClusterSecret secret;
  const Clock* clock = nullptr;
  PagePool* pool = nullptr;
  DeviceQueue* queue = nullptr;
  EngineHbm hbm = {};
  EngineGpuStage gpu_stage = {};
  PolicyKind policy = PolicyKind::kS3Fifo;
  DiskUpkeep disk = {};
  NvmeAdmission nvme_admission = NvmeAdmission::kAll;
  NvmePromotion nvme_promotion = NvmePromotion::kFirst;
  uint8_t fresh_percent = 25;     // of the pool, at most, for raw pages that wait for demotion
  uint64_t fresh_idle_us = 0;     // demoted after so long without growth; 0: never for that
  uint8_t max_lossy_depth = 255;  // pages computed from a longer chain of lossy pages are misses
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_CORE_ENGINE_OPTIONS_H_
