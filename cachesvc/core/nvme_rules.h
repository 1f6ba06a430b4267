// What goes to the NVMe tier and what comes back to memory, as configured (docs/configuration.md).
// Which of them pays: docs/performance.md.
#ifndef CRUMB_CACHESVC_CORE_NVME_RULES_H_
#define CRUMB_CACHESVC_CORE_NVME_RULES_H_

#include <cstdint>

namespace crumb {

// Of evicted pages: all are written; those that were got since they came, or that came back soon
// after they had been evicted. What a durable put or a drain writes is no matter of this.
enum class NvmeAdmission : uint8_t { kAll, kSeen };
// Of pages on disk alone: the first get raises one to memory; the second within a while does, and
// the first one too where memory is free.
enum class NvmePromotion : uint8_t { kFirst, kSecond };

// A key is remembered while so many times the pages in memory are evicted or read after it.
inline constexpr uint32_t kSeenWindow = 4;

}  // namespace crumb

#endif  // CRUMB_CACHESVC_CORE_NVME_RULES_H_
