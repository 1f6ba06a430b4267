// See write_budget.h. The shard's thread.
#include "cachesvc/core/write_budget.h"

#include <algorithm>

#include "cachesvc/base/check.h"

namespace crumb::core {
namespace {
constexpr double kDayUs = 86'400e6;
constexpr double kBurstsPerDay = 24;
}  // namespace

WriteBudget::WriteBudget(uint64_t bytes_per_day, uint64_t now_us)
    : bytes_per_day_(bytes_per_day),
      last_us_(now_us),
      left_(static_cast<double>(bytes_per_day) / kBurstsPerDay),
      most_(left_) {}

void WriteBudget::Charge(uint64_t bytes_issued, uint64_t now_us) {
  if (bytes_per_day_ == 0) return;
  CRUMB_CHECK(bytes_issued >= charged_);
  const double elapsed_us = now_us > last_us_ ? static_cast<double>(now_us - last_us_) : 0;
  left_ = std::min(most_, left_ + static_cast<double>(bytes_per_day_) * elapsed_us / kDayUs);
  left_ -= static_cast<double>(bytes_issued - charged_);
  last_us_ = std::max(last_us_, now_us);
  charged_ = bytes_issued;
}

}  // namespace crumb::core
