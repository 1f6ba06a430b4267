// Where the daemon is: the text that a user gives, the environment and the usual places, made into
// one checked address. Any thread; touches the file system only to see whether a socket exists.
#ifndef CRUMB_CLIENT_SRC_ADDRESS_H_
#define CRUMB_CLIENT_SRC_ADDRESS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "cachesvc/base/status.h"

namespace crumb::client {

// What the process environment says; tests make their own.
struct ServerPlaces {
  std::string crumb_server;                     // CRUMB_SERVER
  std::string runtime_dir;                      // XDG_RUNTIME_DIR
  std::string system_dir = "/run/crumb";        // after the runtime directory
  std::string tcp_fallback = "127.0.0.1:7411";  // when no socket exists
  static ServerPlaces FromEnvironment();
};

// "unix:PATH" or "HOST:PORT"; INVALID_ARGUMENT says what is wrong with it.
absl::StatusOr<std::string> CheckServer(absl::string_view text);
// `asked`, or where it is empty the first place that fits.
absl::StatusOr<std::string> ResolveServer(const std::string& asked, const ServerPlaces& places);
// Whether the daemon is on this host for sure: a unix socket, or a loopback address.
bool IsLocal(const std::string& server);
// What gRPC wants to hear. REQUIRES: `server` came from CheckServer.
std::string GrpcTarget(const std::string& server);

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_ADDRESS_H_
