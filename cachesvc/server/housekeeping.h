// What the daemon looks after beside its requests: memory that sessions left behind goes back to
// the system, the limit on descriptors is raised, a disk tier that turns itself off or on is said.
// Never on the shard's thread: all of it may block. One thread each, the control thread for what
// ticks.
#ifndef CRUMB_CACHESVC_SERVER_HOUSEKEEPING_H_
#define CRUMB_CACHESVC_SERVER_HOUSEKEEPING_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "cachesvc/server/log.h"
#include "cachesvc/server/snapshot.h"

namespace crumb {

// When to give memory back: a while after sessions ended, so that a busy daemon does not pay for
// it, and at the latest half a minute after the first one did.
class TrimTimer {
 public:
  // Of sessions that are open, and of requests ever (so that one that came and went between two
  // looks is not missed). True: trim now.
  bool Due(uint64_t open, uint64_t requests, uint64_t now_us);

 private:
  uint64_t open_ = 0;
  uint64_t requests_ = 0;
  uint64_t first_us_ = 0;  // of those that ended since the last trim
  uint64_t last_us_ = 0;
  bool pending_ = false;
};

// Gives what the heap does not use back to the system. Takes milliseconds.
void TrimHeap();

// Says once that the NVMe tier went off or that its volume is full, and once that this is over.
class TierWatch {
 public:
  explicit TierWatch(Log* log) : log_(log) {}
  void Look(const EngineStats& stats);
  // Empty, or what is the matter and the remedy. Any thread.
  std::string Warning(const EngineStats& stats) const;

 private:
  void LookForRoom(const SegmentLogStats& nvme);

  Log* const log_;
  bool on_ = true;
  std::atomic<bool> full_{false};
  uint64_t no_space_ = 0, written_ = 0;  // as they were at the last look
  uint32_t good_looks_ = 0;              // in a row, with writes and none that found no room
};

inline constexpr uint64_t kFilesWanted = 65'536;
// The soft limit on descriptors becomes the hard one; the limit in force.
uint64_t RaiseFileLimit();
// Empty, or the warning with the remedy.
std::string FileLimitWarning(uint64_t limit);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_HOUSEKEEPING_H_
