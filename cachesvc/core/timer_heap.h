// TimerHeap: deadlines of things with small ids, earliest first; any of them can be taken out.
// Sized once; no allocation afterwards. Equal deadlines come in order of id, so that runs repeat.
// One thread.
#ifndef CRUMB_CACHESVC_CORE_TIMER_HEAP_H_
#define CRUMB_CACHESVC_CORE_TIMER_HEAP_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "cachesvc/base/check.h"

namespace crumb::core {

class TimerHeap {
 public:
  explicit TimerHeap(uint32_t ids) : place_(ids, kAbsent) { heap_.reserve(ids); }

  // Sets or moves the deadline of `id`.
  void Set(uint32_t id, uint64_t deadline_us) {
    CRUMB_CHECK(id < place_.size());
    Remove(id);
    heap_.push_back({deadline_us, id});
    place_[id] = static_cast<uint32_t>(heap_.size()) - 1;
    Up(place_[id]);
  }
  void Remove(uint32_t id) {
    const uint32_t at = place_[id];
    if (at == kAbsent) return;
    const auto last = static_cast<uint32_t>(heap_.size()) - 1;
    Swap(at, last);
    heap_.pop_back();
    place_[id] = kAbsent;
    if (at == last) return;
    Up(at);
    Down(at);
  }
  bool empty() const { return heap_.empty(); }
  uint64_t next_us() const { return heap_.empty() ? UINT64_MAX : heap_[0].first; }
  // The earliest, if it is due.
  bool PopDue(uint64_t now_us, uint32_t* id) {
    if (heap_.empty() || heap_[0].first > now_us) return false;
    *id = heap_[0].second;
    Remove(*id);
    return true;
  }

 private:
  static constexpr uint32_t kAbsent = 0xffffffff;

  void Swap(uint32_t a, uint32_t b) {
    std::swap(heap_[a], heap_[b]);
    place_[heap_[a].second] = a;
    place_[heap_[b].second] = b;
  }
  void Up(uint32_t at) {
    while (at > 0 && heap_[at] < heap_[(at - 1) / 2]) {
      Swap(at, (at - 1) / 2);
      at = (at - 1) / 2;
    }
  }
  void Down(uint32_t at) {
    while (true) {
      uint32_t least = at;
      for (const uint32_t child : {2 * at + 1, 2 * at + 2}) {
        if (child < heap_.size() && heap_[child] < heap_[least]) least = child;
      }
      if (least == at) return;
      Swap(at, least);
      at = least;
    }
  }

  std::vector<std::pair<uint64_t, uint32_t>> heap_;
  std::vector<uint32_t> place_;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_TIMER_HEAP_H_
