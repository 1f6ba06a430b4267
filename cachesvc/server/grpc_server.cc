// Builds the gRPC server. One thread starts and stops it; the library's own threads run it.
#include "cachesvc/server/grpc_server.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/server/rpc_convert.h"

namespace crumb {
namespace {

constexpr int kStreamsPerConnectionMax = 256;
constexpr int kKeepaliveMs = 30'000;
constexpr int kPingMinMs = 5'000;
constexpr int kMetadataBytesMax = 16 * 1024;
constexpr int kHandshakeMs = 5'000;  // until a connection has said that it speaks HTTP/2

void SetBounds(const Config& config, grpc::ServerBuilder* builder) {
  grpc::ResourceQuota quota("crumbd");
  quota.Resize(config.limits.grpc_bytes);
  builder->SetResourceQuota(quota);
  builder->SetMaxReceiveMessageSize(kMessageBytesMax);
  // Two daemons must never share a port in silence.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingMinMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
}

// Where gRPC's own lines go: its logger has no room for a context. Owns nothing.
std::atomic<Log*> grpc_log{nullptr};

// What matters to people is said by us; the rest is for whoever debugs.
void TakeGrpcLine(gpr_log_func_args* line) {
  Log* log = grpc_log.load(std::memory_order_acquire);
  if (log == nullptr) return;
  log->Write(LogLevel::kDebug, "grpc",
             {{"where", absl::StrCat(line->file, ":", line->line)}, {"text", line->message}});
}

// WHY: when its last object goes, gRPC joins its threads, and one of them may sit in a poll that
// only ends when its time is over, long after the last client left. A stop must not wait for that,
// so one reference is kept for the life of the process.
void KeepGrpcRunning() {
  static const int kept = [] {
    ::grpc_init();
    return 1;
  }();
  static_cast<void>(kept);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(RpcContext* context) {
  KeepGrpcRunning();
  const ListenConfig& listen = context->config.listen;
  std::unique_ptr<GrpcServer> out(new GrpcServer(context));
  grpc_log.store(&context->log, std::memory_order_release);
  gpr_set_log_function(TakeGrpcLine);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetBounds(context->config, &builder);
  builder.RegisterService(&out->cache_);
  builder.RegisterService(&out->admin_);
  int tcp_port = 0;
  int socket_port = 0;
  out->grpc_place_ = kOff;
  out->socket_place_ = kOff;
  HostPort place;
  if (listen.grpc != kOff) {
    CRUMB_ASSIGN(place, ParseHostPort(listen.grpc));
    builder.AddListeningPort(FormatHostPort(place), grpc::InsecureServerCredentials(), &tcp_port);
  }
  if (listen.socket != kOff) {
    absl::StatusOr<SocketPlace> prepared = PrepareSocket(listen.socket);
    if (!prepared.ok()) {
      return absl::Status(
          prepared.status().code(),
          absl::StrCat("listen.socket: ", std::string(prepared.status().message())));
    }
    out->socket_ = *std::move(prepared);
    out->socket_place_ = listen.socket;
    builder.AddListeningPort(absl::StrCat("unix:", listen.socket),
                             grpc::InsecureServerCredentials(), &socket_port);
  }
  out->server_ = builder.BuildAndStart();
  if (listen.grpc != kOff && (out->server_ == nullptr || tcp_port == 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat("listen.grpc: cannot listen on ", listen.grpc,
                     ": the port is in use, or the address is not this machine's: choose "
                     "another, or port 0 for any free one"));
  }
  if (listen.socket != kOff && (out->server_ == nullptr || socket_port == 0)) {
    return absl::FailedPreconditionError(absl::StrCat("listen.socket: cannot listen on ",
                                                      listen.socket,
                                                      ": check the permissions of its folder"));
  }
  if (out->server_ == nullptr) return absl::InternalError("the gRPC server did not start");
  if (listen.socket != kOff && chmod(listen.socket.c_str(), 0600) != 0) {
    return FileError(listen.socket, "chmod", errno);
  }
  if (listen.grpc != kOff) {
    place.port = static_cast<uint16_t>(tcp_port);
    out->grpc_place_ = FormatHostPort(place);
  }
  out->SetHealth(Health::kNotServing);
  return out;
}

GrpcServer::~GrpcServer() {
  Stop(0);
  grpc_log.store(nullptr, std::memory_order_release);
}

void GrpcServer::SetHealth(Health health) {
  if (server_ == nullptr) return;  // stopped
  grpc::HealthCheckServiceInterface* service = server_->GetHealthCheckService();
  if (service == nullptr) return;
  const bool serving = health == Health::kServing;
  service->SetServingStatus(serving);  // all of them, and ""
  service->SetServingStatus(v1::Cache::service_full_name(), serving);
  service->SetServingStatus(v1::Admin::service_full_name(), serving);
}

void GrpcServer::Stop(uint64_t grace_us) {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::microseconds(grace_us));
  server_->Wait();
  server_.reset();
  // gRPC removes its socket; after a failed start it may not have.
  if (socket_.lock.valid()) unlink(socket_.path.c_str());
}

}  // namespace crumb
