// Ticks wrap after 2^32 keys: a mark that old may pass for new once, which costs nothing.
#include "cachesvc/core/ghost_keys.h"

#include <algorithm>
#include <bit>

namespace crumb::core {
namespace {

uint32_t MarkOf(uint64_t key) { return static_cast<uint32_t>(key >> 32) | 1; }

}  // namespace

absl::StatusOr<GhostKeys> GhostKeys::Create(uint32_t keys_max) {
  GhostKeys ghosts;
  const uint64_t cells = std::max<uint64_t>(std::bit_ceil(uint64_t{keys_max}), kWays);
  CRUMB_ASSIGN(ghosts.memory_, Arena::Map(cells * sizeof(Cell), HugePages::kNo));
  ghosts.cells_ = {reinterpret_cast<Cell*>(ghosts.memory_.bytes().data()),
                   static_cast<size_t>(cells)};
  ghosts.bucket_mask_ = static_cast<uint32_t>(cells / kWays) - 1;
  return ghosts;
}

std::span<GhostKeys::Cell> GhostKeys::BucketOf(uint64_t key) const {
  return cells_.subspan((static_cast<uint32_t>(key) & bucket_mask_) * size_t{kWays}, kWays);
}

void GhostKeys::Add(uint64_t key) {
  const uint32_t mark = MarkOf(key);
  const std::span<Cell> bucket = BucketOf(key);
  Cell* place = &bucket[0];
  for (Cell& cell : bucket) {
    if (cell.mark == mark || cell.mark == 0) {
      place = &cell;
      break;
    }
    if (tick_ - cell.tick > tick_ - place->tick) place = &cell;
  }
  *place = {.mark = mark, .tick = ++tick_};
}

bool GhostKeys::Take(uint64_t key, uint32_t window) {
  for (Cell& cell : BucketOf(key)) {
    if (cell.mark != MarkOf(key)) continue;
    const bool recent = tick_ - cell.tick < window;
    cell.mark = 0;
    return recent;
  }
  return false;
}

}  // namespace crumb::core
