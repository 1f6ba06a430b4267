// The .npz reader against the committed sample, and against damaged headers.
#include "tests/support/npz.h"

#include <gtest/gtest.h>

#include <string>

#include "cachesvc/base/bytes.h"

namespace crumb::testing {
namespace {

std::string Npy(const std::string& dictionary, const std::string& data) {
  std::string out("\x93NUMPY\x01\x00", 8);
  out.push_back(static_cast<char>(dictionary.size()));
  out.push_back('\0');
  return out + dictionary + data;
}

TEST(NpzTest, ReadsTheSample) {
  const NpzFile file = NpzFile::OpenTestData("smollm2/smollm2_qkv_sample.npz");
  const NpyArray& k = file["layer0_k_bf16"];
  EXPECT_EQ(k.shape, (std::vector<size_t>{512, 3, 64}));
  EXPECT_EQ(k.values<uint16_t>().size(), 512u * 3 * 64);
  EXPECT_EQ(file["token_ids"].values<int32_t>().size(), 512u);
  EXPECT_FALSE(file.Has("layer1_k_bf16"));
}

TEST(NpzTest, ReadsOneArray) {
  const auto array = ParseNpy(
      AsBytes(Npy("{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }", "\1\0\2\0\3\1")));
  EXPECT_FALSE(array.ok());  // the literal ends at its first NUL: too short
  const auto whole =
      ParseNpy(AsBytes(Npy("{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }",
                           std::string("\1\0\2\0\3\1", 6))));
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->values<uint16_t>()[2], 0x0103);
}

TEST(NpzTest, RefusesWhatItDoesNotKnow) {
  const std::string data("\1\0\2\0", 4);
  for (const char* dictionary :
       {"{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '>u2', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<u2', 'fortran_order': True, 'shape': (2,), }",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (x,), }", "{}"}) {
    EXPECT_FALSE(ParseNpy(AsBytes(Npy(dictionary, data))).ok()) << dictionary;
  }
  EXPECT_FALSE(ParseNpy(AsBytes("PK")).ok());
  EXPECT_FALSE(NpzFile::Open("/nonexistent.npz").ok());
}

}  // namespace
}  // namespace crumb::testing
