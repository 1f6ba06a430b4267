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

// Where element [slot][token][head][0] of one tensor of one layer lies:
// address + slot * slot_stride + token * token_stride + head * head_stride, dim contiguous.
struct TensorPlace {
  uint32_t region = 0;  // index into regions
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
};

struct Segment {
  uint32_t region = 0;
  uint64_t address = 0;       // remote
  uint64_t local_offset = 0;  // in the canonical raw page
  uint64_t bytes = 0;
};

inline constexpr uint32_t kRegionsMax = 4096;
inline constexpr uint32_t kSegmentsPerBlockMax = 1u << 20;

class RegionSet {
 public:
  // Checks every place against its region for every slot, token and head of `layout`.
  static absl::StatusOr<RegionSet> Make(RegionSetSpec spec, const Layout& layout);

  const RegionSetSpec& spec() const { return spec_; }
  // Upper bound of segments for one block of `part`, adjacent ranges merged.
  uint32_t segments_max(uint32_t part) const;
  // Contiguous sets only: `bytes` at `slot`. Paged sets: the raw page of `part`.
  // False (nothing written) if a slot is out of range, `bytes` does not fit, or `out` is small.
  bool Segments(uint32_t part, absl::Span<const uint32_t> slots, uint64_t bytes,
                std::vector<Segment>* out) const;

 private:
  RegionSet() = default;
  RegionSetSpec spec_;
  std::vector<PartShape> parts_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_REGION_SET_H_
