// The Admin service: for operators on this machine. Callers over the network are refused whatever
// listen.insecure says, and with listen.admin: socket all but the unix socket's. gRPC's threads.
#ifndef CRUMB_CACHESVC_SERVER_ADMIN_SERVICE_H_
#define CRUMB_CACHESVC_SERVER_ADMIN_SERVICE_H_

#include <functional>
#include <string>

#include "cachesvc/server/rpc_context.h"
#include "crumb/v1/cache.grpc.pb.h"

namespace crumb {

class AdminService final : public v1::Admin::CallbackService {
 public:
  explicit AdminService(RpcContext* context) : context_(context) {}

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* call,
                                   const v1::StatusRequest* request,
                                   v1::StatusReply* reply) override;
  grpc::ServerUnaryReactor* Flush(grpc::CallbackServerContext* call,
                                  const v1::FlushRequest* request, v1::FlushReply* reply) override;
  grpc::ServerUnaryReactor* ResizeNvme(grpc::CallbackServerContext* call,
                                       const v1::ResizeNvmeRequest* request,
                                       v1::ResizeNvmeReply* reply) override;
  grpc::ServerReadReactor<v1::ImportRotationChunk>* ImportRotation(
      grpc::CallbackServerContext* call, v1::RotationInfo* reply) override;
  grpc::ServerUnaryReactor* ListRotations(grpc::CallbackServerContext* call,
                                          const v1::ListRotationsRequest* request,
                                          v1::ListRotationsReply* reply) override;
  grpc::ServerWriteReactor<v1::DataChunk>* ExportRotation(
      grpc::CallbackServerContext* call, const v1::ExportRotationRequest* request) override;

  grpc::ServerUnaryReactor* RecordEvaluation(grpc::CallbackServerContext* call,
                                             const v1::Evaluation* request,
                                             v1::EvaluationVerdict* reply) override;
  grpc::ServerUnaryReactor* ListEvaluations(grpc::CallbackServerContext* call,
                                            const v1::ListEvaluationsRequest* request,
                                            v1::ListEvaluationsReply* reply) override;

 private:
  // Runs `work` on the control thread if the caller may use Admin, and answers with its status.
  grpc::ServerUnaryReactor* OnControl(grpc::CallbackServerContext* call,
                                      std::function<absl::Status()> work);

  RpcContext* const context_;
  std::atomic<int> imports_{0};
  std::atomic<bool> resizing_{false};
};

// OK if a caller at `peer` (as gRPC writes it: "unix:", "ipv4:1.2.3.4:5", "ipv6:%5B::1%5D:5") may
// use Admin under `scope` (local, socket).
absl::Status CheckAdminPeer(const std::string& peer, const std::string& scope);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_ADMIN_SERVICE_H_
