// Handlers of the Admin service.
#include "cachesvc/server/admin_service.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cachesvc/server/nvme_call.h"
#include "cachesvc/server/quality_calls.h"
#include "cachesvc/server/rotation_calls.h"
#include "cachesvc/server/rpc_convert.h"

namespace crumb {
namespace {

grpc::ServerUnaryReactor* End(grpc::CallbackServerContext* call, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace

absl::Status CheckAdminPeer(const std::string& peer, const std::string& scope) {
  if (absl::StartsWith(peer, "unix:")) return absl::OkStatus();
  const bool loopback = absl::StartsWith(peer, "ipv4:127.") ||
                        absl::StartsWith(peer, "ipv6:%5B::1%5D:") ||
                        absl::StartsWith(peer, "ipv6:[::1]:");
  if (loopback && scope == "local") return absl::OkStatus();
  return absl::PermissionDeniedError(
      loopback ? "admin verbs are served on the unix socket only (listen.admin: socket)"
               : "admin verbs are served to this machine only: use the unix socket there");
}

grpc::ServerUnaryReactor* AdminService::Status(grpc::CallbackServerContext* call,
                                               const v1::StatusRequest*, v1::StatusReply* reply) {
  // Taking a snapshot waits for the shard: not on gRPC's thread.
  return OnControl(call, [this, reply] {
    reply->set_json(StatusJson(context_->snapshot()));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::Flush(grpc::CallbackServerContext* call,
                                              const v1::FlushRequest* request, v1::FlushReply*) {
  const absl::Status allowed = CheckAdminPeer(call->peer(), context_->config.listen.admin);
  if (!allowed.ok()) return End(call, allowed);
  crumb::FlushRequest flush{.tenant = request->tenant(), .has_identity = false, .identity = {}};
  if (!request->layout_hash().empty()) {
    if (request->layout_hash().size() != flush.identity.bytes.size()) {
      return End(call, absl::InvalidArgumentError(absl::StrCat(
                           "layout_hash: ", request->layout_hash().size(), " bytes; it has 32")));
    }
    flush.has_identity = true;
    std::copy(request->layout_hash().begin(), request->layout_hash().end(),
              flush.identity.bytes.begin());
  }
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const bool posted = context_->shard.Post([reactor, flush](const ShardView& view) {
    view.engine.Flush(flush,
                      [reactor](const absl::Status& done) { reactor->Finish(ToGrpc(done)); });
  });
  if (!posted) reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, kBusyMessage});
  context_->log.Info("flush", {{"layout", flush.has_identity ? Hex(flush.identity.bytes) : "all"},
                               {"tenant", flush.tenant.empty() ? "all" : flush.tenant}});
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::ResizeNvme(grpc::CallbackServerContext* call,
                                                   const v1::ResizeNvmeRequest* request,
                                                   v1::ResizeNvmeReply* reply) {
  const absl::Status allowed = CheckAdminPeer(call->peer(), context_->config.listen.admin);
  if (!allowed.ok()) return End(call, allowed);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  StartNvmeResize(context_, {reactor, request, reply, &resizing_});
  return reactor;
}

grpc::ServerReadReactor<v1::ImportRotationChunk>* AdminService::ImportRotation(
    grpc::CallbackServerContext* call, v1::RotationInfo* reply) {
  return StartImport(context_, {.call = call, .reply = reply, .under_way = &imports_});
}

grpc::ServerUnaryReactor* AdminService::OnControl(grpc::CallbackServerContext* call,
                                                  std::function<absl::Status()> work) {
  const absl::Status allowed = CheckAdminPeer(call->peer(), context_->config.listen.admin);
  if (!allowed.ok()) return End(call, allowed);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const bool posted = context_->control.Post(
      [reactor, work = std::move(work)] { reactor->Finish(ToGrpc(work())); });
  if (!posted) reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, kBusyMessage});
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::ListRotations(grpc::CallbackServerContext* call,
                                                      const v1::ListRotationsRequest* request,
                                                      v1::ListRotationsReply* reply) {
  return OnControl(call, [this, reply, prefix = request->hash_prefix()] {
    return DescribeRotations(&context_->catalog, prefix, reply);
  });
}

grpc::ServerUnaryReactor* AdminService::RecordEvaluation(grpc::CallbackServerContext* call,
                                                         const v1::Evaluation* request,
                                                         v1::EvaluationVerdict* reply) {
  return OnControl(call, [this, reply, evaluation = *request] {
    return crumb::RecordEvaluation(&context_->catalog, context_->config.quality, evaluation, reply);
  });
}

grpc::ServerUnaryReactor* AdminService::ListEvaluations(grpc::CallbackServerContext* call,
                                                        const v1::ListEvaluationsRequest*,
                                                        v1::ListEvaluationsReply* reply) {
  return OnControl(call, [this, reply] {
    crumb::ListEvaluations(context_->catalog, context_->config.quality, reply);
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<v1::DataChunk>* AdminService::ExportRotation(
    grpc::CallbackServerContext* call, const v1::ExportRotationRequest* request) {
  return StartExport(context_, call, request->hash_prefix());
}

}  // namespace crumb
