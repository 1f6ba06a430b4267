// Pages that were raw and then demoted, against pages encoded at once: all lossy codecs and
// efforts, full and partial pages, pages that step up the ladder; header and payload, byte for
// byte.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/base/rng.h"
#include "gpu/codec/bf16.h"
#include "tests/bars/programs/page_bench.h"

namespace crumb::bars {
namespace {

constexpr uint32_t kPageTokens = 64, kHeads = 2;

std::shared_ptr<const Layout> MakeLayout(uint32_t dim) {
  Identity identity;
  identity.model = "bar/equal";
  identity.revision = "1";
  identity.weights_dtype = "bf16";
  identity.page_tokens = kPageTokens;
  identity.groups.push_back({.kind = AttentionKind::kGqa,
                             .kv_heads = kHeads,
                             .k_dim = dim,
                             .v_dim = dim,
                             .window = 0,
                             .layer_ids = {0, 1}});
  auto layout = Layout::Make(std::move(identity));
  CRUMB_CHECK(layout.ok());
  return std::make_shared<const Layout>(*std::move(layout));
}

std::shared_ptr<const RotationSet> MakeSet(uint32_t dim) {
  RotationSet::Contents contents;
  contents.model = "bar/equal";
  contents.revision = "1";
  for (uint32_t id = 0; id < 2; ++id) {
    RotationLayer layer;
    layer.layer_id = id;
    layer.k = {1, dim, HadamardMatrix(dim)};
    layer.v = layer.k;
    contents.layers.push_back(layer);
  }
  auto set = RotationSet::Make(std::move(contents));
  CRUMB_CHECK(set.ok());
  return *set;
}

// Bell-shaped; wild ones are too far apart for two bits, or any.
std::vector<uint8_t> MakePage(uint64_t bytes, uint64_t seed, float wild) {
  Rng rng(seed);
  std::vector<uint8_t> page(bytes);
  for (size_t at = 0; at < page.size(); at += 2) {
    float sum = 0;
    for (int k = 0; k < 4; ++k) sum += static_cast<float>(rng.Below(1u << 20)) / (1u << 20) - 0.5f;
    if (wild > 0 && rng.Chance(1, 200)) sum *= wild;
    const uint16_t bits = FloatToBf16(sum);
    std::memcpy(page.data() + at, &bits, 2);
  }
  return page;
}

std::vector<CodecDescriptor> Ladder(CodecKind kind, const Sha256& set) {
  std::vector<CodecDescriptor> ladder;
  for (; kind != CodecKind::kRaw; kind = StepUp(kind)) {
    ladder.push_back(CodecDescriptor::Default(kind, set));
  }
  ladder.push_back(CodecDescriptor::Default(CodecKind::kRaw, {}));
  return ladder;
}

struct Sums {
  uint64_t pages = 0, equal = 0, stepped = 0, partial = 0;
};

void Compare(CodecKind kind, Effort effort, uint32_t dim, Sums* sums) {
  PageBenchOptions options;
  options.layout = MakeLayout(dim);
  const bool takes_set = kind == CodecKind::kOscarInt2 || kind == CodecKind::kCrumbInt2 ||
                         kind == CodecKind::kCrumbK3V2 || kind == CodecKind::kCrumbInt4;
  options.rotations = takes_set ? MakeSet(dim) : nullptr;
  options.ladder = Ladder(kind, takes_set ? options.rotations->hash() : Sha256{});
  options.effort = effort;
  PageBench at_once(options);
  options.windows = {.on = true, .sink_tokens = 0, .recent_tokens = 256};
  options.idle_us = 1000;
  PageBench demoting(options);
  const uint64_t raw_bytes = options.layout->parts()[0].raw_bytes;
  uint64_t key = 1;
  for (const float wild : {0.0f, 50.0f, 1e20f, 1e37f}) {
    for (const uint16_t count : {uint16_t{0}, uint16_t{1}, uint16_t{37}}) {
      const std::vector<uint8_t> raw = MakePage(raw_bytes, key, wild);
      const PageBench::Page page{
          .key = key, .parent = key + 1000, .token_start = 640, .token_count = count};
      CRUMB_CHECK(at_once.Put(page, raw).result == BlockResult::kOk);
      CRUMB_CHECK(demoting.Put(page, raw).precision == Precision::kRaw);
      CRUMB_CHECK(demoting.stats().fresh_pages == 1);
      demoting.clock().Advance(1000);
      demoting.Settle();
      CRUMB_CHECK(demoting.stats().fresh_pages == 0);
      std::vector<uint8_t> a, b;
      CRUMB_CHECK(at_once.Get(key, PageForm::kPage, &a).result == BlockResult::kOk);
      CRUMB_CHECK(demoting.Get(key, PageForm::kPage, &b).result == BlockResult::kOk);
      ++sums->pages;
      sums->equal += a == b ? 1 : 0;
      sums->partial += count != 0 ? 1 : 0;
      sums->stepped += (LoadHeader(a).flags & kPageFlagStepped) != 0 ? 1 : 0;
      if (a != b)
        std::printf("%s: page %llu differs\n", ToString(kind),
                    static_cast<unsigned long long>(key));
      ++key;
    }
  }
}

int Run() {
  Sums sums;
  for (const CodecKind kind : {CodecKind::kCrumbInt2, CodecKind::kCrumbK3V2, CodecKind::kCrumbInt4,
                               CodecKind::kOscarInt2, CodecKind::kHadamardInt2,
                               CodecKind::kNaiveInt2, CodecKind::kInt4, CodecKind::kHadamardInt4}) {
    for (const Effort effort : {Effort::kDraft, Effort::kNormal, Effort::kBest}) {
      for (const uint32_t dim : {64u, 128u}) Compare(kind, effort, dim, &sums);
    }
  }
  std::printf(
      "%llu of %llu demoted pages equal those encoded at once (%llu partial, %llu stepped)\n",
      static_cast<unsigned long long>(sums.equal), static_cast<unsigned long long>(sums.pages),
      static_cast<unsigned long long>(sums.partial), static_cast<unsigned long long>(sums.stepped));
  return sums.equal == sums.pages && sums.stepped > 0 ? 0 : 1;
}

}  // namespace
}  // namespace crumb::bars

int main() { return crumb::bars::Run(); }
