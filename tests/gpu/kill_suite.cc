// Workers that are killed in mid-transfer: this program starts itself as one, again and again, and
// kills it while its puts and gets are under way, beside a worker that goes on and checks every
// page. CRUMB_GPU_KILLS: how many; CRUMB_GPU_KILL_SECONDS: it ends after that time, if fifty were
// killed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cachesvc/base/clock.h"
#include "cachesvc/base/rng.h"
#include "client/cli/bench_values.h"
#include "tests/gpu/daemon_suite.h"

namespace crumb {
namespace {

using client::Code;

constexpr char kServer[] = "CRUMB_GPU_WORKER_SERVER";  // environment of a worker that is killed
constexpr cli::DeviceShape kShape = {.layers = 2, .heads = 8, .dim = 128};  // 512 KiB a page
constexpr uint32_t kBatch = 8, kLanes = 4;
constexpr int kReadyFd = 3;
constexpr size_t kWorkers = 8;  // at a time: making a CUDA context takes most of a worker's life
constexpr int kKillsMin = 50;

int Number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  int number = otherwise;
  return text == nullptr || !absl::SimpleAtoi(text, &number) ? otherwise : number;
}

// The victim: puts, gets and deletes in flight on all lanes until somebody ends it.
int RunVictim(const std::string& server) {
  auto opened = GpuRig::Open(server, SpecFor("hadamard-int4", kShape), kShape, kBatch * kLanes);
  if (!opened.ok()) return std::fprintf(stderr, "%s\n", opened.status().ToString().c_str()), 2;
  GpuRig& rig = **opened;
  if (!rig.pages()->Fill(0x3c).ok()) return 3;
  struct Lane {
    client::Ticket ticket = 0;
    int turn = 0;
    std::vector<std::string> keys;
  };
  std::vector<Lane> lanes(kLanes);
  std::vector<client::Completion> done;
  for (bool said = false;;) {
    for (uint32_t i = 0; i < kLanes; ++i) {
      Lane& lane = lanes[i];
      if (lane.ticket != 0) continue;
      const bool put = lane.turn++ % 2 == 0;
      // New keys for each put, so that every one of them moves pages.
      if (put)
        lane.keys = Keys(absl::StrCat("victim/", getpid(), "/", i, "/", lane.turn % 6), kBatch);
      if (!rig.Submit(put, lane.keys, i * kBatch, &lane.ticket).ok()) return 4;
    }
    done.clear();
    rig.client()->Drain(100, &done);
    for (const client::Completion& one : done) {
      for (Lane& lane : lanes) lane.ticket = lane.ticket == one.ticket ? 0 : lane.ticket;
    }
    if (!rig.client()->connected()) return 5;
    if (!said && !done.empty() && write(kReadyFd, "r", 1) == 1) said = true;
  }
}

class Victim {
 public:
  explicit Victim(const std::string& server) {
    int ready[2] = {-1, -1};
    if (pipe2(ready, O_CLOEXEC) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      setenv(kServer, server.c_str(), 1);
      if (ready[1] == kReadyFd) {
        fcntl(kReadyFd, F_SETFD, 0);
      } else {
        dup2(ready[1], kReadyFd);
      }
      execl("/proc/self/exe", "worker", "--gtest_also_run_disabled_tests",
            "--gtest_filter=KilledWorker.DISABLED_Runs", "--gtest_brief=1", nullptr);
      _exit(99);
    }
    close(ready[1]);
    ready_ = ready[0];
  }
  ~Victim() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    close(ready_);
  }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  bool ready() {
    pollfd wait = {.fd = ready_, .events = POLLIN, .revents = 0};
    return poll(&wait, 1, 0) == 1;
  }
  // Ready because it ended by itself.
  bool failed() {
    char byte = 0;
    return read(ready_, &byte, 1) != 1;
  }

 private:
  pid_t child_ = 0;
  int ready_ = -1;
};

TEST(KilledWorker, DISABLED_Runs) {
  const char* server = std::getenv(kServer);
  ASSERT_NE(server, nullptr) << "the test below starts this one, in a process of its own";
  EXPECT_EQ(RunVictim(server), 0);
}

class KillSuite : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status started = daemon_.Start();
    ASSERT_TRUE(started.ok()) << started;
    auto rig = GpuRig::Open(daemon_.server(), SpecFor("int4", kShape), kShape, 2 * kBatch);
    ASSERT_TRUE(rig.ok()) << rig.status() << daemon_.Log();
    rig_ = *std::move(rig);
    const cli::BenchValues values(cli::ValueKind::kBf16, kShape.page_bytes(), 5);
    std::vector<uint8_t> raw(kShape.page_bytes());
    for (uint32_t i = 0; i < kBatch; ++i) {
      values.Fill(i, {raw.data(), raw.size()});
      ASSERT_TRUE(rig_->pages()->Write(i, Bytes(raw.data(), raw.size())).ok());
    }
    keys_ = Keys("survivor", kBatch);
    ASSERT_EQ(CountOf(rig_->Put(keys_, 0), Code::kOk), kBatch);
    ASSERT_EQ(CountOf(rig_->Get(keys_, kBatch), Code::kOk), kBatch);
    for (uint32_t i = 0; i < kBatch; ++i) want_.push_back(rig_->Page(kBatch + i));
  }

  // One round of the worker that goes on: what it gets is what it put.
  void Survive() {
    ASSERT_TRUE(rig_->pages() != nullptr && rig_->client()->connected()) << daemon_.Log();
    const std::vector<client::Result> got = rig_->Get(keys_, kBatch);
    ASSERT_EQ(got.size(), kBatch);
    const uint32_t page = static_cast<uint32_t>(rounds_++ % kBatch);
    if (got[page].code == Code::kOk) {
      ++hits_;
      ASSERT_EQ(rig_->Page(kBatch + page), want_[page]) << "round " << rounds_;
    }
    const size_t answered = CountOf(got, Code::kOk) + CountOf(got, Code::kMiss);
    ASSERT_EQ(answered, kBatch) << client::ToString(got[page].code) << daemon_.Log();
    // A cache may forget; then it is put again.
    if (CountOf(got, Code::kOk) != kBatch) rig_->Put(keys_, 0);
  }

  GpuDaemon daemon_{SizeOfSuite().daemon};
  std::unique_ptr<GpuRig> rig_;
  std::vector<std::string> keys_;
  std::vector<std::vector<uint8_t>> want_;
  uint64_t rounds_ = 0, hits_ = 0;
};

TEST_F(KillSuite, WorkersThatAreKilledInMidTransferHarmNobody) {
  const int kills = Number("CRUMB_GPU_KILLS", SizeOfSuite().kills);
  const auto seconds =
      static_cast<uint64_t>(Number("CRUMB_GPU_KILL_SECONDS", SizeOfSuite().kill_seconds));
  const SteadyClock clock;
  const uint64_t until_us = clock.now_us() + seconds * 1'000'000;
  Rng rng(9);
  std::vector<std::unique_ptr<Victim>> victims(kWorkers);
  int killed = 0;
  while (killed < kills && clock.now_us() < until_us) {
    for (std::unique_ptr<Victim>& victim : victims) {
      if (victim == nullptr) victim = std::make_unique<Victim>(daemon_.server());
      // Not always at once: another moment of its transfers each time.
      if (!victim->ready() || rng.Below(3) == 0) continue;
      ASSERT_FALSE(victim->failed()) << "a worker ended by itself" << daemon_.Log();
      victim.reset();
      ++killed;
    }
    ASSERT_NO_FATAL_FAILURE(Survive());
  }
  victims.clear();
  std::printf("%d workers killed; beside them %d rounds, %d pages compared\n", killed,
              static_cast<int>(rounds_), static_cast<int>(hits_));
  EXPECT_GE(killed, std::min(kills, kKillsMin));
  EXPECT_GT(hits_, 0u);
  // Whoever comes now is served, and the daemon says that it is well.
  auto last = GpuRig::Open(daemon_.server(), SpecFor("int4", kShape), kShape, kBatch);
  ASSERT_TRUE(last.ok()) << last.status() << daemon_.Log();
  EXPECT_EQ(CountOf((*last)->Put(Keys("last", kBatch), 0), Code::kOk), kBatch);
  const nlohmann::json status = nlohmann::json::parse(daemon_.StatusJson(), nullptr, false);
  ASSERT_TRUE(status.is_object()) << daemon_.Log();
  EXPECT_TRUE(status["ready"].get<bool>()) << status.dump(2);
}

}  // namespace
}  // namespace crumb
