// Bytes that whole chains take in the pool, windows 64/256, against the formula: raw bytes x
// (b + (16 - b) x 320 / L) / 16. Real puts, real encodes; one page's data under many keys.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/base/rng.h"
#include "gpu/codec/bf16.h"
#include "tests/bars/programs/page_bench.h"

namespace crumb::bars {
namespace {

constexpr uint32_t kLayers = 32, kHeads = 8, kDim = 128, kPageTokens = 64;
constexpr uint32_t kWindowTokens = 64 + 256;
constexpr double kBar = 0.02;

std::shared_ptr<const Layout> MakeLayout() {
  Identity identity;
  identity.model = "bar/chains";
  identity.revision = "1";
  identity.weights_dtype = "bf16";
  identity.page_tokens = kPageTokens;
  AttentionGroup group{.kind = AttentionKind::kGqa,
                       .kv_heads = kHeads,
                       .k_dim = kDim,
                       .v_dim = kDim,
                       .window = 0,
                       .layer_ids = {}};
  for (uint32_t id = 0; id < kLayers; ++id) group.layer_ids.push_back(id);
  identity.groups.push_back(std::move(group));
  auto layout = Layout::Make(std::move(identity));
  CRUMB_CHECK(layout.ok());
  return std::make_shared<const Layout>(*std::move(layout));
}

std::shared_ptr<const RotationSet> MakeSet() {
  RotationSet::Contents contents;
  contents.model = "bar/chains";
  contents.revision = "1";
  for (uint32_t id = 0; id < kLayers; ++id) {
    RotationLayer layer;
    layer.layer_id = id;
    layer.k = {1, kDim, HadamardMatrix(kDim)};
    layer.v = layer.k;
    contents.layers.push_back(layer);
  }
  auto set = RotationSet::Make(std::move(contents));
  CRUMB_CHECK(set.ok());
  return *set;
}

std::vector<uint8_t> MakePage(uint64_t bytes) {
  Rng rng(11);
  std::vector<uint8_t> page(bytes);
  for (size_t at = 0; at < page.size(); at += 2) {
    double sum = 0;
    for (int k = 0; k < 4; ++k) sum += static_cast<double>(rng.Below(1u << 20)) / (1u << 20) - 0.5;
    const uint16_t bits = FloatToBf16(static_cast<float>(sum * 3.0));
    std::memcpy(page.data() + at, &bits, 2);
  }
  return page;
}

// Relative difference from the formula.
double Measure(CodecKind kind, double bits, uint32_t tokens) {
  const auto layout = MakeLayout();
  const auto set = MakeSet();
  const uint64_t raw_bytes = layout->parts()[0].raw_bytes;
  const uint64_t pages = tokens / kPageTokens;
  PageBenchOptions options;
  // Staging takes a quarter; fresh pages a quarter of the rest.
  options.pool_bytes = (512ull << 20) + pages * raw_bytes / 4;
  options.layout = layout;
  options.ladder = {CodecDescriptor::Default(kind, set->hash()),
                    CodecDescriptor::Default(CodecKind::kRaw, {})};
  options.rotations = set;
  options.windows = {.on = true, .sink_tokens = 64, .recent_tokens = 256};
  options.effort = Effort::kDraft;
  PageBench bench(options);
  const std::vector<uint8_t> page = MakePage(raw_bytes);
  for (uint32_t at = 0; at < pages; ++at) {
    const WireBlockReply reply =
        bench.Put({.key = at + 1, .parent = at, .token_start = at * kPageTokens}, page);
    CRUMB_CHECK(reply.result == BlockResult::kOk);
  }
  bench.Settle();
  const EngineStats stats = bench.stats();
  CRUMB_CHECK(stats.index_entries == pages && stats.evicted_dropped == 0);
  CRUMB_CHECK(stats.pages[static_cast<size_t>(Precision::kRaw)] == kWindowTokens / kPageTokens);
  const double raw = static_cast<double>(raw_bytes * pages);
  const double wanted = raw * (bits + (16 - bits) * kWindowTokens / tokens) / 16;
  const double stored = static_cast<double>(stats.pool_used_bytes);
  const double off = stored / wanted - 1;
  std::printf("%s, %5u tokens: raw %.0f MiB, stored %.1f MiB, formula %.1f MiB, %+.2f %%\n",
              ToString(kind), tokens, raw / (1 << 20), stored / (1 << 20), wanted / (1 << 20),
              100 * off);
  std::fflush(stdout);
  return std::fabs(off);
}

int Run() {
  double worst = 0;
  for (const uint32_t tokens : {1024u, 4096u, 32768u}) {
    worst = std::max(worst, Measure(CodecKind::kCrumbInt2, 2.19, tokens));
    worst = std::max(worst, Measure(CodecKind::kOscarInt2, 2.25, tokens));
  }
  std::printf("chains take at most %.2f %% more or less than the formula (bar %.0f %%)\n",
              100 * worst, 100 * kBar);
  return worst <= kBar ? 0 : 1;
}

}  // namespace
}  // namespace crumb::bars

int main() { return crumb::bars::Run(); }
