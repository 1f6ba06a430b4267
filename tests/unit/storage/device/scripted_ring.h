// A ring whose answers the test writes. One thread, no kernel.
#ifndef CRUMB_TESTS_UNIT_STORAGE_DEVICE_SCRIPTED_RING_H_
#define CRUMB_TESTS_UNIT_STORAGE_DEVICE_SCRIPTED_RING_H_

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <vector>

#include "cachesvc/base/check.h"
#include "storage/device/ring.h"

namespace crumb {

// Owns nothing that the device needs after it.
struct Script {
  size_t queue_max = 64;
  std::deque<int> submit_answers;  // >= 0: take at most that many; < 0: -errno; empty: take all
  std::vector<RingOp> prepared;
  std::vector<RingOp> taken;  // not yet answered
  std::deque<RingResult> results;
  int submits = 0, withdrawals = 0, wakes = 0, waits = 0;

  void Answer(size_t index, int32_t result) {
    results.push_back({taken[index].user_data, result});
    taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(index));
  }
};

class ScriptedRing final : public Ring {
 public:
  explicit ScriptedRing(Script* script) : script_(script) {}
  bool Prepare(const RingOp& op) override {
    if (script_->prepared.size() >= script_->queue_max) return false;
    script_->prepared.push_back(op);
    return true;
  }
  int Submit() override {
    ++script_->submits;
    size_t want = script_->prepared.size();
    if (!script_->submit_answers.empty()) {
      const int answer = script_->submit_answers.front();
      script_->submit_answers.pop_front();
      if (answer < 0) return answer;
      want = std::min(want, static_cast<size_t>(answer));
    }
    for (size_t i = 0; i < want; ++i) script_->taken.push_back(script_->prepared[i]);
    script_->prepared.erase(script_->prepared.begin(),
                            script_->prepared.begin() + static_cast<std::ptrdiff_t>(want));
    return static_cast<int>(want);
  }
  void Withdraw() override {
    ++script_->withdrawals;
    script_->prepared.clear();
  }
  size_t Reap(absl::Span<RingResult> results) override {
    size_t count = 0;
    while (count < results.size() && !script_->results.empty()) {
      results[count++] = script_->results.front();
      script_->results.pop_front();
    }
    return count;
  }
  void Wait() override {
    ++script_->waits;
    CRUMB_CHECK(!script_->taken.empty());
    script_->Answer(0, -ECANCELED);
  }
  absl::Status RegisterBuffers(absl::Span<const MutableBytes>) override { return register_status_; }
  int wake_fd() const override { return -1; }
  void Wake() override { ++script_->wakes; }

  absl::Status register_status_;

 private:
  Script* script_;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_UNIT_STORAGE_DEVICE_SCRIPTED_RING_H_
