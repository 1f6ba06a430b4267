// Get over gRPC: the engine writes the page into a staging buffer, then it is streamed in chunks of
// at most 1 MiB, the first of which has the header alone.
#ifndef CRUMB_CACHESVC_SERVER_GET_CALL_H_
#define CRUMB_CACHESVC_SERVER_GET_CALL_H_

#include <grpcpp/support/server_callback.h>

#include "cachesvc/server/rpc_context.h"
#include "crumb/v1/cache.pb.h"

namespace crumb {

grpc::ServerWriteReactor<v1::GetChunk>* StartGet(RpcContext* context,
                                                 grpc::CallbackServerContext* call,
                                                 const v1::GetRequest* request);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_GET_CALL_H_
