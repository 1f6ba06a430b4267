// What the NVMe tier does beside serving: keeping its write budget, rescuing pages of the segment
// that is written over next, scrubbing. All of it is work that may be left alone: it takes what
// serving leaves of reads and staging memory, and ends when the tier does.
// INVARIANT: a page is rescued under its entry: at most one write per key is in flight (disk.cc).
#ifndef CRUMB_CACHESVC_CORE_ENGINE_DISK_H_
#define CRUMB_CACHESVC_CORE_ENGINE_DISK_H_

#include <cstdint>
#include <functional>

#include "cachesvc/core/engine_demote.h"
#include "cachesvc/core/write_budget.h"

namespace crumb::core {

// Whether a verified record is the page that the index means. disk.cc
bool IsImageOf(const PageHeader& header, const Index& index, EntryId id);

inline constexpr uint32_t kRescuesMax = 8;   // in flight, read or written
inline constexpr uint32_t kQuietReads = 4;   // gets' reads in flight under which a scrub reads
inline constexpr uint64_t kRescueShare = 4;  // 1 / share of a segment, rescued at most

// A page on its way out of the segment that is written over next.
struct Rescue {
  bool used = false;
  uint32_t generation = 0;
  EntryId entry = kNoId;
  uint32_t entry_generation = 0;
  DiskLocation from;
  SlotId slot;        // of staging
  bool read = false;  // and verified: waits to be written
  bool writing = false;
};

struct RescueState {
  uint32_t segment = 0, log_generation = 0;  // that is being looked at; 0: none
  uint32_t offset_blocks = 0;                // records in front of it were looked at
  uint64_t bytes = 0;                        // taken from this segment
  bool done = true;
};

struct ScrubState {
  uint32_t segment = 0, offset_blocks = 0;  // what comes next
  uint32_t read = kNoId;                    // in flight
  uint64_t next_us = 0;                     // not before
  uint64_t pass_began_us = 0, pass_bytes = 0;
};

class EngineDisk : public EngineDemote {
 public:
  using EngineDemote::EngineDemote;

  // disk_spare.cc
  bool MayWriteSpare();  // an evicted page, a rescued one: what the budget can refuse
  void ChargeBudget();
  Grant StartSpareRead(EntryId id, ReadFor purpose, uint32_t* read);
  void EndSpareRead(uint32_t id, BlockResult result);
  void ForgetBadRecord(const DiskRead& read, BlockResult result);
  void LoseRecord(EntryId id);
  uint64_t NextSpareUs() const;
  // disk_rescue.cc
  int RunRescues();
  bool WantsRescue(const LogRecord& record, EntryId* id);
  bool LookForRescues();
  Grant StartRescue(EntryId entry);
  void OnRescueRead(DiskRead& read, bool good);
  void WriteRescue(uint32_t id);
  void EndRescueAppend(DiskAppend& append, const LogEvent& event);
  void EndRescue(uint32_t id, bool done);
  // disk_resize.cc
  void StartResize(uint64_t bytes, std::function<void(absl::Status)> done);
  void OnResized(BlockResult result);
  // disk_scrub.cc
  int RunScrub();
  bool ScrubNext();
  void EndScrubPass();

  WriteBudget write_budget{options.disk.write_bytes_per_day, now()};
  Slab<Rescue> rescues{kRescuesMax};
  RescueState rescue;
  ScrubState scrub;
  std::function<void(absl::Status)> resized;  // runs when the change of size that is on ends
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_ENGINE_DISK_H_
