// How much HBM the pool takes of a device that engines use as well. Figures in, a size and its
// reason out: asks no device and keeps nothing. Any thread; start-up only.
#ifndef CRUMB_GPU_POOL_HBM_SIZE_H_
#define CRUMB_GPU_POOL_HBM_SIZE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "cachesvc/base/status.h"

namespace crumb {

enum class HbmWish : uint8_t { kAuto, kBytes, kPercent };

// `pool.hbm_bytes`, as it was configured.
struct HbmWanted {
  HbmWish wish = HbmWish::kAuto;
  uint64_t value = 0;  // bytes, or percent of the device's memory
};

struct HbmSizeOptions {
  uint64_t total_bytes = 0;  // of the device
  uint64_t free_bytes = 0;   // now, before the pool is made
  HbmWanted wanted = {};
  // What engines take in all, counting what they hold already. Unknown: kEnginePercent for kAuto;
  // whoever names a size has thought of the engines.
  std::optional<uint64_t> engine_bytes = std::nullopt;
};

struct HbmSize {
  uint64_t bytes = 0;  // a multiple of kHbmStepBytes
  std::string reason;  // one sentence for the log
};

inline constexpr uint64_t kHbmStepBytes = 2ull << 20;  // what a GPU maps at once
inline constexpr uint64_t kHbmBytesMin = 8ull << 20;   // as little as the DRAM pool may have
// vLLM's default (`gpu_memory_utilization`): 0.9 of the whole device, and it does not start if that
// much is not free. Other engines have fractions of their own: name a size, or what they take.
inline constexpr uint64_t kEnginePercent = 90;

// What the pool never takes of what is free: a CUDA context costs about half a GiB in each process
// (this one and a worker), and engines keep CUDA graphs and communication buffers outside of the
// fraction that they are told.
uint64_t HbmReserveBytes(uint64_t total_bytes);

// INVALID_ARGUMENT names the figure and the range; RESOURCE_EXHAUSTED says what is free, what has
// to stay so and why, and the remedy. PROMISE: bytes + HbmReserveBytes <= free_bytes.
absl::StatusOr<HbmSize> SizeHbmPool(const HbmSizeOptions& options);

}  // namespace crumb

#endif  // CRUMB_GPU_POOL_HBM_SIZE_H_
