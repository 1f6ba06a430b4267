// How much room the places of the NVMe tier have: paths that share a volume share what it has free.
// Any thread.
#ifndef CRUMB_CACHESVC_SERVER_NVME_SPACE_H_
#define CRUMB_CACHESVC_SERVER_NVME_SPACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cachesvc/base/status.h"
#include "cachesvc/server/machine.h"

namespace crumb {

// What one path can give.
struct NvmeShare {
  std::string path;
  bool block_device = false;
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;  // what the tier's file there holds already counts as free
  uint64_t file_length = 0;      // of that file, whether or not it has all its blocks
};

// One for each path, in their order. NOT_FOUND names the path.
absl::StatusOr<std::vector<NvmeShare>> NvmeShares(const std::vector<std::string>& paths,
                                                  const Machine& machine);

// What all can give together when each gives the same: their number times the least of them.
struct NvmeSpace {
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;
  std::string tightest;  // whose available bytes count
};
NvmeSpace SumOfEqualShares(const std::vector<NvmeShare>& shares);

// What `bytes` over so many paths give to the tier itself: striped files carry labels.
uint64_t NvmeDataBytes(uint64_t bytes, size_t paths);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_NVME_SPACE_H_
