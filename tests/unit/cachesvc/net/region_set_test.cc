// RegionSet against a naive model that follows the definition byte by byte, and against hostile
// descriptions. One thread.
#include "cachesvc/net/region_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cachesvc/base/rng.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;

Identity SmallIdentity() {
  Identity identity;
  identity.model = "m";
  identity.revision = "r";
  identity.page_tokens = 8;
  identity.head_groups = 2;
  identity.part_layer_counts = {1, 2};
  AttentionGroup group;
  group.kv_heads = 4;
  group.k_dim = 4;
  group.v_dim = 8;
  group.layer_ids = {3, 5, 9};
  identity.groups = {group};
  return identity;
}

Layout MakeLayout(const Identity& identity) {
  auto layout = Layout::Make(identity);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *std::move(layout);
}

Identity RandomIdentity(Rng* rng) {
  Identity identity = SmallIdentity();
  identity.dtype = rng->Chance(1, 3) ? RawDtype::kFp8E4M3 : RawDtype::kBf16;
  identity.page_tokens = 1u << rng->Below(5);
  identity.head_groups = 1u << rng->Below(3);
  identity.groups[0].kv_heads = identity.head_groups * static_cast<uint32_t>(1 + rng->Below(3));
  identity.groups[0].k_dim = static_cast<uint32_t>(1 + rng->Below(6));
  identity.groups[0].v_dim = static_cast<uint32_t>(1 + rng->Below(6));
  if (rng->Chance(1, 2)) identity.part_layer_counts = {3};
  if (rng->Chance(1, 4)) {  // another geometry beside it, as in hybrid models
    AttentionGroup other = identity.groups[0];
    other.layer_ids = {4, 6};
    other.k_dim += 1;
    identity.groups.push_back(other);
    identity.part_layer_counts.clear();
  }
  if (rng->Chance(1, 4)) {
    identity.head_groups = 1;
    identity.part_layer_counts.clear();
    identity.groups = {{.kind = AttentionKind::kMla,
                        .kv_heads = 1,
                        .k_dim = 5,
                        .v_dim = 0,
                        .window = 0,
                        .layer_ids = {0, 7}}};
  }
  return identity;
}

// A worker's memory: bytes, and what the engine calls the places of its tensors.
struct Memory {
  std::vector<std::vector<uint8_t>> buffers;
  RegionSetSpec spec;
};

struct Geometry {
  uint64_t k_row = 0, v_row = 0;
  uint64_t heads = 0, slot_tokens = 0, slots = 0;
};

enum class Order { kTokenHead, kHeadToken, kFused, kPadded };

// Places of K and V of one layer in one buffer; returns the bytes the buffer needs.
uint64_t PlaceLayer(Order order, const Geometry& g, Rng* rng, TensorPlace* k, TensorPlace* v) {
  const uint64_t row = std::max(g.k_row, g.v_row);
  if (order == Order::kFused) {  // [slot][token][head][K|V]
    k->head_stride = v->head_stride = g.k_row + g.v_row;
    k->token_stride = v->token_stride = k->head_stride * g.heads;
    k->slot_stride = v->slot_stride = k->token_stride * g.slot_tokens;
    v->offset = g.k_row;
    return k->slot_stride * g.slots;
  }
  uint64_t offset = 0;
  for (TensorPlace* place : {k, v}) {
    const uint64_t own = order == Order::kPadded ? row + rng->Below(9)
                         : place == k            ? g.k_row
                                                 : g.v_row;
    place->offset = offset;
    if (order == Order::kHeadToken) {
      place->token_stride = own;
      place->head_stride = own * g.slot_tokens;
      place->slot_stride = place->head_stride * g.heads;
    } else {
      place->head_stride = own;
      place->token_stride = own * g.heads + (order == Order::kPadded ? rng->Below(7) : 0);
      place->slot_stride = place->token_stride * g.slot_tokens;
    }
    offset += place->slot_stride * g.slots;
  }
  return offset;
}

uint32_t TensorOf(const Layout& layout, uint32_t layer_id) {
  std::map<uint32_t, uint32_t> order;
  uint32_t next = 0;
  for (const PartShape& part : layout.parts()) {
    for (const LayerShape& layer : part.layers) {
      if (order.emplace(layer.layer_id, next).second) next += layer.v_dim == 0 ? 1 : 2;
    }
  }
  return order.at(layer_id);
}

enum class Holder { kAllHeads, kRandomRank };

Memory MakeMemory(const Layout& layout, Order order, Holder holder, Rng* rng) {
  Memory memory;
  const Identity& identity = layout.identity();
  RegionSetSpec& spec = memory.spec;
  spec.slots = static_cast<uint32_t>(2 + rng->Below(6));
  spec.slots_per_block = 1;
  while (spec.slots_per_block < identity.page_tokens && rng->Chance(1, 2)) {
    spec.slots_per_block *= 2;
  }
  if (holder == Holder::kRandomRank && identity.head_groups > 1 && rng->Chance(1, 2)) {
    spec.head_group_first = static_cast<uint32_t>(rng->Below(identity.head_groups));
    spec.head_group_count =
        static_cast<uint32_t>(1 + rng->Below(identity.head_groups - spec.head_group_first));
  }
  const uint32_t groups = spec.head_group_count == 0 ? identity.head_groups : spec.head_group_count;
  std::map<uint32_t, bool> done;
  for (const PartShape& part : layout.parts()) {
    for (const LayerShape& layer : part.layers) {
      if (!done.emplace(layer.layer_id, true).second) continue;
      const uint64_t element = DtypeBytes(identity.dtype);
      Geometry g = {.k_row = layer.k_dim * element,
                    .v_row = layer.v_dim * element,
                    .heads = uint64_t{layer.heads} * groups,
                    .slot_tokens = identity.page_tokens / spec.slots_per_block,
                    .slots = spec.slots};
      TensorPlace k, v;
      k.region = v.region = static_cast<uint32_t>(memory.buffers.size());
      const uint64_t bytes = PlaceLayer(order, g, rng, &k, &v);
      std::vector<uint8_t> buffer(bytes);
      for (uint8_t& byte : buffer) byte = static_cast<uint8_t>(rng->Next());
      memory.buffers.push_back(std::move(buffer));
      spec.tensors.push_back(k);
      if (layer.v_dim != 0) spec.tensors.push_back(v);
    }
  }
  for (const auto& buffer : memory.buffers) {
    spec.regions.push_back(
        {reinterpret_cast<uint64_t>(buffer.data()), buffer.size(), std::string()});
  }
  return memory;
}

// The definition, one byte at a time: [layer][K|V][head][token][dim].
std::vector<uint8_t> NaivePage(const Layout& layout, const Memory& memory, uint32_t part,
                               const std::vector<uint32_t>& slots, uint32_t tokens) {
  std::vector<uint8_t> page;
  const Identity& identity = layout.identity();
  const uint32_t slot_tokens = identity.page_tokens / memory.spec.slots_per_block;
  for (const LayerShape& layer : layout.parts()[part].layers) {
    const uint32_t tensor = TensorOf(layout, layer.layer_id);
    for (uint32_t kv = 0; kv < (layer.v_dim == 0 ? 1u : 2u); ++kv) {
      const TensorPlace& place = memory.spec.tensors[tensor + kv];
      const uint64_t row = (kv == 0 ? layer.k_dim : layer.v_dim) * DtypeBytes(identity.dtype);
      for (uint32_t head = 0; head < layer.heads; ++head) {
        const uint32_t own = layer.head_first + head - memory.spec.head_group_first * layer.heads;
        for (uint32_t token = 0; token < identity.page_tokens; ++token) {
          for (uint64_t byte = 0; byte < row; ++byte) {
            if (token >= tokens) {
              page.push_back(0);
              continue;
            }
            const uint64_t at = place.offset + slots[token / slot_tokens] * place.slot_stride +
                                (token % slot_tokens) * place.token_stride +
                                own * place.head_stride + byte;
            page.push_back(memory.buffers[place.region].at(at));
          }
        }
      }
    }
  }
  return page;
}

TEST(RegionSet, EqualsTheNaiveModelForRandomLayoutsAndPlaces) {
  Rng rng(11);
  int pages = 0;
  for (int round = 0; round < 600; ++round) {
    const Layout layout = MakeLayout(RandomIdentity(&rng));
    const Memory memory =
        MakeMemory(layout, static_cast<Order>(rng.Below(4)), Holder::kRandomRank, &rng);
    auto set = RegionSet::Make(memory.spec, layout);
    ASSERT_TRUE(set.ok()) << set.status();
    for (uint32_t part = 0; part < layout.part_count(); ++part) {
      std::vector<uint32_t> slots(memory.spec.slots_per_block);
      for (uint32_t& slot : slots) slot = static_cast<uint32_t>(rng.Below(memory.spec.slots));
      const uint64_t raw_bytes = layout.parts()[part].raw_bytes;
      const uint32_t page_tokens = layout.identity().page_tokens;
      const auto tokens =
          static_cast<uint32_t>(rng.Chance(1, 2) ? page_tokens : 1 + rng.Below(page_tokens));
      std::vector<Segment> segments;
      segments.reserve(set->segments_max(part));
      const Segment* before = segments.data();
      const bool here = set->Segments(
          {.part = part, .slots = slots, .bytes = raw_bytes, .tokens = tokens}, &segments);
      ASSERT_EQ(here, set->segments_max(part) > 0);
      if (!here) continue;
      ASSERT_EQ(segments.data(), before) << "grew past segments_max";
      std::vector<uint8_t> page(raw_bytes, 0);
      const Segment* last = nullptr;
      for (const Segment& s : segments) {
        const Region& region = memory.spec.regions[s.region];
        ASSERT_GE(s.address, region.address);
        ASSERT_LE(s.address + s.bytes, region.address + region.bytes);
        ASSERT_LE(s.local_offset + s.bytes, raw_bytes);
        const bool touches = last != nullptr && last->region == s.region &&
                             last->address + last->bytes == s.address &&
                             last->local_offset + last->bytes == s.local_offset;
        ASSERT_FALSE(touches) << "two ranges that touch were not merged";
        std::memcpy(page.data() + s.local_offset, reinterpret_cast<const uint8_t*>(s.address),
                    s.bytes);
        last = &s;
      }
      ASSERT_EQ(page, NaivePage(layout, memory, part, slots, tokens)) << "round " << round;
      ++pages;
    }
  }
  EXPECT_GT(pages, 1000);
}

TEST(RegionSet, ARankHoldsExactlyItsHeadGroups) {
  Rng rng(5);
  const Layout layout = MakeLayout(SmallIdentity());
  Memory memory = MakeMemory(layout, Order::kHeadToken, Holder::kAllHeads, &rng);
  memory.spec.head_group_first = 1;
  memory.spec.head_group_count = 1;
  auto set = RegionSet::Make(memory.spec, layout);
  ASSERT_TRUE(set.ok()) << set.status();
  for (uint32_t part = 0; part < layout.part_count(); ++part) {
    const bool mine = layout.parts()[part].layers[0].head_first == 2;
    EXPECT_EQ(set->segments_max(part) > 0, mine) << part;
  }
}

TEST(RegionSet, APipelineStageHoldsExactlyItsLayers) {
  Rng rng(6);
  const Layout layout = MakeLayout(SmallIdentity());
  Memory memory = MakeMemory(layout, Order::kHeadToken, Holder::kAllHeads, &rng);
  memory.spec.tensors[0].region = kRegionAbsent;  // K of layer 3
  auto set = RegionSet::Make(memory.spec, layout);
  ASSERT_TRUE(set.ok()) << set.status();
  for (uint32_t part = 0; part < layout.part_count(); ++part) {
    EXPECT_EQ(set->segments_max(part) > 0, layout.parts()[part].layers[0].layer_id != 3);
  }
  for (TensorPlace& place : memory.spec.tensors) place.region = kRegionAbsent;
  EXPECT_FALSE(RegionSet::Make(memory.spec, layout).ok());
}

TEST(RegionSet, ContiguousPagesAreOneRange) {
  const Layout layout = MakeLayout(SmallIdentity());
  const uint64_t raw = layout.parts()[0].raw_bytes;
  RegionSetSpec spec;
  spec.regions = {{.address = 1u << 20, .bytes = 10 * (raw + 128), .rkey = {}}};
  spec.slots = 10;
  spec.slot_bytes = raw + 128;
  auto set = RegionSet::Make(spec, layout);
  ASSERT_TRUE(set.ok()) << set.status();
  std::vector<Segment> out;
  for (uint64_t bytes : {uint64_t{1}, raw, raw + 128}) {
    ASSERT_TRUE(set->Segments(0, {9}, bytes, &out));
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].address, (1u << 20) + 9 * (raw + 128));
    EXPECT_EQ(out[0].bytes, bytes);
    EXPECT_EQ(out[0].local_offset, 0u);
  }
  EXPECT_FALSE(set->Segments(0, {9}, 0, &out));
  EXPECT_FALSE(set->Segments(0, {9}, raw + 129, &out));
  EXPECT_FALSE(set->Segments(0, {9}, UINT64_MAX, &out));
  EXPECT_FALSE(set->Segments(0, {10}, raw, &out));
  EXPECT_FALSE(set->Segments(0, {UINT32_MAX}, raw, &out));
  EXPECT_FALSE(set->Segments(0, {1, 2}, raw, &out));
  EXPECT_FALSE(set->Segments(0, {}, raw, &out));
  EXPECT_FALSE(set->Segments(layout.part_count(), {1}, raw, &out));
  EXPECT_TRUE(out.empty());
}

TEST(RegionSet, SegmentsRefusesWhatWasNotRegistered) {
  Rng rng(7);
  const Layout layout = MakeLayout(SmallIdentity());
  const Memory memory = MakeMemory(layout, Order::kTokenHead, Holder::kAllHeads, &rng);
  const auto made = RegionSet::Make(memory.spec, layout);
  ASSERT_TRUE(made.ok()) << made.status();
  uint32_t part = 0;
  while (made->segments_max(part) == 0) ++part;
  const uint64_t raw = layout.parts()[part].raw_bytes;
  std::vector<uint32_t> slots(memory.spec.slots_per_block, 0);
  std::vector<Segment> out;
  ASSERT_TRUE(made->Segments(part, slots, raw, &out));
  EXPECT_FALSE(made->Segments(part, slots, raw - 1, &out));
  EXPECT_FALSE(made->Segments(part, slots, raw + 1, &out));
  EXPECT_FALSE(made->Segments({.part = part, .slots = slots, .bytes = raw, .tokens = 9}, &out));
  slots.back() = memory.spec.slots;
  EXPECT_FALSE(made->Segments(part, slots, raw, &out));
  slots.pop_back();
  EXPECT_FALSE(made->Segments(part, slots, raw, &out));
  EXPECT_TRUE(out.empty());
}

TEST(RegionSet, RefusalsNameTheField) {
  const Layout layout = MakeLayout(SmallIdentity());
  RegionSetSpec spec;
  const auto why = [&] { return std::string(RegionSet::Make(spec, layout).status().message()); };
  EXPECT_THAT(why(), HasSubstr("regions"));
  spec.regions = {{.address = UINT64_MAX - 10, .bytes = 100, .rkey = {}}};
  EXPECT_THAT(why(), HasSubstr("regions[0]"));
  spec.regions = {{.address = 4096, .bytes = 1 << 20, .rkey = std::string(kRkeyBytesMax + 1, 'x')}};
  EXPECT_THAT(why(), HasSubstr("rkey"));
  spec.regions[0].rkey.clear();
  EXPECT_THAT(why(), HasSubstr("slots"));
  spec.slots = 4;
  EXPECT_THAT(why(), HasSubstr("slot_bytes"));
  spec.slot_bytes = (1 << 18) + 1;
  EXPECT_THAT(why(), HasSubstr("exceed"));
  spec.slot_bytes = 0;
  spec.tensors.resize(5);
  EXPECT_THAT(why(), HasSubstr("tensors: 5 given; the layout has 6"));
  spec.tensors.resize(6);
  EXPECT_THAT(why(), HasSubstr("stride"));
  spec.slots_per_block = 3;
  EXPECT_THAT(why(), HasSubstr("divide"));
  spec.slots_per_block = 65;
  EXPECT_THAT(why(), HasSubstr("slots_per_block"));
  spec.slots_per_block = 1;
  spec.head_group_first = 2;
  spec.head_group_count = 1;
  EXPECT_THAT(why(), HasSubstr("head groups"));
}

TEST(RegionSet, TooManyRangesAreRefusedWithARemedy) {
  Identity identity = SmallIdentity();
  identity.page_tokens = 4096;
  identity.head_groups = 1;
  identity.part_layer_counts = {};
  identity.groups[0].kv_heads = 128;
  identity.groups[0].k_dim = identity.groups[0].v_dim = 8;
  const Layout layout = MakeLayout(identity);
  RegionSetSpec spec;
  spec.regions = {{.address = 4096, .bytes = uint64_t{1} << 40, .rkey = {}}};
  spec.slots = 2;
  spec.tensors.assign(6, {.region = 0,
                          .offset = 0,
                          .slot_stride = uint64_t{1} << 30,
                          .token_stride = 128 * 16,
                          .head_stride = 16});
  auto set = RegionSet::Make(spec, layout);
  ASSERT_FALSE(set.ok());
  EXPECT_THAT(std::string(set.status().message()), HasSubstr("lend contiguous pages"));
}

// Whatever numbers a client sends: refused, or every range lies inside its region.
TEST(RegionSet, HostileNumbersNeverLeaveARegion) {
  Rng rng(17);
  const uint64_t evil[] = {0,
                           1,
                           2,
                           63,
                           1u << 16,
                           1u << 31,
                           UINT32_MAX,
                           uint64_t{1} << 32,
                           uint64_t{1} << 62,
                           uint64_t{1} << 63,
                           UINT64_MAX - 1,
                           UINT64_MAX};
  const auto pick = [&] { return evil[rng.Below(std::size(evil))]; };
  const auto pick32 = [&] { return static_cast<uint32_t>(pick()); };
  int accepted = 0;
  const Layout layout = MakeLayout(SmallIdentity());
  for (int round = 0; round < 30000; ++round) {
    RegionSetSpec spec;
    spec.regions = {{.address = 4096, .bytes = pick(), .rkey = {}}};
    spec.slots = 4;
    spec.slots_per_block = 2;
    spec.tensors.assign(
        6, {.region = 0, .offset = 0, .slot_stride = 1024, .token_stride = 64, .head_stride = 16});
    for (uint64_t mutations = rng.Below(4); mutations > 0; --mutations) {
      TensorPlace& place = spec.tensors[rng.Below(6)];
      switch (rng.Below(9)) {
        case 0:
          place.offset = pick();
          break;
        case 1:
          place.slot_stride = pick();
          break;
        case 2:
          place.token_stride = pick();
          break;
        case 3:
          place.head_stride = pick();
          break;
        case 4:
          place.region = pick32();
          break;
        case 5:
          spec.slots = pick32();
          break;
        case 6:
          spec.head_group_first = pick32();
          break;
        case 7:
          spec.head_group_count = pick32();
          break;
        default:
          spec.regions[0].address = pick();
          break;
      }
    }
    auto set = RegionSet::Make(spec, layout);
    if (!set.ok()) continue;
    ++accepted;
    for (uint32_t part = 0; part < layout.part_count(); ++part) {
      std::vector<Segment> out;
      const uint32_t last = spec.slots - 1;
      if (!set->Segments(part, {last, 0}, layout.parts()[part].raw_bytes, &out)) continue;
      for (const Segment& s : out) {
        const Region& region = spec.regions.at(s.region);
        ASSERT_GE(s.address, region.address);
        ASSERT_LE(s.bytes, region.bytes);
        ASSERT_LE(s.address - region.address, region.bytes - s.bytes);
      }
    }
  }
  EXPECT_GT(accepted, 500);
}

}  // namespace
}  // namespace crumb
