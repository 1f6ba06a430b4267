// Data plane over gRPC: one stream per block of a put or get, one call per lookup or delete. For
// workers without UCX. Thread: the Client's; gRPC's own threads copy the bytes and report through
// one locked queue. PROMISE: when a request is answered, gRPC is done with the lent memory.
#ifndef CRUMB_CLIENT_SRC_GRPC_PLANE_H_
#define CRUMB_CLIENT_SRC_GRPC_PLANE_H_

#include <memory>

#include "client/src/control.h"
#include "client/src/data_plane.h"

namespace crumb::client {

// `control` must outlive the plane.
NamedPlane OpenGrpcPlane(Control* control);

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_GRPC_PLANE_H_
