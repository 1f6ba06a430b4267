// Latencies of a run: log-linear buckets, 64 to each power of two, so that a percentile is within
// 1.6 % of the truth whatever the range. Fixed size; one thread adds, then they are merged.
#ifndef CRUMB_CLIENT_CLI_HISTOGRAM_H_
#define CRUMB_CLIENT_CLI_HISTOGRAM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace crumb::cli {

class Histogram {
 public:
  Histogram();
  void Add(uint64_t value);
  void Merge(const Histogram& other);
  uint64_t count() const { return count_; }
  uint64_t max() const { return max_; }
  double mean() const;
  // Smallest recorded bucket's upper bound that at least `share` (0..1) of the values do not
  // exceed; never above max(). 0 if empty.
  uint64_t Percentile(double share) const;

 private:
  static size_t BucketOf(uint64_t value);
  static uint64_t UpperBound(size_t bucket);

  std::vector<uint64_t> buckets_;
  uint64_t count_ = 0;
  uint64_t max_ = 0;
  double sum_ = 0;
};

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_HISTOGRAM_H_
