// Kernels and raw pages mixed in one turn of a link, against the CPU's codecs on a link of the
// host: payloads in device memory and in pinned host memory.
#include <gtest/gtest.h>

#include <string>

#include "gpu/codec/cuda_codecs.h"
#include "gpu/codec/host_gpu_codec.h"
#include "gpu/codec/host_link.h"
#include "gpu/device/gpu_probe.h"
#include "gpu/pool/cuda_arena.h"
#include "gpu/pool/hbm_size.h"
#include "tests/unit/gpu/codec/codec_test_util.h"
#include "tests/unit/gpu/codec/cuda_link_rig.h"
#include "tests/unit/gpu/codec/cuda_rig.h"

namespace crumb::codec_test {
namespace {

constexpr uint32_t kTokens = 64;

uint64_t DifferentElements(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  uint64_t different = 0;
  for (size_t i = 0; i < a.size() / 2; ++i) different += Element(a, i) == Element(b, i) ? 0 : 1;
  return different;
}

// Packs and unpacks one page at a time as the CPU does.
class HostSide {
 public:
  HostSide(const PartShape& shape, const CodecDescriptor& descriptor,
           const std::shared_ptr<const RotationSet>& set, const PayloadLayout& raw_layout)
      : worker_(raw_layout, {.pages = 1}) {
    auto codec = PageCodec::Create(shape, descriptor, set, CodecBackend::kReference);
    CRUMB_CHECK(codec.ok());
    auto made = HostGpuCodec::Make(std::move(*codec), shape);
    CRUMB_CHECK(made.ok());
    codec_ = std::move(*made);
    link_ = std::move(*MakeHostLink());
    table_ = *link_->AddPlaces(worker_.places(), 16);
    payload_.resize(codec_->payload_bytes() / 16 + 1);
  }
  std::vector<uint8_t> Encode(const std::vector<uint8_t>& raw, uint32_t tokens) {
    worker_.Put(0, raw);
    Run(GpuJobKind::kEncode, tokens);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(payload_.data());
    return {bytes, bytes + codec_->payload_bytes()};
  }
  std::vector<uint8_t> Decode(const std::vector<uint8_t>& payload, uint32_t tokens) {
    std::memcpy(payload_.data(), payload.data(), payload.size());
    Run(GpuJobKind::kDecode, tokens);
    return worker_.Take(0, tokens);
  }

 private:
  struct alignas(16) Line {
    uint8_t bytes[16];
  };
  void Run(GpuJobKind kind, uint32_t tokens) {
    GpuJob job;
    job.kind = kind;
    job.codec = codec_.get();
    job.table = table_;
    job.tokens = tokens;
    job.slots = worker_.slots(0);
    job.payload = payload_[0].bytes;
    CRUMB_CHECK(link_->Submit(job));
    link_->Flush();
    GpuDone done;
    CRUMB_CHECK(link_->Poll({&done, 1}) == 1 && done.ok);
  }

  PagedWorker worker_;
  std::unique_ptr<HostGpuCodec> codec_;
  std::unique_ptr<GpuLink> link_;
  uint32_t table_ = 0;
  std::vector<Line> payload_;
};

struct Fixture {
  PartShape shape =
      testing::MakePart({.layer_ids = {0, 1}, .heads = 3, .k_dim = 128, .v_dim = 128});
  std::shared_ptr<const RotationSet> set = MakeSet({.layer_ids = {0, 1},
                                                    .k_dim = 128,
                                                    .v_dim = 128,
                                                    .kv_heads = 3,
                                                    .k_mean = true,
                                                    .query_moment = true});
  PayloadLayout raw = *PayloadLayout::Make(shape, CodecDescriptor{});
  CodecDescriptor crumb = DefaultOf(CodecKind::kCrumbInt2, set);
  std::vector<GpuCodecMade> codecs = MakeCudaCodecs(shape, {&crumb, 1}, set, 0);
};

// Every third page raw, payloads here and there, encodes and decodes in one flush.
void MixedTurn(const Fixture& f, uint32_t pages, uint64_t gap) {
  const GpuCodec& raw = *f.codecs[0].codec;
  const GpuCodec& crumb = *f.codecs[1].codec;
  HostSide host(f.shape, f.crumb, f.set, f.raw);
  CudaLinkRig rig(f.raw, raw.payload_bytes(), {.pages = 2 * pages, .gap = gap});
  const uint32_t half = rig.payloads() / 2;  // 4 * pages of each kind of memory
  const auto tokens_of = [](uint32_t page) { return page % 4 == 1 ? 1 + page % kTokens : kTokens; };
  std::vector<std::vector<uint8_t>> rows, packed;
  for (uint32_t page = 0; page < 2 * pages; ++page) {
    rows.push_back(RandomPage(f.shape.raw_bytes, page + 1));
    rig.worker().Put(page, rows[page]);
  }
  rig.Upload();
  // Pages from `pages` on are decoded while the others are encoded.
  for (uint32_t page = 0; page < 2 * pages; ++page) {
    const bool is_raw = page % 3 == 2;
    rows[page] = WithZeros(f.raw, tokens_of(page), rows[page]);
    packed.push_back(is_raw ? rows[page] : host.Encode(rows[page], tokens_of(page)));
    const GpuCodec& codec = is_raw ? raw : crumb;
    const uint32_t at = (page % 2 == 0 ? 0 : half) + page;
    if (page >= pages) CopyMemory(rig.payload(at), packed[page].data(), packed[page].size());
    rig.Submit(rig.Job(page < pages ? GpuJobKind::kEncode : GpuJobKind::kDecode, codec, page,
                       tokens_of(page), at));
    // The same page into the other kind of memory: the same bytes.
    if (page < pages) {
      rig.Submit(rig.Job(GpuJobKind::kEncode, codec, page, tokens_of(page),
                         (page % 2 == 0 ? half : 0) + page));
    }
  }
  const std::vector<GpuDone> done = rig.Run();
  rig.Download();
  for (uint32_t page = 0; page < 2 * pages; ++page) {
    SCOPED_TRACE(page);
    const bool is_raw = page % 3 == 2;
    const uint32_t bytes = is_raw ? raw.payload_bytes() : crumb.payload_bytes();
    if (page < pages) {
      const auto here = rig.PayloadBytes(page, bytes);
      EXPECT_EQ(here == rig.PayloadBytes(half + page, bytes), true);
      EXPECT_TRUE(done[page].report.fits);
      EXPECT_EQ(done[page].report.result, BlockResult::kOk);
      EXPECT_LE(DifferentBytes(here, packed[page]), is_raw ? 0u : bytes / 50);
      EXPECT_EQ(rig.worker().Take(page, tokens_of(page)) == rows[page], true) << "only read";
      continue;
    }
    const auto got = rig.worker().Take(page, tokens_of(page));
    const auto want = is_raw ? rows[page] : host.Decode(packed[page], tokens_of(page));
    EXPECT_LE(DifferentElements(got, want), is_raw ? 0u : want.size() / 2 / 200);
  }
}

TEST(CudaCodecLinkTest, KernelsAndRawPagesInOneTurn) {
  const Fixture f;
  ASSERT_EQ(f.codecs.size(), 2u);
  for (const GpuCodecMade& made : f.codecs) ASSERT_NE(made.codec, nullptr) << made.status;
  for (const uint32_t pages : {1u, 8u, 32u}) {
    for (const uint64_t gap : {0u, 6u}) {
      SCOPED_TRACE(std::to_string(pages) + " pages, gap " + std::to_string(gap));
      MixedTurn(f, pages, gap);
    }
  }
}

// As a worker of the second GPU is served from a pool on the first.
TEST(CudaCodecLinkTest, PayloadsOfAnotherGpu) {
  if (ProbeGpus().devices.size() < 2) GTEST_SKIP() << "one GPU";
  constexpr int kOther = 1;
  const Fixture f;
  const auto arena = DeviceArena::Create({.device = 0, .bytes = 4 * kHbmStepBytes});
  ASSERT_TRUE(arena.ok()) << arena.status();
  const absl::Status reaches = arena->LetReach(kOther);
  if (!reaches.ok()) GTEST_SKIP() << reaches;
  const auto codecs = MakeCudaCodecs(f.shape, {&f.crumb, 1}, f.set, kOther);
  for (const GpuCodecMade& made : codecs) {
    ASSERT_NE(made.codec, nullptr) << made.status;
    const GpuCodec& codec = *made.codec;
    CudaLinkRig rig(f.raw, codec.payload_bytes(), {.device = kOther, .pages = 2});
    const std::vector<uint8_t> raw = RandomPage(f.shape.raw_bytes, 4);
    rig.worker().Put(0, raw);
    rig.Upload();
    GpuJob job = rig.Job(GpuJobKind::kEncode, codec, 0, kTokens, 0);
    job.payload = arena->memory().data();
    rig.Submit(job);
    rig.Run();
    rig.Submit(rig.Job(GpuJobKind::kEncode, codec, 0, kTokens, 1));
    rig.Run();
    std::vector<uint8_t> there(codec.payload_bytes());
    CopyMemory(there.data(), job.payload, there.size());
    EXPECT_EQ(there == rig.PayloadBytes(1, codec.payload_bytes()), true);
    job = rig.Job(GpuJobKind::kDecode, codec, 1, kTokens, 0);
    job.payload = arena->memory().data();
    rig.Submit(job);
    rig.Run();
    rig.Submit(rig.Job(GpuJobKind::kDecode, codec, 0, kTokens, 1));
    rig.Run();
    rig.Download();
    EXPECT_EQ(rig.worker().Take(1, kTokens) == rig.worker().Take(0, kTokens), true);
  }
}

TEST(CudaCodecLinkTest, ANaNIsNamedAndTheOthersArePacked) {
  const Fixture f;
  ASSERT_NE(f.codecs[1].codec, nullptr) << f.codecs[1].status;
  const GpuCodec& crumb = *f.codecs[1].codec;
  CudaLinkRig rig(f.raw, crumb.payload_bytes(), {.pages = 3});
  for (uint32_t page = 0; page < 3; ++page) {
    std::vector<uint8_t> raw = RandomPage(f.shape.raw_bytes, page + 1);
    const TensorLayout& v = f.raw.tensors()[3];
    if (page == 1) {
      SetElement(&raw, (v.raw_offset + 2 * v.raw_head_bytes) / 2 + 40 * v.dim + 7, 0x7fc0);
    }
    rig.worker().Put(page, raw);
  }
  rig.Upload();
  for (uint32_t page = 0; page < 3; ++page) {
    rig.Submit(rig.Job(GpuJobKind::kEncode, crumb, page, kTokens, page));
  }
  const std::vector<GpuDone> done = rig.Run();
  EXPECT_EQ(done[0].report.result, BlockResult::kOk);
  EXPECT_EQ(done[2].report.result, BlockResult::kOk);
  const EncodeReport& bad = done[1].report;
  EXPECT_EQ(bad.result, BlockResult::kNonFinite);
  EXPECT_EQ(bad.bad_layer_id, 1u);
  EXPECT_TRUE(bad.bad_is_v);
  EXPECT_EQ(bad.bad_head, 2u);
  EXPECT_EQ(bad.bad_token, 40u);
}

}  // namespace
}  // namespace crumb::codec_test
