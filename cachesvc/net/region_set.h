// RegionSet: how raw KV lies in a worker's memory, registered once, checked on every use. A block
// names one slot per engine block; Segments turns (part, slots) into address ranges in the
// canonical page order [layer][K|V][head][token][dim]. Immutable; any thread.
// PROMISE: no arithmetic here can wrap, and no range outside a registered region is produced.
#ifndef CRUMB_CACHESVC_NET_REGION_SET_H_
#define CRUMB_CACHESVC_NET_REGION_SET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

// One lent range of memory. `rkey` is the transport's packed key (empty for loopback).
struct Region {
  uint64_t address = 0;
  uint64_t bytes = 0;
  std::string rkey;
};

inline constexpr uint32_t kRegionsMax = 4096;
inline constexpr uint32_t kRkeyBytesMax = 4096;
inline constexpr uint32_t kSegmentsPerBlockMax = 1u << 20;
// TensorPlace::region of a layer that this worker does not hold (pipeline parallel).
inline constexpr uint32_t kRegionAbsent = UINT32_MAX;

// Where element [slot][token][head][0] of one tensor of one layer lies:
// address + slot * slot_stride + token * token_stride + head * head_stride, dim contiguous.
// A stride counts bytes and may be anything not below one row of one head where its index can be
// other than 0, so K|V rows fused in one tensor are two places with one stride and two offsets.
struct TensorPlace {
  uint32_t region = 0;  // index into regions, or kRegionAbsent
  uint64_t offset = 0;  // from the region's start
  uint64_t slot_stride = 0;
  uint64_t token_stride = 0;
  uint64_t head_stride = 0;
};

struct RegionSetSpec {
  std::vector<Region> regions;
  uint32_t slots = 0;            // slots are 0 .. slots-1
  uint32_t slots_per_block = 1;  // page_tokens / engine block tokens
  // Contiguous pages: one slot holds one whole value (raw page, payload or page) at
  // regions[0].address + slot * slot_bytes. Then `tensors` is empty and slots_per_block is 1.
  uint64_t slot_bytes = 0;
  // Paged tensors: for every layer of the layout in part order, K then V (V absent if v_dim 0).
  std::vector<TensorPlace> tensors;
  // Paged tensors of a worker that holds some heads only (tensor parallel): the tensors hold the
  // heads of head groups [head_group_first, + head_group_count); count 0 = all of the layout.
  uint32_t head_group_first = 0;
  uint32_t head_group_count = 0;
};

struct Segment {
  uint32_t region = 0;
  uint64_t address = 0;       // remote
  uint64_t local_offset = 0;  // in the canonical raw page
  uint64_t bytes = 0;
};

// One block as a request names it.
struct BlockPlace {
  uint32_t part = 0;
  absl::Span<const uint32_t> slots;
  uint64_t bytes = 0;   // of the value; paged sets: the part's raw_bytes
  uint32_t tokens = 0;  // paged sets: rows from here on are neither read nor written; 0 = all
};

class RegionSet {
 public:
  // Checks every place against its region for every slot, token and head of `layout`.
  static absl::StatusOr<RegionSet> Make(RegionSetSpec spec, const Layout& layout);

  const RegionSetSpec& spec() const { return spec_; }
  bool contiguous() const { return spec_.tensors.empty(); }
  // Upper bound of segments for one block of `part`, adjacent ranges merged; 0 if the set does not
  // hold that part (paged sets of one rank).
  uint32_t segments_max(uint32_t part) const;
  // Replaces what `out` holds; no allocation if its capacity is at least segments_max(part).
  // Contiguous sets: `bytes` at the slot. Paged sets: the raw page of the part.
  // False (and `out` empty) if the part is not here, a slot is out of range, the number of slots
  // is not slots_per_block (with `tokens`: at least as many as hold them), or `bytes` does not fit.
  bool Segments(const BlockPlace& place, std::vector<Segment>* out) const;
  bool Segments(uint32_t part, absl::Span<const uint32_t> slots, uint64_t bytes,
                std::vector<Segment>* out) const {
    return Segments({.part = part, .slots = slots, .bytes = bytes}, out);
  }

  // Whether Segments would fill anything: the same checks, and no list.
  bool Holds(const BlockPlace& place) const;
  // Where the tensors of a part lie, offsets moved to its first head, in the order of its raw page;
  // empty if the part is not here. Contiguous sets have none.
  std::vector<TensorPlace> PlacesOf(uint32_t part) const;

 private:
  // One tensor of one layer as one part sees it.
  struct Plane {
    TensorPlace place;          // offset moved to the part's first head
    uint64_t local_offset = 0;  // of the tensor in the raw page
    uint64_t row_bytes = 0;
    uint32_t heads = 0;
  };
  struct PartPlan {
    std::vector<Plane> planes;
    uint64_t raw_bytes = 0;
    uint32_t segments_max = 0;  // 0: the part is not here
  };
  class Planner;

  RegionSet() = default;
  void AppendPlane(const Plane& plane, const BlockPlace& place, std::vector<Segment>* out) const;

  RegionSetSpec spec_;
  std::vector<PartPlan> parts_;
  uint32_t tokens_per_slot_ = 0;  // paged sets
  uint32_t page_tokens_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_REGION_SET_H_
