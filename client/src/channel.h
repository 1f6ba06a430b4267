// The gRPC connection to a daemon: address, TLS, token. Read once, at connect. Any thread.
#ifndef CRUMB_CLIENT_SRC_CHANNEL_H_
#define CRUMB_CLIENT_SRC_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "cachesvc/base/status.h"

namespace crumb::client {

struct ChannelOptions {
  std::string server;      // from ResolveServer
  std::string token_file;  // empty = no token
  std::string tls_ca;      // PEM files; all empty = no TLS
  std::string tls_cert;
  std::string tls_key;
};

// One connection, shared with nobody: no proxy, no back-off inherited from another client.
class Channel {
 public:
  // INVALID_ARGUMENT names the file that cannot be read.
  static absl::StatusOr<Channel> Open(const ChannelOptions& options);

  const std::shared_ptr<grpc::Channel>& grpc() const { return channel_; }
  const std::string& server() const { return server_; }
  // Sets the deadline and presents the token.
  void Prepare(grpc::ClientContext* context, uint32_t deadline_ms) const;
  void Authorize(grpc::ClientContext* context) const;
  // Server, verb and remedy into what gRPC said.
  absl::Status Explain(const grpc::Status& status, absl::string_view verb) const;

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::string server_;
  std::string token_;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_CHANNEL_H_
