// Breaker: the client's circuit. Failures in a row open it; while it is open nothing is let
// through, so that an engine loses no time on a daemon that does not answer. After a pause with
// jitter, which doubles, one request is let through as a probe: its answer closes the circuit, its
// failure opens it again. Must never block and never let more than one probe out. Thread: the
// Client's.
#ifndef CRUMB_CLIENT_SRC_BREAKER_H_
#define CRUMB_CLIENT_SRC_BREAKER_H_

#include <cstdint>

#include "cachesvc/base/rng.h"
#include "crumb/options.h"

namespace crumb::client {

struct BreakerOptions {
  uint32_t failures = 5;  // 0: never opens
  uint64_t open_us = 200'000;
  uint64_t open_us_max = 5'000'000;
};

class Breaker {
 public:
  // `rng` outlives it.
  Breaker(const BreakerOptions& options, Rng* rng) : options_(options), rng_(*rng) {}

  // False: refuse the request. True while half-open: it is the probe; report how it ended.
  bool Allow(uint64_t now_us);
  // The request that Allow let through was not sent after all: another may probe.
  void Withdraw() { probing_ = false; }
  // An answer arrived; a request was given up; the daemon was lost.
  void OnAnswer();
  void OnFailure(uint64_t now_us);
  // A sign of life that is no answer in time: the next request may probe at once.
  void OnLateAnswer();

  Circuit state() const { return state_; }
  // Until then every request is refused. 0: none is.
  uint64_t retry_us() const { return state_ == Circuit::kOpen ? retry_us_ : 0; }
  uint64_t opened() const { return opened_; }
  uint64_t refused() const { return refused_; }

 private:
  void Open(uint64_t now_us);

  const BreakerOptions options_;
  Rng& rng_;
  Circuit state_ = Circuit::kClosed;
  bool probing_ = false;
  uint32_t failures_ = 0;
  uint64_t pause_us_ = 0;
  uint64_t retry_us_ = 0;
  uint64_t opened_ = 0, refused_ = 0;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_BREAKER_H_
