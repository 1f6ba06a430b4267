// Raw pages over a link, both ways, in device memory and in pinned host memory: bytes are equal,
// rows past the count are zero, and nothing else is touched.
#include <gtest/gtest.h>

#include <string>

#include "gpu/codec/cuda_codecs.h"
#include "gpu/codec/cuda_raw_codec.h"
#include "tests/support/codec_sample.h"
#include "tests/unit/gpu/codec/cuda_link_rig.h"

namespace crumb::codec_test {
namespace {

using crumb::testing::MakePart;

std::unique_ptr<CudaRawCodec> RawCodecOf(const PartShape& shape) {
  auto codec = CudaRawCodec::Create(shape, 0);
  EXPECT_TRUE(codec.ok()) << codec.status();
  CRUMB_CHECK(codec.ok());
  return std::move(*codec);
}

void MoveBothWays(const PartShape& shape, const CudaLinkRig::Options& options) {
  const auto layout = PayloadLayout::Make(shape, CodecDescriptor{});
  ASSERT_TRUE(layout.ok()) << layout.status();
  const uint32_t bytes = layout->payload_bytes();
  const auto codec = RawCodecOf(shape);
  EXPECT_EQ(codec->payload_bytes(), bytes);
  CudaLinkRig rig(*layout, bytes, options);
  std::vector<uint32_t> tokens;
  std::vector<std::vector<uint8_t>> raw;
  for (uint32_t page = 0; page < options.pages; ++page) {
    tokens.push_back(page == 0 ? shape.page_tokens : 1 + page * 7 % shape.page_tokens);
    raw.push_back(AnyBytes(shape.raw_bytes, page + 1));
    rig.worker().Put(page, raw[page]);
  }
  rig.Upload();
  // Each page into device and into pinned memory, all in one launch.
  const uint32_t half = rig.payloads() / 2;
  for (uint32_t page = 0; page < options.pages; ++page) {
    for (const uint32_t at : {page, half + page}) {
      rig.Submit(rig.Job(GpuJobKind::kEncode, *codec, page, tokens[page], at));
    }
  }
  const std::vector<GpuDone> done = rig.Run();
  for (uint32_t page = 0; page < options.pages; ++page) {
    raw[page] = WithZeros(*layout, tokens[page], raw[page]);
    for (const uint32_t at : {page, half + page}) {
      EXPECT_EQ(rig.PayloadBytes(at, bytes) == raw[page], true) << "page " << page << " at " << at;
      EXPECT_EQ(done[at].report.result, BlockResult::kOk);
      EXPECT_TRUE(done[at].report.fits);
    }
  }
  for (const uint32_t from : {0u, half}) {
    rig.worker().Poison();
    rig.Upload();
    for (uint32_t page = 0; page < options.pages; ++page) {
      rig.Submit(rig.Job(GpuJobKind::kDecode, *codec, page, tokens[page], from + page));
    }
    rig.Run();
    rig.Download();
    for (uint32_t page = 0; page < options.pages; ++page) {
      EXPECT_EQ(rig.worker().Take(page, tokens[page]) == raw[page], true) << "page " << page;
    }
    EXPECT_TRUE(rig.worker().Untouched(tokens));
  }
  EXPECT_TRUE(rig.GuardsHold(bytes));
}

TEST(CudaRawLinkTest, PagesOfEveryShapeMoveBothWays) {
  const auto part = [](RawDtype dtype, uint32_t heads, uint32_t k_dim, uint32_t v_dim,
                       uint32_t page_tokens) {
    return MakePart({.layer_ids = {2, 5},
                     .heads = heads,
                     .k_dim = k_dim,
                     .v_dim = v_dim,
                     .page_tokens = page_tokens,
                     .dtype = dtype});
  };
  const std::vector<PartShape> shapes = {
      part(RawDtype::kBf16, 3, 128, 128, 64),  part(RawDtype::kBf16, 1, 576, 0, 64),
      part(RawDtype::kBf16, 2, 90, 64, 40),    part(RawDtype::kFp8E4M3, 3, 66, 130, 17),
      part(RawDtype::kOpaque, 1, 5000, 0, 33),
  };
  for (const PartShape& shape : shapes) {
    for (const uint32_t tokens_per_slot : {1u, 7u, 16u, 128u}) {
      for (const uint64_t gap : {0u, 6u, 16u}) {
        SCOPED_TRACE("dim " + std::to_string(shape.layers[0].k_dim) + " slots of " +
                     std::to_string(tokens_per_slot) + " gap " + std::to_string(gap));
        MoveBothWays(shape, {.tokens_per_slot = tokens_per_slot, .gap = gap});
      }
    }
  }
}

TEST(CudaRawLinkTest, BatchesOfManyPages) {
  const PartShape shape = MakePart({.layer_ids = {0}, .heads = 2, .k_dim = 64, .v_dim = 64});
  for (const uint32_t pages : {1u, 8u, 32u}) MoveBothWays(shape, {.pages = pages});
}

TEST(CudaRawLinkTest, CopiesGoWhereverTheyLie) {
  const PartShape shape = MakePart({.layer_ids = {0}, .heads = 2, .k_dim = 64, .v_dim = 64});
  const auto layout = PayloadLayout::Make(shape, CodecDescriptor{});
  const uint32_t bytes = layout->payload_bytes();
  CudaLinkRig rig(*layout, bytes, {.pages = 4, .slice_bytes = 4096});
  std::vector<std::vector<uint8_t>> pages;
  const uint32_t half = rig.payloads() / 2;
  for (uint32_t i = 0; i < 4; ++i) {
    pages.push_back(AnyBytes(bytes, i + 9));
    CopyMemory(rig.payload(i), pages[i].data(), bytes);
    GpuJob job;
    job.kind = GpuJobKind::kCopy;
    job.payload = rig.payload(i);
    job.to = rig.payload(half + i);
    job.bytes = bytes;
    job.token = i;
    rig.Submit(job);
  }
  rig.Run();
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rig.PayloadBytes(half + i, bytes) == pages[i], true) << i;
    GpuJob job;
    job.kind = GpuJobKind::kCopy;
    job.payload = rig.payload(half + i);
    job.to = rig.payload(4 + i);
    job.bytes = bytes;
    job.token = i;
    rig.Submit(job);
  }
  rig.Run();
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rig.PayloadBytes(4 + i, bytes) == pages[i], true) << i;
  }
  EXPECT_TRUE(rig.GuardsHold(bytes));
}

TEST(CudaRawLinkTest, OddRowsAreRefusedWithTheirLayer) {
  PartShape shape = MakePart({.layer_ids = {4}, .k_dim = 63, .v_dim = 64});
  shape.dtype = RawDtype::kOpaque;
  shape.raw_bytes = (63 + 64) * 64;
  const absl::Status status = CudaRawCodec::Create(shape, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("layer 4 K"), std::string::npos) << status;
}

TEST(CudaRawLinkTest, DividersDivide) {
  for (const uint32_t d : {1u, 2u, 3u, 7u, 8u, 9u, 16u, 45u, 72u, 4095u, 4096u, 65'537u, 1u << 20,
                           (1u << 30) + 1, (1u << 31) - 1}) {
    const CudaDivider divider = CudaDividerOf(d);
    for (uint64_t n = 0; n < uint64_t{1} << 31; n += 1 + n / 997) {
      for (const uint64_t at : {n, n / d * d, n / d * d + d - 1}) {
        if (at >= uint64_t{1} << 31) continue;
        const auto value = static_cast<uint32_t>(at);
        ASSERT_EQ(CudaDivide(value, divider), value / d) << value << " / " << d;
      }
    }
  }
}

}  // namespace
}  // namespace crumb::codec_test
