// RequestTable: every request that was submitted and not yet answered, its deadline, and the slots
// it owns. Verifies what arrived. A request past its deadline is reported as kTimeout and stays as
// an orphan: the daemon may still touch its slots until it answers. Thread: the Client's.
#ifndef CRUMB_CLIENT_SRC_REQUEST_TABLE_H_
#define CRUMB_CLIENT_SRC_REQUEST_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/src/data_plane.h"
#include "crumb/types.h"

namespace crumb::client {

class RequestTable {
 public:
  explicit RequestTable(uint32_t requests_max) : requests_max_(requests_max) {}

  struct Entry {
    std::shared_ptr<const PlaneRequest> request;
    bool verify = true;
    uint64_t submitted_us = 0;
    uint64_t give_up_us = 0;
    bool orphan = false;
  };

  bool full() const { return entries_.size() >= requests_max_; }
  bool empty() const { return entries_.empty(); }
  // Not yet reported.
  size_t in_flight() const { return entries_.size() - orphans_; }
  size_t orphans() const { return orphans_; }

  // REQUIRES: !full(); the request's id is new.
  void Add(Entry entry);
  // Answers that belong to nobody are dropped (returns false).
  bool Finish(const PlaneReply& reply, std::vector<Completion>* out);
  void Expire(uint64_t now_us, std::vector<Completion>* out);
  // The daemon is gone: everything ends, orphans too (silently, they were reported).
  void FailAll(Code code, std::vector<Completion>* out);

  bool OwnsSlot(uint32_t region_set, uint32_t slot) const { return Owns(region_set, slot, false); }
  bool OrphanOwnsSlot(uint32_t region_set, uint32_t slot) const {
    return orphans_ != 0 && Owns(region_set, slot, true);
  }
  bool OwnsRegionSet(uint32_t region_set) const;
  // Earliest give_up_us / submitted_us of what is not yet reported / of all; UINT64_MAX if none.
  uint64_t next_give_up_us() const;
  uint64_t oldest_us() const;

 private:
  bool Owns(uint32_t region_set, uint32_t slot, bool only_orphans) const;
  Result Judge(const Entry& entry, size_t block, const WireBlockReply& reply);

  uint32_t requests_max_;
  size_t orphans_ = 0;
  std::unordered_map<uint64_t, Entry> entries_;
  std::string scratch_;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_REQUEST_TABLE_H_
