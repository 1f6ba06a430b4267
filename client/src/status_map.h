// Between the error vocabularies: absl and gRPC codes, one-byte block results, and the public Code.
#ifndef CRUMB_CLIENT_SRC_STATUS_MAP_H_
#define CRUMB_CLIENT_SRC_STATUS_MAP_H_

#include <grpcpp/support/status.h>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "crumb/types.h"

namespace crumb::client {

// Of a control call.
Code CodeOf(const absl::Status& status);
Status ToStatus(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// Of one block. Numbers from outside are checked: an unknown one is kInvalid.
Code CodeOf(BlockResult result);
BlockResult ResultOf(const grpc::Status& status);
// The daemon answers but does not know our session: it was restarted, or closed it.
bool SessionIsLost(const grpc::Status& status);

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_STATUS_MAP_H_
