// BigLog: fills a log with durable 256 KiB values, kills, and measures the next start.
#ifndef CRUMB_TESTS_BENCH_KILL9_BIG_LOG_H_
#define CRUMB_TESTS_BENCH_KILL9_BIG_LOG_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cachesvc/base/types.h"
#include "tests/bench/kill9_books.h"

namespace crumb {

class BigLog {
 public:
  BigLog(const Settings& settings, Figures* figures) : settings_(settings), figures_(figures) {}

  bool Run();
  uint64_t ready_us() const { return ready_us_; }
  uint64_t stored_bytes() const { return stored_ * kBytes; }

 private:
  static constexpr uint64_t kBytes = 256 * 1024;

  bool Open(const Place& place);
  bool Each(Verb verb, uint64_t first);
  void Learn(Verb verb, uint64_t key, client::Code code, Bytes value);

  const Settings& settings_;
  Figures* figures_;
  std::unique_ptr<client::Client> client_;
  client::Layout layout_;
  uint32_t set_ = 0;
  std::vector<uint8_t> memory_;
  uint64_t stored_ = 0;
  uint64_t ready_us_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_BENCH_KILL9_BIG_LOG_H_
