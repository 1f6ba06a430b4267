// Drives a SegmentLog in tests: makes pages whose every byte follows from (key, version), keeps
// what a perfect cache would know, and checks what comes back against it. One thread.
#ifndef CRUMB_TESTS_SUPPORT_LOG_TESTER_H_
#define CRUMB_TESTS_SUPPORT_LOG_TESTER_H_

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/base/rng.h"
#include "storage/device/aligned_buffer.h"
#include "storage/segment/segment_log.h"

namespace crumb::testing {

class ManualClock final : public Clock {
 public:
  uint64_t now_us() const override { return now_us_; }
  void Advance(uint64_t us) { now_us_ += us; }

 private:
  uint64_t now_us_ = 1'000'000;
};

inline BlockKey TestKey(uint64_t id) {
  BlockKey key;
  SplitMix64 mix(id + 1);
  for (size_t at = 0; at < key.bytes.size(); at += 8) {
    const uint64_t word = mix.Next();
    std::memcpy(key.bytes.data() + at, &word, 8);
  }
  return key;
}

// `version` goes into identity_prefix and the payload, so that a reader can tell exact from stale.
inline void FillPage(uint64_t id, uint32_t payload_bytes, uint64_t version, MutableBytes out) {
  PageHeader header;
  header.key = TestKey(id);
  header.identity_prefix = version;
  header.token_count = 64;
  header.payload_bytes = payload_bytes;
  header.raw_bytes = payload_bytes;
  std::memset(out.data(), 0, out.size());
  Rng rng(id * 1'000'003 + version);
  uint8_t* payload = out.data() + kPageHeaderBytes;
  for (uint32_t at = 0; at < payload_bytes; at += 8) {
    const uint64_t word = rng.Next();
    std::memcpy(payload + at, &word, std::min<uint32_t>(8, payload_bytes - at));
  }
  SealHeader(header, Bytes(payload, payload_bytes));
  StoreHeader(header, out);
}

// True if `page` is exactly what FillPage made of (id, its own version).
inline bool IsExactPage(uint64_t id, Bytes page) {
  const PageHeader header = LoadHeader(page);
  if (header.key != TestKey(id) || PageSlotBytes(header.payload_bytes) > page.size()) return false;
  AlignedBuffer expected(PageSlotBytes(header.payload_bytes));
  FillPage(id, header.payload_bytes, header.identity_prefix, expected.span());
  return std::memcmp(expected.data(), page.data(), 96) == 0 &&
         std::memcmp(expected.data() + kPageHeaderBytes, page.data() + kPageHeaderBytes,
                     header.payload_bytes) == 0;
}

class LogTester : public SegmentLog::RecoverySink {
 public:
  explicit LogTester(BlockDevice* device, const SegmentLogOptions& options)
      : device_(device), options_(options) {}

  absl::Status Open() {
    log_.reset();
    recovered_.clear();
    absl::StatusOr<std::unique_ptr<SegmentLog>> log =
        SegmentLog::Open(options_, device_, &clock_, this);
    if (!log.ok()) return log.status();
    log_ = *std::move(log);
    return absl::OkStatus();
  }
  void Drop() { log_.reset(); }
  SegmentLog& log() { return *log_; }
  ManualClock& clock() { return clock_; }
  SegmentLogOptions& options() { return options_; }

  void Expect(uint64_t) override {}
  void OnRecords(absl::Span<const RecoveredRecord> records) override {
    for (const RecoveredRecord& record : records) {
      EXPECT_EQ(recovered_.count(record.header.key), 0u) << "one record per key";
      recovered_[record.header.key] = record;
    }
  }
  const std::map<BlockKey, RecoveredRecord>& recovered() const { return recovered_; }
  bool Recovered(uint64_t id) const { return recovered_.contains(TestKey(id)); }
  DiskLocation RecoveredAt(uint64_t id) const { return recovered_.at(TestKey(id)).location; }

  // One turn: hand over, wait a little, poll. Events are kept.
  void Turn() {
    log_->Submit();
    if (device_->wake_fd() >= 0 && device_->in_flight() > 0) {
      pollfd entry = {device_->wake_fd(), POLLIN, 0};
      ::poll(&entry, 1, 1000);
    }
    std::array<LogEvent, 16> some;
    size_t count = some.size();
    while (count == some.size()) {
      count = log_->Poll(absl::MakeSpan(some));
      events_.insert(events_.end(), some.begin(), some.begin() + static_cast<ptrdiff_t>(count));
    }
  }
  std::vector<LogEvent> TakeEvents() { return std::exchange(events_, {}); }
  void Settle() {
    for (int i = 0; i < 100'000 && !log_->idle(); ++i) Turn();
    EXPECT_TRUE(log_->idle());
  }

  // Waits for the event of `token`; others stay in order. Fails the test if it never comes.
  LogEvent WaitFor(LogEventKind kind, uint64_t token) {
    for (int i = 0; i < 100'000; ++i) {
      for (size_t k = 0; k < events_.size(); ++k) {
        if (events_[k].kind != kind || events_[k].token != token) continue;
        const LogEvent event = events_[k];
        events_.erase(events_.begin() + static_cast<ptrdiff_t>(k));
        return event;
      }
      Turn();
    }
    ADD_FAILURE() << "no event for token " << token;
    return {};
  }

  // Retries while the log is busy.
  template <typename F>
  BlockResult Persist(F&& call) {
    BlockResult result = call();
    for (int i = 0; i < 100'000 && result == BlockResult::kBusy; ++i) {
      Turn();
      result = call();
    }
    return result;
  }

  struct Outcome {
    BlockResult result = BlockResult::kInvalid;
    DiskLocation location;
  };
  Outcome Append(uint64_t id, uint32_t payload_bytes, bool durable = false, uint64_t version = 1) {
    AlignedBuffer page(PageSlotBytes(payload_bytes));
    FillPage(id, payload_bytes, version, page.span());
    const uint64_t token = ++tokens_;
    const BlockResult result = Persist([&] { return log_->Append(page.span(), durable, token); });
    if (result != BlockResult::kOk) return {result, {}};
    const LogEvent event = WaitFor(LogEventKind::kAppended, token);
    return {event.result, event.location};
  }
  BlockResult Read(uint64_t id, const DiskLocation& location) {
    AlignedBuffer out(location.record_bytes);
    const uint64_t token = ++tokens_;
    const BlockResult result =
        Persist([&] { return log_->Read(TestKey(id), location, out.span(), token); });
    if (result != BlockResult::kOk) return result;
    const LogEvent event = WaitFor(LogEventKind::kRead, token);
    EXPECT_EQ(event.verified, event.result == BlockResult::kOk);
    if (event.result == BlockResult::kOk) {
      EXPECT_TRUE(IsExactPage(id, out.span())) << "the log lied";
      last_version_ = LoadHeader(out.span()).identity_prefix;
    }
    return event.result;
  }
  uint64_t last_version() const { return last_version_; }
  BlockResult Erase(uint64_t id, const DiskLocation& location) {
    const uint64_t token = ++tokens_;
    const BlockResult result = Persist([&] { return log_->Erase(TestKey(id), location, token); });
    if (result != BlockResult::kOk) return result;
    return WaitFor(LogEventKind::kErased, token).result;
  }
  BlockResult Flush() {
    const uint64_t token = ++tokens_;
    const BlockResult result = Persist([&] { return log_->Flush(token); });
    if (result != BlockResult::kOk) return result;
    return WaitFor(LogEventKind::kFlushed, token).result;
  }

 private:
  BlockDevice* device_;
  SegmentLogOptions options_;
  ManualClock clock_;
  std::unique_ptr<SegmentLog> log_;
  std::map<BlockKey, RecoveredRecord> recovered_;
  std::vector<LogEvent> events_;
  uint64_t tokens_ = 0, last_version_ = 0;
};

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_SUPPORT_LOG_TESTER_H_
