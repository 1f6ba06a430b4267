// A bucket is a chain through its entries; there are at least twice as many buckets as entries. A
// new bucket takes from one older bucket what belongs into it (W. Litwin, "Linear hashing", VLDB
// 1980). Never looks at page memory. One thread (the shard).
#include "cachesvc/core/index.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"

namespace crumb::core {
namespace {
constexpr uint32_t kEntriesMax = 1u << 28;
constexpr uint32_t kBucketsPerEntry = 2;  // a look-up passes 1.25 entries
}  // namespace

absl::StatusOr<Index> Index::Create(uint32_t entries_max, HashFunction hash) {
  if (entries_max == 0 || entries_max > kEntriesMax) {
    return absl::InvalidArgumentError(absl::StrCat("index_entries_max is ", entries_max,
                                                   "; it must be between 1 and ", kEntriesMax));
  }
  Index index;
  const uint32_t buckets = kBucketsPerEntry * entries_max;
  const uint64_t entry_bytes = uint64_t{entries_max} * sizeof(Entry);
  CRUMB_ASSIGN(index.entry_memory_, Arena::Map(entry_bytes, HugePages::kTransparent));
  CRUMB_ASSIGN(index.table_memory_,
               Arena::Map(uint64_t{buckets} * sizeof(uint32_t), HugePages::kTransparent));
  index.entries_ = {reinterpret_cast<Entry*>(index.entry_memory_.bytes().data()), entries_max};
  index.buckets_ = {reinterpret_cast<uint32_t*>(index.table_memory_.bytes().data()), buckets};
  index.hash_ = hash;
  return index;
}

EntryId Index::Find(const BlockKey& key) const {
  EntryId id = buckets_[BucketOf(key.prefix64())] - 1;
  while (id != kNoId && entries_[id].key != key) id = entries_[id].next;
  return id;
}

void Index::PrefetchEntry(uint64_t prefix) const {
  const uint32_t first = buckets_[BucketOf(prefix)];
  if (first != 0) __builtin_prefetch(&entries_[first - 1]);
}

EntryId Index::FindPrefix(uint64_t prefix) const {
  EntryId id = buckets_[BucketOf(prefix)] - 1;
  while (id != kNoId && entries_[id].key.prefix64() != prefix) id = entries_[id].next;
  return id;
}

void Index::Reserve(uint64_t entries) {
  if (size_ > 0) return;
  const auto wanted = static_cast<uint32_t>(std::min<uint64_t>(entries, entries_.size()));
  bucket_count_ = std::max(bucket_count_, kBucketsPerEntry * wanted);
  mask_ = std::bit_ceil(bucket_count_) - 1;
}

// One bucket more.
void Index::Grow() {
  const uint32_t made = bucket_count_++;
  mask_ = std::bit_ceil(bucket_count_) - 1;
  EntryId id = std::exchange(buckets_[made & (mask_ >> 1)], 0) - 1;
  while (id != kNoId) {
    Entry& entry = entries_[id];
    uint32_t& first = buckets_[BucketOf(entry.key.prefix64())];
    const EntryId next = std::exchange(entry.next, first - 1);
    first = id + 1;
    id = next;
  }
}

EntryId Index::Insert(const BlockKey& key) {
  EntryId id = free_head_;
  if (id != kNoId) {
    free_head_ = entries_[id].place;
  } else if (entries_used_ < entries_.size()) {
    id = entries_used_++;
  } else {
    return kNoId;
  }
  const uint32_t generation = entries_[id].generation + 1;
  Entry& entry = entries_[id];
  entry = Entry{};
  entry.key = key;
  entry.generation = generation;
  entry.place = kNoId;
  entry.live = true;
  for (++size_; bucket_count_ < kBucketsPerEntry * size_;) Grow();
  CRUMB_CHECK(Find(key) == kNoId);
  uint32_t& first = buckets_[BucketOf(key.prefix64())];
  entry.next = first - 1;
  first = id + 1;
  return id;
}

void Index::Erase(EntryId id) {
  Entry& entry = entries_[id];
  CRUMB_CHECK(entry.live);
  uint32_t& first = buckets_[BucketOf(entry.key.prefix64())];
  if (first == id + 1) {
    first = entry.next + 1;
  } else {
    EntryId before = first - 1;
    while (entries_[before].next != id) before = entries_[before].next;
    entries_[before].next = entry.next;
  }
  if (entry.kind != kNoKind) kinds_.Give(entry.kind);
  entry.live = false;
  entry.place = free_head_;
  free_head_ = id;
  --size_;
}

void Index::SetKind(EntryId id, KindId taken) {
  Entry& entry = entries_[id];
  if (entry.kind != kNoKind) kinds_.Give(entry.kind);
  entry.kind = taken;
}

DiskLocation Index::location(EntryId id) const {
  const Entry& entry = entries_[id];
  if (!entry.on_disk()) return {};
  return {.segment = entry.segment,
          .generation = entry.segment_generation,
          .offset_blocks = entry.offset_blocks,
          .record_bytes = static_cast<uint32_t>(KindOf(entry).slot_bytes())};
}

void Index::SetLocation(EntryId id, const DiskLocation& location) {
  Entry& entry = entries_[id];
  entry.segment = location.segment & 0x7fffffff;
  entry.disk_hit = 0;
  entry.segment_generation = location.generation;
  entry.offset_blocks = static_cast<uint16_t>(location.offset_blocks);
  // A segment has no more blocks than that, and a record the size of its page.
  CRUMB_CHECK(entry.offset_blocks == location.offset_blocks);
  CRUMB_CHECK(!entry.on_disk() || location.record_bytes == KindOf(entry).slot_bytes());
}

uint64_t Index::bytes_used() const {
  return entries_used_ * sizeof(Entry) + bucket_count_ * sizeof(uint32_t);
}

}  // namespace crumb::core
