// Power loss at every moment: the whole write stream of a run is recorded, and for each point of it
// an image is built of what was stable plus some subset (whole, lost, torn by sectors) of what was
// not. PROMISE checked: recovery yields only exact pages, every page acknowledged as durable, and
// nothing whose erase or flush was acknowledged. One thread.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "cachesvc/base/rng.h"
#include "storage/device/mem_device.h"
#include "storage/segment/log_format.h"
#include "tests/support/log_tester.h"

namespace crumb {
namespace {

using testing::LogTester;
using testing::TestKey;

constexpr uint32_t kSegment = 1 << 20;
constexpr uint64_t kBytes = 7 * kSegment;  // of the device
constexpr uint64_t kUsed = 5 * kSegment;   // by a log that keeps its size
constexpr uint64_t kKeys = 24;
constexpr int kSteps = 200;
constexpr size_t kCasesMax = 5000;  // over all seeds
constexpr uint64_t kSeeds = 4, kResizeSeeds = 3;
constexpr size_t kVariants = 2;  // crashes per point of the stream

struct StreamEvent {
  enum class Kind { kQueued, kCompleted } kind = Kind::kQueued;
  size_t io = 0;  // index into ios
};

struct RecordedIo {
  IoOp op = IoOp::kWrite;
  uint64_t offset = 0;
  std::vector<uint8_t> data;
};

// Passes everything through and writes down what was written when.
class RecordingDevice final : public BlockDevice {
 public:
  explicit RecordingDevice(BlockDevice* inner) : inner_(inner) {}
  uint64_t size_bytes() const override { return inner_->size_bytes(); }
  uint32_t alignment() const override { return inner_->alignment(); }
  absl::Status RegisterBuffers(absl::Span<const MutableBytes>) override { return absl::OkStatus(); }
  absl::Status Resize(uint64_t bytes) override { return inner_->Resize(bytes); }
  bool Queue(const IoRequest& request) override {
    IoRequest inner = request;
    inner.token = requests_.size();
    if (!inner_->Queue(inner)) return false;
    std::optional<size_t> io;
    if (request.op != IoOp::kRead) {
      io = ios.size();
      RecordedIo recorded;
      recorded.op = request.op;
      recorded.offset = request.offset;
      if (request.op != IoOp::kSync) {
        recorded.data.assign(request.data, request.data + request.bytes);
      }
      ios.push_back(std::move(recorded));
      stream.push_back({StreamEvent::Kind::kQueued, *io});
    }
    requests_.push_back({request.token, io});
    return true;
  }
  void Submit() override { inner_->Submit(); }
  size_t Poll(absl::Span<IoCompletion> completions) override {
    // One at a time, so that the stream has every order of completions and acknowledgements.
    const size_t count =
        inner_->Poll(completions.subspan(0, std::min<size_t>(1, completions.size())));
    for (size_t i = 0; i < count; ++i) {
      const Asked& asked = requests_[completions[i].token];
      if (asked.io.has_value()) stream.push_back({StreamEvent::Kind::kCompleted, *asked.io});
      completions[i].token = asked.token;
    }
    return count;
  }
  size_t in_flight() const override { return inner_->in_flight(); }
  int wake_fd() const override { return -1; }

  std::vector<RecordedIo> ios;
  std::vector<StreamEvent> stream;

 private:
  struct Asked {
    uint64_t token;
    std::optional<size_t> io;
  };
  BlockDevice* inner_;
  std::vector<Asked> requests_;
};

// Something the log told its user, and at which point of the stream.
struct History {
  struct Put {
    uint64_t version = 0;
    size_t asked = 0;
    size_t durable = SIZE_MAX;  // acknowledged as durable
    DiskLocation location;
  };
  struct Kill {
    size_t asked = 0, done = SIZE_MAX;
    uint64_t version_max = 0;  // of the key when it was asked
  };
  std::map<uint64_t, std::vector<Put>> puts;     // by key id
  std::map<uint64_t, std::vector<Kill>> erases;  // by key id
  std::vector<Kill> flushes;                     // version_max: of all keys (versions are global)
  struct Cut {
    Kill kill;
    uint32_t end = 0;  // pages in this segment and behind it are given up
  };
  std::vector<Cut> cuts;
};

class CrashRun {
  struct Flight {
    uint64_t id = 0;
    size_t index = 0;  // into its puts
    bool durable = false;
    AlignedBuffer page;
  };

 public:
  enum class Size { kFixed, kChanging };
  CrashRun(uint64_t seed, Size size) : rng_(seed), size_(size) {
    options_.bytes_max = size == Size::kFixed ? kUsed : kBytes;
    options_.segment_bytes = kSegment;
    options_.format_seed = seed + 1;
    options_.appends_max = 8;
  }

  // Runs a random workload, with one clean restart in it.
  void Work() {
    LogTester log(&device_, options_);
    ASSERT_TRUE(log.Open().ok());
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps / 2) {
        ASSERT_NO_FATAL_FAILURE(Settle(&log));
        ASSERT_NO_FATAL_FAILURE(SettleResize(&log));
        ASSERT_TRUE(log.log().Close().ok());
        ASSERT_TRUE(log.Open().ok());
        segments_ = kBytes / kSegment;  // the configuration says so
      }
      ASSERT_NO_FATAL_FAILURE(Step(&log));
    }
    ASSERT_NO_FATAL_FAILURE(Settle(&log));
  }

  const std::vector<StreamEvent>& stream() const { return device_.stream; }
  size_t cases() const { return cases_; }

  // Every point of the stream, each with a few subsets of what is not stable there.
  void CrashEverywhere(size_t cases_max) {
    std::vector<uint8_t> stable(kBytes);
    std::vector<size_t> complete;  // written, not stable
    std::set<size_t> in_flight;
    std::map<size_t, std::vector<size_t>> sync_covers;
    const size_t points = device_.stream.size();
    for (size_t point = 0; point < points; ++point) {
      const StreamEvent& event = device_.stream[point];
      const RecordedIo& io = device_.ios[event.io];
      if (event.kind == StreamEvent::Kind::kQueued) {
        in_flight.insert(event.io);
        if (io.op == IoOp::kSync) sync_covers[event.io] = complete;
      } else {
        in_flight.erase(event.io);
        if (io.op == IoOp::kWrite) complete.push_back(event.io);
        if (io.op == IoOp::kWriteDurable) {
          SettleOverlaps(io, &complete, &stable);
          Apply(io, &stable);
        }
        if (io.op == IoOp::kSync) {
          for (size_t covered : sync_covers[event.io]) {
            Apply(device_.ios[covered], &stable);
            std::erase(complete, covered);
          }
        }
      }
      std::vector<size_t> loose = complete;
      loose.insert(loose.end(), in_flight.begin(), in_flight.end());
      for (size_t variant = 0; variant < kVariants && cases_ < cases_max; ++variant) {
        ASSERT_NO_FATAL_FAILURE(CrashAt(point, stable, loose, variant))
            << "point " << point << " variant " << variant;
        if (loose.empty()) break;
      }
    }
  }

 private:
  static void Apply(const RecordedIo& io, std::vector<uint8_t>* image) {
    std::copy(io.data.begin(), io.data.end(), image->begin() + static_cast<ptrdiff_t>(io.offset));
  }

  // An older cached write to the same place cannot come back over a durable one.
  void SettleOverlaps(const RecordedIo& io, std::vector<size_t>* complete,
                      std::vector<uint8_t>* stable) {
    std::vector<size_t> apart;
    for (size_t index : *complete) {
      const RecordedIo& other = device_.ios[index];
      if (other.offset + other.data.size() <= io.offset ||
          io.offset + io.data.size() <= other.offset) {
        apart.push_back(index);
      } else {
        Apply(other, stable);
      }
    }
    *complete = std::move(apart);
  }

  size_t Now() const { return device_.stream.size(); }

  void Step(LogTester* log) {
    const uint64_t id = rng_.Below(kKeys);
    const uint64_t dice = rng_.Below(100);
    if (size_ == Size::kChanging && rng_.Chance(1, 12)) Resize(log);
    if (dice < 80) {
      Put(log, id, dice < 40);
    } else if (dice < 98) {
      Erase(log, id);
    } else if (size_ == Size::kFixed || dice == 99) {
      Flush(log);
    } else {
      Resize(log);
    }
    if (rng_.Chance(1, 3)) Turn(log);
  }

  // Several appends are under way at once; this takes what has come.
  std::vector<LogEvent> Turn(LogTester* log) {
    log->Turn();
    std::vector<LogEvent> events = log->TakeEvents();
    for (const LogEvent& event : events) {
      if (event.kind == LogEventKind::kResized) {
        EXPECT_EQ(event.result, BlockResult::kOk);
        if (shrinking_) history_.cuts.back().kill.done = Now();
        resizing_ = shrinking_ = false;
      }
      if (event.kind != LogEventKind::kAppended) continue;
      Flight& flight = flights_.at(event.token);
      if (event.result == BlockResult::kOk) {
        History::Put& put = history_.puts[flight.id].at(flight.index);
        put.location = event.location;
        if (flight.durable) put.durable = Now();
        at_[flight.id] = event.location;
      }
      flights_.erase(event.token);
    }
    return events;
  }
  void Settle(LogTester* log) {
    for (int i = 0; i < 10'000 && !flights_.empty(); ++i) Turn(log);
    ASSERT_TRUE(flights_.empty());
  }

  // While all else goes on.
  void Resize(LogTester* log) {
    if (resizing_) return;
    const auto to = static_cast<uint32_t>(4 + rng_.Below(4));
    History::Cut cut;
    cut.kill.asked = Now();
    cut.kill.version_max = versions_;
    cut.end = to;
    ASSERT_EQ(log->log().Resize(uint64_t{to} * kSegment, 2'000'000), BlockResult::kOk);
    resizing_ = true;
    shrinking_ = to < segments_;
    if (shrinking_) history_.cuts.push_back(cut);
    segments_ = to;
  }
  void SettleResize(LogTester* log) {
    for (int i = 0; i < 10'000 && resizing_; ++i) Turn(log);
    ASSERT_FALSE(resizing_);
  }

  void Put(LogTester* log, uint64_t id, bool durable) {
    const auto bytes = static_cast<uint32_t>(1 + rng_.Below(rng_.Chance(1, 4) ? 200'000 : 30'000));
    History::Put put;
    put.version = ++versions_;
    put.asked = Now();
    Flight flight;
    flight.id = id;
    flight.durable = durable;
    flight.page = AlignedBuffer(PageSlotBytes(bytes));
    testing::FillPage(id, bytes, put.version, flight.page.span());
    BlockResult result = log->log().Append(flight.page.span(), durable, put.version);
    for (int i = 0; i < 10'000 && result == BlockResult::kBusy; ++i) {
      Turn(log);
      result = log->log().Append(flight.page.span(), durable, put.version);
    }
    ASSERT_EQ(result, BlockResult::kOk);
    flight.index = history_.puts[id].size();
    history_.puts[id].push_back(put);
    flights_.emplace(put.version, std::move(flight));
  }

  void Erase(LogTester* log, uint64_t id) {
    if (!at_.contains(id)) return;
    for (const auto& [token, flight] : flights_) {
      if (flight.id == id) return;  // its newest location is not known yet
    }
    History::Kill kill;
    kill.asked = Now();
    kill.version_max = versions_;
    const uint64_t token = 1'000'000 + ++erases_;
    BlockResult result = log->log().Erase(TestKey(id), at_[id], token);
    if (result == BlockResult::kOk) result = WaitFor(log, LogEventKind::kErased, token);
    ASSERT_TRUE(result == BlockResult::kOk || result == BlockResult::kMiss);
    at_.erase(id);
    if (result == BlockResult::kMiss) return;  // reclaimed before
    kill.done = Now();
    history_.erases[id].push_back(kill);
  }

  void Flush(LogTester* log) {
    ASSERT_NO_FATAL_FAILURE(Settle(log));
    History::Kill kill;
    kill.asked = Now();
    kill.version_max = versions_;
    ASSERT_EQ(log->log().Flush(3'000'000), BlockResult::kOk);
    ASSERT_EQ(WaitFor(log, LogEventKind::kFlushed, 3'000'000), BlockResult::kOk);
    kill.done = Now();
    history_.flushes.push_back(kill);
    at_.clear();
  }

  BlockResult WaitFor(LogTester* log, LogEventKind kind, uint64_t token) {
    for (int i = 0; i < 10'000; ++i) {
      for (const LogEvent& event : Turn(log)) {
        if (event.kind == kind && event.token == token) return event.result;
      }
    }
    return BlockResult::kTimeout;
  }

  // True if the segment of `put` was given away (marked anew or retired) by a write of before
  // `point`.
  bool IsReclaimed(const History::Put& put, size_t point) const {
    const uint64_t mark_offset = uint64_t{put.location.segment + 1} * kSegment - kLogBlock;
    for (size_t i = 0; i <= point && i < device_.stream.size(); ++i) {
      if (device_.stream[i].kind != StreamEvent::Kind::kQueued) continue;
      const RecordedIo& io = device_.ios[device_.stream[i].io];
      if (io.data.empty() || io.offset + io.data.size() != mark_offset + kLogBlock) continue;
      SegmentMark mark;
      if (ParseMark(Bytes(io.data).last(kLogBlock), &mark) != ParseResult::kOk) continue;
      if (mark.generation > put.location.generation || mark.state == MarkState::kRetired) {
        return true;
      }
    }
    return false;
  }

  // Lies behind an end that the log had since.
  bool IsCut(const History::Put& put, size_t point, bool for_sure) const {
    return std::any_of(history_.cuts.begin(), history_.cuts.end(), [&](const History::Cut& cut) {
      return put.location.segment >= cut.end && put.version <= cut.kill.version_max &&
             (for_sure ? cut.kill.done : cut.kill.asked) <= point;
    });
  }

  static bool Killed(const std::vector<History::Kill>& kills, uint64_t version, size_t point,
                     bool for_sure) {
    return std::any_of(kills.begin(), kills.end(), [&](const History::Kill& kill) {
      return version <= kill.version_max && (for_sure ? kill.done : kill.asked) <= point;
    });
  }

  void CrashAt(size_t point, const std::vector<uint8_t>& stable, const std::vector<size_t>& loose,
               size_t variant) {
    ++cases_;
    std::copy(stable.begin(), stable.end(), crashed_.mutable_image().begin());
    for (size_t index : loose) {
      const RecordedIo& io = device_.ios[index];
      const uint64_t fate = variant == 0 ? point % 2 : rng_.Below(4);
      for (size_t at = 0; at < io.data.size(); at += kSectorBytes) {
        // lost, whole, a prefix, or sectors at random
        const bool keep =
            fate == 1 || (fate == 2 && at < io.data.size() / 2) || (fate == 3 && rng_.Chance(1, 2));
        if (keep) {
          std::memcpy(crashed_.mutable_image().data() + io.offset + at, io.data.data() + at,
                      kSectorBytes);
        }
      }
    }
    LogTester log(&crashed_, options_);
    const absl::Status status = log.Open();
    ASSERT_TRUE(status.ok()) << status;
    for (uint64_t id = 0; id < kKeys; ++id) {
      ASSERT_NO_FATAL_FAILURE(CheckKey(&log, id, point)) << "key " << id;
    }
    if (cases_ % 16 == 0) {
      ASSERT_NO_FATAL_FAILURE(CheckGoesOn(&log));
    }
  }

  void CheckKey(LogTester* log, uint64_t id, size_t point) {
    uint64_t version = 0;
    if (log->Recovered(id)) {
      ASSERT_EQ(log->Read(id, log->RecoveredAt(id)), BlockResult::kOk);
      version = log->last_version();
    }
    uint64_t durable_version = 0;
    for (const History::Put& put : history_.puts[id]) {
      if (put.version == version) {
        ASSERT_LE(put.asked, point) << "from the future";
      }
      const bool may_be_dead = Killed(history_.erases[id], put.version, point, false) ||
                               Killed(history_.flushes, put.version, point, false);
      const bool may_be_gone = IsReclaimed(put, point) || IsCut(put, point, false);
      if (put.durable <= point && !may_be_dead && !may_be_gone) durable_version = put.version;
      // WHY not in the middle of the run: the configuration's size was there again by then.
      if (put.version == version && put.location.generation != 0) {
        ASSERT_FALSE(IsCut(put, point, true)) << "given up, and back";
      }
    }
    ASSERT_GE(version, durable_version) << "a durable page is lost or stale";
    if (version == 0) return;
    ASSERT_FALSE(Killed(history_.erases[id], version, point, true)) << "erased, and back";
    ASSERT_FALSE(Killed(history_.flushes, version, point, true)) << "flushed, and back";
  }

  // The recovered log takes pages, and a second recovery finds the same and these.
  void CheckGoesOn(LogTester* log) {
    std::map<BlockKey, DiskLocation> before;
    for (const auto& [key, record] : log->recovered()) before[key] = record.location;
    const LogTester::Outcome outcome = log->Append(kKeys + 1, 5000, true, 1);
    ASSERT_EQ(outcome.result, BlockResult::kOk);
    for (const LogEvent& event : log->TakeEvents()) before.erase(event.key);
    before[TestKey(kKeys + 1)] = outcome.location;
    log->Drop();
    ASSERT_TRUE(log->Open().ok());
    for (const auto& [key, location] : before) {
      ASSERT_TRUE(log->recovered().contains(key));
      ASSERT_EQ(log->recovered().at(key).location, location);
    }
    ASSERT_EQ(log->recovered().size(), before.size());
  }

  Rng rng_;
  const Size size_;
  uint32_t segments_ = kBytes / kSegment;
  bool resizing_ = false, shrinking_ = false;
  SegmentLogOptions options_;
  MemDevice mem_{{kBytes, 4096, 64, false}};
  RecordingDevice device_{&mem_};
  MemDevice crashed_{{kBytes, 4096, 64, false}};
  History history_;
  std::map<uint64_t, DiskLocation> at_;
  std::map<uint64_t, Flight> flights_;  // by version, which is the token
  uint64_t versions_ = 0, erases_ = 0;
  size_t cases_ = 0;
};

class SegmentLogCrashTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(SegmentLogCrashTest, EveryPointOfTheWriteStream) {
  CrashRun run(GetParam(), CrashRun::Size::kFixed);
  ASSERT_NO_FATAL_FAILURE(run.Work());
  ASSERT_NO_FATAL_FAILURE(run.CrashEverywhere(kCasesMax / kSeeds));
  std::printf("%zu stream events, %zu crashes\n", run.stream().size(), run.cases());
  EXPECT_GT(run.cases(), run.stream().size());
}

class SegmentLogResizeCrashTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(SegmentLogResizeCrashTest, EveryPointWhileTheSizeChanges) {
  CrashRun run(GetParam() + 100, CrashRun::Size::kChanging);
  ASSERT_NO_FATAL_FAILURE(run.Work());
  ASSERT_NO_FATAL_FAILURE(run.CrashEverywhere(kCasesMax / kSeeds));
  std::printf("%zu stream events, %zu crashes\n", run.stream().size(), run.cases());
  EXPECT_GT(run.cases(), run.stream().size());
}

INSTANTIATE_TEST_SUITE_P(Seeds, SegmentLogResizeCrashTest,
                         ::testing::Range<uint64_t>(1, kResizeSeeds + 1));
INSTANTIATE_TEST_SUITE_P(Seeds, SegmentLogCrashTest, ::testing::Range<uint64_t>(1, kSeeds + 1));

}  // namespace
}  // namespace crumb
