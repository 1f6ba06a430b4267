// See record_table.h. The log's thread.
#include "storage/segment/record_table.h"

#include <algorithm>

#include "cachesvc/base/check.h"

namespace crumb {

RecordTable::RecordTable(uint64_t records_max, uint32_t lists_max) {
  const uint64_t count = records_max / kPerChunk + 1 + lists_max;
  CRUMB_CHECK(count < RecordList::kNone);
  chunk_count_ = static_cast<uint32_t>(count);
  memory_ = AlignedBuffer(count * sizeof(Chunk));
  chunks_ = reinterpret_cast<Chunk*>(memory_.data());
}

void RecordTable::Grow(uint64_t records_max, uint32_t lists_max) {
  const uint64_t count = records_max / kPerChunk + 1 + lists_max;
  if (count <= chunk_count_) return;
  CRUMB_CHECK(count < RecordList::kNone);
  memory_.Grow(count * sizeof(Chunk));
  chunk_count_ = static_cast<uint32_t>(count);
  chunks_ = reinterpret_cast<Chunk*>(memory_.data());
}

uint32_t RecordTable::TakeChunk() {
  uint32_t index = free_;
  if (index != RecordList::kNone) {
    free_ = chunks_[index].next;
  } else {
    CRUMB_CHECK(untouched_ < chunk_count_);
    index = untouched_++;
  }
  chunks_[index].next = RecordList::kNone;
  chunks_[index].size = 0;
  return index;
}

void RecordTable::GiveChunk(uint32_t index) {
  chunks_[index].next = free_;
  free_ = index;
}

bool RecordTable::HasRoom(const RecordList& list) const {
  if (list.last != RecordList::kNone && chunks_[list.last].size < kPerChunk) return true;
  return free_ != RecordList::kNone || untouched_ < chunk_count_;
}

Record* RecordTable::Add(RecordList* list, const Record& record) {
  if (list->last == RecordList::kNone || chunks_[list->last].size == kPerChunk) {
    const uint32_t index = TakeChunk();
    if (list->last == RecordList::kNone) {
      list->first = index;
    } else {
      chunks_[list->last].next = index;
    }
    list->last = index;
  }
  Chunk& chunk = chunks_[list->last];
  CRUMB_CHECK(chunk.size == 0 ||
              chunk.records[chunk.size - 1].offset_blocks < record.offset_blocks);
  chunk.records[chunk.size] = record;
  ++list->size;
  return &chunk.records[chunk.size++];
}

Record* RecordTable::Find(const RecordList& list, uint32_t offset_blocks) {
  for (uint32_t index = list.first; index != RecordList::kNone; index = chunks_[index].next) {
    Chunk& chunk = chunks_[index];
    if (chunk.size == 0 || chunk.records[chunk.size - 1].offset_blocks < offset_blocks) continue;
    Record* const end = chunk.records.data() + chunk.size;
    Record* const found = std::lower_bound(
        chunk.records.data(), end, offset_blocks,
        [](const Record& record, uint32_t offset) { return record.offset_blocks < offset; });
    return found != end && found->offset_blocks == offset_blocks ? found : nullptr;
  }
  return nullptr;
}

Record RecordTable::PopFront(RecordList* list, uint32_t* cursor) {
  CRUMB_CHECK(list->size > 0 && list->first != RecordList::kNone);
  const uint32_t index = list->first;
  CRUMB_CHECK(*cursor < chunks_[index].size);
  const Record record = chunks_[index].records[*cursor];
  ++*cursor;
  --list->size;
  if (*cursor == chunks_[index].size) {
    *cursor = 0;
    list->first = chunks_[index].next;
    if (list->first == RecordList::kNone) list->last = RecordList::kNone;
    GiveChunk(index);
  }
  return record;
}

void RecordTable::Free(RecordList* list) {
  uint32_t index = list->first;
  while (index != RecordList::kNone) {
    const uint32_t next = chunks_[index].next;
    GiveChunk(index);
    index = next;
  }
  *list = {};
}

}  // namespace crumb
