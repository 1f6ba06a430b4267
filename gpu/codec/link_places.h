// PlaceTables: which part of a link's memory each table of places takes, first fit. Knows numbers
// and no memory; the link copies. One thread. No allocation after the constructor.
#ifndef CRUMB_GPU_CODEC_LINK_PLACES_H_
#define CRUMB_GPU_CODEC_LINK_PLACES_H_

#include <cstdint>
#include <vector>

namespace crumb {

struct PlaceTable {
  enum class Copy : uint8_t { kWaiting, kEnqueued, kRefused };
  uint32_t first = 0;  // in the link's memory, in places
  uint32_t count = 0;
  uint32_t tokens_per_slot = 0;
  Copy copy = Copy::kWaiting;
  bool aligned = false;  // every address and stride is a multiple of 16
  uint32_t jobs = 0;     // that name it and are not done
  bool held = false;     // by whoever added it
  bool flying = false;   // its copy was taken by the queue, and is not back
};

class PlaceTables {
 public:
  static constexpr uint32_t kNone = 0xffffffff;

  PlaceTables(uint32_t tables, uint32_t places);

  // A table of `count` >= 1 places, held and waiting for its copy; kNone: no table or no gap left.
  uint32_t Take(uint32_t count);
  // REQUIRES: held. What it takes is free once its copy is back and its jobs are done.
  void Drop(uint32_t id);
  // Its copy went to the queue, which enqueued or refused it; its copy is back.
  void Sent(uint32_t id);
  void Landed(uint32_t id);
  void BeginJob(uint32_t id) { ++at(id).jobs; }
  void EndJobs(uint32_t id, uint32_t count);

  // REQUIRES: id came from Take, and is not free again.
  PlaceTable& at(uint32_t id);
  bool held(uint32_t id) const { return id < tables_.size() && tables_[id].held; }
  // The first table at or after `from` that waits for its copy; kNone: there is none.
  uint32_t NextWaiting(uint32_t from) const;

 private:
  void FreeIfUnused(uint32_t id);

  const uint32_t places_;
  std::vector<PlaceTable> tables_;
  std::vector<uint32_t> order_;  // ids in use, by `first`
  uint32_t used_ = 0;            // of order_
  uint32_t waiting_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_LINK_PLACES_H_
