// The daemon's codecs as a client reads them: whole, bounded, and only what fits together.
#include "client/src/layout_codecs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace crumb::client {
namespace {

using ::testing::HasSubstr;

v1::CodecsChunk HeaderOf(const CodecDescriptor& put, const std::vector<CodecDescriptor>& readers) {
  v1::CodecsChunk chunk;
  v1::CodecsHeader* header = chunk.mutable_header();
  header->set_put(put.Canonical());
  for (const CodecDescriptor& reader : readers) header->add_readers(reader.Canonical());
  header->set_effort("best");
  header->set_packs_known(true);
  return chunk;
}

v1::CodecsChunk DataOf(const std::string& data) {
  v1::CodecsChunk chunk;
  chunk.set_data(data);
  return chunk;
}

std::string SmallSet() {
  RotationSet::Contents contents;
  contents.model = "m";
  contents.revision = "r";
  RotationLayer& layer = contents.layers.emplace_back();
  layer.k = {.heads = 1, .dim = 4, .matrix = HadamardMatrix(4)};
  layer.v = layer.k;
  const auto set = RotationSet::Make(std::move(contents));
  EXPECT_TRUE(set.ok()) << set.status();
  return (*set)->Serialize();
}

absl::StatusOr<LayoutCodecs> Read(const std::vector<v1::CodecsChunk>& chunks) {
  CodecsReader reader;
  for (const v1::CodecsChunk& chunk : chunks) CRUMB_TRY(reader.Take(chunk));
  return reader.Finish();
}

const CodecDescriptor kRawOne = CodecDescriptor::Default(CodecKind::kRaw, {});
const CodecDescriptor kInt4One = CodecDescriptor::Default(CodecKind::kInt4, {});

TEST(LayoutCodecs, AreReadWithTheirSets) {
  const std::string file = SmallSet();
  const auto set = RotationSet::Parse({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
  ASSERT_TRUE(set.ok());
  const CodecDescriptor oscar = CodecDescriptor::Default(CodecKind::kOscarInt2, (*set)->hash());
  v1::CodecsChunk header = HeaderOf(oscar, {kRawOne, oscar});
  header.mutable_header()->add_rotation_bytes(file.size());
  const size_t half = file.size() / 2;
  const auto codecs = Read({header, DataOf(file.substr(0, half)), DataOf(file.substr(half))});
  ASSERT_TRUE(codecs.ok()) << codecs.status();
  EXPECT_EQ(codecs->put.id(), oscar.id());
  EXPECT_EQ(codecs->readers.size(), 2u);
  EXPECT_EQ(codecs->effort, Effort::kBest);
  EXPECT_TRUE(codecs->packs_known);
  EXPECT_FALSE(codecs->packs_unknown);
  ASSERT_NE(codecs->FindRotations(oscar), nullptr);
  EXPECT_EQ(codecs->FindRotations(kInt4One), nullptr);

  const auto without = Read({HeaderOf(oscar, {kRawOne, oscar})});
  EXPECT_THAT(without.status().message(), HasSubstr("lacks the rotation set of oscar-int2"));
  EXPECT_THAT(Read({header, DataOf(file.substr(0, half))}).status().message(),
              HasSubstr("ended early"));
  EXPECT_THAT(Read({header, DataOf(file), DataOf("x")}).status().message(),
              HasSubstr("longer than it said"));
  std::string wrong = file;
  wrong[wrong.size() - 1] ^= 1;
  EXPECT_FALSE(Read({header, DataOf(wrong)}).ok());
}

TEST(LayoutCodecs, WhatDoesNotFitTogetherIsRefused) {
  EXPECT_THAT(Read({}).status().message(), HasSubstr("ended early"));
  EXPECT_THAT(Read({DataOf("x")}).status().message(), HasSubstr("header"));
  const v1::CodecsChunk header = HeaderOf(kInt4One, {kRawOne, kInt4One});
  EXPECT_TRUE(Read({header}).ok());
  EXPECT_THAT(Read({header, header}).status().message(), HasSubstr("header"));
  EXPECT_THAT(Read({HeaderOf(kInt4One, {kRawOne})}).status().message(), HasSubstr("does not read"));
  v1::CodecsChunk unknown = header;
  unknown.mutable_header()->set_put("what");
  EXPECT_THAT(Read({unknown}).status().message(), HasSubstr("install matching versions"));
  v1::CodecsChunk large = header;
  large.mutable_header()->add_rotation_bytes(kRotationFileBytesMax);
  large.mutable_header()->add_rotation_bytes(1);
  EXPECT_THAT(Read({large}).status().message(), HasSubstr("over"));
  v1::CodecsChunk many = header;
  for (int i = 0; i < 65; ++i) many.mutable_header()->add_rotation_bytes(1);
  EXPECT_THAT(Read({many}).status().message(), HasSubstr("65 rotation sets"));
}

}  // namespace
}  // namespace crumb::client
