// Ctrl-C and SIGTERM as something to wait for, for a command that holds something and lets it go in
// order. A second signal ends the process at once. One at a time, on the thread that made it; must
// not live while another part handles these signals.
#ifndef CRUMB_CLIENT_CLI_STOP_SIGNALS_H_
#define CRUMB_CLIENT_CLI_STOP_SIGNALS_H_

#include <cstdint>
#include <memory>

#include "cachesvc/base/status.h"

namespace crumb::cli {

class StopSignals {
 public:
  static absl::StatusOr<std::unique_ptr<StopSignals>> Take();
  ~StopSignals();  // gives the signals back to whoever had them
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Returns after timeout_ms, or at once when a signal came: its number, 0 while there was none.
  int Wait(uint32_t timeout_ms) const;

 private:
  using Handler = void (*)(int);

  explicit StopSignals(int fd);

  int fd_;
  Handler interrupt_ = nullptr, terminate_ = nullptr;
};

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_STOP_SIGNALS_H_
