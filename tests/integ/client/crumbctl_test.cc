// crumbctl in process: exit codes, what goes to stdout and what to stderr, and its commands against
// a fake daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cachesvc/base/page_header.h"
#include "client/cli/cli.h"
#include "tests/integ/client/fake_daemon.h"

namespace crumb::cli {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kLayout[] = R"(name: small
model: org/small
revision: r1
groups:
  - {kind: gqa, kv_heads: 2, k_dim: 64, v_dim: 64, layers: [0-1]}
page_tokens: 16
)";
constexpr size_t kRawBytes = 2 * 2 * 2 * 16 * 64 * 2;

struct Outcome {
  int exit = -1;
  std::string out, err;
};

class Crumbctl : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/crumb-cli-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    dir_ = path;
    std::ofstream(dir_ + "/layout.yaml") << kLayout;
  }
  void TearDown() override {
    daemon_.reset();
    std::filesystem::remove_all(dir_);
  }
  void StartDaemon() { daemon_ = FakeDaemon::Start({.socket = dir_ + "/s"}); }
  Outcome Run(std::vector<std::string> args) {
    args.insert(args.begin(), {"--server", "unix:" + dir_ + "/s"});
    std::ostringstream out, err;
    Outcome outcome;
    outcome.exit = RunCrumbctl(args, out, err);
    outcome.out = out.str();
    outcome.err = err.str();
    return outcome;
  }
  std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << content;
    return dir_ + "/" + name;
  }
  std::string Read(const std::string& name) {
    std::ifstream file(dir_ + "/" + name, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::string Page(char seed) {
    std::string page(kRawBytes, '\0');
    for (size_t i = 0; i < page.size(); ++i) page[i] = static_cast<char>((i % 61) + 1 + seed);
    return page;
  }
  std::string dir_;
  std::unique_ptr<FakeDaemon> daemon_;
};

TEST_F(Crumbctl, EveryCommandHasHelpWithAnExample) {
  const std::vector<std::vector<std::string>> commands = {
      {},
      {"status"},
      {"doctor"},
      {"layout"},
      {"layout", "add"},
      {"layout", "ls"},
      {"put"},
      {"get"},
      {"lookup"},
      {"prefetch"},
      {"rm"},
      {"pin"},
      {"flush"},
      {"rotation"},
      {"rotation", "import"},
      {"rotation", "ls"},
      {"rotation", "show"},
      {"rotation", "export"},
      {"quality"},
      {"quality", "record"},
      {"quality", "ls"},
      {"bench"},
      {"bench", "get"},
      {"bench", "put"},
      {"bench", "lookup"},
      {"bench", "mixed"},
      {"bench", "codec"},
      {"page"},
      {"page", "inspect"},
  };
  for (std::vector<std::string> command : commands) {
    command.push_back("--help");
    const Outcome help = Run(command);
    EXPECT_EQ(help.exit, kExitOk) << command[0];
    EXPECT_THAT(help.out, HasSubstr("Example: crumbctl")) << command[0];
    EXPECT_THAT(help.err, IsEmpty()) << command[0];
  }
  EXPECT_THAT(Run({"--version"}).out, HasSubstr("crumbctl 0."));
}

TEST_F(Crumbctl, WrongUsageIsExit2) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"nonsense"},
      {"status", "extra"},
      {"status", "--colour"},
      {"put"},
      {"put", "--layout", "a", "--key", "k"},
      {"get", "--layout", "a", "--key", "k", "-o", "f", "--form", "zip"},
      {"get", "--layout", "a", "--key", "k", "-o", "f", "--wait", "-1"},
      {"put", "--layout", "a", "--key", "k", "--token-start", "-2", "f"},
      {"lookup", "--layout", "a"},
      {"prefetch", "--layout", "a"},
      {"pin", "--layout", "a", "--ttl", "0", "k"},
      {"unpin", "--layout", "a", "k"},
      {"bench"},
      {"bench", "get", "--depth", "0"},
      {"bench", "get", "--value-bytes", "1KiB", "--layout", "x"},
      {"bench", "get", "--transport", "pigeon"},
      {"quality"},
      {"quality", "record"},
      {"quality", "record", "/nonexistent"},
      {"rotation", "import", "a", "b", "c", "--model", "m", "--revision", "r"},
      {"page", "inspect", "x", "--rows"},
      {"--deadline-ms", "0", "status"},
      {"--server", "nowhere", "status"},
      {"layout", "add", "/nonexistent.yaml"},
      {"get", "--layout", "a", "--key", std::string(257, 'k'), "-o", "f"},
      {"get", "--layout", "a", "--key", "", "-o", "f"},
      {"get", "--layout", "a", "--hex", "--key", "abc", "-o", "f"},
      {"get", "--layout", "a", "--hex", "--key", "zz", "-o", "f"},
      {"bench", "codec", "--effort", "heroic"},
      {"bench", "codec", "--codec", "zip"},
      {"bench", "codec", "--backend", "sse"},
      {"bench", "codec", "--device", "-1"},
      {"bench", "codec", "--device", "99999"},
      {"bench", "codec", "--pages", "8"},
      {"bench", "codec", "--frame", "rotated"},
      {"bench", "codec", "--device", "0", "--pages", "0"},
      {"bench", "codec", "--device", "0", "--backend", "avx2"},
      {"bench", "codec", "--device", "0", "--seconds", "1"},
      {"bench", "codec", "--device", "0", "--frame", "sideways"},
      {"bench", "codec", "--device", "0", "--tokens", "20"},
      {"bench", "codec", "--device", "0", "--codec", "zip"},
  };
  for (const auto& args : wrong) {
    const Outcome outcome = Run(args);
    EXPECT_EQ(outcome.exit, kExitUsage) << testing::PrintToString(args) << outcome.err;
    EXPECT_FALSE(outcome.err.empty()) << testing::PrintToString(args);
    EXPECT_THAT(outcome.out, IsEmpty()) << testing::PrintToString(args);
  }
}

TEST_F(Crumbctl, NobodyThereIsExit3) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"status"},
                                             {"layout", "ls"},
                                             {"flush"},
                                             {"rotation", "ls"},
                                             {"quality", "ls"},
                                             {"lookup", "--layout", "small", "k"},
                                             {"bench", "get", "--seconds", "1"}}) {
    const Outcome outcome = Run(args);
    EXPECT_EQ(outcome.exit, kExitUnreachable) << args[0];
    EXPECT_THAT(outcome.err, HasSubstr(dir_ + "/s")) << args[0];
  }
}

TEST_F(Crumbctl, CodesMapToTheContract) {
  using client::Code;
  EXPECT_EQ(ExitOf(Code::kOk), 0);
  EXPECT_EQ(ExitOf(Code::kExists), 0);  // of a page: a put that changed nothing
  for (Code code : {Code::kMiss, Code::kCorrupt, Code::kIo, Code::kNotDurable, Code::kCancelled}) {
    EXPECT_EQ(ExitOf(code), 1);
  }
  for (Code code : {Code::kInvalid, Code::kMismatch}) EXPECT_EQ(ExitOf(code), 2);
  EXPECT_EQ(ExitOf(Code::kUnavailable), 3);
  for (Code code : {Code::kBusy, Code::kNoSpace, Code::kQuota, Code::kDenied, Code::kNonFinite}) {
    EXPECT_EQ(ExitOf(code), 4);
  }
  EXPECT_EQ(ExitOf(Code::kTimeout), 5);
  // Of a request as a whole, "exists" is a refusal, however it arrived.
  std::ostringstream out, err;
  Context context{.globals = {}, .out = out, .err = err};
  context.Fail(client::Status{Code::kExists, "registered under another name"});
  EXPECT_EQ(context.exit, 4);
  context.exit = 0;
  context.Fail(absl::AlreadyExistsError("registered under another name"));
  EXPECT_EQ(context.exit, 4);
}

TEST_F(Crumbctl, UnknownWordsAreNamed) {
  const std::vector<std::vector<std::string>> wrong = {
      {"bogus"},           {"--bogus"},         {"layout", "bogus"}, {"bench", "bogus"},
      {"status", "bogus"}, {"--json", "bogus"}, {"put", "--bogus"},
  };
  for (const auto& args : wrong) {
    const Outcome outcome = Run(args);
    EXPECT_EQ(outcome.exit, kExitUsage) << testing::PrintToString(args);
    EXPECT_THAT(outcome.err, HasSubstr("bogus")) << testing::PrintToString(args);
  }
  EXPECT_THAT(Run({"layout"}).err, HasSubstr("ubcommand"));
}

TEST_F(Crumbctl, APageGoesInAndComesOut) {
  StartDaemon();
  const std::string page = Write("page.bin", Page(1));
  Outcome outcome = Run({"layout", "add", dir_ + "/layout.yaml"});
  ASSERT_EQ(outcome.exit, kExitOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("small"));
  for (const char* transport : {"grpc", "ucx"}) {
    const std::string key = std::string("key-") + transport;
    outcome = Run({"put", "--layout", "small", "--key", key, "--transport", transport, page});
    EXPECT_EQ(outcome.exit, kExitOk) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("ok"));
    outcome = Run({"get", "--layout", "small", "--key", key, "--transport", transport, "-o",
                   dir_ + "/out.bin"});
    EXPECT_EQ(outcome.exit, kExitOk) << outcome.err;
    EXPECT_EQ(Read("out.bin"), Page(1));
    EXPECT_THAT(outcome.out, HasSubstr("from dram"));
  }
  outcome = Run({"--json", "lookup", "--layout", "small", "key-grpc", "none", "key-ucx"});
  EXPECT_EQ(outcome.exit, kExitFailed);
  const auto keys = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(keys["prefix"], 1);
  EXPECT_EQ(keys["keys"][1]["result"], "miss");
  EXPECT_EQ(keys["keys"][2]["tier"], "dram");
  // What is not there has no tier, no precision and no history.
  for (const char* field : {"tier", "precision", "lossy_depth"}) {
    EXPECT_TRUE(keys["keys"][1][field].is_null()) << field;
    EXPECT_FALSE(keys["keys"][2][field].is_null()) << field;
  }
  outcome = Run({"lookup", "--layout", "small", "key-grpc", "none"});
  EXPECT_THAT(outcome.out, ContainsRegex("key-grpc +ok +dram +raw"));
  EXPECT_THAT(outcome.out, ContainsRegex("none +miss +- +-"));
  outcome = Run({"pin", "--layout", "small", "--ttl", "1", "key-grpc", "key-ucx"});
  EXPECT_EQ(outcome.exit, kExitOk) << outcome.err;
  EXPECT_THAT(outcome.err, ContainsRegex("holding 2 pages until ..:..:..; Ctrl-C lets go"));
  outcome = Run({"pin", "--layout", "small", "--ttl", "1", "none", "key-ucx"});
  EXPECT_EQ(outcome.exit, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("holding 1 page until"));
  // Nothing to hold: no waiting for an hour.
  outcome = Run({"pin", "--layout", "small", "--ttl", "3600000", "none"});
  EXPECT_EQ(outcome.exit, kExitFailed);
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_THAT(outcome.out, ContainsRegex("none +miss"));
  EXPECT_EQ(Run({"rm", "--layout", "small", "key-grpc"}).exit, kExitOk);
  EXPECT_EQ(Run({"rm", "--layout", "small", "key-grpc"}).exit, kExitFailed);
  EXPECT_THAT(Run({"rm", "--layout", "small", "key-grpc"}).out, ContainsRegex("miss +- +-"));
  outcome = Run({"--json", "get", "--layout", "small", "--key", "none", "-o", dir_ + "/gone.bin"});
  EXPECT_TRUE(nlohmann::json::parse(outcome.out)["precision"].is_null()) << outcome.out;
  outcome = Run({"get", "--layout", "small", "--key", "key-grpc", "-o", dir_ + "/gone.bin"});
  EXPECT_EQ(outcome.exit, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("miss"));
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/gone.bin"));
  EXPECT_EQ(Run({"flush", "--layout", "small"}).exit, kExitOk);
  EXPECT_EQ(daemon_->values(), 0u);
}

TEST_F(Crumbctl, HexKeysNameTheSameBytes) {
  StartDaemon();
  const std::string page = Write("page.bin", Page(2));
  Run({"layout", "add", dir_ + "/layout.yaml"});
  EXPECT_EQ(Run({"put", "--layout", "small", "--key", "AB", page}).exit, kExitOk);
  EXPECT_EQ(Run({"lookup", "--layout", "small", "--hex", "4142"}).exit, kExitOk);
  EXPECT_EQ(Run({"put", "--layout", "small", "--hex", "--key", "00ff", page}).exit, kExitOk);
  const Outcome outcome = Run({"--json", "lookup", "--layout", "small", "--hex", "00ff"});
  EXPECT_EQ(outcome.exit, kExitOk);
  EXPECT_FALSE(nlohmann::json::parse(outcome.out, nullptr, false).is_discarded());
}

TEST_F(Crumbctl, LayoutsAreFoundByNameOrHash) {
  StartDaemon();
  Outcome outcome = Run({"--json", "layout", "add", dir_ + "/layout.yaml"});
  const auto added = nlohmann::json::parse(outcome.out);
  const std::string hash = added["layouts"][0]["hash"];
  EXPECT_EQ(hash.size(), 64u);
  EXPECT_EQ(added["layouts"][0]["raw_bytes"][0], kRawBytes);
  EXPECT_EQ(Run({"lookup", "--layout", hash.substr(0, 6), "k"}).exit, kExitFailed);
  outcome = Run({"lookup", "--layout", "unknown", "k"});
  EXPECT_EQ(outcome.exit, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("no layout \"unknown\""));
  // Two layouts of one name: the hash must decide.
  std::ofstream(dir_ + "/layout.yaml") << kLayout << "namespace: other\n";
  Run({"layout", "add", dir_ + "/layout.yaml"});
  outcome = Run({"lookup", "--layout", "small", "k"});
  EXPECT_EQ(outcome.exit, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr(hash));
}

TEST_F(Crumbctl, WrongFilesAreRefusedBeforeTheyTravel) {
  StartDaemon();
  Run({"layout", "add", dir_ + "/layout.yaml"});
  Outcome outcome =
      Run({"put", "--layout", "small", "--key", "k", Write("short.bin", Page(1).substr(1))});
  EXPECT_EQ(outcome.exit, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr(std::to_string(kRawBytes - 1)));
  EXPECT_THAT(outcome.err, HasSubstr(std::to_string(kRawBytes)));
  outcome = Run({"put", "--layout", "small", "--key", "k", Write("long.bin", Page(1) + "x")});
  EXPECT_EQ(outcome.exit, kExitUsage);
  outcome = Run({"put", "--layout", "small", "--key", "k", Write("empty.bin", "")});
  EXPECT_EQ(outcome.exit, kExitUsage);
  outcome = Run({"put", "--layout", "small", "--key", "k", dir_ + "/absent.bin"});
  EXPECT_EQ(outcome.exit, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("absent.bin"));
  outcome = Run({"put", "--layout", "small", "--key", "k", dir_});
  EXPECT_EQ(outcome.exit, kExitUsage);
  outcome = Run({"put", "--layout", "small", "--part", "1", "--key", "k", dir_ + "/long.bin"});
  EXPECT_EQ(outcome.exit, kExitUsage);
  Write("page.bin", Page(1));
  Run({"put", "--layout", "small", "--key", "k", dir_ + "/page.bin"});
  outcome = Run({"get", "--layout", "small", "--key", "k", "-o", dir_ + "/no/such/dir/out.bin"});
  EXPECT_EQ(outcome.exit, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("/no/such/dir/out.bin"));
}

TEST_F(Crumbctl, RefusalsAndDeadlinesHaveTheirCodes) {
  StartDaemon();
  Run({"layout", "add", dir_ + "/layout.yaml"});
  const std::string page = Write("page.bin", Page(1));
  daemon_->Set({.put_result = BlockResult::kQuota});
  Outcome outcome = Run({"put", "--layout", "small", "--key", "k", page});
  EXPECT_EQ(outcome.exit, kExitRefused);
  EXPECT_THAT(outcome.err, HasSubstr("quota"));
  EXPECT_THAT(outcome.err, HasSubstr("the fake refuses"));
  daemon_->Set({.put_result = BlockResult::kMismatch});
  outcome = Run({"put", "--layout", "small", "--key", "k", "--form", "packed",
                 Write("packed.bin", Page(1) + "x")});
  EXPECT_EQ(outcome.exit, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("expected " + std::to_string(kRawBytes)));
  EXPECT_THAT(outcome.err, HasSubstr("got " + std::to_string(kRawBytes + 1)));
  EXPECT_THAT(outcome.err, HasSubstr("--form raw"));
  daemon_->Set({.hold = true});
  outcome = Run(
      {"--deadline-ms", "100", "get", "--layout", "small", "--key", "k", "-o", dir_ + "/out.bin"});
  EXPECT_EQ(outcome.exit, kExitDeadline);
  daemon_->Set({});
}

TEST_F(Crumbctl, StatusIsTheDaemonsDocument) {
  StartDaemon();
  Outcome outcome = Run({"status"});
  EXPECT_EQ(outcome.exit, kExitOk);
  EXPECT_THAT(outcome.out, HasSubstr("1.00 MiB"));
  outcome = Run({"--json", "status"});
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["version"], "fake");
}

TEST_F(Crumbctl, StatusShowsNoRatioBeforeTheFirstEncode) {
  StartDaemon();
  const auto document = [](const char* ratio) {
    return std::string(R"({"tiers":{},"operations":{},"codec":{"ratio":)") + ratio + "}}";
  };
  daemon_->SetStatus(document("null"));
  EXPECT_THAT(Run({"status"}).out, HasSubstr("compression -,"));
  EXPECT_THAT(Run({"status"}).out, HasSubstr("error K, V         -, -\n"));
  daemon_->SetStatus(document("7.25"));
  EXPECT_THAT(Run({"status"}).out, HasSubstr("compression 7.25 x,"));
  EXPECT_EQ(nlohmann::json::parse(Run({"--json", "status"}).out)["codec"]["ratio"], 7.25);
}

TEST_F(Crumbctl, BenchMeasuresChecksAndCleansUp) {
  StartDaemon();
  for (const char* transport : {"ucx", "grpc"}) {
    for (const char* verb : {"get", "put", "lookup", "mixed"}) {
      const Outcome outcome = Run({"--json", "bench", verb, "--transport", transport,
                                   "--value-bytes", "16KiB", "--clients", "2", "--batch", "4",
                                   "--depth", "3", "--seconds", "1", "--keys", "64", "--verify"});
      ASSERT_EQ(outcome.exit, kExitOk) << verb << transport << outcome.err;
      const auto report = nlohmann::json::parse(outcome.out);
      EXPECT_GT(report["pages"], 0) << verb;
      EXPECT_EQ(report["wrong"], 0) << verb;
      EXPECT_EQ(report["misses"], 0) << verb;
      EXPECT_TRUE(report["failures"].empty()) << report["failures"];
      EXPECT_GT(report["pages_per_second"], 0);
      const std::string name = verb;
      EXPECT_EQ(report["compared"], name == "get" || name == "mixed") << verb;
      EXPECT_EQ(report["bytes_per_second"].is_null(), name == "lookup") << verb;
      EXPECT_GE(report["p999_us"], report["p99_us"]);
      EXPECT_GE(report["p99_us"], report["p50_us"]);
      EXPECT_EQ(daemon_->values(), 0u) << verb;
    }
  }
}

TEST_F(Crumbctl, BenchOfLookUpsSpeaksOfNoBytes) {
  StartDaemon();
  const std::vector<std::string> rest = {"--value-bytes", "4096", "--seconds", "1", "--keys", "8",
                                         "--transport",   "grpc", "--verify"};
  std::vector<std::string> words = {"bench", "lookup"};
  words.insert(words.end(), rest.begin(), rest.end());
  Outcome outcome = Run(words);
  EXPECT_EQ(outcome.exit, kExitOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("pages "));
  EXPECT_THAT(outcome.out, Not(HasSubstr("B/s")));
  EXPECT_THAT(outcome.out, Not(HasSubstr("per GB")));
  EXPECT_THAT(outcome.out, Not(HasSubstr("compared")));
  words[1] = "get";
  outcome = Run(words);
  EXPECT_EQ(outcome.exit, kExitOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("B/s"));
  EXPECT_THAT(outcome.out, HasSubstr("(every byte compared)"));
}

TEST_F(Crumbctl, BenchTellsWrongBytesFromRightOnes) {
  StartDaemon();
  daemon_->Set({.flip_byte = true});
  const Outcome outcome = Run({"bench", "get", "--transport", "grpc", "--value-bytes", "4096",
                               "--seconds", "1", "--keys", "8", "--verify"});
  EXPECT_EQ(outcome.exit, kExitFailed);
  EXPECT_THAT(outcome.out, HasSubstr("corrupt"));
  EXPECT_EQ(daemon_->values(), 0u);
}

TEST_F(Crumbctl, BenchOfALayoutDeletesItsKeysOnly) {
  StartDaemon();
  Run({"layout", "add", dir_ + "/layout.yaml"});
  const std::string page = Write("page.bin", Page(1));
  Run({"put", "--layout", "small", "--key", "mine", page});
  const Outcome outcome = Run({"bench", "mixed", "--layout", "small", "--seconds", "1", "--keys",
                               "16", "--transport", "grpc", "--verify"});
  EXPECT_EQ(outcome.exit, kExitOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("KV tokens"));
  EXPECT_EQ(daemon_->values(), 1u);
}

TEST_F(Crumbctl, BenchCodecNeedsNoDaemon) {
  const Outcome outcome = Run({"--json", "bench", "codec", "--dim", "64", "--tokens", "8",
                               "--heads", "1", "--seconds", "0.01", "--effort", "draft"});
  ASSERT_EQ(outcome.exit, kExitOk) << outcome.err;
  const nlohmann::json document = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(document["codecs"].size(), 9u);
  EXPECT_NE(document["backend"], "auto");
  EXPECT_EQ(document["layers"], 1);
  for (const nlohmann::json& one : document["codecs"]) {
    // What has no rotation has no share of what the core can do for one.
    if (one["codec"] == "raw" || one["codec"] == "naive-int2" || one["codec"] == "int4") {
      EXPECT_TRUE(one["encode_share_of_core"].is_null()) << one;
      EXPECT_TRUE(one["decode_share_of_core"].is_null()) << one;
    } else if (document["core"]["fp32_multiply_adds_per_second"] > 0) {
      EXPECT_GT(one["encode_share_of_core"], 0) << one;
      EXPECT_GT(one["decode_share_of_core"], 0) << one;
    }
    if (one["codec"] == "raw") continue;
    EXPECT_GT(one["encode_phases_ns"].size(), 1u) << one;
    EXPECT_GE(one["decode_phases_ns"].size(), 1u) << one;
  }
  const Outcome reference = Run({"bench", "codec", "--dim", "64", "--tokens", "8", "--heads", "1",
                                 "--seconds", "0.01", "--backend", "reference"});
  EXPECT_EQ(reference.exit, kExitOk) << reference.err;
  EXPECT_THAT(reference.out, HasSubstr("backend reference"));
}

TEST_F(Crumbctl, BenchCodecNamesWhatIsWrong) {
  const auto error = [this](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"bench", "codec"};
    all.insert(all.end(), words.begin(), words.end());
    return Run(all).err;
  };
  for (const bool gpu : {false, true}) {
    std::vector<std::string> words = {"--codec", "nonsense"};
    if (gpu) words.insert(words.end(), {"--device", "0"});
    EXPECT_THAT(error(words), testing::AllOf(HasSubstr("unknown codec \"nonsense\"; one of raw, "),
                                             HasSubstr("hadamard-int4")));
  }
  EXPECT_THAT(error({"--device", "x"}), HasSubstr("'x' is not a number"));
  EXPECT_THAT(error({"--device", "1024"}), HasSubstr("1024 is not 0 to 1023"));
  EXPECT_THAT(Run({"bench", "codec", "--help"}).out, HasSubstr("multiple of 16"));
}

// Without CUDA, a driver or a GPU: said with the remedy. With one this measures, in a moment.
TEST_F(Crumbctl, BenchCodecOnAGpuThatIsNotThereIsExit3) {
  const Outcome outcome = Run({"--json", "bench", "codec", "--device", "0", "--dim", "64",
                               "--heads", "1", "--pages", "1", "--codec", "naive-int2"});
  if (outcome.exit == kExitOk) {
    const auto document = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(document["codecs"][0]["ways"].size(), 2u);
    return;
  }
  EXPECT_EQ(outcome.exit, kExitUnreachable) << outcome.err;
  EXPECT_THAT(outcome.err, testing::AnyOf(HasSubstr("-DCRUMB_CUDA=ON"), HasSubstr("nvidia-smi")));
  EXPECT_THAT(outcome.out, IsEmpty());
}

TEST_F(Crumbctl, PageInspectReadsHeadersAndFindsDamage) {
  PageHeader header;
  header.token_count = 16;
  header.token_start = 32;
  header.codec_id = 5;
  header.key.bytes[3] = 7;
  header.payload_bytes = 1000;
  header.raw_bytes = 1000;
  std::string page(kPageHeaderBytes + 1000, 'p');
  const MutableBytes bytes(reinterpret_cast<uint8_t*>(page.data()), page.size());
  SealHeader(header, bytes.subspan(kPageHeaderBytes));
  StoreHeader(header, bytes);
  Outcome outcome = Run({"--json", "page", "inspect", Write("good.crpg", page)});
  ASSERT_EQ(outcome.exit, kExitOk) << outcome.err;
  const auto document = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(document["header"]["token_start"], 32);
  EXPECT_EQ(document["header"]["payload_bytes"], 1000);
  outcome = Run({"page", "inspect", dir_ + "/good.crpg"});
  EXPECT_THAT(outcome.out, HasSubstr("token_count       16"));
  for (size_t at : {size_t{0}, size_t{70}, size_t{200}, page.size() - 1}) {
    std::string damaged = page;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    outcome = Run({"page", "inspect", Write("bad.crpg", damaged)});
    EXPECT_EQ(outcome.exit, kExitFailed) << at;
    EXPECT_THAT(outcome.err, HasSubstr("does not verify")) << at;
  }
  EXPECT_EQ(Run({"page", "inspect", Write("short.crpg", "short")}).exit, kExitFailed);
  EXPECT_EQ(Run({"page", "inspect", Write("cut.crpg", page.substr(0, 500))}).exit, kExitFailed);
  EXPECT_EQ(Run({"page", "inspect", dir_ + "/absent.crpg"}).exit, kExitUsage);
  outcome = Run({"page", "inspect", dir_ + "/good.crpg", "--layout", dir_ + "/layout.yaml"});
  EXPECT_EQ(outcome.exit, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("another layout"));
}

TEST_F(Crumbctl, DoctorPrintsEveryCheckWithItsRemedy) {
  const Outcome outcome = Run({"--json", "doctor", "--data-dir", dir_});
  const auto document = nlohmann::json::parse(outcome.out);
  EXPECT_GE(document["checks"].size(), 14u);
  for (const auto& check : document["checks"]) {
    EXPECT_FALSE(check["found"].get<std::string>().empty()) << check;
    EXPECT_EQ(check["state"] == "ok", check["remedy"].get<std::string>().empty()) << check;
  }
  EXPECT_EQ(outcome.exit == kExitFailed, document["fails"] != 0);
  EXPECT_EQ(Run({"doctor", "--data-dir", dir_ + "/absent"}).exit, kExitFailed);
}

}  // namespace
}  // namespace crumb::cli
