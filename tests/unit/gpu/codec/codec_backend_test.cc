// Names and choice of codec backends.
#include "gpu/codec/codec_backend.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/gpu/codec/codec_test_util.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;

constexpr CodecBackend kAll[] = {CodecBackend::kAuto, CodecBackend::kReference, CodecBackend::kAvx2,
                                 CodecBackend::kAvx512};

TEST(CodecBackendTest, NamesRoundTrip) {
  for (const CodecBackend backend : kAll) {
    const auto parsed = ParseCodecBackend(ToString(backend));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, backend);
  }
  EXPECT_THAT(std::string(ParseCodecBackend("sse2").status().message()), HasSubstr("avx512"));
  EXPECT_FALSE(ParseCodecBackend("").ok());
}

TEST(CodecBackendTest, AutoIsTheFastestSupported) {
  const std::vector<CodecBackend> supported = SupportedCodecBackends();
  ASSERT_FALSE(supported.empty());
  EXPECT_EQ(supported.front(), CodecBackend::kReference);
  EXPECT_TRUE(std::is_sorted(supported.begin(), supported.end()));
  EXPECT_EQ(*ResolveCodecBackend(CodecBackend::kAuto), supported.back());
}

TEST(CodecBackendTest, WhatIsNotThereIsRefusedWithTheRemedy) {
  const std::vector<CodecBackend> supported = SupportedCodecBackends();
  for (const CodecBackend backend : kAll) {
    if (backend == CodecBackend::kAuto) continue;
    const auto resolved = ResolveCodecBackend(backend);
    const bool runs = std::find(supported.begin(), supported.end(), backend) != supported.end();
    ASSERT_EQ(resolved.ok(), runs);
    const PartShape part = testing::MakePart({});
    const CodecDescriptor d = CodecDescriptor::Default(CodecKind::kCrumbInt4, {});
    EXPECT_EQ(PageCodec::Create(part, d, nullptr, backend).ok(), runs);
    if (runs) {
      EXPECT_EQ(*resolved, backend);
      continue;
    }
    EXPECT_EQ(resolved.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(resolved.status().message()), HasSubstr("use auto, or one of: ref"));
  }
}

}  // namespace
}  // namespace crumb
