// Data plane of a worker on the daemon's own host: wire messages over a unix socket, lent memory
// mapped by the daemon. Memory that the worker does not share travels through a bounded area of the
// library's own: copied in before a put, copied out and verified in one pass after a get. GPU
// memory is named and never touched. Thread: the Client's. Must never touch private memory for a
// request that was abandoned or answered.
#ifndef CRUMB_CLIENT_SRC_UDS_PLANE_H_
#define CRUMB_CLIENT_SRC_UDS_PLANE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "client/src/data_plane.h"
#include "crumb/v1/cache.pb.h"

namespace crumb::client {

struct UdsPlaneOptions {
  std::string data_socket;  // from Hello
  uint64_t session = 0;
  uint64_t bounce_bytes = 64ull << 20;
  uint32_t lend_ms = 5000;
  // Tells the control plane of a region set.
  std::function<absl::Status(v1::RegisterRegionsRequest)> register_regions;
};

// UNAVAILABLE: nobody listens there, or not for us.
absl::StatusOr<NamedPlane> OpenUdsPlane(const UdsPlaneOptions& options);

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_UDS_PLANE_H_
