// Processes, their shares of the seeds, and the state file. One thread.
#include "tests/sim/seed_range.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "cachesvc/base/check.h"

namespace crumb::sim {
namespace {

constexpr uint64_t kShareMax = 64;  // seeds that one process runs before it ends
constexpr int kBroken = 1;          // exit code of a process that found something

uint64_t WallUs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

// Of one process, in memory shared with its parent.
struct Report {
  uint64_t seed = 0;      // running now
  uint64_t failures = 0;  // of this process
  uint64_t failed[kShareMax] = {};
  Sums sums;
};

struct Share {
  uint64_t first = 0, end = 0;
  Report* report = nullptr;
};

class Range {
 public:
  Range(const RangeOptions& options, const RunSeedFunction& run,
        const std::function<void(uint64_t, int)>& died)
      : options_(options), run_(run), died_(died), next_(options.first) {}

  RangeResult Run() {
    begin_us_ = WallUs();
    if (!Load()) return std::move(result_);
    options_.jobs == 0 ? RunHere() : RunProcesses();
    result_.complete = next_ == end() && shares_.empty();
    Save();
    return std::move(result_);
  }

 private:
  uint64_t end() const { return options_.first + options_.seeds; }
  bool enough() const { return result_.failed.size() >= options_.stop_after; }

  void RunHere() {
    while (next_ < end() && !enough()) {
      if (!run_(next_, &result_.sums)) result_.failed.push_back(next_);
      ++next_;
      if (next_ % kShareMax == 0) Save();
    }
  }

  void RunProcesses() {
    while (true) {
      while (shares_.size() < options_.jobs && next_ < end() && !enough()) {
        const uint64_t count = std::min(kShareMax, end() - next_);
        Begin(next_, next_ + count);
        next_ += count;
      }
      if (shares_.empty()) return;
      int status = 0;
      const pid_t pid = ::wait(&status);
      const auto found = shares_.find(pid);
      if (found != shares_.end()) End(found, status);
      Save();
    }
  }

  void Begin(uint64_t first, uint64_t last) {
    void* const memory =
        ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CRUMB_CHECK(memory != MAP_FAILED);
    const Share share{.first = first, .end = last, .report = new (memory) Report};
    std::fflush(stdout);
    const pid_t pid = ::fork();
    CRUMB_CHECK(pid >= 0);
    if (pid != 0) {
      shares_.emplace(pid, share);
      return;
    }
    Report& report = *share.report;
    for (report.seed = first; report.seed < last; ++report.seed) {
      if (!run_(report.seed, &report.sums)) report.failed[report.failures++] = report.seed;
      if (report.failures >= options_.stop_after) break;
    }
    std::fflush(stdout);
    ::_exit(report.failures > 0 ? kBroken : 0);
  }

  void End(std::map<pid_t, Share>::iterator found, int status) {
    const Share share = found->second;
    shares_.erase(found);
    Report& report = *share.report;
    result_.sums.Add(report.sums);
    for (uint64_t i = 0; i < report.failures; ++i) result_.failed.push_back(report.failed[i]);
    const bool by_itself = WIFEXITED(status) && WEXITSTATUS(status) <= kBroken;
    const uint64_t seed = report.seed;
    ::munmap(share.report, sizeof(Report));
    if (by_itself) return;
    result_.failed.push_back(seed);
    died_(seed, status);
    if (seed + 1 < share.end && !enough()) Begin(seed + 1, share.end);
  }

  // The lowest seed of which not everything is known. What runs now is run again after a stop.
  uint64_t Settled() const {
    uint64_t settled = next_;
    for (const auto& [pid, share] : shares_) settled = std::min(settled, share.first);
    return settled;
  }

  bool Load() {
    if (options_.resume.empty()) return true;
    std::ifstream file(options_.resume);
    if (!file) return true;
    std::string name;
    uint64_t first = 0, next = 0, failed = 0;
    Sums& sums = result_.sums;
    file >> name >> first >> name >> next >> name >> sums.seeds >> sums.answers >> sums.hits >>
        sums.promised_hits >> sums.lives >> sums.damaged >> sums.reclaimed >> sums.simulated_us >>
        sums.wall_us >> name;
    if (!file || first != options_.first || next < first) {
      result_.error = options_.resume + ": not the state of a run that began with this seed";
      return false;
    }
    while (file >> failed) result_.failed.push_back(failed);
    before_us_ = sums.wall_us;
    next_ = std::min(next, end());
    std::printf("going on with seed %" PRIu64 "\n", next_);
    return true;
  }

  void Save() {
    result_.sums.wall_us = before_us_ + WallUs() - begin_us_;
    if (options_.resume.empty() || !result_.error.empty()) return;
    const std::string fresh = options_.resume + ".new";
    {
      std::ofstream file(fresh);
      const Sums& sums = result_.sums;
      file << "first " << options_.first << "\nnext " << Settled() << "\nsums " << sums.seeds << ' '
           << sums.answers << ' ' << sums.hits << ' ' << sums.promised_hits << ' ' << sums.lives
           << ' ' << sums.damaged << ' ' << sums.reclaimed << ' ' << sums.simulated_us << ' '
           << sums.wall_us << "\nfailed";
      for (const uint64_t seed : result_.failed) file << ' ' << seed;
      file << '\n';
    }
    if (std::rename(fresh.c_str(), options_.resume.c_str()) != 0) {
      result_.error = options_.resume + ": cannot be written";
    }
  }

  const RangeOptions options_;
  const RunSeedFunction& run_;
  const std::function<void(uint64_t, int)>& died_;
  RangeResult result_;
  uint64_t next_;
  uint64_t begin_us_ = 0, before_us_ = 0;
  std::map<pid_t, Share> shares_;
};

}  // namespace

void Sums::Add(const Sums& other) {
  seeds += other.seeds;
  answers += other.answers;
  hits += other.hits;
  promised_hits += other.promised_hits;
  lives += other.lives;
  damaged += other.damaged;
  reclaimed += other.reclaimed;
  simulated_us += other.simulated_us;
}

RangeResult RunRange(const RangeOptions& options, const RunSeedFunction& run,
                     const std::function<void(uint64_t, int)>& died) {
  return Range(options, run, died).Run();
}

}  // namespace crumb::sim
