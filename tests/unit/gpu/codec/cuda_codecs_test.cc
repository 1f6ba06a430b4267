// What MakeCudaCodecs finds: with a GPU and over kernels that count.
#include "gpu/codec/cuda_codecs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/codec_sample.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;

TEST(CudaCodecsTest, RawComesFirstAndEveryDescriptorHasAnEntry) {
  const PartShape shape = testing::MakePart({.layer_ids = {7}, .k_dim = 64, .v_dim = 64});
  CodecDescriptor decoded_only = CodecDescriptor::Default(CodecKind::kInt4, {});
  decoded_only.packing = Packing::kInterleaved;
  decoded_only.group = 32;
  const std::vector<CodecDescriptor> wanted = {CodecDescriptor::Default(CodecKind::kCrumbInt4, {}),
                                               CodecDescriptor{}, decoded_only};
  const auto made = MakeCudaCodecs(shape, wanted, nullptr, 0);
  ASSERT_EQ(made.size(), 3u);
  EXPECT_EQ(made[0].descriptor.kind, CodecKind::kRaw);
  for (const GpuCodecMade& one : made) {
    ASSERT_NE(one.codec, nullptr) << one.status;
    EXPECT_EQ(one.codec->descriptor().id(), one.descriptor.id());
    EXPECT_EQ(one.codec->device(), 0);
    EXPECT_EQ(one.codec->encodes(), one.status.ok());
  }
  EXPECT_TRUE(made[0].status.ok() && made[1].status.ok());
  EXPECT_EQ(made[1].descriptor.kind, CodecKind::kCrumbInt4);
  EXPECT_THAT(std::string(made[2].status.message()), HasSubstr("layer 7 K"));
}

TEST(CudaCodecsTest, WhatHasNoKernelSaysWhy) {
  const PartShape shape = testing::MakePart({.layer_ids = {7}, .k_dim = 96, .v_dim = 64});
  const CodecDescriptor int4 = CodecDescriptor::Default(CodecKind::kInt4, {});
  const auto made = MakeCudaCodecs(shape, {&int4, 1}, nullptr, 0);
  ASSERT_EQ(made.size(), 2u);
  EXPECT_NE(made[0].codec, nullptr) << made[0].status;
  EXPECT_EQ(made[1].codec, nullptr);
  EXPECT_THAT(std::string(made[1].status.message()), HasSubstr("head dim 96"));

  const PartShape odd =
      testing::MakePart({.layer_ids = {7}, .k_dim = 33, .v_dim = 0, .dtype = RawDtype::kOpaque});
  const auto none = MakeCudaCodecs(odd, {&int4, 1}, nullptr, 0);
  ASSERT_EQ(none.size(), 2u);
  EXPECT_EQ(none[0].codec, nullptr);
  EXPECT_EQ(none[1].codec, nullptr);
  EXPECT_FALSE(none[0].status.ok() || none[1].status.ok());
}

}  // namespace
}  // namespace crumb
