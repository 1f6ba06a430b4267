// RecordTable against a plain model. One thread.
#include "storage/segment/record_table.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "cachesvc/base/rng.h"

namespace crumb {
namespace {

Record Make(uint32_t offset) {
  Record record{};
  record.key.bytes[0] = static_cast<uint8_t>(offset);
  record.key.bytes[1] = static_cast<uint8_t>(offset >> 8);
  record.offset_blocks = offset;
  record.blocks = 1;
  return record;
}

TEST(RecordTableTest, FindsExactlyWhatWasAdded) {
  RecordTable table(1000, 2);
  RecordList list;
  for (uint32_t offset = 3; offset < 900; offset += 3) table.Add(&list, Make(offset));
  for (uint32_t offset = 0; offset < 1000; ++offset) {
    const Record* found = table.Find(list, offset);
    ASSERT_EQ(found != nullptr, offset >= 3 && offset < 900 && offset % 3 == 0) << offset;
    if (found != nullptr) {
      ASSERT_EQ(found->key, Make(offset).key);
    }
  }
  EXPECT_EQ(table.Find(RecordList{}, 0), nullptr);
}

TEST(RecordTableTest, SaysWhenItIsFullAndRecycles) {
  RecordTable table(256, 2);  // a few chunks of 64
  RecordList a, b;
  uint32_t added = 0;
  while (table.HasRoom(a)) table.Add(&a, Make(added++));
  EXPECT_GE(added, 256u);
  EXPECT_FALSE(table.HasRoom(b));
  table.Free(&a);
  EXPECT_EQ(a.size, 0u);
  for (uint32_t i = 0; i < added; ++i) {
    ASSERT_TRUE(table.HasRoom(b));
    table.Add(&b, Make(i));
  }
}

TEST(RecordTableTest, RandomListsAgainstAModel) {
  RecordTable table(4000, 8);
  std::vector<RecordList> lists(8);
  std::vector<std::map<uint32_t, Record>> model(8);
  Rng rng(1);
  for (int step = 0; step < 20'000; ++step) {
    const size_t i = rng.Below(8);
    if (rng.Chance(1, 300)) {
      table.Free(&lists[i]);
      model[i].clear();
    } else if (rng.Chance(1, 400)) {  // told bit by bit, in order
      uint32_t cursor = 0;
      RecordList taken = lists[i];
      lists[i] = {};
      for (const auto& [offset, record] : model[i]) {
        ASSERT_EQ(table.PopFront(&taken, &cursor).offset_blocks, offset);
      }
      ASSERT_EQ(taken.size, 0u);
      model[i].clear();
    } else if (table.HasRoom(lists[i])) {
      const uint32_t offset = (model[i].empty() ? 0 : model[i].rbegin()->first) + 1 +
                              static_cast<uint32_t>(rng.Below(5));
      table.Add(&lists[i], Make(offset));
      model[i][offset] = Make(offset);
    }
    ASSERT_EQ(lists[i].size, model[i].size());
  }
  for (size_t i = 0; i < 8; ++i) {
    auto expected = model[i].begin();
    table.ForEach(lists[i], [&](const Record& record) {
      ASSERT_EQ(record.offset_blocks, expected->first);
      ++expected;
    });
    EXPECT_EQ(expected, model[i].end());
  }
}

}  // namespace
}  // namespace crumb
