// Lent memory: construction of region sets from pointers, copies along their segments.
#include "client/src/lent_memory.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"

namespace crumb::client {
namespace {

// Copied, then hashed while it is in the cache.
constexpr uint64_t kChunkBytes = 32 * 1024;

uint8_t* At(uint64_t address) {
  return reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(address));
}

absl::Status CheckRange(const void* base, uint64_t bytes, absl::string_view what) {
  const auto address = reinterpret_cast<uintptr_t>(base);
  if (base == nullptr || bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": no memory was given"));
  }
  if (bytes > std::numeric_limits<uintptr_t>::max() - address) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", bytes,
                                                   " bytes pass the end of the "
                                                   "address space"));
  }
  return absl::OkStatus();
}

// Index of the region that is exactly this range; tensors often share one.
uint32_t RegionFor(const TensorMemory& tensor, std::vector<Region>* regions) {
  const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(tensor.base));
  for (size_t i = 0; i < regions->size(); ++i) {
    if ((*regions)[i].address == address && (*regions)[i].bytes == tensor.bytes) {
      return static_cast<uint32_t>(i);
    }
  }
  regions->push_back({.address = address, .bytes = tensor.bytes, .rkey = {}});
  return static_cast<uint32_t>(regions->size() - 1);
}

// XXH3-64 of a value given in pieces in ascending order; what no piece covers is zero.
class CanonicalHash {
 public:
  explicit CanonicalHash(uint64_t bytes) : bytes_(bytes) {}
  void Add(uint64_t offset, Bytes piece) {
    CRUMB_CHECK(offset >= at_);  // segments come in the canonical order
    AddZeros(offset);
    stream_.Add(piece);
    at_ = offset + piece.size();
  }
  uint64_t Finish() {
    AddZeros(bytes_);
    return stream_.Digest();
  }

 private:
  void AddZeros(uint64_t until) {
    static constexpr std::array<uint8_t, 4096> kZeros{};
    while (at_ < until) {
      const uint64_t bytes = std::min<uint64_t>(kZeros.size(), until - at_);
      stream_.Add({kZeros.data(), bytes});
      at_ += bytes;
    }
  }

  Xxh3Stream stream_;
  const uint64_t bytes_;
  uint64_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const LentMemory>> LentMemory::Make(const Pages& pages,
                                                                   const crumb::Layout& layout) {
  CRUMB_TRY(CheckRange(pages.base, pages.bytes, pages.call));
  if (pages.slot_bytes == 0 || pages.slot_bytes > pages.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(pages.call, ": slot_bytes ", pages.slot_bytes,
                                                   " must be from 1 to the memory's ",
                                                   pages.bytes));
  }
  const uint64_t slots = pages.bytes / pages.slot_bytes;
  if (slots > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(pages.call, ": ", slots, " slots are too many"));
  }
  RegionSetSpec spec;
  spec.regions.push_back(
      {.address = reinterpret_cast<uintptr_t>(pages.base), .bytes = pages.bytes, .rkey = {}});
  spec.slots = static_cast<uint32_t>(slots);
  spec.slot_bytes = pages.slot_bytes;
  CRUMB_ASSIGN(RegionSet set, RegionSet::Make(std::move(spec), layout));
  return std::shared_ptr<const LentMemory>(new LentMemory(std::move(set)));
}

absl::StatusOr<std::shared_ptr<const LentMemory>> LentMemory::Make(const Tensors& tensors,
                                                                   const crumb::Layout& layout) {
  const uint32_t page_tokens = layout.identity().page_tokens;
  if (tensors.tokens_per_slot == 0 || page_tokens % tensors.tokens_per_slot != 0) {
    return absl::InvalidArgumentError(absl::StrCat(tensors.call, ": tokens_per_slot ",
                                                   tensors.tokens_per_slot,
                                                   " must divide the "
                                                   "page's ",
                                                   page_tokens, " tokens"));
  }
  RegionSetSpec spec;
  spec.slots = tensors.slots;
  spec.slots_per_block = page_tokens / tensors.tokens_per_slot;
  spec.head_group_first = tensors.head_group_first;
  spec.head_group_count = tensors.head_group_count;
  for (const TensorMemory& tensor : tensors.tensors) {
    CRUMB_TRY(CheckRange(tensor.base, tensor.bytes, tensors.call));
    spec.tensors.push_back({.region = RegionFor(tensor, &spec.regions),
                            .offset = 0,
                            .slot_stride = tensor.slot_stride,
                            .token_stride = tensor.token_stride,
                            .head_stride = tensor.head_stride});
  }
  CRUMB_ASSIGN(RegionSet set, RegionSet::Make(std::move(spec), layout));
  return std::shared_ptr<const LentMemory>(new LentMemory(std::move(set)));
}

std::shared_ptr<const LentMemory> LentMemory::OnGpu(const LentMemory& places,
                                                    std::vector<GpuShare> shares,
                                                    absl::Status mappable) {
  CRUMB_CHECK(!shares.empty() && shares.size() == places.spec().regions.size());
  std::shared_ptr<LentMemory> memory(new LentMemory(places.set_));
  memory->gpu_shares_ = std::move(shares);
  memory->mappable_ = std::move(mappable);
  return memory;
}

bool LentMemory::Segments(const ValuePlace& place, std::vector<Segment>* out) const {
  const uint32_t tokens = contiguous() ? 0 : place.tokens;
  return set_.Segments(
      {.part = place.part, .slots = place.slots, .bytes = place.bytes, .tokens = tokens}, out);
}

bool LentMemory::Fits(const ValuePlace& place) const {
  const uint32_t tokens = contiguous() ? 0 : place.tokens;
  return set_.Holds(
      {.part = place.part, .slots = place.slots, .bytes = place.bytes, .tokens = tokens});
}

void LentMemory::Gather(const ValuePlace& place, MutableBytes out, Scratch* scratch) const {
  CRUMB_CHECK(!gpu() && out.size() == place.bytes);
  if (!contiguous() && place.tokens != 0) std::memset(out.data(), 0, out.size());
  CRUMB_CHECK(Segments(place, scratch));
  for (const Segment& segment : *scratch) {
    std::memcpy(out.data() + segment.local_offset, At(segment.address), segment.bytes);
  }
}

void LentMemory::Scatter(const ValuePlace& place, Bytes value, Scratch* scratch) const {
  CRUMB_CHECK(!gpu() && value.size() == place.bytes);
  CRUMB_CHECK(Segments(place, scratch));
  for (const Segment& segment : *scratch) {
    std::memcpy(At(segment.address), value.data() + segment.local_offset, segment.bytes);
  }
}

MutableBytes LentMemory::View(const ValuePlace& place) const {
  CRUMB_CHECK(!gpu() && contiguous() && place.slots.size() == 1 && place.slots[0] < slots());
  CRUMB_CHECK(place.bytes <= spec().slot_bytes);
  return {At(spec().regions[0].address) + place.slots[0] * spec().slot_bytes, place.bytes};
}

uint64_t LentMemory::ScatterAndHash(const ValuePlace& place, Bytes value, Scratch* scratch) const {
  CRUMB_CHECK(!gpu() && value.size() == place.bytes);
  CRUMB_CHECK(Segments(place, scratch));
  CanonicalHash hash(place.bytes);
  for (const Segment& segment : *scratch) {
    for (uint64_t at = 0; at < segment.bytes; at += kChunkBytes) {
      const uint64_t bytes = std::min(kChunkBytes, segment.bytes - at);
      uint8_t* const to = At(segment.address + at);
      std::memcpy(to, value.data() + segment.local_offset + at, bytes);
      hash.Add(segment.local_offset + at, {to, bytes});
    }
  }
  return hash.Finish();
}

uint64_t LentMemory::Checksum(const ValuePlace& place, Scratch* scratch) const {
  if (contiguous()) return Xxh3(View(place));
  CRUMB_CHECK(!gpu());
  CRUMB_CHECK(Segments(place, scratch));
  CanonicalHash hash(place.bytes);
  for (const Segment& segment : *scratch) {
    hash.Add(segment.local_offset, {At(segment.address), segment.bytes});
  }
  return hash.Finish();
}

}  // namespace crumb::client
