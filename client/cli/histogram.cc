// Histogram arithmetic. Values below 64 have a bucket each.
#include "client/cli/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace crumb::cli {
namespace {

constexpr int kSubBits = 6;
constexpr uint64_t kSub = 1ull << kSubBits;
constexpr size_t kBuckets = (64 - kSubBits + 1) * kSub;

}  // namespace

Histogram::Histogram() : buckets_(kBuckets, 0) {}

size_t Histogram::BucketOf(uint64_t value) {
  if (value < kSub) return static_cast<size_t>(value);
  const int shift = static_cast<int>(std::bit_width(value)) - 1 - kSubBits;
  return static_cast<size_t>((static_cast<uint64_t>(shift) + 1) * kSub + ((value >> shift) - kSub));
}

uint64_t Histogram::UpperBound(size_t bucket) {
  if (bucket < kSub) return bucket;
  const uint64_t shift = bucket / kSub - 1;
  const uint64_t low = (bucket % kSub + kSub) << shift;
  return low + ((1ull << shift) - 1);
}

void Histogram::Add(uint64_t value) {
  ++buckets_[BucketOf(value)];
  ++count_;
  max_ = std::max(max_, value);
  sum_ += static_cast<double>(value);
}

void Histogram::Merge(const Histogram& other) {
  for (size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  max_ = std::max(max_, other.max_);
  sum_ += other.sum_;
}

double Histogram::mean() const { return count_ == 0 ? 0.0 : sum_ / static_cast<double>(count_); }

uint64_t Histogram::Percentile(double share) const {
  if (count_ == 0) return 0;
  const double wanted = std::ceil(std::clamp(share, 0.0, 1.0) * static_cast<double>(count_));
  const auto rank = std::max<uint64_t>(1, static_cast<uint64_t>(wanted));
  uint64_t seen = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    seen += buckets_[i];
    if (seen >= rank) return std::min(UpperBound(i), max_);
  }
  return max_;
}

}  // namespace crumb::cli
