// The three states of breaker.h.
#include "client/src/breaker.h"

#include <algorithm>

namespace crumb::client {

bool Breaker::Allow(uint64_t now_us) {
  if (state_ == Circuit::kOpen && now_us >= retry_us_) {
    state_ = Circuit::kHalfOpen;
    probing_ = false;
  }
  if (state_ == Circuit::kClosed) return true;
  if (state_ == Circuit::kOpen || probing_) {
    ++refused_;
    return false;
  }
  probing_ = true;
  return true;
}

void Breaker::OnAnswer() {
  state_ = Circuit::kClosed;
  failures_ = 0;
  pause_us_ = 0;
  probing_ = false;
}

void Breaker::OnFailure(uint64_t now_us) {
  if (options_.failures == 0 || state_ == Circuit::kOpen) return;
  if (state_ == Circuit::kHalfOpen || ++failures_ >= options_.failures) Open(now_us);
}

void Breaker::OnLateAnswer() {
  if (state_ == Circuit::kOpen) retry_us_ = 0;
}

void Breaker::Open(uint64_t now_us) {
  state_ = Circuit::kOpen;
  probing_ = false;
  failures_ = 0;
  ++opened_;
  pause_us_ = std::clamp(pause_us_ * 2, options_.open_us, options_.open_us_max);
  // Jitter: many clients of one daemon must not probe in step.
  retry_us_ = now_us + pause_us_ / 2 + rng_.Below(pause_us_ / 2 + 1);
}

}  // namespace crumb::client
