// Checks a worker's description of its memory once, and turns slots into address ranges.
// Must never trust a number of the description: every extent is computed in 128 bits. No thread.
#include "cachesvc/net/region_set.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/wire.h"

namespace crumb {
namespace {

__extension__ typedef unsigned __int128 Wide;  // extents: three products below 2^96 each

absl::Status Invalid(std::string text) { return absl::InvalidArgumentError(std::move(text)); }

absl::Status CheckRegions(const RegionSetSpec& spec) {
  if (spec.regions.empty() || spec.regions.size() > kRegionsMax) {
    return Invalid(absl::StrCat("regions: ", spec.regions.size(), " given; 1 to ", kRegionsMax,
                                " are allowed"));
  }
  for (size_t i = 0; i < spec.regions.size(); ++i) {
    const Region& region = spec.regions[i];
    if (region.bytes == 0 || region.address == 0 || region.bytes > UINT64_MAX - region.address) {
      return Invalid(absl::StrCat("regions[", i, "]: address ", region.address, " and bytes ",
                                  region.bytes, " do not name a range of memory"));
    }
    if (region.rkey.size() > kRkeyBytesMax) {
      return Invalid(absl::StrCat("regions[", i, "]: rkey of ", region.rkey.size(),
                                  " bytes; at most ", kRkeyBytesMax, " are allowed"));
    }
  }
  if (spec.slots == 0) return Invalid("slots: 0 given; lend at least one slot");
  if (spec.slots_per_block == 0 || spec.slots_per_block > kSlotsPerBlockMax) {
    return Invalid(absl::StrCat("slots_per_block: ", spec.slots_per_block, " given; 1 to ",
                                kSlotsPerBlockMax, " are allowed"));
  }
  return absl::OkStatus();
}

}  // namespace

// Makes the plans of all parts; a class only to keep its inputs together.
class RegionSet::Planner {
 public:
  Planner(const RegionSetSpec& spec, const Layout& layout) : spec_(spec), layout_(layout) {}

  absl::Status Contiguous(std::vector<PartPlan>* out) const;
  absl::Status Paged(std::vector<PartPlan>* out);

 private:
  absl::Status IndexLayers();
  absl::Status CheckHeadGroups();
  absl::Status PlanPart(const PartShape& part, PartPlan* out) const;
  absl::Status AddPlane(const LayerShape& layer, uint32_t tensor, PartPlan* out) const;
  absl::Status CheckExtent(const TensorPlace& place, uint32_t tensor, uint64_t row_bytes,
                           uint32_t heads) const;
  uint64_t SegmentsOf(const Plane& plane) const;

  const RegionSetSpec& spec_;
  const Layout& layout_;
  uint32_t tokens_per_slot_ = 0;
  uint32_t group_count_ = 0;
  std::map<uint32_t, uint32_t> tensor_of_layer_;  // layer id -> index of its K tensor
};

absl::Status RegionSet::Planner::Contiguous(std::vector<PartPlan>* out) const {
  if (spec_.slots_per_block != 1 || spec_.regions.size() != 1) {
    return Invalid("contiguous pages take one region and slots_per_block 1");
  }
  if (spec_.head_group_first != 0 || spec_.head_group_count != 0) {
    return Invalid("head_group_first and head_group_count go with tensors, not with slot_bytes");
  }
  if (spec_.slot_bytes == 0) return Invalid("slot_bytes: 0 given and no tensors either");
  if (static_cast<Wide>(spec_.slots) * spec_.slot_bytes > spec_.regions[0].bytes) {
    return Invalid(absl::StrCat("slots ", spec_.slots, " x slot_bytes ", spec_.slot_bytes,
                                " exceed the region's ", spec_.regions[0].bytes, " bytes"));
  }
  for (PartPlan& plan : *out) plan.segments_max = 1;
  return absl::OkStatus();
}

absl::Status RegionSet::Planner::Paged(std::vector<PartPlan>* out) {
  const uint32_t page_tokens = layout_.identity().page_tokens;
  if (spec_.slot_bytes != 0) return Invalid("slot_bytes and tensors exclude each other");
  if (page_tokens % spec_.slots_per_block != 0) {
    return Invalid(absl::StrCat("slots_per_block ", spec_.slots_per_block,
                                " does not divide the layout's page_tokens ", page_tokens));
  }
  tokens_per_slot_ = page_tokens / spec_.slots_per_block;
  CRUMB_TRY(IndexLayers());
  CRUMB_TRY(CheckHeadGroups());
  bool any = false;
  for (uint32_t i = 0; i < layout_.part_count(); ++i) {
    CRUMB_TRY(PlanPart(layout_.parts()[i], &(*out)[i]));
    any = any || (*out)[i].segments_max > 0;
  }
  return any ? absl::OkStatus() : Invalid("tensors: not one part of the layout is wholly here");
}

// Layers in the order in which the parts name them first; every layer once.
absl::Status RegionSet::Planner::IndexLayers() {
  uint32_t next = 0;
  for (const PartShape& part : layout_.parts()) {
    for (const LayerShape& layer : part.layers) {
      if (!tensor_of_layer_.emplace(layer.layer_id, next).second) continue;
      next += layer.v_dim == 0 ? 1 : 2;
    }
  }
  if (next == spec_.tensors.size()) return absl::OkStatus();
  return Invalid(absl::StrCat("tensors: ", spec_.tensors.size(), " given; the layout has ", next,
                              " (K and V of every layer)"));
}

absl::Status RegionSet::Planner::CheckHeadGroups() {
  const uint32_t groups = layout_.identity().head_groups;
  const uint64_t end = uint64_t{spec_.head_group_first} + spec_.head_group_count;
  if (end > groups || (spec_.head_group_count == 0 && spec_.head_group_first != 0)) {
    return Invalid(absl::StrCat("head groups [", spec_.head_group_first, ", ", end,
                                ") given; the layout has ", groups));
  }
  group_count_ = spec_.head_group_count == 0 ? groups : spec_.head_group_count;
  return absl::OkStatus();
}

absl::Status RegionSet::Planner::PlanPart(const PartShape& part, PartPlan* out) const {
  bool here = true;
  for (const LayerShape& layer : part.layers) {
    const uint32_t tensor = tensor_of_layer_.at(layer.layer_id);
    const uint32_t group = layer.head_first / layer.heads;
    here = here && group >= spec_.head_group_first &&
           group - spec_.head_group_first < group_count_ &&
           spec_.tensors[tensor].region != kRegionAbsent;
    if (layer.v_dim != 0) here = here && spec_.tensors[tensor + 1].region != kRegionAbsent;
  }
  if (!here) return absl::OkStatus();
  for (const LayerShape& layer : part.layers) {
    const uint32_t tensor = tensor_of_layer_.at(layer.layer_id);
    CRUMB_TRY(AddPlane(layer, tensor, out));
    if (layer.v_dim != 0) CRUMB_TRY(AddPlane(layer, tensor + 1, out));
  }
  uint64_t segments = 0;  // at most 2048 planes of 2^22 rows
  for (const Plane& plane : out->planes) segments += SegmentsOf(plane);
  if (segments > kSegmentsPerBlockMax) {
    return Invalid(absl::StrCat("tensors: a block falls into ", segments, " ranges; at most ",
                                kSegmentsPerBlockMax, " are allowed; lend contiguous pages"));
  }
  out->segments_max = static_cast<uint32_t>(segments);
  return absl::OkStatus();
}

absl::Status RegionSet::Planner::AddPlane(const LayerShape& layer, uint32_t tensor,
                                          PartPlan* out) const {
  const bool is_k = tensor == tensor_of_layer_.at(layer.layer_id);
  const uint64_t row_bytes =
      uint64_t{is_k ? layer.k_dim : layer.v_dim} * DtypeBytes(layout_.identity().dtype);
  TensorPlace place = spec_.tensors[tensor];
  // The whole tensor is checked, not only this part's heads: then the shift cannot wrap.
  CRUMB_TRY(CheckExtent(place, tensor, row_bytes, layer.heads * group_count_));
  const uint64_t head = layer.head_first - uint64_t{spec_.head_group_first} * layer.heads;
  place.offset += head * place.head_stride;
  uint64_t local_offset = 0;
  if (!out->planes.empty()) {
    const Plane& last = out->planes.back();
    local_offset = last.local_offset + last.row_bytes * last.heads * layout_.identity().page_tokens;
  }
  out->planes.push_back({place, local_offset, row_bytes, layer.heads});
  return absl::OkStatus();
}

absl::Status RegionSet::Planner::CheckExtent(const TensorPlace& place, uint32_t tensor,
                                             uint64_t row_bytes, uint32_t heads) const {
  if (place.region >= spec_.regions.size()) {
    return Invalid(absl::StrCat("tensors[", tensor, "].region: ", place.region, " of ",
                                spec_.regions.size(), " regions"));
  }
  // INVARIANT: rows of one tensor overlap in no index that can move.
  if ((spec_.slots > 1 && place.slot_stride < row_bytes) ||
      (tokens_per_slot_ > 1 && place.token_stride < row_bytes) ||
      (heads > 1 && place.head_stride < row_bytes)) {
    return Invalid(
        absl::StrCat("tensors[", tensor, "]: a stride is below one row of ", row_bytes, " bytes"));
  }
  const Wide extent = static_cast<Wide>(spec_.slots - 1) * place.slot_stride +
                      static_cast<Wide>(tokens_per_slot_ - 1) * place.token_stride +
                      static_cast<Wide>(heads - 1) * place.head_stride + place.offset + row_bytes;
  const uint64_t bytes = spec_.regions[place.region].bytes;
  if (extent <= bytes) return absl::OkStatus();
  return Invalid(absl::StrCat("tensors[", tensor, "]: its last row ends past the ", bytes,
                              " bytes of regions[", place.region, "]"));
}

// Merging across heads, slots or tensors is luck (a partial page breaks it) and not counted; rows
// inside one slot are geometry.
uint64_t RegionSet::Planner::SegmentsOf(const Plane& plane) const {
  const bool rows_touch = tokens_per_slot_ == 1 || plane.place.token_stride == plane.row_bytes;
  return uint64_t{plane.heads} *
         (rows_touch ? spec_.slots_per_block : layout_.identity().page_tokens);
}

absl::StatusOr<RegionSet> RegionSet::Make(RegionSetSpec spec, const Layout& layout) {
  CRUMB_TRY(CheckRegions(spec));
  RegionSet set;
  set.spec_ = std::move(spec);
  set.page_tokens_ = layout.identity().page_tokens;
  set.tokens_per_slot_ = set.page_tokens_ / set.spec_.slots_per_block;
  set.parts_.resize(layout.part_count());
  for (uint32_t i = 0; i < layout.part_count(); ++i) {
    set.parts_[i].raw_bytes = layout.parts()[i].raw_bytes;
  }
  Planner planner(set.spec_, layout);
  if (set.contiguous()) {
    CRUMB_TRY(planner.Contiguous(&set.parts_));
  } else {
    CRUMB_TRY(planner.Paged(&set.parts_));
  }
  return set;
}

uint32_t RegionSet::segments_max(uint32_t part) const {
  return part < parts_.size() ? parts_[part].segments_max : 0;
}

bool RegionSet::Segments(const BlockPlace& place, std::vector<Segment>* out) const {
  out->clear();
  if (!Holds(place)) return false;
  const PartPlan& plan = parts_[place.part];
  if (contiguous()) {
    const uint64_t address = spec_.regions[0].address + place.slots[0] * spec_.slot_bytes;
    out->push_back({.region = 0, .address = address, .local_offset = 0, .bytes = place.bytes});
    return true;
  }
  out->reserve(plan.segments_max);
  for (const Plane& plane : plan.planes) AppendPlane(plane, place, out);
  return true;
}

bool RegionSet::Holds(const BlockPlace& place) const {
  if (segments_max(place.part) == 0 || place.bytes == 0) return false;
  if (contiguous()) {
    return place.slots.size() == 1 && place.slots[0] < spec_.slots &&
           place.bytes <= spec_.slot_bytes;
  }
  if (place.bytes != parts_[place.part].raw_bytes || place.tokens > page_tokens_) return false;
  const uint32_t tokens = place.tokens == 0 ? page_tokens_ : place.tokens;
  const uint32_t slots_needed = (tokens + tokens_per_slot_ - 1) / tokens_per_slot_;
  if (place.slots.size() < slots_needed || place.slots.size() > spec_.slots_per_block) return false;
  for (uint32_t i = 0; i < slots_needed; ++i) {
    if (place.slots[i] >= spec_.slots) return false;
  }
  return true;
}

std::vector<TensorPlace> RegionSet::PlacesOf(uint32_t part) const {
  std::vector<TensorPlace> out;
  if (part >= parts_.size()) return out;
  for (const Plane& plane : parts_[part].planes) out.push_back(plane.place);
  return out;
}

void RegionSet::AppendPlane(const Plane& plane, const BlockPlace& place,
                            std::vector<Segment>* out) const {
  const uint64_t base = spec_.regions[plane.place.region].address + plane.place.offset;
  const uint32_t tokens = place.tokens == 0 ? page_tokens_ : place.tokens;
  const bool rows_touch = tokens_per_slot_ == 1 || plane.place.token_stride == plane.row_bytes;
  const uint32_t step = rows_touch ? tokens_per_slot_ : 1;  // rows per range; divides a slot
  for (uint32_t head = 0; head < plane.heads; ++head) {
    for (uint32_t token = 0; token < tokens; token += step) {
      const uint64_t slot = place.slots[token / tokens_per_slot_];
      const uint32_t rows = std::min(step, tokens - token);
      const Segment segment = {
          .region = plane.place.region,
          .address = base + slot * plane.place.slot_stride +
                     (token % tokens_per_slot_) * plane.place.token_stride +
                     head * plane.place.head_stride,
          .local_offset =
              plane.local_offset + (uint64_t{head} * page_tokens_ + token) * plane.row_bytes,
          .bytes = rows * plane.row_bytes};
      if (!out->empty()) {
        Segment& last = out->back();
        if (last.region == segment.region && last.address + last.bytes == segment.address &&
            last.local_offset + last.bytes == segment.local_offset) {
          last.bytes += segment.bytes;
          continue;
        }
      }
      out->push_back(segment);
    }
  }
}

}  // namespace crumb
