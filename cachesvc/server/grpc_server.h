// The gRPC server: both services, health and reflection, on TCP and the unix socket, with every
// buffer bounded. Start and Stop from one thread.
#ifndef CRUMB_CACHESVC_SERVER_GRPC_SERVER_H_
#define CRUMB_CACHESVC_SERVER_GRPC_SERVER_H_

#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "cachesvc/server/admin_service.h"
#include "cachesvc/server/cache_service.h"
#include "cachesvc/server/config.h"
#include "cachesvc/server/rpc_context.h"
#include "cachesvc/server/unix_socket.h"

namespace crumb {

class GrpcServer {
 public:
  // FAILED_PRECONDITION names the key whose address cannot be bound.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(RpcContext* context);
  ~GrpcServer();  // Stop at once

  // "127.0.0.1:7411", or "off".
  const std::string& grpc_place() const { return grpc_place_; }
  const std::string& socket_place() const { return socket_place_; }

  enum class Health : uint8_t { kNotServing, kServing };
  void SetHealth(Health health);
  // Refuses new calls, waits for those under way until `grace_us` from now, then cancels them.
  void Stop(uint64_t grace_us);

 private:
  explicit GrpcServer(RpcContext* context) : cache_(context), admin_(context) {}

  CacheService cache_;
  AdminService admin_;
  SocketPlace socket_;
  std::string grpc_place_;
  std::string socket_place_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_GRPC_SERVER_H_
