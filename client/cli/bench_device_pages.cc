// Tensors behind each other in one allocation; copies slot by slot.
#include "client/cli/bench_device_pages.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "cachesvc/base/check.h"
#include "cachesvc/base/rng.h"

namespace crumb::cli {
namespace {

// Between a slot's [token][head][dim] and a page's [head][token][dim], of tokens from `first` on.
// `move` is told of each row: where it lies in the slot and in the page's tensor.
template <typename Move>
void EachRow(const DeviceShape& shape, uint32_t first, Move move) {
  const uint64_t row = uint64_t{shape.dim} * sizeof(uint16_t);
  for (uint32_t token = 0; token < shape.block_tokens; ++token) {
    for (uint32_t head = 0; head < shape.heads; ++head) {
      const uint64_t in_slot = (uint64_t{token} * shape.heads + head) * row;
      move(in_slot, (uint64_t{head} * shape.page_tokens + first + token) * row, row);
    }
  }
}

}  // namespace

DevicePages::DevicePages(GpuWorker* worker, const DeviceShape& shape, uint32_t pages)
    : worker_(*worker),
      shape_(shape),
      pages_(pages),
      slots_(size_t{pages} * shape.slots_per_page()),
      staging_(shape.slot_bytes()) {
  // An engine's slots are wherever there was room.
  std::iota(slots_.begin(), slots_.end(), 0u);
  Rng rng(pages);
  for (size_t i = slots_.size(); i > 1; --i) std::swap(slots_[i - 1], slots_[rng.Below(i)]);
}

absl::StatusOr<std::unique_ptr<DevicePages>> DevicePages::Make(GpuWorker* worker,
                                                               const DeviceShape& shape,
                                                               uint32_t pages) {
  CRUMB_CHECK(pages > 0 && shape.block_tokens > 0 && shape.page_tokens % shape.block_tokens == 0);
  std::unique_ptr<DevicePages> made(new DevicePages(worker, shape, pages));
  CRUMB_ASSIGN(made->memory_, worker->Allocate(made->bytes()));
  return made;
}

uint64_t DevicePages::bytes() const {
  return uint64_t{shape_.layers} * 2 * slots_.size() * shape_.slot_bytes();
}

std::byte* DevicePages::SlotAt(uint32_t tensor, uint32_t slot) const {
  return memory_ + (uint64_t{tensor} * slots_.size() + slot) * shape_.slot_bytes();
}

std::span<const uint32_t> DevicePages::SlotsOf(uint32_t page) const {
  return std::span(slots_).subspan(size_t{page} * shape_.slots_per_page(), shape_.slots_per_page());
}

client::Status DevicePages::Lend(client::Client* client, const client::Layout& layout,
                                 uint32_t* set, client::CodecPlace place) const {
  client::GpuRegions regions;
  regions.place = place;
  regions.slots = static_cast<uint32_t>(slots_.size());
  regions.tokens_per_slot = shape_.block_tokens;
  const uint64_t row = uint64_t{shape_.dim} * sizeof(uint16_t);
  for (uint32_t tensor = 0; tensor < 2 * shape_.layers; ++tensor) {
    regions.tensors.push_back({.base = SlotAt(tensor, 0),
                               .bytes = slots_.size() * shape_.slot_bytes(),
                               .slot_stride = shape_.slot_bytes(),
                               .token_stride = row * shape_.heads,
                               .head_stride = row});
  }
  if (worker_.on_host()) {
    return client->LendTensors(layout, regions.tensors, regions.slots, regions.tokens_per_slot,
                               set);
  }
  return client->RegisterGpuRegions(layout, regions, set);
}

absl::Status DevicePages::Write(uint32_t page, Bytes raw) {
  CRUMB_CHECK(raw.size() == shape_.page_bytes());
  const uint64_t tensor_bytes = shape_.page_bytes() / (2 * shape_.layers);
  for (uint32_t tensor = 0; tensor < 2 * shape_.layers; ++tensor) {
    const uint8_t* from = raw.data() + tensor * tensor_bytes;
    for (uint32_t i = 0; i < shape_.slots_per_page(); ++i) {
      EachRow(shape_, i * shape_.block_tokens, [&](uint64_t slot, uint64_t at, uint64_t row) {
        std::memcpy(staging_.data() + slot, from + at, row);
      });
      CRUMB_TRY(worker_.CopyIn(SlotAt(tensor, SlotsOf(page)[i]), staging_.data(), staging_.size()));
    }
  }
  return absl::OkStatus();
}

absl::Status DevicePages::Read(uint32_t page, MutableBytes raw) {
  CRUMB_CHECK(raw.size() == shape_.page_bytes());
  const uint64_t tensor_bytes = shape_.page_bytes() / (2 * shape_.layers);
  for (uint32_t tensor = 0; tensor < 2 * shape_.layers; ++tensor) {
    uint8_t* to = raw.data() + tensor * tensor_bytes;
    for (uint32_t i = 0; i < shape_.slots_per_page(); ++i) {
      CRUMB_TRY(
          worker_.CopyOut(staging_.data(), SlotAt(tensor, SlotsOf(page)[i]), staging_.size()));
      EachRow(shape_, i * shape_.block_tokens, [&](uint64_t slot, uint64_t at, uint64_t row) {
        std::memcpy(to + at, staging_.data() + slot, row);
      });
    }
  }
  return absl::OkStatus();
}

}  // namespace crumb::cli
