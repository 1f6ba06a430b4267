// Between the three forms of a layout: the public LayoutSpec, the checked crumb::Layout, and the
// messages of the control plane. What the daemon says is untrusted here as anything else.
#ifndef CRUMB_CLIENT_SRC_LAYOUT_SPEC_H_
#define CRUMB_CLIENT_SRC_LAYOUT_SPEC_H_

#include <memory>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "crumb/types.h"
#include "crumb/v1/cache.pb.h"

namespace crumb::client {

// Every field of the spec in range, or INVALID_ARGUMENT that names the field.
absl::StatusOr<crumb::Layout> CheckSpec(const LayoutSpec& spec);
absl::StatusOr<crumb::Layout> CheckIdentity(const v1::Identity& identity);

// REQUIRES: the spec passed CheckSpec.
v1::RegisterLayoutRequest ToRequest(const LayoutSpec& spec);
// The request that would make the layout the daemon described.
v1::RegisterLayoutRequest ToRequest(const v1::LayoutInfo& info);

// A layout as the client keeps it: what it asked for, what it is, and what the daemon calls it.
struct LayoutEntry {
  v1::RegisterLayoutRequest request;           // for the next session
  std::shared_ptr<const crumb::Layout> shape;  // never null
  uint32_t daemon_handle = 0;                  // 0 = unknown in this session
  Layout info;                                 // info.handle is the client's own
};
// Checks that the daemon's description fits itself (sizes per part, hash) before it is believed.
absl::StatusOr<LayoutEntry> MakeEntry(const v1::LayoutInfo& info);

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_LAYOUT_SPEC_H_
