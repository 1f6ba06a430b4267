// Session: what one worker holds: peers, lent memory, pins, and which lossy pages it was served.
// Created and destroyed by the control verbs on the shard (may allocate); looked up by operations
// at every use, so that none of them can outlive it in a pointer.
#ifndef CRUMB_CACHESVC_CORE_SESSION_H_
#define CRUMB_CACHESVC_CORE_SESSION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cachesvc/core/engine.h"
#include "cachesvc/core/index.h"
#include "cachesvc/core/slab.h"
#include "cachesvc/net/region_set.h"

namespace crumb::core {

// Which pages a session was served, as far as their loss matters for what it puts next: a page
// computed from lossy context is lossy itself, however precisely it is stored.
class ServedPages {
 public:
  explicit ServedPages(uint32_t pages_max) : pages_max_(pages_max) {}

  // A page was served (or put) whose children have this depth; 0 is not worth a place.
  void Note(uint64_t key_prefix, uint8_t child_depth) {
    if (child_depth == 0) return;
    const auto it = depths_.find(key_prefix);
    if (it != depths_.end()) {
      it->second = child_depth;
    } else if (depths_.size() < pages_max_) {
      depths_.emplace(key_prefix, child_depth);
    } else {
      overflowed_ = true;
    }
  }
  // Depth of a page whose parent is `key_prefix`. Unknown means lossy: once pages were forgotten,
  // one that is not found counts as served lossy, `parent_depth` being what the index knows.
  uint8_t ChildDepth(uint64_t key_prefix, uint8_t parent_depth) const {
    const auto it = depths_.find(key_prefix);
    if (it != depths_.end()) return it->second;
    if (!overflowed_) return 0;
    return parent_depth < 255 ? static_cast<uint8_t>(parent_depth + 1) : 255;
  }

 private:
  uint32_t pages_max_;
  bool overflowed_ = false;
  absl::flat_hash_map<uint64_t, uint8_t> depths_;
};

struct RegisteredSet {
  uint32_t id = 0;
  uint32_t layout_handle = 0;
  RegionSet set;
};

// A client's pin of one page, until it expires.
struct PinRecord {
  bool used = false;
  uint32_t generation = 0;
  uint32_t prev = 0, next = 0;
  List<PinRecord>* list = nullptr;
  SessionId session;
  EntryId entry = kNoId;
  uint32_t entry_generation = 0;
};

struct Session {
  SessionId id;
  std::string tenant;
  std::vector<uint32_t> peers;  // ids in the peer slab
  std::vector<RegisteredSet> region_sets;
  List<PinRecord> pins;
  ServedPages served;

  explicit Session(uint32_t served_max) : served(served_max) {}

  const RegisteredSet* FindSet(uint32_t set_id) const {
    for (const RegisteredSet& set : region_sets) {
      if (set.id == set_id) return &set;
    }
    return nullptr;
  }
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_SESSION_H_
