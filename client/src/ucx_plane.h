// Data plane over UCX: one wire message per request; the daemon reads and writes lent memory
// itself. Thread: the Client's; it also makes all UCX progress.
#ifndef CRUMB_CLIENT_SRC_UCX_PLANE_H_
#define CRUMB_CLIENT_SRC_UCX_PLANE_H_

#include <memory>
#include <string>

#include "client/src/control.h"
#include "client/src/data_plane.h"

namespace crumb::client {

struct UcxPlaneOptions {
  std::string tls;
  std::string net_devices;
};

// Exchanges addresses over `control`, which must outlive the plane.
absl::StatusOr<NamedPlane> OpenUcxPlane(const UcxPlaneOptions& options, Control* control);

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_UCX_PLANE_H_
