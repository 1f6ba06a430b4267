// Linear probing at a load of at most one half, with deletion by shifting back, so that there are
// no tombstones and no rehash. Never looks at page memory. One thread (the shard).
#include "cachesvc/core/index.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"

namespace crumb::core {
namespace {
constexpr uint32_t kEntriesMax = 1u << 28;
}  // namespace

absl::StatusOr<Index> Index::Create(uint32_t entries_max, HashFunction hash) {
  if (entries_max == 0 || entries_max > kEntriesMax) {
    return absl::InvalidArgumentError(absl::StrCat("index_entries_max is ", entries_max,
                                                   "; it must be between 1 and ", kEntriesMax));
  }
  Index index;
  const uint32_t cells = std::bit_ceil(2 * entries_max);
  const uint64_t entry_bytes = uint64_t{entries_max} * sizeof(Entry);
  CRUMB_ASSIGN(index.entry_memory_, Arena::Map(entry_bytes, HugePages::kNo));
  CRUMB_ASSIGN(index.table_memory_, Arena::Map(uint64_t{cells} * sizeof(uint32_t), HugePages::kNo));
  index.entries_ = {reinterpret_cast<Entry*>(index.entry_memory_.bytes().data()), entries_max};
  index.table_ = {reinterpret_cast<uint32_t*>(index.table_memory_.bytes().data()), cells};
  index.mask_ = cells - 1;
  index.hash_ = hash;
  return index;
}

EntryId Index::Find(const BlockKey& key) const {
  for (uint32_t cell = Home(key.prefix64()); table_[cell] != 0; cell = (cell + 1) & mask_) {
    if (entries_[table_[cell] - 1].key == key) return table_[cell] - 1;
  }
  return kNoId;
}

void Index::PrefetchEntry(const BlockKey& key) const {
  const uint32_t cell = table_[Home(key.prefix64())];
  if (cell == 0) return;
  const auto* const entry = reinterpret_cast<const uint8_t*>(&entries_[cell - 1]);
  __builtin_prefetch(entry);
  __builtin_prefetch(entry + sizeof(Entry) - 1);  // an entry lies in two cache lines
}

EntryId Index::FindPrefix(uint64_t prefix) const {
  for (uint32_t cell = Home(prefix); table_[cell] != 0; cell = (cell + 1) & mask_) {
    if (entries_[table_[cell] - 1].key.prefix64() == prefix) return table_[cell] - 1;
  }
  return kNoId;
}

EntryId Index::Insert(const BlockKey& key) {
  EntryId id = free_head_;
  if (id != kNoId) {
    free_head_ = entries_[id].next_free;
  } else if (entries_used_ < entries_.size()) {
    id = entries_used_++;
  } else {
    return kNoId;
  }
  const uint32_t generation = entries_[id].generation + 1;
  Entry& entry = entries_[id];
  entry = Entry{};
  entry.key = key;
  entry.slot = SlotId{};
  entry.generation = generation;
  entry.append = entry.read = kNoId;
  entry.live = true;
  uint32_t cell = Home(key.prefix64());
  while (table_[cell] != 0) {
    CRUMB_CHECK(entries_[table_[cell] - 1].key != key);
    cell = (cell + 1) & mask_;
  }
  table_[cell] = id + 1;
  ++size_;
  return id;
}

void Index::Erase(EntryId id) {
  Entry& entry = entries_[id];
  CRUMB_CHECK(entry.live);
  uint32_t hole = Home(entry.key.prefix64());
  while (table_[hole] != id + 1) hole = (hole + 1) & mask_;
  for (uint32_t cell = (hole + 1) & mask_; table_[cell] != 0; cell = (cell + 1) & mask_) {
    const uint32_t home = Home(entries_[table_[cell] - 1].key.prefix64());
    // Move back what may not stay behind a hole: its home is not inside (hole, cell].
    if (((cell - home) & mask_) >= ((cell - hole) & mask_)) {
      table_[hole] = table_[cell];
      hole = cell;
    }
  }
  table_[hole] = 0;
  entry.live = false;
  entry.next_free = free_head_;
  free_head_ = id;
  --size_;
}

uint64_t Index::bytes_used() const {
  return uint64_t{entries_used_} * (sizeof(Entry) + 2 * sizeof(uint32_t));
}

}  // namespace crumb::core
