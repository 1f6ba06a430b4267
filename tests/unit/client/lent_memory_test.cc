// Lent memory: gathering and scattering of pages in paged tensors against a naive walk.
#include "client/src/lent_memory.h"

#include <gtest/gtest.h>

#include "cachesvc/base/hash.h"
#include "client/src/layout_spec.h"

namespace crumb::client {
namespace {

// 2 layers, K of 2 heads x 8, V of 2 heads x 4, bf16, pages of 4 tokens in slots of 2.
class Tensors : public testing::Test {
 protected:
  LentMemory::Scratch scratch_;
  static constexpr uint32_t kSlots = 5, kTokensPerSlot = 2, kHeads = 2, kPageTokens = 4;

  void SetUp() override {
    LayoutSpec spec;
    spec.model = "m";
    spec.revision = "r";
    spec.page_tokens = kPageTokens;
    LayerGroup& group = spec.groups.emplace_back();
    group.kv_heads = kHeads;
    group.k_dim = 8;
    group.v_dim = 4;
    group.layer_ids = {3, 9};
    auto shape = CheckSpec(spec);
    ASSERT_TRUE(shape.ok()) << shape.status();
    shape_ = std::make_shared<const crumb::Layout>(*std::move(shape));
    for (int tensor = 0; tensor < 4; ++tensor) {
      const uint64_t row = (tensor % 2 == 0 ? 8 : 4) * 2;
      const uint64_t token = row * kHeads;
      const uint64_t slot = token * kTokensPerSlot;
      std::vector<uint8_t>& bytes = storage_.emplace_back(slot * kSlots);
      for (size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<uint8_t>(i * 7 + static_cast<size_t>(tensor) * 31);
      }
      tensors_.push_back({.base = nullptr,
                          .bytes = bytes.size(),
                          .slot_stride = slot,
                          .token_stride = token,
                          .head_stride = row});
    }
    for (size_t i = 0; i < 4; ++i) tensors_[i].base = storage_[i].data();
  }

  auto Make() {
    return LentMemory::Make(
        LentMemory::Tensors{
            .tensors = tensors_, .slots = kSlots, .tokens_per_slot = kTokensPerSlot},
        *shape_);
  }

  // The canonical page, row by row.
  std::vector<uint8_t> Naive(const std::vector<uint32_t>& slots, uint32_t tokens) {
    std::vector<uint8_t> out;
    for (const TensorMemory& tensor : tensors_) {
      for (uint32_t head = 0; head < kHeads; ++head) {
        for (uint32_t token = 0; token < kPageTokens; ++token) {
          const auto* at = static_cast<const uint8_t*>(tensor.base) +
                           slots[token / kTokensPerSlot] * tensor.slot_stride +
                           token % kTokensPerSlot * tensor.token_stride + head * tensor.head_stride;
          for (uint64_t i = 0; i < tensor.head_stride; ++i)
            out.push_back(token < tokens ? at[i] : 0);
        }
      }
    }
    return out;
  }

  std::shared_ptr<const crumb::Layout> shape_;
  std::vector<std::vector<uint8_t>> storage_;
  std::vector<TensorMemory> tensors_;
};

TEST_F(Tensors, GatherIsTheCanonicalPage) {
  const auto memory = Make();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->slots_per_block(), 2u);
  const std::vector<uint32_t> slots = {4, 1};
  const uint64_t bytes = shape_->parts()[0].raw_bytes;
  const ValuePlace place{.part = 0, .slots = slots, .bytes = bytes};
  ASSERT_TRUE((*memory)->Fits(place));
  std::vector<uint8_t> page(bytes);
  (*memory)->Gather(place, absl::MakeSpan(page), &scratch_);
  EXPECT_EQ(page, Naive(slots, kPageTokens));
  EXPECT_EQ((*memory)->Checksum(place, &scratch_), Xxh3(page));
}

TEST_F(Tensors, PartialPagesAreZeroPastTheirTokens) {
  const auto memory = Make();
  ASSERT_TRUE(memory.ok());
  const std::vector<uint32_t> slots = {0, 2};
  const uint64_t bytes = shape_->parts()[0].raw_bytes;
  const ValuePlace place{.part = 0, .slots = slots, .bytes = bytes, .tokens = 3};
  ASSERT_TRUE((*memory)->Fits(place));
  std::vector<uint8_t> page(bytes, 0xee);
  (*memory)->Gather(place, absl::MakeSpan(page), &scratch_);
  EXPECT_EQ(page, Naive(slots, 3));
  EXPECT_EQ((*memory)->Checksum(place, &scratch_), Xxh3(page));
  std::vector<uint8_t> again(page);
  EXPECT_EQ((*memory)->ScatterAndHash(place, again, &scratch_), Xxh3(page));
}

TEST_F(Tensors, ScatterTouchesTheNamedSlotsOnly) {
  const auto memory = Make();
  ASSERT_TRUE(memory.ok());
  const std::vector<uint32_t> slots = {1, 3};
  const uint64_t bytes = shape_->parts()[0].raw_bytes;
  const ValuePlace place{.part = 0, .slots = slots, .bytes = bytes};
  const auto before = storage_;
  std::vector<uint8_t> page(bytes);
  for (size_t i = 0; i < page.size(); ++i) page[i] = static_cast<uint8_t>(i ^ 0x5a);
  (*memory)->Scatter(place, page, &scratch_);
  EXPECT_EQ(Naive(slots, kPageTokens), page);
  EXPECT_EQ((*memory)->ScatterAndHash(place, page, &scratch_), Xxh3(page));
  EXPECT_EQ(Naive(slots, kPageTokens), page);
  for (size_t tensor = 0; tensor < 4; ++tensor) {
    for (uint32_t slot : {0u, 2u, 4u}) {
      const uint64_t stride = tensors_[tensor].slot_stride;
      EXPECT_EQ(0, memcmp(storage_[tensor].data() + slot * stride,
                          before[tensor].data() + slot * stride, stride));
    }
  }
}

TEST_F(Tensors, BadDescriptionsAreRefused) {
  tensors_[2].slot_stride = ~0ull / 2;
  EXPECT_FALSE(Make().ok());
  SetUp();
  tensors_.resize(4);
  tensors_[1].bytes -= 1;
  EXPECT_FALSE(Make().ok());
  tensors_[1].bytes += 1;
  tensors_[1].base = nullptr;
  EXPECT_FALSE(Make().ok());
}

TEST_F(Tensors, PlacesOutOfRangeDoNotFit) {
  const auto memory = Make();
  ASSERT_TRUE(memory.ok());
  const uint64_t bytes = shape_->parts()[0].raw_bytes;
  const std::vector<uint32_t> good = {0, 1}, high = {0, 5}, few = {0};
  EXPECT_FALSE((*memory)->Fits({.part = 0, .slots = high, .bytes = bytes}));
  EXPECT_FALSE((*memory)->Fits({.part = 0, .slots = few, .bytes = bytes}));
  EXPECT_FALSE((*memory)->Fits({.part = 1, .slots = good, .bytes = bytes}));
  EXPECT_FALSE((*memory)->Fits({.part = 0, .slots = good, .bytes = bytes - 1}));
}

TEST(Pages, RangesAreChecked) {
  LayoutSpec spec;
  spec.model = "m";
  spec.revision = "r";
  LayerGroup& group = spec.groups.emplace_back();
  group.kv_heads = 1;
  group.k_dim = group.v_dim = 64;
  group.layer_ids = {0};
  const auto shape = CheckSpec(spec);
  ASSERT_TRUE(shape.ok());
  std::vector<uint8_t> memory(1000);
  using Pages = LentMemory::Pages;
  EXPECT_TRUE(LentMemory::Make(Pages{memory.data(), 1000, 100}, *shape).ok());
  EXPECT_FALSE(LentMemory::Make(Pages{nullptr, 1000, 100}, *shape).ok());
  EXPECT_FALSE(LentMemory::Make(Pages{memory.data(), 0, 100}, *shape).ok());
  EXPECT_FALSE(LentMemory::Make(Pages{memory.data(), 1000, 0}, *shape).ok());
  EXPECT_FALSE(LentMemory::Make(Pages{memory.data(), 1000, 1001}, *shape).ok());
  EXPECT_FALSE(LentMemory::Make(Pages{memory.data(), ~0ull, 100}, *shape).ok());
}

}  // namespace
}  // namespace crumb::client
