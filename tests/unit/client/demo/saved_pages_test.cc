// The file between --save and --verify: there and back, and damaged anywhere.
#include "client/demo/saved_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace crumb::demo {
namespace {

using ::testing::HasSubstr;

std::vector<SavedPage> Pages() {
  Sha256 hash{};
  for (size_t i = 0; i < hash.size(); ++i) hash[i] = static_cast<uint8_t>(7 * i + 1);
  return {{"crumb-int2", "demo/1/crumb-int2/0", 0, hash}, {"raw", "demo/1/raw/0", 7, Sha256{}}};
}

std::string ErrorOf(const std::string& text) {
  const auto pages = ParseSavedPages(text);
  return pages.ok() ? "" : std::string(pages.status().message());
}

TEST(SavedPages, GoThereAndBack) {
  const auto pages = ParseSavedPages(FormatSavedPages(Pages()));
  ASSERT_TRUE(pages.ok()) << pages.status();
  EXPECT_EQ(*pages, Pages());
}

TEST(SavedPages, TruncationsAreRefused) {
  const std::string text = FormatSavedPages(Pages());
  const size_t first_page = text.find('\n', text.find('\n') + 1) + 1;
  for (size_t size = 0; size < text.size(); ++size) {
    if (size == first_page) continue;  // ends with a whole line: a shorter, sound file
    EXPECT_NE(ErrorOf(text.substr(0, size)), "") << size;
  }
}

TEST(SavedPages, ErrorsNameTheLine) {
  EXPECT_THAT(ErrorOf("\n"), HasSubstr("line 1: not a file"));
  EXPECT_THAT(ErrorOf("crumb-demo pages 1\n"), HasSubstr("names no pages"));
  EXPECT_THAT(ErrorOf("crumb-demo pages 1\na b 1\n"), HasSubstr("line 2: not 'codec"));
  const std::string hash(64, '0');
  EXPECT_EQ(ErrorOf("crumb-demo pages 1\na b 1 " + hash + "\n"), "");
  EXPECT_THAT(ErrorOf("crumb-demo pages 1\na b -1 " + hash + "\n"), HasSubstr("no number"));
  EXPECT_THAT(ErrorOf("crumb-demo pages 1\na b 4294967296 " + hash + "\n"), HasSubstr("no number"));
  EXPECT_THAT(ErrorOf("crumb-demo pages 1\na  1 " + hash + "\n"), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf("crumb-demo pages 1\na b 1 " + hash + "0\n"), HasSubstr("64 hexadecimal"));
  EXPECT_THAT(ErrorOf("crumb-demo pages 1\na b 1 " + std::string(64, 'g') + "\n"),
              HasSubstr("64 hexadecimal"));
}

}  // namespace
}  // namespace crumb::demo
