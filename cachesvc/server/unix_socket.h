// The unix socket's place: its folder, who holds it, and what is left of a dead daemon. gRPC binds
// the socket itself, so everything that could make that unsafe is settled before. Start-up thread.
#ifndef CRUMB_CACHESVC_SERVER_UNIX_SOCKET_H_
#define CRUMB_CACHESVC_SERVER_UNIX_SOCKET_H_

#include <string>

#include "cachesvc/base/status.h"
#include "cachesvc/server/files.h"

namespace crumb {

// Held while the daemon serves: no other daemon takes the same path.
struct SocketPlace {
  UniqueFd lock;
  std::string path;
};

// Makes the folder (0700) if it is absent, refuses one that others may write (but for /tmp-like
// sticky ones), locks PATH.lock, and removes a stale socket: one on which nobody listens. A file
// that is no socket is left as it is. FAILED_PRECONDITION with the remedy.
absl::StatusOr<SocketPlace> PrepareSocket(const std::string& path);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_UNIX_SOCKET_H_
