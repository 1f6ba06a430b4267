// Heap, descriptors and the disk tier's state, beside the requests. Never on the shard's thread.
#include "cachesvc/server/housekeeping.h"

#include <malloc.h>
#include <sys/resource.h>

#include "absl/strings/str_cat.h"

namespace crumb {
namespace {

constexpr uint64_t kQuietUs = 3'000'000;
constexpr uint64_t kLatestUs = 30'000'000;
constexpr uint32_t kGoodLooks = 3;  // WHY several: in a sparse file some places have their blocks
constexpr char kFullWarning[] =
    "the volume of the NVMe tier is full: pages are not stored there until it has room, those that "
    "are stored are served: make room on it, or give the tier less (crumbctl nvme resize, "
    "nvme.bytes)";
constexpr char kOffWarning[] = "the NVMe tier is off after device errors: check the disk";

}  // namespace

bool TrimTimer::Due(uint64_t open, uint64_t requests, uint64_t now_us) {
  const bool ended = open < open_ || (open == 0 && requests != requests_);
  open_ = open;
  requests_ = requests;
  if (ended) {
    last_us_ = now_us;
    if (!pending_) first_us_ = now_us;
    pending_ = true;
  }
  if (!pending_) return false;
  if (now_us - last_us_ < kQuietUs && now_us - first_us_ < kLatestUs) return false;
  pending_ = false;
  return true;
}

void TrimHeap() { malloc_trim(0); }

void TierWatch::LookForRoom(const SegmentLogStats& nvme) {
  const bool none = nvme.no_space_errors != no_space_;
  const bool wrote = nvme.bytes_written != written_;
  no_space_ = nvme.no_space_errors;
  written_ = nvme.bytes_written;
  if (none) {
    good_looks_ = 0;
    if (!full_.exchange(true)) log_->Warning(kFullWarning);
    return;
  }
  if (!full_ || !nvme.enabled || !wrote || ++good_looks_ < kGoodLooks) return;
  full_ = false;
  log_->Info("the volume of the NVMe tier has room again: pages are stored");
}

std::string TierWatch::Warning(const EngineStats& stats) const {
  if (!stats.nvme_present) return "";
  if (full_) return kFullWarning;
  return stats.nvme.enabled ? "" : kOffWarning;
}

void TierWatch::Look(const EngineStats& stats) {
  if (!stats.nvme_present) return;
  LookForRoom(stats.nvme);
  if (stats.nvme.enabled == on_) return;
  on_ = stats.nvme.enabled;
  if (full_) return;  // said
  if (on_) {
    log_->Info("the NVMe tier is on again: a write went well");
  } else {
    log_->Warning(
        "the NVMe tier turned itself off after device errors: reads go on, writes are tried again "
        "every few seconds: check the disk");
  }
}

uint64_t RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit raised{.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
  if (limit.rlim_cur < limit.rlim_max && setrlimit(RLIMIT_NOFILE, &raised) == 0) {
    return raised.rlim_cur;
  }
  return limit.rlim_cur;
}

std::string FileLimitWarning(uint64_t limit) {
  if (limit >= kFilesWanted) return "";
  return absl::StrCat("the limit on descriptors is ", limit, ", below ", kFilesWanted,
                      ": when they run out, no client connects over TCP any more until a restart: "
                      "set LimitNOFILE=65536 (systemd) or ulimit -Hn 65536");
}

}  // namespace crumb
