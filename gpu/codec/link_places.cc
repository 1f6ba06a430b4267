// Bookkeeping of tables; at most kGpuTablesMax of them, so every walk is short.
#include "gpu/codec/link_places.h"

#include <algorithm>

#include "cachesvc/base/check.h"

namespace crumb {

PlaceTables::PlaceTables(uint32_t tables, uint32_t places)
    : places_(places), tables_(tables), order_(tables) {}

uint32_t PlaceTables::Take(uint32_t count) {
  CRUMB_CHECK(count >= 1);
  if (used_ == order_.size() || count > places_) return kNone;
  uint32_t first = 0;
  uint32_t at = 0;
  for (; at < used_; ++at) {
    const PlaceTable& next = tables_[order_[at]];
    if (next.first - first >= count) break;
    first = next.first + next.count;
  }
  if (at == used_ && places_ - first < count) return kNone;
  uint32_t id = 0;
  while (tables_[id].count != 0) ++id;  // there is one: used_ of them are taken
  std::copy_backward(order_.begin() + at, order_.begin() + used_, order_.begin() + used_ + 1);
  order_[at] = id;
  ++used_;
  ++waiting_;
  tables_[id] = {.first = first, .count = count, .held = true};
  return id;
}

PlaceTable& PlaceTables::at(uint32_t id) {
  CRUMB_CHECK(id < tables_.size() && tables_[id].count != 0);
  return tables_[id];
}

void PlaceTables::Drop(uint32_t id) {
  PlaceTable& table = at(id);
  CRUMB_CHECK(table.held);
  table.held = false;
  FreeIfUnused(id);
}

void PlaceTables::EndJobs(uint32_t id, uint32_t count) {
  PlaceTable& table = at(id);
  CRUMB_CHECK(table.jobs >= count);
  table.jobs -= count;
  FreeIfUnused(id);
}

void PlaceTables::Sent(uint32_t id) {
  PlaceTable& table = at(id);
  CRUMB_CHECK(!table.flying && table.copy != PlaceTable::Copy::kWaiting && waiting_ > 0);
  table.flying = true;
  --waiting_;
}

void PlaceTables::Landed(uint32_t id) {
  PlaceTable& table = at(id);
  CRUMB_CHECK(table.flying);
  table.flying = false;
  FreeIfUnused(id);
}

uint32_t PlaceTables::NextWaiting(uint32_t from) const {
  for (uint32_t id = from; waiting_ != 0 && id < tables_.size(); ++id) {
    if (tables_[id].count != 0 && tables_[id].copy == PlaceTable::Copy::kWaiting) return id;
  }
  return kNone;
}

void PlaceTables::FreeIfUnused(uint32_t id) {
  const PlaceTable& table = tables_[id];
  if (table.held || table.flying || table.jobs != 0) return;
  if (table.copy == PlaceTable::Copy::kWaiting) --waiting_;
  const auto end = order_.begin() + used_;
  const auto place = std::find(order_.begin(), end, id);
  CRUMB_CHECK(place != end);
  std::copy(place + 1, end, place);
  --used_;
  tables_[id] = {};
}

}  // namespace crumb
