// The smallest region set: one slot that is a whole region. For tests that move bytes and do not
// care what they mean.
#ifndef CRUMB_TESTS_CONFORMANCE_NET_WHOLE_REGION_H_
#define CRUMB_TESTS_CONFORMANCE_NET_WHOLE_REGION_H_

#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "cachesvc/net/region_set.h"

namespace crumb {

inline absl::StatusOr<RegionSet> WholeRegion(const Region& region) {
  Identity identity;
  identity.model = "m";
  identity.revision = "r";
  identity.page_tokens = 1;
  AttentionGroup group;
  group.kv_heads = 1;
  group.k_dim = group.v_dim = 4;
  group.layer_ids = {0};
  identity.groups = {group};
  RegionSetSpec spec;
  spec.regions = {region};
  spec.slots = 1;
  spec.slot_bytes = region.bytes;
  CRUMB_ASSIGN(const Layout layout, Layout::Make(identity));
  return RegionSet::Make(spec, layout);
}

}  // namespace crumb

#endif  // CRUMB_TESTS_CONFORMANCE_NET_WHOLE_REGION_H_
