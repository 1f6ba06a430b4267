// Boundary tags: each run knows its length at both ends, so that freeing joins its neighbours in
// constant time. Never touches page memory. One thread.
#include "gpu/pool/staging_area.h"

#include "cachesvc/base/check.h"

namespace crumb {

StagingArea::StagingArea(uint32_t units) : tags_(units), starts_(units) {
  CRUMB_CHECK(units < 0x7fffffff);
  if (units > 0) Tag(0, units, false);
}

void StagingArea::Tag(uint32_t first, uint32_t units, bool used) {
  const auto length = static_cast<int32_t>(units);
  tags_[first] = used ? -length : length;
  tags_[first + units - 1] = tags_[first];
  starts_[first] = used;
}

uint32_t StagingArea::Allocate(uint32_t units) {
  CRUMB_CHECK(units > 0);
  uint32_t first = 0;
  while (first < tags_.size()) {
    const int32_t tag = tags_[first];
    if (tag < 0) {
      first += static_cast<uint32_t>(-tag);
      continue;
    }
    const auto length = static_cast<uint32_t>(tag);
    if (length < units) {
      first += length;
      continue;
    }
    Tag(first, units, true);
    if (length > units) Tag(first + units, length - units, false);
    used_ += units;
    return first;
  }
  return kNone;
}

void StagingArea::Free(uint32_t first) {
  CRUMB_CHECK(IsAllocated(first));
  uint32_t units = units_of(first);
  used_ -= units;
  starts_[first] = false;
  uint32_t begin = first;
  const uint32_t end = first + units;
  if (end < tags_.size() && tags_[end] > 0) units += static_cast<uint32_t>(tags_[end]);
  if (begin > 0 && tags_[begin - 1] > 0) {
    const auto before = static_cast<uint32_t>(tags_[begin - 1]);
    begin -= before;
    units += before;
  }
  Tag(begin, units, false);
}

bool StagingArea::IsAllocated(uint32_t first) const {
  return first < starts_.size() && starts_[first];
}

uint32_t StagingArea::units_of(uint32_t first) const {
  CRUMB_CHECK(IsAllocated(first));
  return static_cast<uint32_t>(-tags_[first]);
}

}  // namespace crumb
