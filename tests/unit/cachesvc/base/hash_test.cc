// Hashes: known values, and streams that equal one call however they are cut.
#include "cachesvc/base/hash.h"

#include <gtest/gtest.h>

#include <vector>

#include "cachesvc/base/bytes.h"

namespace crumb {
namespace {

std::vector<uint8_t> Sample(size_t bytes) {
  std::vector<uint8_t> out(bytes);
  uint32_t state = 1;
  for (uint8_t& byte : out) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return out;
}

TEST(HashTest, Sha256OfKnownTexts) {
  EXPECT_EQ(Hex(Sha256Of(AsBytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hex(Sha256Of({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(HashTest, AStreamEqualsOneCallWhereverItIsCut) {
  const std::vector<uint8_t> data = Sample(70'000);
  for (const size_t bytes : {0ul, 1ul, 16ul, 128ul, 240ul, 241ul, 4096ul, 65'537ul, 70'000ul}) {
    const Bytes whole(data.data(), bytes);
    for (const size_t step : {1ul, 63ul, 256ul, 1000ul, 32'768ul}) {
      if (bytes / step > 5000) continue;
      Xxh3Stream stream;
      for (size_t at = 0; at < bytes; at += step) stream.Add(whole.subspan(at, step));
      EXPECT_EQ(stream.Digest(), Xxh3(whole)) << bytes << " by " << step;
    }
    EXPECT_EQ(Xxh3(whole.subspan(0, bytes / 3), whole.subspan(bytes / 3)), Xxh3(whole));
  }
}

}  // namespace
}  // namespace crumb
