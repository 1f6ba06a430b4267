// RequestTable: every request that was submitted and not yet answered, its deadline, and the slots
// it owns. Verifies what arrived. A request past its deadline is reported as kTimeout and stays as
// an orphan: the daemon may still touch its slots until it answers. Keeps the memory of requests
// and completions that are done for the next ones. Thread: the Client's.
#ifndef CRUMB_CLIENT_SRC_REQUEST_TABLE_H_
#define CRUMB_CLIENT_SRC_REQUEST_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/src/data_plane.h"
#include "crumb/types.h"

namespace crumb::client {

class RequestTable {
 public:
  struct Bounds {
    uint32_t requests = 64;
    uint64_t bytes = UINT64_MAX;  // of values; one request may always be in flight
  };
  explicit RequestTable(const Bounds& bounds);

  struct Entry {
    std::shared_ptr<const PlaneRequest> request;
    uint64_t submitted_us = 0;
    uint64_t give_up_us = 0;
    uint64_t bytes = 0;      // of values; Add counts them
    bool orphan = false;     // reported as kTimeout
    bool disowned = false;   // an orphan whose slots are the worker's again
    bool cancelled = false;  // the worker asked
  };

  bool full() const { return entries_.size() >= bounds_.requests; }
  bool HasRoomFor(const PlaneRequest& request) const;
  bool empty() const { return entries_.empty(); }
  // Not yet reported.
  size_t in_flight() const { return entries_.size() - orphans_; }
  size_t orphans() const { return orphans_; }
  uint64_t bytes() const { return bytes_; }

  // An empty request, used before or new.
  std::shared_ptr<PlaneRequest> NewRequest();
  // REQUIRES: !full() and HasRoomFor; the request's id is new.
  void Add(Entry entry);
  // What became of an answer.
  enum class Answer : uint8_t { kUnknown, kInTime, kLate };
  Answer Finish(const PlaneReply& reply, std::vector<Completion>* out);
  // `expired`: ids that became orphans.
  void Expire(uint64_t now_us, std::vector<Completion>* out, std::vector<uint64_t>* expired);
  // Its slots are free again although it was not answered.
  void Disown(uint64_t id);
  // False: no such request, or it was reported already.
  bool MarkCancelled(uint64_t id);
  // The daemon is gone: everything ends, orphans too (silently, they were reported).
  void FailAll(Code code, std::vector<Completion>* out);

  bool OwnsSlot(uint32_t region_set, uint32_t slot) const { return Owns(region_set, slot, false); }
  bool OrphanOwnsSlot(uint32_t region_set, uint32_t slot) const {
    return orphans_ != 0 && Owns(region_set, slot, true);
  }
  bool OwnsRegionSet(uint32_t region_set) const;
  // Not after the earliest give_up_us of what is not yet reported; UINT64_MAX if nothing is.
  uint64_t next_give_up_us() const { return in_flight() == 0 ? UINT64_MAX : next_give_up_us_; }
  // The earliest submitted_us of all; UINT64_MAX if none.
  uint64_t oldest_us() const;

  // Takes completions back for their memory; clears the vector.
  void Recycle(std::vector<Completion>* completions);

 private:
  using Map = absl::flat_hash_map<uint64_t, Entry>;
  bool Owns(uint32_t region_set, uint32_t slot, bool only_orphans) const;
  Completion NewCompletion(uint64_t id, Code code, size_t blocks);
  Completion Ended(uint64_t id, const Entry& entry, Code code);
  Result Judge(const Entry& entry, size_t block, const PlaneReply& reply);
  void Judge(const Entry& entry, const PlaneReply& reply, Completion* completion);
  void Forget(Map::iterator found);

  const Bounds bounds_;
  Map entries_;
  size_t orphans_ = 0;
  uint64_t bytes_ = 0;
  uint64_t next_give_up_us_ = UINT64_MAX;
  std::vector<std::shared_ptr<PlaneRequest>> spare_requests_;
  std::vector<Completion> spare_completions_;
  LentMemory::Scratch scratch_;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_REQUEST_TABLE_H_
