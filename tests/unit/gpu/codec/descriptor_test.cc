// CodecDescriptor: names, legal settings, frozen canonical bytes, and a parser that no bytes
// mislead.
#include "gpu/codec/descriptor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cachesvc/base/bytes.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;

Sha256 SomeSet() {
  Sha256 set{};
  for (size_t i = 0; i < set.size(); ++i) set[i] = static_cast<uint8_t>(i + 1);
  return set;
}

std::vector<CodecKind> AllKinds() {
  std::vector<CodecKind> kinds;
  for (int i = 0; i <= static_cast<int>(CodecKind::kHadamardInt4); ++i) {
    kinds.push_back(static_cast<CodecKind>(i));
  }
  return kinds;
}

TEST(DescriptorTest, NamesRoundTrip) {
  for (const CodecKind kind : AllKinds()) {
    const auto parsed = ParseCodecKind(ToString(kind));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, kind);
  }
  const auto unknown = ParseCodecKind("int3");
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("crumb-int2"));
  for (const Effort effort : {Effort::kDraft, Effort::kNormal, Effort::kBest}) {
    EXPECT_EQ(*ParseEffort(ToString(effort)), effort);
  }
  EXPECT_FALSE(ParseEffort("fast").ok());
}

TEST(DescriptorTest, Precisions) {
  EXPECT_EQ(PrecisionOf(CodecKind::kRaw), Precision::kRaw);
  EXPECT_EQ(PrecisionOf(CodecKind::kCrumbInt2), Precision::kInt2);
  EXPECT_EQ(PrecisionOf(CodecKind::kCrumbK3V2), Precision::kK3V2);
  EXPECT_EQ(PrecisionOf(CodecKind::kCrumbInt4), Precision::kInt4);
  EXPECT_EQ(PrecisionOf(CodecKind::kOscarInt2), Precision::kInt2);
  EXPECT_EQ(PrecisionOf(CodecKind::kHadamardInt4), Precision::kInt4);
}

TEST(DescriptorTest, DefaultsAreLegalAndRoundTrip) {
  for (const CodecKind kind : AllKinds()) {
    SCOPED_TRACE(ToString(kind));
    const CodecDescriptor d = CodecDescriptor::Default(kind, SomeSet());
    ASSERT_TRUE(d.Check().ok()) << d.Check();
    const std::string canonical = d.Canonical();
    const auto back = CodecDescriptor::FromCanonical(AsBytes(canonical));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->Canonical(), canonical);
    EXPECT_EQ(back->id(), d.id());
  }
}

TEST(DescriptorTest, CanonicalFormIsFrozen) {
  const CodecDescriptor d = CodecDescriptor::Default(CodecKind::kOscarInt2, SomeSet());
  EXPECT_EQ(Hex(AsBytes(d.Canonical())),
            "435243440100000001000000010000000402000000020000000100"
            "0300000020000000"
            "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"
            "040000000400000000000000"
            "05000000040000008fc2753f"
            "06000000040000001f856b3f"
            "070000000100000001"
            "080000000100000000"
            "090000000100000001"
            "0a0000000100000001"
            "0b0000000100000000");
}

TEST(DescriptorTest, IdsDifferWithEveryField) {
  const CodecDescriptor base = CodecDescriptor::Default(CodecKind::kOscarInt2, SomeSet());
  const std::vector<std::function<void(CodecDescriptor*)>> changes = {
      [](CodecDescriptor* d) { d->rotation_set[0] ^= 1; },
      [](CodecDescriptor* d) { d->group = 64; },
      [](CodecDescriptor* d) { d->clip_k = 0.9f; },
      [](CodecDescriptor* d) { d->clip_v = 0.9f; },
      [](CodecDescriptor* d) { d->clip_method = ClipMethod::kBisect; },
      [](CodecDescriptor* d) { d->centring = Centring::kStaticMean; },
      [](CodecDescriptor* d) { d->meta = MetaForm::kFp32; },
      [](CodecDescriptor* d) { d->packing = Packing::kInterleaved; },
      [](CodecDescriptor* d) { d->lloyd_max = true; }};
  std::vector<uint64_t> ids = {base.id()};
  for (const auto& change : changes) {
    CodecDescriptor d = base;
    change(&d);
    ASSERT_TRUE(d.Check().ok()) << d.Check();
    ids.push_back(d.id());
  }
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
}

TEST(DescriptorTest, RefusesWhatMeansNothing) {
  struct Bad {
    CodecKind kind;
    std::function<void(CodecDescriptor*)> change;
    const char* message;
  };
  const std::vector<Bad> table = {
      {CodecKind::kRaw, [](CodecDescriptor* d) { d->group = 64; }, "raw takes no settings"},
      {CodecKind::kRaw, [](CodecDescriptor* d) { d->rotation_set[3] = 1; }, "raw takes no"},
      {CodecKind::kCrumbInt2, [](CodecDescriptor* d) { d->version = 2; }, "version 2"},
      {CodecKind::kCrumbInt2, [](CodecDescriptor* d) { d->group = 64; }, "group"},
      {CodecKind::kCrumbInt2, [](CodecDescriptor* d) { d->meta = MetaForm::kBf16; }, "8-bit"},
      {CodecKind::kCrumbInt4, [](CodecDescriptor* d) { d->packing = Packing::kInterleaved; },
       "planar"},
      {CodecKind::kCrumbInt4, [](CodecDescriptor* d) { d->lloyd_max = true; }, "lloyd_max"},
      {CodecKind::kOscarInt2, [](CodecDescriptor* d) { d->rotation_set = {}; }, "rotation set"},
      {CodecKind::kOscarInt2, [](CodecDescriptor* d) { d->meta = MetaForm::kByte; },
       "BF16 or FP32"},
      {CodecKind::kOscarInt2, [](CodecDescriptor* d) { d->meta = static_cast<MetaForm>(4); },
       "FP16 is not supported"},
      {CodecKind::kOscarInt2, [](CodecDescriptor* d) { d->clip_k = 1.5f; }, "clip_k"},
      {CodecKind::kOscarInt2, [](CodecDescriptor* d) { d->clip_k = -0.0f; }, "clip_k"},
      {CodecKind::kOscarInt2, [](CodecDescriptor* d) { d->clip_v = std::nanf(""); }, "clip_v"},
      {CodecKind::kOscarInt2, [](CodecDescriptor* d) { d->clip_k = d->clip_v = 0.0f; },
       "clip_method"},
      {CodecKind::kOscarInt2, [](CodecDescriptor* d) { d->clip_method = ClipMethod::kNone; },
       "clip_method"},
      {CodecKind::kOscarInt2, [](CodecDescriptor* d) { d->centring = Centring::kPageMean; },
       "page mean"},
      {CodecKind::kOscarInt2, [](CodecDescriptor* d) { d->packing = Packing::kNone; }, "packing"},
      {CodecKind::kOscarInt2,
       [](CodecDescriptor* d) {
         d->group = 64;
         d->lloyd_max = true;
       },
       "lloyd_max"},
      {CodecKind::kNaiveInt2, [](CodecDescriptor* d) { d->rotation_set[0] = 1; }, "must be zero"},
      {CodecKind::kHadamardInt4, [](CodecDescriptor* d) { d->centring = Centring::kStaticMean; },
       "rotation set"},
      {CodecKind::kInt4, [](CodecDescriptor* d) { d->lloyd_max = true; }, "lloyd_max"},
  };
  for (const Bad& bad : table) {
    CodecDescriptor d = CodecDescriptor::Default(bad.kind, SomeSet());
    bad.change(&d);
    EXPECT_EQ(d.Check().code(), absl::StatusCode::kInvalidArgument) << bad.message;
    EXPECT_THAT(std::string(d.Check().message()), HasSubstr(bad.message));
  }
}

TEST(DescriptorTest, HadamardMayUseTheMeanOfASet) {
  CodecDescriptor d = CodecDescriptor::Default(CodecKind::kHadamardInt4, {});
  d.rotation_set = SomeSet();
  d.centring = Centring::kStaticMean;
  EXPECT_TRUE(d.Check().ok()) << d.Check();
}

TEST(DescriptorTest, ParserRefusesDamagedBytes) {
  const std::string good = CodecDescriptor::Default(CodecKind::kOscarInt2, SomeSet()).Canonical();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(CodecDescriptor::FromCanonical(AsBytes(good.substr(0, size))).ok()) << size;
  }
  EXPECT_FALSE(CodecDescriptor::FromCanonical(AsBytes(good + "x")).ok());
  // A changed byte is refused, or is another legal descriptor: then it says exactly those bytes.
  size_t refused = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int bit : {0, 1, 7}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      const auto parsed = CodecDescriptor::FromCanonical(AsBytes(bytes));
      if (!parsed.ok()) {
        ++refused;
      } else {
        EXPECT_EQ(parsed->Canonical(), bytes) << at;
      }
    }
  }
  EXPECT_GT(refused, good.size());
}

}  // namespace
}  // namespace crumb
