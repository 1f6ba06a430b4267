// Put over gRPC: a client streams one page in chunks, the daemon stages it, the engine takes it
// from there. Must never allocate by what a client says before it was checked.
#ifndef CRUMB_CACHESVC_SERVER_PUT_CALL_H_
#define CRUMB_CACHESVC_SERVER_PUT_CALL_H_

#include <grpcpp/support/server_callback.h>

#include "cachesvc/server/rpc_context.h"
#include "crumb/v1/cache.pb.h"

namespace crumb {

grpc::ServerReadReactor<v1::PutChunk>* StartPut(RpcContext* context,
                                                grpc::CallbackServerContext* call,
                                                v1::PutReply* reply);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_PUT_CALL_H_
