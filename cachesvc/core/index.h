// Index: from BlockKey to what is known of a page and where it lies. Open addressing over a fixed
// slab of entries; nothing is allocated after Create and memory is touched only as it fills. Keys
// are compared whole, so a weak hash costs time and never gives a wrong page. One thread (the
// shard). Ids are stable for the life of an entry; `generation` tells lives apart.
#ifndef CRUMB_CACHESVC_CORE_INDEX_H_
#define CRUMB_CACHESVC_CORE_INDEX_H_

#include <cstdint>
#include <span>

#include "cachesvc/base/page_header.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "gpu/pool/arena.h"
#include "gpu/pool/page_pool.h"
#include "storage/segment/segment_log.h"

namespace crumb::core {

using EntryId = uint32_t;
// Of a SlotId: it is one of the HBM pool. The engine's slots of both pools share one form.
inline constexpr uint32_t kHbmSlotBit = 1u << 31;
static_assert(kPoolBytesMax / kPageAlignment <= kHbmSlotBit);

inline bool IsHbm(SlotId slot) { return slot.valid() && (slot.value & kHbmSlotBit) != 0; }
inline constexpr uint32_t kNoId = 0xffffffff;

struct Entry {
  BlockKey key;
  uint64_t identity_prefix, tenant_prefix, codec_id, parent_prefix;
  DiskLocation location;  // generation 0: not on disk
  SlotId slot;            // invalid: on disk alone
  uint32_t payload_bytes, raw_bytes, token_start;
  uint16_t token_count, part;
  uint32_t children;           // hint: pages that name this one as parent
  uint32_t resident_children;  // hint: those of them in memory
  uint32_t client_pins;        // with a TTL
  uint32_t generation;
  uint32_t born;    // flush sequence at publication
  uint32_t append;  // AppendOp that writes it, or kNoId
  union {
    uint32_t read;       // ReadOp that loads it, or kNoId
    uint32_t next_free;  // of the free list, while not live
  };
  Precision precision;
  Provenance provenance;
  uint8_t lossy_depth;
  uint8_t header_flags;
  bool durable;  // the record at `location` is on stable storage
  bool live;
  bool touched;         // since its append for eviction began
  bool prefetched : 1;  // raised by a prefetch, and not yet got
  bool fresh : 1;       // raw because it is recent: to be demoted, in a slab of its kind
  bool gpu_got : 1;     // from DRAM into a worker's GPU memory, since it came to DRAM
  bool gpu_put : 1;     // out of a worker's GPU memory

  bool on_disk() const { return location.generation != 0; }
  bool resident() const { return slot.valid(); }
  bool in_hbm() const { return IsHbm(slot); }
  bool in_memory() const { return slot.valid() && !IsHbm(slot); }  // the host's
  Tier tier() const { return in_hbm() ? Tier::kHbm : resident() ? Tier::kDram : Tier::kNvme; }
};
static_assert(sizeof(Entry) <= 120);  // with its cells in the table a page takes 128

class Index {
 public:
  using HashFunction = uint64_t (*)(uint64_t prefix);

  // `hash` of a key's first 8 bytes; null: they are a hash by themselves.
  static absl::StatusOr<Index> Create(uint32_t entries_max, HashFunction hash);

  EntryId Find(const BlockKey& key) const;
  // Brings what Find of this key will read closer, in two steps, so that a batch of look-ups waits
  // for memory once and not once per key.
  void PrefetchCell(const BlockKey& key) const {
    __builtin_prefetch(&table_[Home(key.prefix64())]);
  }
  void PrefetchEntry(const BlockKey& key) const;
  // Some entry whose key begins with these bytes.
  EntryId FindPrefix(uint64_t prefix) const;
  // REQUIRES: the key is absent. A fresh entry with only key, generation and the neutral values of
  // the other fields set; kNoId when full.
  EntryId Insert(const BlockKey& key);
  void Erase(EntryId id);

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
  Index() = default;
  uint32_t Home(uint64_t prefix) const {
    return static_cast<uint32_t>(hash_ == nullptr ? prefix : hash_(prefix)) & mask_;
  }

  Arena entry_memory_, table_memory_;
  std::span<Entry> entries_;
  std::span<uint32_t> table_;  // id + 1; 0 = empty
  HashFunction hash_ = nullptr;
  uint32_t mask_ = 0;
  uint32_t size_ = 0;
  uint32_t entries_used_ = 0;  // high-water mark
  uint32_t free_head_ = kNoId;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_INDEX_H_
