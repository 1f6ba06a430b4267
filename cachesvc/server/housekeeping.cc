// Heap, descriptors and the disk tier's state, beside the requests. Never on the shard's thread.
#include "cachesvc/server/housekeeping.h"

#include <malloc.h>
#include <sys/resource.h>

#include "absl/strings/str_cat.h"

namespace crumb {
namespace {

constexpr uint64_t kQuietUs = 3'000'000;
constexpr uint64_t kLatestUs = 30'000'000;

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

void TierWatch::Look(const EngineStats& stats) {
  if (!stats.nvme_present || stats.nvme.enabled == on_) return;
  on_ = stats.nvme.enabled;
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
