// The daemon: owns every part, starts them in order, takes them down in reverse. Start and Stop
// from one thread; snapshots from any.
#ifndef CRUMB_CACHESVC_SERVER_DAEMON_H_
#define CRUMB_CACHESVC_SERVER_DAEMON_H_

#include <memory>
#include <string>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/status.h"
#include "cachesvc/server/config.h"
#include "cachesvc/server/gpu_service.h"
#include "cachesvc/server/http_server.h"
#include "cachesvc/server/log.h"
#include "cachesvc/server/snapshot.h"

namespace crumb {

const char* Version();                               // "0.1.0"
inline constexpr uint32_t kGpuMappingsMax = 16'384;  // allocations of workers

class Daemon {
 public:
  // Borrows the first three until it is destroyed. `open_gpus`: see GpuService::Open.
  Daemon(
      const Config& config, Log& log, const Clock& clock,
      GpuService::Opener open_gpus = [] { return OpenGpus(kGpuMappingsMax); });
  ~Daemon();

  // Blocks until the daemon serves, or says in one line, with the key, why it cannot. CANCELLED
  // after CancelStart.
  absl::Status Start();
  // Any thread: a start that is under way ends soon. Stop is still to be called.
  void CancelStart();
  // "crumbd ready grpc=HOST:PORT http=HOST:PORT socket=PATH"
  std::string ReadyLine() const;
  // Readable once the process has to end: a GPU was lost, and a CUDA context does not heal. Why,
  // and what helps; empty: nothing happened.
  int fault_fd() const;
  std::string fault() const;
  // Not ready from here on; ends what is under way, writes what lives in memory alone to NVMe,
  // closes the log. Takes at most about shutdown.grace. What went wrong with the log.
  absl::Status Stop();

  Snapshot TakeSnapshot();
  HttpReply HandleHttp(const std::string& path);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_DAEMON_H_
