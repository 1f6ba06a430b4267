// Values of benchmark keys are told apart and checked whole.
#include "client/cli/bench_values.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace crumb::cli {
namespace {

TEST(BenchValues, EveryKeyHasItsOwnAndEveryByteCounts) {
  const BenchValues values(ValueKind::kBytes, 1000, 7);
  std::vector<uint8_t> a(1000), b(1000);
  values.Fill(1, absl::MakeSpan(a));
  values.Fill(2, absl::MakeSpan(b));
  EXPECT_NE(a, b);
  EXPECT_TRUE(values.Matches(1, a));
  EXPECT_FALSE(values.Matches(2, a));
  EXPECT_FALSE(values.Matches(1, absl::MakeSpan(a).first(999)));
  for (size_t i : {size_t{0}, size_t{500}, size_t{999}}) {
    a[i] ^= 1;
    EXPECT_FALSE(values.Matches(1, a));
    a[i] ^= 1;
  }
}

TEST(BenchValues, Bf16ValuesAreFiniteAndAboutNormal) {
  const BenchValues values(ValueKind::kBf16, 65536, 7);
  std::vector<uint8_t> bytes(65536);
  values.Fill(3, absl::MakeSpan(bytes));
  double sum = 0, squares = 0;
  for (size_t i = 0; i < bytes.size(); i += 2) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(bytes[i + 1]) << 24 |
                                             static_cast<uint32_t>(bytes[i]) << 16);
    ASSERT_TRUE(std::isfinite(value));
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const double count = 32768;
  EXPECT_NEAR(sum / count, 0, 0.05);
  EXPECT_NEAR(std::sqrt(squares / count), 1.15, 0.2);
}

}  // namespace
}  // namespace crumb::cli
