// The scan for NaN and Inf against the plain definition, with one bad element at every place and
// every bit pattern of an element.
#include "gpu/codec/finite_scan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <vector>

namespace crumb {
namespace {

std::vector<uint8_t> Page(size_t elements, uint16_t bits) {
  std::vector<uint8_t> page(elements * 2);
  for (size_t i = 0; i < elements; ++i) std::memcpy(&page[2 * i], &bits, sizeof(bits));
  return page;
}

TEST(FiniteScan, EveryPatternIsJudgedAsItsExponentSays) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    for (const size_t elements : {1u, 32u, 37u}) {
      const std::vector<uint8_t> page = Page(elements, pattern);
      ASSERT_EQ(AllFinite(page, RawDtype::kBf16), (bits & 0x7f80) != 0x7f80) << bits;
      ASSERT_EQ(AllFinite(page, RawDtype::kFp16), (bits & 0x7c00) != 0x7c00) << bits;
    }
  }
}

TEST(FiniteScan, OneBadElementIsFoundWhereverItIs) {
  constexpr size_t kElements = 200;
  for (const uint16_t good :
       std::initializer_list<uint16_t>{0x0000, 0x0001, 0x8000, 0x7f7f, 0xff7f, 0x3f80}) {
    std::vector<uint8_t> page = Page(kElements, good);
    ASSERT_TRUE(AllFinite(page, RawDtype::kBf16)) << good;
    for (size_t at = 0; at < kElements; ++at) {
      for (const uint16_t bad : std::initializer_list<uint16_t>{0x7f80, 0xff80, 0x7fc0, 0xffff}) {
        std::vector<uint8_t> one = page;
        std::memcpy(&one[2 * at], &bad, sizeof(bad));
        ASSERT_FALSE(AllFinite(one, RawDtype::kBf16)) << good << " " << at;
      }
    }
  }
}

}  // namespace
}  // namespace crumb
