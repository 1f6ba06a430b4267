// Index: from BlockKey to what is known of a page and where it lies. Linear hashing over a fixed
// slab of entries: the table grows bucket by bucket, so that memory follows what is there, and
// no insertion waits for a rehash. Nothing is allocated after Create (but see page_kinds.h). Keys
// are compared whole, so a weak hash costs time and never gives a wrong page. One thread (the
// shard). Ids are stable for the life of an entry; `generation` tells lives apart. An entry holds
// what a page on disk needs, one cache line; what only pages in memory have is in residents.h, what
// many pages share in page_kinds.h.
#ifndef CRUMB_CACHESVC_CORE_INDEX_H_
#define CRUMB_CACHESVC_CORE_INDEX_H_

#include <cstdint>
#include <span>

#include "cachesvc/base/page_header.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "cachesvc/core/page_kinds.h"
#include "gpu/pool/arena.h"
#include "gpu/pool/page_pool.h"
#include "storage/segment/segment_log.h"

namespace crumb::core {

using EntryId = uint32_t;
using PageId = uint32_t;  // of Residents: a page in memory
// Of a SlotId: it is one of the HBM pool. The engine's slots of both pools share one form.
inline constexpr uint32_t kHbmSlotBit = 1u << 31;
static_assert(kPoolBytesMax / kPageAlignment <= kHbmSlotBit);

inline bool IsHbm(SlotId slot) { return slot.valid() && (slot.value & kHbmSlotBit) != 0; }
inline constexpr uint32_t kNoId = 0xffffffff;

struct alignas(64) Entry {
  BlockKey key;
  uint64_t parent_prefix;
  uint32_t segment : 31;        // of its record; a PiB of the smallest takes 30
  uint32_t disk_hit : 1;        // read for a get since it was written there
  uint32_t segment_generation;  // 0: not on disk
  uint32_t generation;
  EntryId next;                // in its bucket, or kNoId
  uint16_t children;           // hint: pages that name this one as parent
  uint16_t resident_children;  // hint: those of them in memory
  uint32_t newest_end;         // hint: how far the chains behind it reach, in tokens
  uint32_t token_start;
  uint32_t place;          // PageId in memory; else the ReadOp that loads it, or kNoId
  uint16_t offset_blocks;  // of its record in the segment
  KindId kind;
  uint16_t token_count;
  uint8_t spared;  // by the flushes of these numbers: it came after them
  Provenance provenance : 2;
  Tier memory : 3;   // kHbm, kDram; kNone: on disk alone
  bool durable : 1;  // its record is on stable storage
  bool live : 1;
  bool pinned : 1;  // by clients, with a TTL

  bool on_disk() const { return segment_generation != 0; }
  bool resident() const { return memory != Tier::kNone; }
  bool in_hbm() const { return memory == Tier::kHbm; }
  bool in_memory() const { return memory == Tier::kDram; }  // the host's
  Tier tier() const { return resident() ? memory : Tier::kNvme; }
  uint32_t read() const { return resident() ? kNoId : place; }
};
static_assert(sizeof(Entry) == 64);

// A hint that has reached the end of its range stays there.
constexpr void CountHint(uint16_t* count, int change) {
  if (*count == 0xffff || (change < 0 && *count == 0)) return;
  *count = static_cast<uint16_t>(*count + change);
}

class Index {
 public:
  using HashFunction = uint64_t (*)(uint64_t prefix);

  Index() = default;
  // `hash` of a key's first 8 bytes; null: they are a hash by themselves.
  static absl::StatusOr<Index> Create(uint32_t entries_max, HashFunction hash);

  EntryId Find(const BlockKey& key) const;
  // Brings what Find of a key that begins so will read closer, in two steps, so that a batch of
  // look-ups waits for memory once and not once per key.
  void PrefetchCell(uint64_t prefix) const { __builtin_prefetch(&buckets_[BucketOf(prefix)]); }
  void PrefetchEntry(uint64_t prefix) const;
  // Some entry whose key begins with these bytes.
  EntryId FindPrefix(uint64_t prefix) const;
  // REQUIRES: the key is absent. A fresh entry with only key, generation and the neutral values of
  // the other fields set; kNoId when full.
  EntryId Insert(const BlockKey& key);
  // While it is empty: buckets for so many entries at once, instead of one by one.
  void Reserve(uint64_t entries);
  void Erase(EntryId id);
  // kNoKind: too many other kinds have pages. Goes to SetKind, or back.
  KindId TakeKind(const PageKind& kind) { return kinds_.Take(kind); }
  void GiveKind(KindId taken) { kinds_.Give(taken); }
  void SetKind(EntryId id, KindId taken);
  const PageKind& KindOf(const Entry& entry) const { return kinds_[entry.kind]; }
  const PageKind& kind(EntryId id) const { return KindOf(entries_[id]); }
  // Of its record. REQUIRES: it has a kind.
  DiskLocation location(EntryId id) const;
  void SetLocation(EntryId id, const DiskLocation& location);

  Entry& at(EntryId id) { return entries_[id]; }
  const Entry& at(EntryId id) const { return entries_[id]; }
  bool Alive(EntryId id, uint32_t generation) const {
    return id < entries_used_ && entries_[id].live && entries_[id].generation == generation;
  }
  uint32_t size() const { return size_; }
  uint32_t capacity() const { return static_cast<uint32_t>(entries_.size()); }
  uint32_t scan_end() const { return entries_used_; }  // ids below it may be live
  uint64_t bytes_used() const;

 private:
  uint32_t BucketOf(uint64_t prefix) const {
    const auto hash = static_cast<uint32_t>(hash_ == nullptr ? prefix : hash_(prefix));
    const uint32_t bucket = hash & mask_;
    return bucket < bucket_count_ ? bucket : hash & (mask_ >> 1);
  }
  void Grow();

  Arena entry_memory_, table_memory_;
  PageKinds kinds_;
  std::span<Entry> entries_;
  std::span<uint32_t> buckets_;  // id + 1 of the first entry; 0 = empty
  HashFunction hash_ = nullptr;
  uint32_t bucket_count_ = 1;  // in use
  uint32_t mask_ = 0;          // the power of two that is not below it, less one
  uint32_t size_ = 0;
  uint32_t entries_used_ = 0;  // high-water mark
  uint32_t free_head_ = kNoId;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_INDEX_H_
