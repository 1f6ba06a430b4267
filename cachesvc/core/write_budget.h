// WriteBudget: how much may still be written to the disk tier today. A token bucket that fills
// evenly and holds an hour's share at most, so that what was saved by day is not written at once by
// night. Charged with everything that the device was given; what must be written whatever it costs
// may drive it below zero. Pure: time comes in as a number. One thread (the shard).
#ifndef CRUMB_CACHESVC_CORE_WRITE_BUDGET_H_
#define CRUMB_CACHESVC_CORE_WRITE_BUDGET_H_

#include <cstdint>

namespace crumb::core {

class WriteBudget {
 public:
  // 0: no limit. Full at first.
  WriteBudget(uint64_t bytes_per_day, uint64_t now_us);

  // `bytes_issued`: given to the device since it was opened. Never falls.
  void Charge(uint64_t bytes_issued, uint64_t now_us);
  // Whether something may be written that can be left alone.
  bool allows() const { return bytes_per_day_ == 0 || left_ > 0; }
  uint64_t bytes_per_day() const { return bytes_per_day_; }
  int64_t left_bytes() const { return static_cast<int64_t>(left_); }  // 0 without a limit

 private:
  uint64_t bytes_per_day_;
  uint64_t last_us_;
  uint64_t charged_ = 0;
  double left_, most_;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_WRITE_BUDGET_H_
