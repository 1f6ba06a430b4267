// Sizes in and numbers out.
#include "client/cli/format.h"

#include <gtest/gtest.h>

namespace crumb::cli {
namespace {

TEST(Format, SizesAreReadExactly) {
  uint64_t bytes = 0;
  EXPECT_TRUE(ParseSize("4096", &bytes));
  EXPECT_EQ(bytes, 4096u);
  EXPECT_TRUE(ParseSize("64KiB", &bytes));
  EXPECT_EQ(bytes, 65536u);
  EXPECT_TRUE(ParseSize("3MiB", &bytes));
  EXPECT_EQ(bytes, 3u << 20);
  EXPECT_TRUE(ParseSize("1GiB", &bytes));
  EXPECT_TRUE(ParseSize("3TiB", &bytes));
  EXPECT_EQ(bytes, 3ull << 40);
  for (const char* bad : {"", "0", "KiB", "1KB", "1 KiB", "-1", "+1", "1.5MiB", "1e3", "0x10",
                          "99999999999999999999", "2048TiB", "16777217TiB"}) {
    EXPECT_FALSE(ParseSize(bad, &bytes)) << bad;
  }
}

TEST(Format, NumbersForPeople) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.50 KiB");
  EXPECT_EQ(HumanCount(999), "999");
  EXPECT_EQ(HumanCount(1234567), "1.23 M");
  EXPECT_EQ(HumanMicros(999), "999 us");
  EXPECT_EQ(HumanMicros(1500), "1.50 ms");
  EXPECT_EQ(HumanMicros(2'500'000), "2.50 s");
}

TEST(Format, ColumnsLineUp) {
  EXPECT_EQ(Table("A\tB\nlong\tx\n"), "A     B\nlong  x\n");
  EXPECT_EQ(Table(""), "");
}

}  // namespace
}  // namespace crumb::cli
