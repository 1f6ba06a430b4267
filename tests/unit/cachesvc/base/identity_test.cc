// Layout: checks, canonical form and parts. One class, no thread, no file.
#include "cachesvc/base/identity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "cachesvc/base/bytes.h"
#include "tests/unit/cachesvc/base/identity_samples.h"

namespace crumb {
namespace {

using ::crumb::testing::GqaIdentity;
using ::crumb::testing::HybridIdentity;
using ::crumb::testing::MlaIdentity;

TEST(Layout, DerivesOnePartOfAllLayersByDefault) {
  const auto layout = Layout::Make(GqaIdentity());
  ASSERT_TRUE(layout.ok()) << layout.status();
  ASSERT_EQ(layout->part_count(), 1u);
  const PartShape& part = layout->parts()[0];
  EXPECT_EQ(part.page_tokens, 64u);
  ASSERT_EQ(part.layers.size(), 4u);
  EXPECT_EQ(part.layers[3].layer_id, 3u);
  EXPECT_EQ(part.layers[0].heads, 8u);
  EXPECT_EQ(part.raw_bytes, 4ull * 8 * 64 * (128 + 128) * 2);
}

TEST(Layout, CutsLayerGroupsTimesHeadGroupsRowMajor) {
  Identity identity = GqaIdentity();
  identity.head_groups = 2;
  identity.part_layer_counts = {1, 3};
  const auto layout = Layout::Make(identity);
  ASSERT_TRUE(layout.ok()) << layout.status();
  ASSERT_EQ(layout->part_count(), 4u);
  EXPECT_EQ(layout->parts()[0].layers.size(), 1u);
  EXPECT_EQ(layout->parts()[1].layers.size(), 1u);
  EXPECT_EQ(layout->parts()[2].layers.size(), 3u);
  EXPECT_EQ(layout->parts()[1].layers[0].head_first, 4u);
  EXPECT_EQ(layout->parts()[1].layers[0].heads, 4u);
  EXPECT_EQ(layout->parts()[2].layers[0].layer_id, 1u);
  EXPECT_EQ(layout->parts()[3].layers[2].layer_id, 3u);
  EXPECT_EQ(layout->parts()[3].layers[2].head_first, 4u);
}

TEST(Layout, OrdersLayersOfSeveralGroupsByGlobalId) {
  const auto layout = Layout::Make(HybridIdentity());
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto& layers = layout->parts()[0].layers;
  ASSERT_EQ(layers.size(), 5u);
  for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(layers[i].layer_id, i);
  EXPECT_EQ(layers[0].k_dim, 64u);
  EXPECT_EQ(layers[2].k_dim, 256u);
  EXPECT_EQ(layers[2].v_dim, 128u);
}

TEST(Layout, ServesMlaOpaqueAndFp8) {
  const auto mla = Layout::Make(MlaIdentity());
  ASSERT_TRUE(mla.ok()) << mla.status();
  EXPECT_EQ(mla->parts()[0].raw_bytes, 2ull * 64 * 576 * 2);

  Identity opaque = MlaIdentity();
  opaque.dtype = RawDtype::kOpaque;
  opaque.groups[0].kind = AttentionKind::kMha;
  opaque.groups[0].k_dim = 1152;
  const auto opaque_layout = Layout::Make(opaque);
  ASSERT_TRUE(opaque_layout.ok()) << opaque_layout.status();
  EXPECT_EQ(opaque_layout->parts()[0].raw_bytes, 2ull * 64 * 1152);

  Identity fp8 = GqaIdentity();
  fp8.dtype = RawDtype::kFp8E4M3;
  const auto fp8_layout = Layout::Make(fp8);
  ASSERT_TRUE(fp8_layout.ok()) << fp8_layout.status();
  EXPECT_EQ(fp8_layout->parts()[0].raw_bytes, 4ull * 8 * 64 * 256);
}

TEST(Layout, SpellsOneLayerGroupOneWay) {
  Identity spelled = GqaIdentity();
  spelled.part_layer_counts = {4};
  EXPECT_EQ(Layout::Make(spelled)->hash(), Layout::Make(GqaIdentity())->hash());
}

TEST(Layout, AnyDifferenceChangesTheHash) {
  const std::vector<std::function<void(Identity&)>> changes = {
      [](Identity& i) { i.model += "x"; },
      [](Identity& i) { i.revision += "x"; },
      [](Identity& i) { i.weights_dtype = "fp8"; },
      [](Identity& i) { i.rope.kind = "yarn"; },
      [](Identity& i) { i.rope.theta = 1e6; },
      [](Identity& i) { i.rope.factor = 4; },
      [](Identity& i) { i.rope.original_positions = 8192; },
      [](Identity& i) { i.rope.extra = "beta_fast=32"; },
      [](Identity& i) { i.k_before_rope = true; },
      [](Identity& i) { i.dtype = RawDtype::kFp16; },
      [](Identity& i) { i.page_tokens = 32; },
      [](Identity& i) { i.name_space = std::string("\0lora", 5); },
      [](Identity& i) { i.groups[0].kind = AttentionKind::kMha; },
      [](Identity& i) { i.groups[0].kv_heads = 4; },
      [](Identity& i) { i.groups[0].k_dim = 64; },
      [](Identity& i) { i.groups[0].v_dim = 64; },
      [](Identity& i) { i.groups[0].window = 1024; },
      [](Identity& i) {
        i.groups[0].layer_ids = {0, 1, 2, 4};
      },
      [](Identity& i) { i.head_groups = 2; },
      [](Identity& i) {
        i.part_layer_counts = {2, 2};
      },
  };
  std::vector<IdentityHash> seen = {Layout::Make(GqaIdentity())->hash()};
  for (const auto& change : changes) {
    Identity identity = GqaIdentity();
    change(identity);
    const auto layout = Layout::Make(identity);
    ASSERT_TRUE(layout.ok()) << layout.status();
    for (const IdentityHash& hash : seen) EXPECT_NE(layout->hash(), hash);
    seen.push_back(layout->hash());
  }
}

TEST(Layout, RoundTripsThroughTheCanonicalForm) {
  for (const Identity& identity : {GqaIdentity(), HybridIdentity(), MlaIdentity()}) {
    const auto made = Layout::Make(identity);
    ASSERT_TRUE(made.ok());
    const auto read = Layout::FromCanonical(AsBytes(made->canonical()));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->hash(), made->hash());
    EXPECT_EQ(read->canonical(), made->canonical());
    EXPECT_EQ(read->part_count(), made->part_count());
    EXPECT_EQ(read->parts()[0].raw_bytes, made->parts()[0].raw_bytes);
  }
}

struct BadCase {
  const char* names;  // what the message must say
  std::function<void(Identity&)> change;
};

TEST(Layout, RefusesBadFieldsByName) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<BadCase> cases = {
      {"model", [](Identity& i) { i.model.clear(); }},
      {"model", [](Identity& i) { i.model.assign(kNameBytesMax + 1, 'a'); }},
      {"model", [](Identity& i) { i.model = "a\nb"; }},
      {"revision", [](Identity& i) { i.revision.clear(); }},
      {"weights_dtype", [](Identity& i) { i.weights_dtype.assign(kNameBytesMax + 1, 'a'); }},
      {"rope.kind", [](Identity& i) { i.rope.kind.clear(); }},
      {"rope.theta", [&](Identity& i) { i.rope.theta = inf; }},
      {"rope.theta", [](Identity& i) { i.rope.theta = std::nan(""); }},
      {"rope.factor", [](Identity& i) { i.rope.factor = -0.0; }},
      {"rope.extra", [](Identity& i) { i.rope.extra.assign(kNameBytesMax + 1, 'a'); }},
      {"name_space", [](Identity& i) { i.name_space.assign(kNameBytesMax + 1, 'a'); }},
      {"dtype", [](Identity& i) { i.dtype = static_cast<RawDtype>(9); }},
      {"page_tokens", [](Identity& i) { i.page_tokens = 0; }},
      {"page_tokens", [](Identity& i) { i.page_tokens = kPageTokensMax + 1; }},
      {"groups", [](Identity& i) { i.groups.clear(); }},
      {"kind", [](Identity& i) { i.groups[0].kind = static_cast<AttentionKind>(7); }},
      {"kv_heads", [](Identity& i) { i.groups[0].kv_heads = 0; }},
      {"kv_heads", [](Identity& i) { i.groups[0].kv_heads = kHeadsMax + 1; }},
      {"k_dim", [](Identity& i) { i.groups[0].k_dim = 0; }},
      {"k_dim", [](Identity& i) { i.groups[0].k_dim = kHeadDimMax + 1; }},
      {"v_dim", [](Identity& i) { i.groups[0].v_dim = 0; }},
      {"v_dim", [](Identity& i) { i.groups[0].kind = AttentionKind::kMla; }},
      {"v_dim", [](Identity& i) { i.dtype = RawDtype::kOpaque; }},
      {"layer_ids", [](Identity& i) { i.groups[0].layer_ids.clear(); }},
      {"layer_ids",
       [](Identity& i) {
         i.groups[0].layer_ids = {1, 1};
       }},
      {"layer_ids",
       [](Identity& i) {
         i.groups[0].layer_ids = {2, 1};
       }},
      {"two groups", [](Identity& i) { i.groups.push_back(i.groups[0]); }},
      {"head_groups", [](Identity& i) { i.head_groups = 0; }},
      {"head_groups", [](Identity& i) { i.head_groups = 3; }},
      {"part_layer_counts",
       [](Identity& i) {
         i.part_layer_counts = {1, 2};
       }},
      {"part_layer_counts",
       [](Identity& i) {
         i.part_layer_counts = {0, 4};
       }},
      {"part_layer_counts",
       [](Identity& i) {
         i.part_layer_counts = {0xffffffffu, 5};
       }},  // wraps in 32 bits
      {"raw page", [](Identity& i) { i.groups[0].k_dim = kHeadDimMax; }},
  };
  for (const BadCase& bad : cases) {
    Identity identity = GqaIdentity();
    bad.change(identity);
    const auto layout = Layout::Make(identity);
    ASSERT_FALSE(layout.ok()) << bad.names;
    EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(layout.status().ToString().find(bad.names), std::string::npos) << layout.status();
  }
}

TEST(Layout, RefusesTooManyPartsAndLayers) {
  Identity identity = GqaIdentity();
  identity.page_tokens = 1;
  identity.groups[0].layer_ids.clear();
  for (uint32_t i = 0; i < 257; ++i) identity.groups[0].layer_ids.push_back(i);
  identity.part_layer_counts.assign(257, 1);
  EXPECT_FALSE(Layout::Make(identity).ok());
  identity.groups[0].layer_ids.pop_back();
  identity.part_layer_counts.assign(256, 1);
  EXPECT_TRUE(Layout::Make(identity).ok());
  identity.head_groups = 2;
  EXPECT_FALSE(Layout::Make(identity).ok());
}

TEST(Names, RoundTrip) {
  for (int i = 0; i <= 4; ++i) {
    const auto dtype = static_cast<RawDtype>(i);
    EXPECT_EQ(*ParseRawDtype(ToString(dtype)), dtype);
  }
  for (int i = 0; i <= 2; ++i) {
    const auto kind = static_cast<AttentionKind>(i);
    EXPECT_EQ(*ParseAttentionKind(ToString(kind)), kind);
  }
  EXPECT_FALSE(ParseRawDtype("int8").ok());
  EXPECT_FALSE(ParseAttentionKind("").ok());
  EXPECT_EQ(DtypeBytes(RawDtype::kBf16), 2u);
  EXPECT_EQ(DtypeBytes(RawDtype::kFp8E5M2), 1u);
}

}  // namespace
}  // namespace crumb
