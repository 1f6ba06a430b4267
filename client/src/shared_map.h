// SharedMap: which of the worker's memory is a shared mapping, and of which file. Descriptors are
// duplicates and close with the map. Immutable ranges; a copy of the map shares them, so that the
// helper thread can connect again while the worker goes on. Thread: the owner's of each copy.
#ifndef CRUMB_CLIENT_SRC_SHARED_MAP_H_
#define CRUMB_CLIENT_SRC_SHARED_MAP_H_

#include <memory>
#include <optional>
#include <vector>

#include "cachesvc/base/status.h"
#include "crumb/shared_memory.h"

namespace crumb::client {

class SharedMap {
 public:
  // INVALID_ARGUMENT: no open file, not page-aligned, past the file's end, or across a known range.
  absl::Status Add(const SharedRange& range);
  // The part of a file behind [address, address + bytes), if one range has all of it.
  std::optional<SharedRange> Find(uint64_t address, uint64_t bytes) const;
  size_t size() const { return ranges_.size(); }

 private:
  struct Held {  // owns the descriptor
    explicit Held(const SharedRange& with) : range(with) {}
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    SharedRange range;
  };
  std::vector<std::shared_ptr<const Held>> ranges_;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_SHARED_MAP_H_
