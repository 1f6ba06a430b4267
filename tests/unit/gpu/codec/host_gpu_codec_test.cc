// HostGpuCodec against the codec that it drives: payloads byte for byte, through paged tensors of
// odd shapes; rows alone are touched.
#include "gpu/codec/host_gpu_codec.h"

#include <gtest/gtest.h>

#include <numeric>

#include "gpu/codec/host_link.h"
#include "tests/unit/gpu/codec/codec_test_util.h"
#include "tests/unit/gpu/codec/paged_worker.h"

namespace crumb {
namespace codec_test {

CodecBackend TestedBackend() { return CodecBackend::kReference; }

namespace {

constexpr uint32_t kPageTokens = 40;

PartShape ShapeOf(RawDtype dtype, std::vector<LayerShape> layers) {
  PartShape shape;
  shape.dtype = dtype;
  shape.page_tokens = kPageTokens;
  shape.layers = std::move(layers);
  for (const LayerShape& layer : shape.layers) {
    shape.raw_bytes +=
        uint64_t{layer.heads} * (layer.k_dim + layer.v_dim) * kPageTokens * DtypeBytes(dtype);
  }
  return shape;
}

PartShape PlainShape() {
  return ShapeOf(RawDtype::kBf16, {{.layer_id = 3, .heads = 2, .k_dim = 64, .v_dim = 64},
                                   {.layer_id = 7, .heads = 1, .k_dim = 32, .v_dim = 64}});
}

std::vector<uint8_t> AnyBytes(uint64_t bytes, uint64_t seed) {
  std::vector<uint8_t> out(bytes);
  Rng rng(seed);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(rng.Below(256));
  return out;
}

void ZeroPast(const PayloadLayout& layout, uint32_t tokens, std::vector<uint8_t>* raw) {
  for (const TensorLayout& tensor : layout.tensors()) {
    for (uint32_t head = 0; head < tensor.heads; ++head) {
      uint8_t* const at = raw->data() + tensor.raw_offset + head * tensor.raw_head_bytes;
      const uint64_t kept = uint64_t{tokens} * tensor.raw_row_bytes;
      std::memset(at + kept, 0, tensor.raw_head_bytes - kept);
    }
  }
}

struct Rig {
  Rig(const PartShape& shape, const CodecDescriptor& descriptor, uint32_t tokens_per_slot)
      : bench(shape, descriptor, nullptr),
        layout(*PayloadLayout::Make(shape, descriptor)),
        worker(layout, {.pages = 3, .tokens_per_slot = tokens_per_slot}) {
    auto made = HostGpuCodec::Make(std::move(bench.codec), shape);
    CRUMB_CHECK(made.ok());
    codec = std::move(*made);
    bench = Bench(shape, descriptor, nullptr);
    link = std::move(*MakeHostLink());
    table = *link->AddPlaces(worker.places(), tokens_per_slot);
    payloads.assign(3, std::vector<uint8_t>(codec->payload_bytes() + 16, 0xcc));
  }
  uint8_t* Payload(uint32_t page) {
    auto* const at = payloads[page].data();
    return at + (16 - reinterpret_cast<uint64_t>(at) % 16) % 16;
  }
  std::vector<uint8_t> PayloadBytes(uint32_t page) {
    return {Payload(page), Payload(page) + codec->payload_bytes()};
  }
  EncodeReport Run(GpuJobKind kind, uint32_t page, uint32_t tokens) {
    GpuJob job;
    job.kind = kind;
    job.codec = codec.get();
    job.table = table;
    job.tokens = tokens;
    job.slots = worker.slots(page);
    job.payload = Payload(page);
    CRUMB_CHECK(link->Submit(job));
    link->Flush();
    GpuDone done;
    CRUMB_CHECK(link->Poll({&done, 1}) == 1 && done.ok);
    return done.report;
  }

  Bench bench;
  PayloadLayout layout;
  PagedWorker worker;
  std::unique_ptr<HostGpuCodec> codec;
  std::unique_ptr<GpuLink> link;
  uint32_t table = 0;
  std::vector<std::vector<uint8_t>> payloads;
};

TEST(HostGpuCodecTest, PayloadsAreThoseOfTheCodecByteForByte) {
  for (const CodecKind kind :
       {CodecKind::kCrumbInt2, CodecKind::kCrumbInt4, CodecKind::kHadamardInt2, CodecKind::kInt4}) {
    for (const uint32_t tokens_per_slot : {1u, 7u, 16u, 64u}) {
      SCOPED_TRACE(std::string(ToString(kind)) + " " + std::to_string(tokens_per_slot));
      const PartShape shape = PlainShape();
      Rig rig(shape, DefaultOf(kind, nullptr), tokens_per_slot);
      const std::vector<uint32_t> tokens = {kPageTokens, 1, 23};
      std::vector<std::vector<uint8_t>> raw;
      for (uint32_t page = 0; page < 3; ++page) {
        raw.push_back(RandomPage(shape.raw_bytes, page + 1));
        rig.worker.Put(page, raw[page]);
      }
      for (uint32_t page = 0; page < 3; ++page) {
        const EncodeReport report = rig.Run(GpuJobKind::kEncode, page, tokens[page]);
        ZeroPast(rig.layout, tokens[page], &raw[page]);
        const EncodeReport expected = rig.bench.Encode(raw[page], tokens[page]);
        EXPECT_EQ(rig.PayloadBytes(page), rig.bench.payload);
        EXPECT_EQ(report.fits, expected.fits);
        EXPECT_EQ(report.result, expected.result);
        EXPECT_FLOAT_EQ(static_cast<float>(report.error_k), static_cast<float>(expected.error_k));
        EXPECT_FLOAT_EQ(static_cast<float>(report.energy_v), static_cast<float>(expected.energy_v));
      }
      rig.worker.Poison();
      for (uint32_t page = 0; page < 3; ++page) {
        rig.Run(GpuJobKind::kDecode, page, tokens[page]);
        rig.bench.payload = rig.PayloadBytes(page);
        ASSERT_TRUE(rig.bench.Decode(tokens[page]));
        EXPECT_EQ(rig.worker.Take(page, tokens[page]), rig.bench.back);
      }
      EXPECT_TRUE(rig.worker.Untouched(tokens));
    }
  }
}

TEST(HostGpuCodecTest, RawPagesOfAnyKindMoveAsTheyAre) {
  const std::vector<PartShape> shapes = {
      PlainShape(),
      ShapeOf(RawDtype::kBf16, {{.layer_id = 0, .heads = 1, .k_dim = 576, .v_dim = 0}}),  // MLA
      ShapeOf(RawDtype::kFp8E4M3, {{.layer_id = 0, .heads = 3, .k_dim = 66, .v_dim = 130}}),
      ShapeOf(RawDtype::kOpaque, {{.layer_id = 0, .heads = 1, .k_dim = 1234, .v_dim = 0},
                                  {.layer_id = 1, .heads = 1, .k_dim = 2, .v_dim = 0}})};
  for (const PartShape& shape : shapes) {
    Rig rig(shape, CodecDescriptor{}, 16);
    const std::vector<uint32_t> tokens = {kPageTokens, 1, 17};
    std::vector<std::vector<uint8_t>> raw;
    for (uint32_t page = 0; page < 3; ++page) {
      raw.push_back(AnyBytes(shape.raw_bytes, page + 1));  // NaN among them
      rig.worker.Put(page, raw[page]);
    }
    for (uint32_t page = 0; page < 3; ++page) {
      const EncodeReport report = rig.Run(GpuJobKind::kEncode, page, tokens[page]);
      ZeroPast(rig.layout, tokens[page], &raw[page]);
      EXPECT_EQ(rig.PayloadBytes(page), raw[page]);
      EXPECT_TRUE(report.fits);
      EXPECT_EQ(report.result, BlockResult::kOk);
    }
    rig.worker.Poison();
    for (uint32_t page = 0; page < 3; ++page) {
      rig.Run(GpuJobKind::kDecode, page, tokens[page]);
      EXPECT_EQ(rig.worker.Take(page, tokens[page]), raw[page]);
    }
    EXPECT_TRUE(rig.worker.Untouched(tokens));
  }
}

TEST(HostGpuCodecTest, ANaNIsNamed) {
  const PartShape shape = PlainShape();
  Rig rig(shape, DefaultOf(CodecKind::kCrumbInt2, nullptr), 16);
  std::vector<uint8_t> raw = RandomPage(shape.raw_bytes, 5);
  const TensorLayout& v = rig.layout.tensors()[1];
  SetElement(&raw, (v.raw_offset + v.raw_head_bytes) / 2 + 21 * v.dim + 9, 0x7fc0);
  rig.worker.Put(1, raw);
  EXPECT_EQ(rig.Run(GpuJobKind::kEncode, 1, 21).result, BlockResult::kOk) << "past its rows";
  const EncodeReport report = rig.Run(GpuJobKind::kEncode, 1, 22);
  EXPECT_EQ(report.result, BlockResult::kNonFinite);
  EXPECT_EQ(report.bad_layer_id, 3u);
  EXPECT_TRUE(report.bad_is_v);
  EXPECT_EQ(report.bad_head, 1u);
  EXPECT_EQ(report.bad_token, 21u);
}

TEST(HostGpuCodecTest, APageThatBelongsOneStepUpSaysSo) {
  const PartShape shape = PlainShape();
  Rig rig(shape, DefaultOf(CodecKind::kCrumbInt2, nullptr), 16);
  rig.worker.Put(0, ConstantPage(shape.raw_bytes, 3e-20f));
  std::vector<uint8_t> raw = RandomPage(shape.raw_bytes, 5);
  rig.worker.Put(1, raw);
  EXPECT_FALSE(rig.Run(GpuJobKind::kEncode, 0, kPageTokens).fits);
  EXPECT_TRUE(rig.Run(GpuJobKind::kEncode, 1, kPageTokens).fits);
}

TEST(HostGpuCodecTest, ACodecOfAnotherPartIsRefused) {
  const PartShape shape = PlainShape();
  Bench bench(shape, CodecDescriptor{}, nullptr);
  PartShape other = shape;
  other.layers.pop_back();
  other.raw_bytes = 2 * 128 * kPageTokens * 2;
  EXPECT_EQ(HostGpuCodec::Make(std::move(bench.codec), other).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace codec_test
}  // namespace crumb
