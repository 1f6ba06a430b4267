// The GPU codec at the edges of its shapes: slots of any number of tokens, pages shorter than a
// warp's rows, few heads, the smallest groups, rows that meet the floor of their range or leave
// BF16 once rotated. The scalar codec says what is right.
#include <string>

#include "gpu/codec/cuda_codec.h"
#include "gpu/codec/kind_traits.h"
#include "tests/unit/gpu/codec/cuda_rig.h"

namespace crumb::codec_test {
namespace {

struct Shape {
  CodecKind kind;
  uint32_t dim = 128;
  uint32_t page_tokens = 64;
  uint32_t tokens_per_slot = 16;
  uint32_t heads = 2;
  uint32_t group = 0;
  MetaForm meta = MetaForm::kNone;
  float clip = 0.0f;  // more than 0: clips K and V
};

std::string NameOf(const Shape& s) {
  return std::string(ToString(s.kind)) + " dim " + std::to_string(s.dim) + " tokens " +
         std::to_string(s.page_tokens) + " of slots " + std::to_string(s.tokens_per_slot) +
         " heads " + std::to_string(s.heads) + " group " + std::to_string(s.group) + " meta " +
         std::to_string(static_cast<int>(s.meta));
}

std::unique_ptr<CudaRig> MakeRig(const Shape& s, uint32_t pages) {
  SetSpec spec;
  spec.k_dim = spec.v_dim = s.dim;
  spec.kv_heads = s.heads;
  spec.query_moment = true;
  const auto set = MakeSet(spec);
  const CodecDescriptor descriptor =
      DescriptorOf(s.kind, set, {.group = s.group, .meta = s.meta, .clip = s.clip});
  const PartShape part = testing::MakePart({.layer_ids = {0},
                                            .heads = s.heads,
                                            .k_dim = s.dim,
                                            .v_dim = s.dim,
                                            .page_tokens = s.page_tokens});
  return std::make_unique<CudaRig>(
      part, descriptor, set,
      CudaRig::Options{.pages = pages, .tokens_per_slot = s.tokens_per_slot});
}

bool Rotates(CodecKind kind) { return TraitsOf(kind).rotation != RotationUse::kNone; }

// Encodes pages of which the last ones are partial, then decodes what the scalar codec made of
// them.
void CheckBothWays(const Shape& s) {
  SCOPED_TRACE(NameOf(s));
  const auto rig = MakeRig(s, 5);
  std::vector<uint32_t> tokens;
  std::vector<std::vector<uint8_t>> raws, payloads;
  for (uint32_t page = 0; page < rig->pages(); ++page) {
    tokens.push_back(page < 2 ? s.page_tokens : 1 + (s.page_tokens - 1) * page / 5);
    raws.push_back(RandomPage(rig->cpu().part.raw_bytes, 13 * page + s.dim));
    rig->PutRaw(page, raws.back());
  }
  if (rig->gpu().encodes()) rig->Encode(tokens);
  for (uint32_t page = 0; page < rig->pages(); ++page) {
    ASSERT_EQ(rig->cpu().Encode(raws[page], tokens[page]).result, BlockResult::kOk);
    payloads.push_back(rig->cpu().payload);
    if (!rig->gpu().encodes()) continue;
    const auto got = rig->Payload(page);
    EXPECT_LE(DifferentBytes(payloads[page], got), Rotates(s.kind) ? got.size() / 50 : 0)
        << "page " << page;
    EXPECT_EQ(rig->Report(page).bad_place, ~0ull);
  }
  for (uint32_t page = 0; page < rig->pages(); ++page) rig->SetPayload(page, payloads[page]);
  for (const Frame frame : {Frame::kRotated, Frame::kOriginal}) {
    rig->Poison();
    rig->Decode(tokens, frame);
    EXPECT_TRUE(rig->Untouched(tokens)) << "bytes outside the rows changed";
    for (uint32_t page = 0; page < rig->pages(); ++page) {
      rig->cpu().payload = payloads[page];
      ASSERT_TRUE(rig->cpu().Decode(tokens[page], frame));
      const auto got = rig->TakeRaw(page, tokens[page]);
      const bool exact = frame == Frame::kRotated || !Rotates(s.kind);
      EXPECT_LE(DifferentBytes(rig->cpu().back, got), exact ? 0 : got.size() / 50)
          << "page " << page;
    }
  }
}

TEST(CudaShapesTest, SlotsOfAnyNumberOfTokens) {
  for (const CodecKind kind :
       {CodecKind::kOscarInt2, CodecKind::kNaiveInt2, CodecKind::kInt4, CodecKind::kCrumbK3V2}) {
    for (const uint32_t slot : {1u, 3u, 48u, 128u}) {
      for (const uint32_t tokens : {48u, 64u, 100u}) {
        CheckBothWays({.kind = kind, .page_tokens = tokens, .tokens_per_slot = slot});
      }
    }
  }
}

TEST(CudaShapesTest, ShortPagesAndFewHeads) {
  for (const CodecKind kind :
       {CodecKind::kOscarInt2, CodecKind::kNaiveInt2, CodecKind::kInt4, CodecKind::kCrumbInt4}) {
    for (const uint32_t tokens : {1u, 5u, 8u, 15u, 16u, 17u, 32u}) {
      for (const uint32_t heads : {1u, 2u, 5u}) {
        CheckBothWays({.kind = kind, .page_tokens = tokens, .heads = heads});
        CheckBothWays({.kind = kind, .page_tokens = tokens, .tokens_per_slot = 3, .heads = heads});
      }
    }
  }
}

TEST(CudaShapesTest, GroupsOf16) {
  for (const CodecKind kind : {CodecKind::kNaiveInt2, CodecKind::kInt4, CodecKind::kOscarInt2}) {
    for (const uint32_t dim : {64u, 128u, 256u}) {
      for (const MetaForm meta : {MetaForm::kBf16, MetaForm::kFp32}) {
        CheckBothWays({.kind = kind, .dim = dim, .group = 16, .meta = meta});
      }
    }
  }
}

// Several tiles for each warp, and more than it looks up at once.
TEST(CudaShapesTest, ManyPages) {
  const Shape s{.kind = CodecKind::kNaiveInt2, .dim = 64, .heads = 8};
  const auto rig = MakeRig(s, 1100);
  const std::vector<uint32_t> tokens(rig->pages(), s.page_tokens);
  const auto raw = RandomPage(rig->cpu().part.raw_bytes, 1);
  rig->PutEveryPage(raw);
  rig->Encode(tokens);
  ASSERT_EQ(rig->cpu().Encode(raw, s.page_tokens).result, BlockResult::kOk);
  uint64_t wrong = 0;
  for (uint32_t page = 0; page < rig->pages(); ++page) {
    wrong += DifferentBytes(rig->cpu().payload, rig->Payload(page)) != 0 ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0u);
  rig->Poison();
  rig->Decode(tokens, Frame::kOriginal);
  EXPECT_TRUE(rig->Untouched(tokens));
  ASSERT_TRUE(rig->cpu().Decode(s.page_tokens, Frame::kOriginal));
  for (const uint32_t page : {1u, 1099u}) {
    EXPECT_EQ(rig->TakeRaw(page, s.page_tokens), rig->cpu().back) << page;
  }
}

// A range below the published floor, with elements beyond the clip: those have the codes of the
// ends.
TEST(CudaShapesTest, ConstantRowsWithClippedElements) {
  for (const CodecKind kind : {CodecKind::kNaiveInt2, CodecKind::kInt4}) {
    for (const uint32_t dim : {64u, 128u, 256u}) {
      const Shape s{.kind = kind, .dim = dim, .clip = dim == 64 ? 0.92f : 0.96f};
      SCOPED_TRACE(NameOf(s));
      const auto rig = MakeRig(s, 1);
      std::vector<uint8_t> raw(rig->cpu().part.raw_bytes);
      Rng rng(dim);
      for (size_t i = 0; i < raw.size() / 2; ++i) {
        const size_t row = i / dim, column = i % dim;
        const float constant[] = {1.0f, -1.0f, 3e-9f, -3e-9f, 1e-20f, 100.0f, 0.0f, 1e30f};
        float value = constant[row % 8];
        // Of some rows a few elements differ a little, of others some are far away.
        if (row % 3 == 0 && column % 5 == 1) value += 2e-9f;
        if (column % 40 == row % 40) value = rng.Below(2) == 0 ? 200.0f : -200.0f;
        if (row % 5 == 4 && column == 7) value = 3e38f;
        SetElement(&raw, i, FloatToBf16(value));
      }
      rig->PutRaw(0, raw);
      rig->Encode({s.page_tokens});
      const EncodeReport report = rig->cpu().Encode(raw, s.page_tokens);
      EXPECT_EQ(DifferentBytes(rig->cpu().payload, rig->Payload(0)), 0u);
      EXPECT_EQ(rig->Report(0).unfit == 0, report.fits);
    }
  }
}

// Row 37 of K becomes two elements just below the largest BF16 whose weighted sum is above it: the
// column's own, whose weight is nearly one, and the one with the largest weight of the others.
void PutOverflowingRow(uint32_t dim, uint32_t column, std::vector<uint8_t>* raw) {
  const std::vector<float> matrix = Reflection(dim, 100);
  const auto weight = [&](uint32_t i) { return matrix[size_t{i} * dim + column]; };
  uint32_t second = column == 0 ? 1 : 0;
  for (uint32_t i = 0; i < dim; ++i) {
    if (i != column && std::abs(weight(i)) > std::abs(weight(second))) second = i;
    SetElement(raw, size_t{37} * dim + i, 0);
  }
  for (const uint32_t i : {column, second}) {
    SetElement(raw, size_t{37} * dim + i, FloatToBf16(weight(i) < 0.0f ? -3.38e38f : 3.38e38f));
  }
}

// A finite row that leaves BF16's range once rotated is noticed whichever column it leaves in.
TEST(CudaShapesTest, RowsThatOverflowInAnyColumn) {
  for (const uint32_t dim : {64u, 128u, 256u}) {
    for (const uint32_t group : {0u, 64u}) {
      const Shape s{.kind = CodecKind::kOscarInt2, .dim = dim, .heads = 1, .group = group};
      SCOPED_TRACE(NameOf(s));
      const auto rig = MakeRig(s, 6);
      const uint32_t columns[] = {0, 1, 17, dim / 2, dim - 1};
      std::vector<EncodeReport> reports;
      for (uint32_t page = 0; page < rig->pages(); ++page) {
        auto raw = RandomPage(rig->cpu().part.raw_bytes, page);
        if (page > 0) PutOverflowingRow(dim, columns[page - 1], &raw);
        rig->PutRaw(page, raw);
        reports.push_back(rig->cpu().Encode(raw, s.page_tokens));
      }
      rig->Encode(std::vector<uint32_t>(rig->pages(), s.page_tokens));
      uint32_t unfit = 0;
      for (uint32_t page = 0; page < rig->pages(); ++page) {
        EXPECT_EQ(rig->Report(page).bad_place, ~0ull);
        EXPECT_EQ(rig->Report(page).unfit != 0, !reports[page].fits) << "page " << page;
        unfit += reports[page].fits ? 0 : 1;
      }
      EXPECT_GE(unfit, 1u) << "the rows of this test fit";
    }
  }
}

}  // namespace
}  // namespace crumb::codec_test
