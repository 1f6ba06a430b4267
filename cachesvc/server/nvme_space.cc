// See nvme_space.h. Any thread.
#include "cachesvc/server/nvme_space.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/server/config.h"
#include "storage/device/stripe_set.h"

namespace crumb {

absl::StatusOr<std::vector<NvmeShare>> NvmeShares(const std::vector<std::string>& paths,
                                                  const Machine& machine) {
  struct Shared {
    uint64_t held_bytes = 0, members = 0;
  };
  std::map<uint64_t, Shared> by_volume;
  std::vector<NvmeShare> shares;
  std::vector<uint64_t> volumes;
  for (const std::string& path : paths) {
    CRUMB_ASSIGN(const Volume volume, machine.volume(path));
    NvmeShare share{.path = path,
                    .block_device = machine.path_kind(path) == PathKind::kBlockDevice,
                    .total_bytes = volume.total_bytes,
                    .available_bytes = volume.available_bytes};
    if (!share.block_device) {
      Shared& shared = by_volume[volume.id];
      ++shared.members;
      const std::string file = absl::StrCat(path, "/", kNvmeFileName);
      shared.held_bytes += machine.file_bytes(file);
      share.file_length = machine.file_length(file);
    }
    volumes.push_back(volume.id);
    shares.push_back(std::move(share));
  }
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].block_device) continue;
    const Shared& shared = by_volume[volumes[i]];
    shares[i].total_bytes /= shared.members;
    shares[i].available_bytes = (shares[i].available_bytes + shared.held_bytes) / shared.members;
  }
  return shares;
}

NvmeSpace SumOfEqualShares(const std::vector<NvmeShare>& shares) {
  NvmeSpace space;
  if (shares.empty()) return space;
  uint64_t total = UINT64_MAX, available = UINT64_MAX;
  for (const NvmeShare& share : shares) {
    total = std::min(total, share.total_bytes);
    if (share.available_bytes >= available) continue;
    available = share.available_bytes;
    space.tightest = share.path;
  }
  space.total_bytes = total * shares.size();
  space.available_bytes = available * shares.size();
  return space;
}

uint64_t NvmeDataBytes(uint64_t bytes, size_t paths) {
  return paths > 1 ? StripeDataBytes(bytes, paths) : bytes / kPageAlignment * kPageAlignment;
}

}  // namespace crumb
