// Making of channels. The token is kept in memory only, and never appears in a message.
#include "client/src/channel.h"

#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/src/address.h"
#include "client/src/status_map.h"

namespace crumb::client {
namespace {

constexpr size_t kSecretFileBytesMax = 1 << 20;
constexpr size_t kTokenBytesMax = 4096;

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, absl::string_view what) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::string text(kSecretFileBytesMax + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file && !file.eof()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " ", path, ": cannot be read: ", std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.empty() || text.size() > kSecretFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " ", path, ": empty, or larger than ", kSecretFileBytesMax, " bytes"));
  }
  return text;
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  CRUMB_ASSIGN(const std::string text, ReadSmallFile(path, "token file"));
  const std::string token(absl::StripAsciiWhitespace(text));
  for (char c : token) {
    if (c <= ' ' || c > '~') {
      return absl::InvalidArgumentError(
          absl::StrCat("token file ", path, ": a token has printable characters only"));
    }
  }
  if (token.size() > kTokenBytesMax || (!path.empty() && token.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("token file ", path, ": a token has 1 to ", kTokenBytesMax, " characters"));
  }
  return token;
}

// WHY: when its last object goes, gRPC ends its threads, and one of them may sit in a poll of 10 s
// (its backup poller, after a write that had to wait). A worker that closes its only Client must
// not wait for that, so one reference is kept for the life of the process.
void KeepGrpcRunning() {
  static const int kept = [] {
    ::grpc_init();
    return 1;
  }();
  static_cast<void>(kept);
}

}  // namespace

absl::StatusOr<Channel> Channel::Open(const ChannelOptions& options) {
  KeepGrpcRunning();
  Channel out;
  out.server_ = options.server;
  CRUMB_ASSIGN(out.token_, ReadToken(options.token_file));
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!options.tls_ca.empty() || !options.tls_cert.empty() || !options.tls_key.empty()) {
    if (options.tls_cert.empty() != options.tls_key.empty()) {
      return absl::InvalidArgumentError("a TLS certificate and its key go together");
    }
    grpc::SslCredentialsOptions tls;
    CRUMB_ASSIGN(tls.pem_root_certs, ReadSmallFile(options.tls_ca, "TLS CA"));
    CRUMB_ASSIGN(tls.pem_cert_chain, ReadSmallFile(options.tls_cert, "TLS certificate"));
    CRUMB_ASSIGN(tls.pem_private_key, ReadSmallFile(options.tls_key, "TLS key"));
    credentials = grpc::SslCredentials(tls);
  }
  out.channel_ = grpc::CreateCustomChannel(GrpcTarget(options.server), credentials, args);
  return out;
}

void Channel::Authorize(grpc::ClientContext* context) const {
  if (!token_.empty()) context->AddMetadata("authorization", absl::StrCat("Bearer ", token_));
}

void Channel::Prepare(grpc::ClientContext* context, uint32_t deadline_ms) const {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(deadline_ms));
  Authorize(context);
}

absl::Status Channel::Explain(const grpc::Status& status, absl::string_view verb) const {
  if (status.ok()) return absl::OkStatus();
  if (SessionIsLost(status)) {
    return absl::UnavailableError(absl::StrCat(
        server_, ": ", verb, ": the daemon does not know this session any more; Reconnect"));
  }
  const absl::Status plain = FromGrpc(status);
  switch (plain.code()) {
    case absl::StatusCode::kUnavailable:
      return absl::UnavailableError(absl::StrCat("no crumbd answers at ", server_, " (",
                                                 plain.message(),
                                                 "); is it running, and is the address right?"));
    case absl::StatusCode::kDeadlineExceeded:
      return absl::DeadlineExceededError(
          absl::StrCat(server_, ": ", verb, " was not answered before its deadline"));
    case absl::StatusCode::kUnimplemented:
      return absl::UnimplementedError(
          absl::StrCat(server_, ": the daemon does not know the verb ", verb, "; is it older?"));
    default:
      return absl::Status(plain.code(), absl::StrCat(verb, ": ", plain.message()));
  }
}

}  // namespace crumb::client
