// Bookkeeping. One thread (the shard).
#include "cachesvc/core/page_kinds.h"

#include "cachesvc/base/check.h"

namespace crumb::core {
namespace {
constexpr size_t kKindsExpected = 256;
}  // namespace

PageKinds::PageKinds() : slots_(1) {
  slots_.reserve(kKindsExpected);
  free_.reserve(kKindsExpected);
  ids_.reserve(kKindsExpected);
}

KindId PageKinds::Take(const PageKind& kind) {
  if (slots_[last_].pages > 0 && slots_[last_].kind == kind) {
    ++slots_[last_].pages;
    return last_;
  }
  const auto known = ids_.find(kind);
  KindId id = known == ids_.end() ? kNoKind : known->second;
  if (known == ids_.end()) {
    if (ids_.size() == kKindsMax) return kNoKind;
    if (free_.empty()) {
      id = static_cast<KindId>(slots_.size());
      slots_.emplace_back();
    } else {
      id = free_.back();
      free_.pop_back();
    }
    slots_[id].kind = kind;
    ids_.emplace(kind, id);
  }
  ++slots_[id].pages;
  last_ = id;
  return id;
}

void PageKinds::Give(KindId id) {
  Slot& slot = slots_[id];
  CRUMB_CHECK(id != kNoKind && slot.pages > 0);
  if (--slot.pages > 0) return;
  ids_.erase(slot.kind);
  free_.push_back(id);
}

}  // namespace crumb::core
