// The codecs of a layout over gRPC, for workers that pack and unpack their own pages: descriptors,
// then the rotation sets' files. Made on the control thread, written by gRPC's.
#ifndef CRUMB_CACHESVC_SERVER_CODECS_CALL_H_
#define CRUMB_CACHESVC_SERVER_CODECS_CALL_H_

#include <grpcpp/support/server_callback.h>

#include "cachesvc/server/rpc_context.h"
#include "crumb/v1/cache.pb.h"

namespace crumb {

grpc::ServerWriteReactor<v1::CodecsChunk>* StartGetCodecs(RpcContext* context,
                                                          grpc::CallbackServerContext* call,
                                                          const v1::GetCodecsRequest& request);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_CODECS_CALL_H_
