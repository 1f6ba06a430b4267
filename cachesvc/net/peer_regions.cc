// Range checks by subtraction only: nothing here can wrap. No thread.
#include "cachesvc/net/peer_regions.h"

namespace crumb {
namespace {

bool Inside(uint64_t start, uint64_t bytes, const RegionRange& range) {
  if (start < range.address || bytes > range.bytes) return false;
  return start - range.address <= range.bytes - bytes;
}

}  // namespace

bool SegmentsFit(absl::Span<const RegionRange> regions, const Transfer& transfer) {
  if (transfer.segments.empty() || transfer.segments.size() > kSegmentsPerBlockMax) return false;
  const RegionRange local = {0, transfer.local.size()};
  for (const Segment& segment : transfer.segments) {
    if (segment.bytes == 0 || segment.region >= regions.size()) return false;
    if (!Inside(segment.address, segment.bytes, regions[segment.region])) return false;
    if (!Inside(segment.local_offset, segment.bytes, local)) return false;
  }
  return true;
}

std::vector<RegionRange> RangesOf(const RegionSet& set) {
  std::vector<RegionRange> ranges;
  ranges.reserve(set.spec().regions.size());
  for (const Region& region : set.spec().regions) ranges.push_back({region.address, region.bytes});
  return ranges;
}

}  // namespace crumb
