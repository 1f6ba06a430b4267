// What the daemon looks after beside its requests: memory that sessions left behind goes back to
// the system, the limit on descriptors is raised, a disk tier that turns itself off or on is said.
// Never on the shard's thread: all of it may block. One thread each, the control thread for what
// ticks.
#ifndef CRUMB_CACHESVC_SERVER_HOUSEKEEPING_H_
#define CRUMB_CACHESVC_SERVER_HOUSEKEEPING_H_

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

// Says once that the NVMe tier went off, and once that it came back.
class TierWatch {
 public:
  explicit TierWatch(Log* log) : log_(log) {}
  void Look(const EngineStats& stats);

 private:
  Log* const log_;
  bool on_ = true;
};

inline constexpr uint64_t kFilesWanted = 65'536;
// The soft limit on descriptors becomes the hard one; the limit in force.
uint64_t RaiseFileLimit();
// Empty, or the warning with the remedy.
std::string FileLimitWarning(uint64_t limit);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_HOUSEKEEPING_H_
