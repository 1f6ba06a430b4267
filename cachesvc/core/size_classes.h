// SizeClasses: small dense numbers for the size classes in use, so that policies keep a list per
// class without allocating once as many classes were seen as there ever are at a time. A class
// lives while it has members. Bounded by the pages that can be in memory. One thread (the shard).
#ifndef CRUMB_CACHESVC_CORE_SIZE_CLASSES_H_
#define CRUMB_CACHESVC_CORE_SIZE_CLASSES_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cachesvc/base/check.h"

namespace crumb::core {

// T: what is kept per class; T{} for a class that is new.
template <typename T>
class SizeClasses {
 public:
  static constexpr uint32_t kNone = 0xffffffff;

  SizeClasses() {
    constexpr size_t kClassesExpected = 256;
    slots_.reserve(kClassesExpected);
    free_.reserve(kClassesExpected);
    numbers_.reserve(kClassesExpected);
  }

  // Adds a member to the class; its number.
  uint32_t Join(uint32_t size_class) {
    auto [it, fresh] = numbers_.try_emplace(size_class, 0);
    if (fresh) {
      if (free_.empty()) {
        it->second = static_cast<uint32_t>(slots_.size());
        slots_.emplace_back();
      } else {
        it->second = free_.back();
        free_.pop_back();
      }
      slots_[it->second] = {.size_class = size_class, .members = 0, .value = T{}};
    }
    ++slots_[it->second].members;
    return it->second;
  }
  // Takes a member away; the last one takes the class with it.
  void Leave(uint32_t number) {
    CRUMB_CHECK(number < slots_.size() && slots_[number].members > 0);
    if (--slots_[number].members > 0) return;
    numbers_.erase(slots_[number].size_class);
    free_.push_back(number);
  }
  uint32_t Find(uint32_t size_class) const {
    const auto it = numbers_.find(size_class);
    return it == numbers_.end() ? kNone : it->second;
  }
  T& operator[](uint32_t number) { return slots_[number].value; }
  // Numbers in use lie below, among some that are not: an order that is the same in every run,
  // which the map's is not.
  uint32_t end() const { return static_cast<uint32_t>(slots_.size()); }
  bool used(uint32_t number) const { return slots_[number].members > 0; }

 private:
  struct Slot {
    uint32_t size_class = 0;
    uint32_t members = 0;
    T value{};
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  absl::flat_hash_map<uint32_t, uint32_t> numbers_;  // by size class
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_SIZE_CLASSES_H_
