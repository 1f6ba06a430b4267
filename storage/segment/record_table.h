// Which records live in which segment: 24 bytes per record, in chunks from one pool that is made
// at start and only touched as it is used. One thread (the log's); no allocation after Create.
// INVARIANT: within a segment records are in ascending order of offset.
#ifndef CRUMB_STORAGE_SEGMENT_RECORD_TABLE_H_
#define CRUMB_STORAGE_SEGMENT_RECORD_TABLE_H_

#include <array>
#include <cstdint>

#include "cachesvc/base/types.h"
#include "storage/device/aligned_buffer.h"

namespace crumb {

// kFailed: its write met an error, so that nobody knows whether it is on the medium.
enum class RecordState : uint32_t { kWriting = 0, kLive = 1, kDead = 2, kFailed = 3 };

struct Record {
  BlockKey key;
  uint32_t offset_blocks;
  uint32_t blocks : 28;
  uint32_t state : 4;

  RecordState record_state() const { return static_cast<RecordState>(state); }
  void SetState(RecordState value) { state = static_cast<uint32_t>(value) & 0xf; }
};
static_assert(sizeof(Record) == 24);

// The records of one segment; a plain value, moved by swapping it out. Empty at first.
struct RecordList {
  static constexpr uint32_t kNone = 0xffffffff;
  uint32_t first = kNone, last = kNone;
  uint32_t size = 0;
};

class RecordTable {
 public:
  // Room for at least `records_max` records in `lists_max` lists.
  RecordTable(uint64_t records_max, uint32_t lists_max);

  // Room for so many, if it has less: one longer stretch of memory, nothing is copied.
  void Grow(uint64_t records_max, uint32_t lists_max);

  // False when no chunk is left: free a list first.
  bool HasRoom(const RecordList& list) const;
  // REQUIRES: HasRoom and a higher offset than the last one's.
  Record* Add(RecordList* list, const Record& record);
  // Null if there is none at this offset.
  Record* Find(const RecordList& list, uint32_t offset_blocks);
  // Takes the first record off the list. REQUIRES: not empty.
  Record PopFront(RecordList* list, uint32_t* cursor);
  // Gives all chunks back.
  void Free(RecordList* list);

  template <typename F>
  void ForEach(const RecordList& list, F&& visit) {
    for (uint32_t index = list.first; index != RecordList::kNone; index = chunks_[index].next) {
      for (uint32_t i = 0; i < chunks_[index].size; ++i) visit(chunks_[index].records[i]);
    }
  }

  // The same from the first record at or behind `offset_blocks` on, until `visit` says false.
  template <typename F>
  void ForEachFrom(const RecordList& list, uint32_t offset_blocks, F&& visit) const {
    for (uint32_t index = list.first; index != RecordList::kNone; index = chunks_[index].next) {
      const Chunk& chunk = chunks_[index];
      if (chunk.size == 0 || chunk.records[chunk.size - 1].offset_blocks < offset_blocks) continue;
      for (uint32_t i = 0; i < chunk.size; ++i) {
        if (chunk.records[i].offset_blocks >= offset_blocks && !visit(chunk.records[i])) return;
      }
    }
  }

 private:
  static constexpr uint32_t kPerChunk = 64;
  struct Chunk {
    uint32_t next;
    uint32_t size;
    std::array<Record, kPerChunk> records;
  };

  uint32_t TakeChunk();
  void GiveChunk(uint32_t index);

  uint32_t chunk_count_;
  AlignedBuffer memory_;  // zeroed pages that cost nothing until a chunk is used
  Chunk* chunks_ = nullptr;
  uint32_t untouched_ = 0;             // chunks from here on were never used
  uint32_t free_ = RecordList::kNone;  // list of given-back chunks
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_RECORD_TABLE_H_
