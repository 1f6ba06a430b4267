// page inspect: decoding of pages of known codecs, statistics against hand-made rows.
#include "client/cli/inspect_page.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "client/cli/bench_values.h"
#include "gpu/codec/page_codec.h"

namespace crumb::cli {
namespace {

crumb::Layout MakeLayout() {
  Identity identity;
  identity.model = "m";
  identity.revision = "r";
  identity.weights_dtype = "bf16";
  identity.page_tokens = 8;
  AttentionGroup& group = identity.groups.emplace_back();
  group.kv_heads = 2;
  group.k_dim = 64;
  group.v_dim = 64;
  group.layer_ids = {4, 7};
  auto layout = crumb::Layout::Make(std::move(identity));
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *std::move(layout);
}

std::shared_ptr<const RotationSet> MakeRotations() {
  RotationSet::Contents contents;
  contents.model = "m";
  contents.revision = "r";
  for (uint32_t id : {4u, 7u}) {
    RotationLayer& layer = contents.layers.emplace_back();
    layer.layer_id = id;
    layer.k = {.heads = 1, .dim = 64, .matrix = HadamardMatrix(64)};
    layer.v = layer.k;
  }
  auto set = RotationSet::Make(std::move(contents));
  EXPECT_TRUE(set.ok()) << set.status();
  return *std::move(set);
}

class Inspect : public testing::Test {
 protected:
  // A sealed page of normal values, packed by `kind`.
  std::vector<uint8_t> MakePage(CodecKind kind) {
    const PartShape& shape = layout_.parts()[0];
    raw_.resize(shape.raw_bytes);
    BenchValues(ValueKind::kBf16, raw_.size(), 3).Fill(1, absl::MakeSpan(raw_));
    const auto descriptor = CodecDescriptor::Default(kind, rotations_->hash());
    const auto codec = PageCodec::Create(
        shape, descriptor, descriptor.rotation_set == Sha256{} ? nullptr : rotations_);
    EXPECT_TRUE(codec.ok()) << codec.status();
    const auto scratch = (*codec)->MakeScratch();
    std::vector<uint8_t> page(kPageHeaderBytes + (*codec)->payload_bytes());
    const MutableBytes payload = absl::MakeSpan(page).subspan(kPageHeaderBytes);
    (*codec)->Encode(raw_, 8, Effort::kDraft, payload, scratch.get());
    PageHeader header;
    header.precision = PrecisionOf(kind);
    header.identity_prefix = layout_.hash().prefix64();
    header.codec_id = descriptor.id();
    header.key.bytes[0] = 1;
    header.token_start = 0;
    header.token_count = 8;
    header.payload_bytes = (*codec)->payload_bytes();
    header.raw_bytes = static_cast<uint32_t>(raw_.size());
    SealHeader(header, payload);
    StoreHeader(header, absl::MakeSpan(page));
    EXPECT_EQ(CheckPage(page), PageCheck::kOk);
    return page;
  }

  crumb::Layout layout_ = MakeLayout();
  std::shared_ptr<const RotationSet> rotations_ = MakeRotations();
  std::vector<uint8_t> raw_;
};

TEST_F(Inspect, RawPagesComeBackAsTheyWere) {
  const std::vector<uint8_t> page = MakePage(CodecKind::kRaw);
  const auto decoded = DecodePage(page, layout_, nullptr);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, raw_);
}

TEST_F(Inspect, PackedPagesAreDecodedByTheirDescriptor) {
  for (CodecKind kind : {CodecKind::kCrumbInt4, CodecKind::kOscarInt2, CodecKind::kInt4,
                         CodecKind::kHadamardInt4, CodecKind::kCrumbInt2}) {
    const std::vector<uint8_t> page = MakePage(kind);
    const auto decoded = DecodePage(page, layout_, rotations_);
    ASSERT_TRUE(decoded.ok()) << ToString(kind) << decoded.status();
    const auto rows = StatsOfRows(*decoded, layout_.parts()[0], 8);
    const auto truth = StatsOfRows(raw_, layout_.parts()[0], 8);
    ASSERT_EQ(rows.size(), truth.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_NEAR(rows[i].rms, truth[i].rms, 0.5 * truth[i].rms) << ToString(kind);
    }
  }
}

TEST_F(Inspect, AnUnknownCodecNamesTheRemedy) {
  const std::vector<uint8_t> page = MakePage(CodecKind::kOscarInt2);
  const auto decoded = DecodePage(page, layout_, nullptr);
  ASSERT_FALSE(decoded.ok());
  EXPECT_NE(decoded.status().message().find("--rotation"), absl::string_view::npos);
}

TEST_F(Inspect, APageOfAnotherLayoutIsRefused) {
  std::vector<uint8_t> page = MakePage(CodecKind::kRaw);
  PageHeader header = LoadHeader(page);
  header.identity_prefix ^= 1;
  StoreHeader(header, absl::MakeSpan(page));
  EXPECT_FALSE(DecodePage(page, layout_, nullptr).ok());
}

TEST_F(Inspect, StatisticsOfARow) {
  const PartShape& shape = layout_.parts()[0];
  std::vector<uint8_t> raw(shape.raw_bytes, 0);
  const auto set = [&raw](size_t element, float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    raw[element * 2] = static_cast<uint8_t>(bits >> 16);
    raw[element * 2 + 1] = static_cast<uint8_t>(bits >> 24);
  };
  set(0, 3.0f);
  set(1, -4.0f);
  set(64, std::numeric_limits<float>::infinity());
  const auto rows = StatsOfRows(raw, shape, 8);
  ASSERT_EQ(rows.size(), 2u * 2 * 2 * 8);  // layers, tensors, heads, tokens
  EXPECT_EQ(rows[0].layer_id, 4u);
  EXPECT_FALSE(rows[0].is_v);
  EXPECT_DOUBLE_EQ(rows[0].min, -4.0);
  EXPECT_DOUBLE_EQ(rows[0].max, 3.0);
  EXPECT_DOUBLE_EQ(rows[0].rms, std::sqrt(25.0 / 64));
  EXPECT_DOUBLE_EQ(rows[0].mean, -1.0 / 64);
  EXPECT_EQ(rows[1].non_finite, 1u);
  EXPECT_EQ(rows[1].token, 1u);
  EXPECT_TRUE(rows[16].is_v);
  EXPECT_EQ(rows[32].layer_id, 7u);
  EXPECT_EQ(StatsOfRows(raw, shape, 3).size(), 2u * 2 * 2 * 3);
  const auto heads = Summarise(rows);
  ASSERT_EQ(heads.size(), 8u);
  EXPECT_EQ(heads[0].rows, 8u);
  EXPECT_EQ(heads[0].non_finite, 1u);
  EXPECT_DOUBLE_EQ(heads[0].max, 3.0);
  EXPECT_DOUBLE_EQ(heads[0].rms, std::sqrt(25.0 / 64 / 8));
  EXPECT_EQ(heads[7].layer_id, 7u);
}

}  // namespace
}  // namespace crumb::cli
