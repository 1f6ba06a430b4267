// The Cache service: checks every request, then hands it to the shard or the control thread and
// answers from there. Handlers never block. gRPC's threads.
#ifndef CRUMB_CACHESVC_SERVER_CACHE_SERVICE_H_
#define CRUMB_CACHESVC_SERVER_CACHE_SERVICE_H_

#include "cachesvc/server/rpc_context.h"
#include "crumb/v1/cache.grpc.pb.h"

namespace crumb {

class CacheService final : public v1::Cache::CallbackService {
 public:
  explicit CacheService(RpcContext* context) : context_(context) {}

  grpc::ServerUnaryReactor* Hello(grpc::CallbackServerContext* call,
                                  const v1::HelloRequest* request, v1::HelloReply* reply) override;
  grpc::ServerUnaryReactor* Goodbye(grpc::CallbackServerContext* call,
                                    const v1::GoodbyeRequest* request,
                                    v1::GoodbyeReply* reply) override;
  grpc::ServerUnaryReactor* RegisterLayout(grpc::CallbackServerContext* call,
                                           const v1::RegisterLayoutRequest* request,
                                           v1::RegisterLayoutReply* reply) override;
  grpc::ServerUnaryReactor* ListLayouts(grpc::CallbackServerContext* call,
                                        const v1::ListLayoutsRequest* request,
                                        v1::ListLayoutsReply* reply) override;
  grpc::ServerWriteReactor<v1::CodecsChunk>* GetCodecs(
      grpc::CallbackServerContext* call, const v1::GetCodecsRequest* request) override;
  grpc::ServerUnaryReactor* RegisterRegions(grpc::CallbackServerContext* call,
                                            const v1::RegisterRegionsRequest* request,
                                            v1::RegisterRegionsReply* reply) override;
  grpc::ServerUnaryReactor* Connect(grpc::CallbackServerContext* call,
                                    const v1::ConnectRequest* request,
                                    v1::ConnectReply* reply) override;
  grpc::ServerReadReactor<v1::PutChunk>* Put(grpc::CallbackServerContext* call,
                                             v1::PutReply* reply) override;
  grpc::ServerWriteReactor<v1::GetChunk>* Get(grpc::CallbackServerContext* call,
                                              const v1::GetRequest* request) override;
  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* call,
                                   const v1::LookupRequest* request,
                                   v1::LookupReply* reply) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* call,
                                   const v1::DeleteRequest* request,
                                   v1::DeleteReply* reply) override;
  grpc::ServerUnaryReactor* Prefetch(grpc::CallbackServerContext* call,
                                     const v1::PrefetchRequest* request,
                                     v1::PrefetchReply* reply) override;
  grpc::ServerUnaryReactor* Pin(grpc::CallbackServerContext* call, const v1::PinRequest* request,
                                v1::PinReply* reply) override;

 private:
  // Answers at once; counts refusals.
  grpc::ServerUnaryReactor* End(grpc::CallbackServerContext* call, const absl::Status& status);
  grpc::ServerUnaryReactor* Busy(grpc::ServerUnaryReactor* reactor);

  RpcContext* const context_;
};

// Ends a session everywhere: table, shadow, engine.
void CloseSession(RpcContext* context, SessionId session);
// Closes sessions that neither called for limits.session_idle nor have a UCX peer. Control thread.
void CloseIdleSessions(RpcContext* context);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_CACHE_SERVICE_H_
