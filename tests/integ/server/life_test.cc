// The life of the process: start, refusals to start, signals, restarts, exit codes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/integ/server/daemon_process.h"
#include "tests/integ/server/rpc_worker.h"
#include "tests/unit/cachesvc/server/temp_dir.h"

namespace crumb {
namespace {

using ::testing::AnyOf;
using testing::Context;
using testing::DaemonProcess;
using testing::Ended;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RandomPage;
using testing::RpcWorker;
using testing::RunCrumbd;
using testing::RunResult;
using testing::SmallModel;
using ::testing::StartsWith;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}
std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class LifeTest : public ::testing::Test {
 protected:
  // Runs a second daemon over `sets` and expects exit code 2 with one line that has `what`.
  void ExpectRefused(const DaemonProcess& process, const std::string& what) {
    const RunResult result = RunCrumbd(process.arguments());
    EXPECT_EQ(result.ended.code, 2) << result.err;
    const size_t line = result.err.find("crumbd: ");
    ASSERT_NE(line, std::string::npos) << result.err;
    EXPECT_THAT(result.err.substr(line), HasSubstr(what));
    EXPECT_THAT(result.out, Not(HasSubstr("ready")));
    EXPECT_THAT(result.err, Not(HasSubstr(".cc")));  // no library speaks for us
  }

  TempDir temp_{TempDir::Place::kDisk};
};

TEST_F(LifeTest, TheReadyLineNamesEveryDoor) {
  DaemonProcess daemon(temp_.path());
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  EXPECT_THAT(daemon.ready_line(), StartsWith("crumbd ready grpc=127.0.0.1:"));
  EXPECT_THAT(daemon.grpc(), Not(HasSubstr(":0")));
  EXPECT_EQ(daemon.socket(), "unix:" + temp_.path() + "/crumbd.sock");
  EXPECT_THAT(testing::HttpBody(daemon.http(), "/readyz"), HasSubstr("ready"));
  struct stat info {};
  ASSERT_EQ(stat((temp_ / "data").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  for (const char* name :
       {"data/secret", "data/catalog", "data/lock", "data/nvme/pages.log", "crumbd.sock"}) {
    ASSERT_EQ(stat((temp_ / name).c_str(), &info), 0) << name;
    EXPECT_EQ(info.st_mode & 0777, 0600u) << name;
  }
  EXPECT_EQ(daemon.Stop().code, 0) << daemon.log();
  EXPECT_NE(access((temp_ / "crumbd.sock").c_str(), F_OK), 0);  // removed
}

TEST_F(LifeTest, HealthAndReflectionAnswer) {
  DaemonProcess daemon(temp_.path());
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  RpcWorker worker(daemon.grpc());
  grpc::GenericStub generic(worker.channel());
  const auto call = [&](const std::string& method, const std::string& request) {
    grpc::CompletionQueue queue;
    const auto context = Context();
    auto stream = generic.PrepareCall(context.get(), method, &queue);
    void* tag = nullptr;
    bool ok = false;
    stream->StartCall(nullptr);
    queue.Next(&tag, &ok);
    grpc::Slice slice(request);
    stream->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
    queue.Next(&tag, &ok);
    grpc::ByteBuffer reply;
    stream->Read(&reply, nullptr);
    queue.Next(&tag, &ok);
    std::vector<grpc::Slice> slices;
    std::string text;
    if (ok && reply.Dump(&slices).ok()) {
      for (const grpc::Slice& part : slices) {
        text.append(reinterpret_cast<const char*>(part.begin()), part.size());
      }
    }
    grpc::Status status;
    stream->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
    return std::pair(status, text);
  };
  const std::string serving("\x08\x01", 2);  // HealthCheckResponse{status: SERVING}
  EXPECT_EQ(call("/grpc.health.v1.Health/Check", "").second, serving);
  EXPECT_EQ(call("/grpc.health.v1.Health/Check",
                 "\x0a\x0e"
                 "crumb.v1.Cache")
                .second,
            serving);
  EXPECT_EQ(call("/grpc.health.v1.Health/Check", "\x0a\x04none").first.error_code(),
            grpc::StatusCode::NOT_FOUND);
  const std::string services =
      call("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
           std::string("\x3a\x00", 2))  // list_services: ""
          .second;
  EXPECT_THAT(services, HasSubstr("crumb.v1.Cache"));
  EXPECT_THAT(services, HasSubstr("crumb.v1.Admin"));
  EXPECT_THAT(services, HasSubstr("grpc.health.v1.Health"));
}

TEST_F(LifeTest, ASecondDaemonIsRefusedForEveryThingItWouldShare) {
  DaemonProcess first(temp_.path());
  ASSERT_TRUE(first.Start()) << first.log();
  const std::string pid = std::to_string(first.pid());
  DaemonProcess same_data(temp_.path(), {"listen.socket=off"});
  ExpectRefused(same_data, "data_dir: " + temp_ / "data");
  ExpectRefused(same_data, "pid " + pid);
  TempDir other(TempDir::Place::kDisk);
  DaemonProcess same_socket(other.path(), {"listen.socket=" + temp_ / "crumbd.sock"});
  ExpectRefused(same_socket, "listen.socket: ");
  ExpectRefused(same_socket, "pid " + pid);
  DaemonProcess same_grpc(other.path(), {"listen.grpc=" + first.grpc()});
  ExpectRefused(same_grpc, "listen.grpc: cannot listen on " + first.grpc());
  DaemonProcess same_http(other.path(), {"listen.http=" + first.http()});
  ExpectRefused(same_http, "listen.http: cannot listen on " + first.http());
  const testing::BusyPort busy;
  DaemonProcess busy_http(other.path(), {"listen.http=127.0.0.1:" + std::to_string(busy.port())});
  ExpectRefused(busy_http, "listen.http: cannot listen on");
  RpcWorker worker(first.grpc());
  EXPECT_TRUE(worker.Connect());  // the first one was not disturbed
  EXPECT_EQ(first.Stop().code, 0);
}

TEST_F(LifeTest, AStaleSocketIsReplacedAndAForeignFileIsNot) {
  DaemonProcess daemon(temp_.path());
  ASSERT_TRUE(daemon.Start());
  daemon.Signal(SIGKILL);
  daemon.Wait(20'000);
  EXPECT_EQ(access((temp_ / "crumbd.sock").c_str(), F_OK), 0);  // left behind
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  RpcWorker worker(daemon.socket());
  EXPECT_TRUE(worker.Connect());
  EXPECT_EQ(daemon.Stop().code, 0);
  Write(temp_ / "crumbd.sock", "precious");
  ExpectRefused(daemon, "is no socket");
  EXPECT_EQ(Content(temp_ / "crumbd.sock"), "precious");
}

TEST_F(LifeTest, BadCommandLinesAndConfigurationsExitTwoAtOnce) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> bad = {
      {{"--no-such-flag"}, "--no-such-flag"},
      {{"--config"}, "--config"},
      {{"--set"}, "--set"},
      {{"--config", temp_ / "absent.yaml"}, "absent.yaml"},
      {{"--config", temp_.path()}, "not a regular file"},
      {{"--set", "pool.dram_bytes=10 gigs"}, "pool.dram_bytes"},
      {{"--set", "pool.dram_bytes=900TiB"}, "pool.dram_bytes"},
      {{"--set", "pool.dram_bytes=60TiB"}, "pool.dram_bytes: 60TiB is over"},
      {{"--set", "nvme.bytes=1000TiB"}, "nvme.bytes: 1000TiB is over"},
      {{"--set", "listen.grpc=0.0.0.0:0"}, "listen.insecure: true"},
      {{"--set", "no.such.key=1"}, "docs/configuration.md"},
      {{"--set", "foo=1"}, "foo: unknown key: docs/configuration.md has every key"},
      {{"stray"}, "stray"}};
  for (const auto& [arguments, what] : bad) {
    SCOPED_TRACE(arguments.back());
    const RunResult result = RunCrumbd(arguments);
    EXPECT_EQ(result.ended.code, 2);
    EXPECT_LT(result.seconds, 5.0);  // 1 s of work; the machine of the tests may be busy
    EXPECT_THAT(result.err, StartsWith("crumbd: "));
    EXPECT_THAT(result.err, HasSubstr(what));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST_F(LifeTest, CheckConfigVersionAndHelp) {
  Write(temp_ / "good.yaml", "node: n7\ndata_dir: " + temp_ / "data" +
                                 "\nlisten: {socket: \"off\"}\npool:\n  dram_bytes: 64MiB\n");
  RunResult result = RunCrumbd({"--config", temp_ / "good.yaml", "--check-config"});
  EXPECT_EQ(result.ended.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("node: \"n7\"\n"));
  EXPECT_THAT(result.out, HasSubstr("  dram_bytes: 64MiB\n"));
  Write(temp_ / "again.yaml", result.out);
  EXPECT_EQ(RunCrumbd({"--config", temp_ / "again.yaml", "--check-config"}).out, result.out);
  EXPECT_NE(access((temp_ / "data").c_str(), F_OK), 0);  // nothing was made
  result = RunCrumbd({"--set", "data_dir=/proc/x", "--check-config"});
  EXPECT_EQ(result.ended.code, 2);
  EXPECT_THAT(result.err, StartsWith("crumbd: data_dir: /proc/x: "));
  result = RunCrumbd({"--set", "data_dir=" + temp_ / "good.yaml", "--check-config"});
  EXPECT_EQ(result.ended.code, 2);
  result = RunCrumbd({"--set", "data_dir=" + temp_ / "new", "--check-config"});
  EXPECT_EQ(result.ended.code, 0) << result.err;
  EXPECT_NE(access((temp_ / "new").c_str(), F_OK), 0);
  ASSERT_EQ(mkdir((temp_ / "there").c_str(), 0700), 0);
  result = RunCrumbd({"--set", "data_dir=" + temp_ / "there", "--check-config"});
  EXPECT_EQ(result.ended.code, 0) << result.err;
  EXPECT_TRUE(std::filesystem::is_empty(temp_ / "there"));
  Write(temp_ / "bad.yaml", "pool:\n  dram: 1\n");
  result = RunCrumbd({"--config", temp_ / "bad.yaml", "--check-config"});
  EXPECT_EQ(result.ended.code, 2);
  EXPECT_THAT(result.err, HasSubstr("bad.yaml:2: pool.dram: unknown key"));
  result = RunCrumbd({"--version"});
  EXPECT_EQ(result.ended.code, 0);
  EXPECT_THAT(result.out, StartsWith("crumbd "));
  EXPECT_THAT(result.out, HasSubstr("page format 1"));
  EXPECT_THAT(result.out, HasSubstr("ucx 1."));
  EXPECT_EQ(RunCrumbd({"--help"}).ended.code, 0);
}

TEST_F(LifeTest, SigtermEndsIdleHalfSentAndUnreadStreamsWithinTheGrace) {
  DaemonProcess daemon(temp_.path(), {"shutdown.grace=4s"});
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  RpcWorker worker(daemon.grpc());
  ASSERT_TRUE(worker.Connect());
  ASSERT_TRUE(worker.Register(SmallModel(), "raw").ok());
  ASSERT_EQ(worker.Put("kept", RandomPage(1)), v1::RESULT_OK);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<v1::PutReply>> replies;
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::PutChunk>>> uploads;
  for (int i = 0; i < 30; ++i) {
    contexts.push_back(Context(60'000));
    replies.push_back(std::make_unique<v1::PutReply>());
    uploads.push_back(worker.cache().Put(contexts.back().get(), replies.back().get()));
    if (i >= 20) {  // the first 20 stay idle
      v1::PutChunk chunk;
      *chunk.mutable_header() = worker.Header("half" + std::to_string(i));
      chunk.set_data("half");
      ASSERT_TRUE(uploads.back()->Write(chunk));
    }
  }
  v1::GetRequest request;
  request.set_session(worker.session());
  request.set_layout_handle(worker.layout().handle());
  request.mutable_block()->set_key("kept");
  contexts.push_back(Context(60'000));
  const auto unread = worker.cache().Get(contexts.back().get(), request);
  const double start = Now();
  const Ended ended = daemon.Stop();
  EXPECT_EQ(ended.code, 0) << daemon.log();
  EXPECT_LT(Now() - start, 4.0 + 1.0);
  EXPECT_THAT(daemon.log(), HasSubstr("stopped"));
  for (const auto& upload : uploads) EXPECT_FALSE(upload->Finish().ok());
  // What lived in memory alone was written on the way down, and the log was closed cleanly.
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  RpcWorker again(daemon.grpc());
  ASSERT_TRUE(again.Connect());
  EXPECT_THAT(again.StatusJson(), HasSubstr("\"clean_start\": true"));
  ASSERT_TRUE(again.Register(SmallModel(), "raw").ok());
  EXPECT_EQ(again.Get("kept").data, RandomPage(1));
  EXPECT_EQ(daemon.Stop().code, 0);
}

TEST_F(LifeTest, SigtermJustAfterTheLastClientLeftEndsAtOnce) {
  constexpr int kRounds = 4;
  for (int round = 0; round < kRounds; ++round) {
    DaemonProcess daemon(temp_.path(), {"ucx.enabled=false", "shutdown.grace=1h"});
    ASSERT_TRUE(daemon.Start()) << daemon.log();
    {
      RpcWorker worker(daemon.grpc());
      ASSERT_TRUE(worker.Connect());
      ASSERT_TRUE(worker.Register(SmallModel(), "raw").ok());
      for (uint64_t i = 0; i < 50; ++i) {
        const std::string key = absl::StrCat(round, ".", i);  // the log keeps those of before
        ASSERT_EQ(worker.Put(key, RandomPage(i)), v1::RESULT_OK);
        ASSERT_EQ(worker.Get(key).data, RandomPage(i));
      }
    }
    testing::PauseMs(round * 300);  // its threads may poll by then, or not yet
    const double start = Now();
    EXPECT_EQ(daemon.Stop().code, 0) << daemon.log();
    EXPECT_LT(Now() - start, 12.0) << "round " << round;  // a hang lasts until the grace ends
  }
}

TEST_F(LifeTest, ASecondSigtermLeavesAtOnce) {
  DaemonProcess daemon(temp_.path(), {"shutdown.grace=1h"});
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  RpcWorker worker(daemon.grpc());
  ASSERT_TRUE(worker.Connect());
  ASSERT_TRUE(worker.Register(SmallModel(), "raw").ok());
  auto context = Context(3600'000);
  v1::PutReply reply;
  v1::PutChunk chunk;
  *chunk.mutable_header() = worker.Header("half");
  chunk.mutable_header()->set_deadline_ms(3600'000);
  const auto upload = worker.cache().Put(context.get(), &reply);
  ASSERT_TRUE(upload->Write(chunk));
  ASSERT_TRUE(testing::Eventually(
      [&] { return worker.StatusJson().find("\"calls_in_flight\": 1") != std::string::npos; },
      10'000));
  daemon.Signal(SIGTERM);
  EXPECT_TRUE(testing::Eventually(
      [&] { return daemon.log().find("draining") != std::string::npos; }, 10'000));
  EXPECT_TRUE(testing::Eventually(  // the line is written a moment before
      [&] {
        return testing::Http(daemon.http(), "GET", "/readyz").find("503") != std::string::npos;
      },
      10'000));
  EXPECT_FALSE(daemon.Wait(0).ended);
  daemon.Signal(SIGTERM);
  const Ended ended = daemon.Wait(20'000);
  EXPECT_TRUE(ended.ended);
  EXPECT_EQ(ended.code, 0);
  context->TryCancel();
  upload->Finish();
}

TEST_F(LifeTest, AStartSaysWhatItDoesAndHeedsSigterm) {
  const auto memory =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t pool_mib = std::min<uint64_t>(4096, memory / 4 >> 20);
  DaemonProcess daemon(temp_.path(),
                       {absl::StrCat("pool.dram_bytes=", pool_mib, "MiB"), "shutdown.grace=30s"});
  daemon.Start(0);
  std::string answer, ready;
  const auto pinning = [&] {
    const std::string log = daemon.log();
    if (log.find(" ready") != std::string::npos) return true;  // see below
    const std::string name = "http place=";
    const size_t at = log.find(name);
    if (at == std::string::npos) return false;
    const std::string place = log.substr(at + name.size(), log.find('\n', at) - at - name.size());
    answer = testing::Http(place, "GET", "/healthz");
    if (answer.find("starting: pinning the pool") == std::string::npos) return false;
    ready = testing::Http(place, "GET", "/readyz");
    return true;
  };
  ASSERT_TRUE(testing::Eventually(pinning, 20'000)) << daemon.log();
  const std::string log = daemon.log();
  if (log.find("buffers not registered") != std::string::npos ||
      (log.find(" nvme ") != std::string::npos &&
       log.find("io_uring depth") == std::string::npos)) {
    GTEST_SKIP() << "no memory is pinned here";
  }
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(ready, StartsWith("HTTP/1.1 503"));
  const double start = Now();
  EXPECT_EQ(daemon.Stop().code, 0) << daemon.log();
  EXPECT_LT(Now() - start, 10.0);  // the grace is three times that
  EXPECT_THAT(daemon.log(), HasSubstr("stopping during the start"));
  EXPECT_THAT(daemon.log(), HasSubstr("stopped"));
  EXPECT_THAT(daemon.log(), Not(HasSubstr(" ready")));
}

TEST_F(LifeTest, AStartThatDoesNotEndInTimeIsAFault) {
  DaemonProcess first(temp_.path());
  ASSERT_TRUE(first.Start()) << first.log();
  ASSERT_EQ(first.Stop().code, 0) << first.log();
  DaemonProcess daemon(temp_.path(), {"shutdown.grace=300ms"});
  // Whoever holds the log's lock is waited for, 2 s.
  const int held = open((temp_ / "data/nvme/pages.log").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(held, LOCK_EX), 0);
  const size_t before = daemon.log().size();
  daemon.Start(0);
  ASSERT_TRUE(testing::Eventually(
      [&] { return daemon.log().find("preparing the pool", before) != std::string::npos; },
      10'000));
  EXPECT_EQ(daemon.Stop().code, 70) << daemon.log();
  close(held);
}

TEST_F(LifeTest, ACutLogIsSaidAndKeepsWhatIsWhole) {
  DaemonProcess daemon(temp_.path());
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  RpcWorker worker(daemon.grpc());
  ASSERT_TRUE(worker.Connect());
  ASSERT_TRUE(worker.Register(SmallModel(), "raw").ok());
  ASSERT_EQ(worker.Put("k", RandomPage(1), {.durable = true}), v1::RESULT_OK);
  ASSERT_EQ(daemon.Stop().code, 0) << daemon.log();
  const uint64_t cut = 2 << 20;  // in the middle of the first segment
  std::filesystem::resize_file(temp_ / "data/nvme/pages.log", cut);
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  EXPECT_THAT(daemon.log(), HasSubstr("pages.log: the file was cut: it had 2097152 bytes where its "
                                      "superblock says 67108864"));
  EXPECT_THAT(testing::HttpBody(daemon.http(), "/metrics"),
              HasSubstr("crumb_recovery_missing_bytes 65011712"));
  RpcWorker again(daemon.grpc());
  ASSERT_TRUE(again.Connect());
  ASSERT_TRUE(again.Register(SmallModel(), "raw").ok());
  EXPECT_EQ(again.Get("k").data, RandomPage(1));
  EXPECT_EQ(daemon.Stop().code, 0);
}

// Two disks: pages come back whatever the order in which they are named; half a set is refused.
TEST_F(LifeTest, StripedDisksAreASetThatIsWholeOrRefused) {
  const std::string one = temp_ / "one", two = temp_ / "two";
  {
    DaemonProcess daemon(temp_.path(), {"nvme.path=" + one + "," + two});
    ASSERT_TRUE(daemon.Start()) << daemon.log();
    EXPECT_THAT(daemon.log(), HasSubstr("new set of 2 members striped in units of 1048576 bytes"));
    EXPECT_THAT(daemon.log(), HasSubstr(two + "/pages.log: 33554432 bytes"));
    RpcWorker worker(daemon.grpc());
    ASSERT_TRUE(worker.Connect());
    ASSERT_TRUE(worker.Register(SmallModel(), "raw").ok());
    for (uint64_t i = 0; i < 40; ++i) {
      ASSERT_EQ(worker.Put(std::to_string(i), RandomPage(i), {.durable = true}), v1::RESULT_OK);
    }
    ASSERT_EQ(daemon.Stop().code, 0) << daemon.log();
  }
  {
    DaemonProcess daemon(temp_.path(), {"nvme.path=" + two + "," + one});
    ASSERT_TRUE(daemon.Start()) << daemon.log();
    EXPECT_THAT(daemon.log(), HasSubstr("in the order of their labels"));
    RpcWorker worker(daemon.grpc());
    ASSERT_TRUE(worker.Connect());
    ASSERT_TRUE(worker.Register(SmallModel(), "raw").ok());
    for (uint64_t i = 0; i < 40; ++i) {
      EXPECT_EQ(worker.Get(std::to_string(i)).data, RandomPage(i)) << i;
    }
    ASSERT_EQ(daemon.Stop().code, 0) << daemon.log();
  }
  const std::string first = Content(one + "/pages.log"), second = Content(two + "/pages.log");
  DaemonProcess alone(temp_.path(), {"nvme.path=" + one});
  ExpectRefused(alone, "is member 1 of 2 of a striped set and no log by itself: name all 2");
  DaemonProcess three(temp_.path(), {"nvme.path=" + one + "," + two + "," + (temp_ / "three")});
  ExpectRefused(three, "is member 1 of 2, and 3 paths are given");
  std::filesystem::rename(two, temp_ / "moved");
  DaemonProcess half(temp_.path(), {"nvme.path=" + one + "," + two});
  ExpectRefused(half, "two/pages.log: is empty, but ");
  EXPECT_EQ(Content(one + "/pages.log"), first);
  EXPECT_EQ(Content((temp_ / "moved") + "/pages.log"), second);
}

TEST_F(LifeTest, ALostCatalogAndStrayFilesAreSaid) {
  DaemonProcess daemon(temp_.path());
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  RpcWorker worker(daemon.grpc());
  ASSERT_TRUE(worker.Connect());
  ASSERT_TRUE(worker.Register(SmallModel(), "raw").ok());
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(worker.Put(std::to_string(i), RandomPage(i), {.durable = true}), v1::RESULT_OK);
  }
  ASSERT_EQ(daemon.Stop().code, 0) << daemon.log();
  EXPECT_THAT(daemon.log(), Not(HasSubstr("cannot be served")));
  ASSERT_EQ(unlink((temp_ / "data/catalog").c_str()), 0);
  for (const char* name : {"a.txt", "b.txt", "c.txt", "d.txt"}) {
    Write(temp_ / "data/rotations/" + name, "stray");
  }
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  EXPECT_THAT(daemon.log(), HasSubstr("data/catalog: lost, or not of this log: 3 pages"));
  EXPECT_THAT(daemon.log(), HasSubstr("data/rotations: 4 files"));
  EXPECT_THAT(daemon.log(), HasSubstr("files=\"a.txt, b.txt, c.txt\""));
  RpcWorker again(daemon.grpc());
  ASSERT_TRUE(again.Connect());
  ASSERT_TRUE(again.Register(SmallModel(), "raw").ok());
  EXPECT_EQ(again.Get("1").data, RandomPage(1));  // as the line promised
  EXPECT_EQ(daemon.Stop().code, 0);
}

TEST_F(LifeTest, TheLimitOnDescriptorsIsRaised) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_GT(before.rlim_max, 512u);
  const rlimit low{.rlim_cur = 512, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);  // the daemon inherits it
  DaemonProcess daemon(temp_.path());
  const bool started = daemon.Start();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(started) << daemon.log();
  rlimit of_daemon{};
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &of_daemon), 0);
  EXPECT_EQ(of_daemon.rlim_cur, before.rlim_max);
  EXPECT_EQ(daemon.log().find("the limit on descriptors is") != std::string::npos,
            before.rlim_max < 65'536);
  EXPECT_EQ(daemon.Stop().code, 0) << daemon.log();
}

TEST_F(LifeTest, ForeignAndDamagedFilesStopTheStartAndAreLeftAlone) {
  DaemonProcess daemon(temp_.path());
  ASSERT_TRUE(daemon.Start());
  ASSERT_EQ(daemon.Stop().code, 0);
  const std::string secret = Content(temp_ / "data/secret");
  std::string damaged = secret;
  damaged[20] = static_cast<char>(damaged[20] ^ 1);
  Write(temp_ / "data/secret", damaged);
  ExpectRefused(daemon, "data/secret: checksum mismatch");
  EXPECT_EQ(Content(temp_ / "data/secret"), damaged);
  // Another secret: the pages of the old one must not be read with it.
  ASSERT_EQ(unlink((temp_ / "data/secret").c_str()), 0);
  ExpectRefused(daemon, "secret");
  Write(temp_ / "data/secret", secret);
  ASSERT_EQ(chmod((temp_ / "data/secret").c_str(), 0600), 0);
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  ASSERT_EQ(daemon.Stop().code, 0);
  // A foreign file and a link in the log's place.
  const std::string log_path = temp_ / "data/nvme/pages.log";
  ASSERT_EQ(unlink(log_path.c_str()), 0);
  const std::string foreign(100'000, 'f');
  Write(log_path, foreign);
  ExpectRefused(daemon, "nvme.path: ");
  EXPECT_EQ(Content(log_path), foreign);
  ASSERT_EQ(unlink(log_path.c_str()), 0);
  Write(temp_ / "victim", "precious");
  ASSERT_EQ(symlink((temp_ / "victim").c_str(), log_path.c_str()), 0);
  ExpectRefused(daemon, "nvme.path: ");
  EXPECT_EQ(Content(temp_ / "victim"), "precious");
  ASSERT_EQ(unlink(log_path.c_str()), 0);
  Write(temp_ / "data/catalog", std::string(1000, 'x'));
  ExpectRefused(daemon, "not a catalog");
}

TEST_F(LifeTest, WithoutUcxTheDaemonServesGrpcAndSaysSo) {
  DaemonProcess daemon(temp_.path(), {"ucx.tls=no_such_transport"});
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  EXPECT_THAT(daemon.log(), HasSubstr("UCX did not start, only gRPC is served"));
  RpcWorker worker(daemon.grpc());
  ASSERT_TRUE(worker.Connect());
  EXPECT_FALSE(worker.hello().ucx());
  ASSERT_TRUE(worker.Register(SmallModel(), "raw").ok());
  EXPECT_EQ(worker.Put("k", RandomPage(1)), v1::RESULT_OK);
  v1::ConnectRequest connect;
  connect.set_session(worker.session());
  connect.set_hello("x");
  v1::ConnectReply reply;
  EXPECT_EQ(worker.cache().Connect(Context().get(), connect, &reply).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(LifeTest, WithoutNvmeDurablePutsSayThatTheyAreNot) {
  DaemonProcess daemon(temp_.path(), {"nvme.bytes=0"});
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  RpcWorker worker(daemon.grpc());
  ASSERT_TRUE(worker.Connect());
  ASSERT_TRUE(worker.Register(SmallModel(), "raw").ok());
  EXPECT_EQ(worker.Put("k", RandomPage(1), {.durable = true}), v1::RESULT_NOT_DURABLE);
  EXPECT_EQ(worker.Get("k").data, RandomPage(1));
  EXPECT_EQ(daemon.Stop().code, 0);
}

TEST_F(LifeTest, AnIdleDaemonUsesNoProcessorTime) {
  DaemonProcess daemon(temp_.path());
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  const double before = daemon.CpuSeconds();
  testing::PauseMs(3000);
  EXPECT_LT(daemon.CpuSeconds() - before, 0.15);  // 5 % of one core
}

TEST_F(LifeTest, JsonLogsAreOneObjectPerLine) {
  DaemonProcess daemon(temp_.path(), {"log.format=json", "node=a \"b\" %d"});
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  ASSERT_EQ(daemon.Stop().code, 0);
  std::istringstream lines(daemon.log());
  std::string line;
  int count = 0;
  while (std::getline(lines, line)) {
    ++count;
    EXPECT_THAT(line, StartsWith("{\"time\":\"20"));
    EXPECT_THAT(line, HasSubstr("\"node\":\"a \\\"b\\\" %d\""));
    EXPECT_EQ(line.back(), '}');
  }
  EXPECT_GE(count, 5);
}

}  // namespace
}  // namespace crumb
