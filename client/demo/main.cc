// crumb-demo: the program behind deploy/quickstart. Puts real KV pages into a running crumbd, gets
// them back and says what it cost; with --verify proves that durable pages survived a crash.
// Exit codes: 0 ok, 1 something differs or is missing, 2 usage, 3 no daemon.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/demo/demo.h"
#include "client/demo/print_report.h"
#include "gpu/codec/read_file.h"

namespace crumb::demo {
namespace {

constexpr uint32_t kNamespacesMax = 1000;

struct Flags {
  std::string server, data = "tests/data/smollm2", save, verify, plane = "ucx";
  std::vector<std::string> codecs = {"crumb-int2", "oscar-int2", "hadamard-int2",
                                     "naive-int2", "int4",       "hadamard-int4"};
  uint32_t namespaces = 4;
  bool durable = false, json = false;
};

void ShowProgress(uint64_t done, uint64_t total, const char* what) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\x1b[K%s %llu of %llu", what, static_cast<unsigned long long>(done + 1),
               static_cast<unsigned long long>(total));
  if (done + 1 == total) std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

int Fail(const absl::Status& status, int code) {
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\x1b[K", stderr);
  std::fprintf(stderr, "crumb-demo: %s\n", std::string(status.message()).c_str());
  return code;
}

// Tells two runs against one daemon apart.
std::string RunId() {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return absl::StrCat(absl::Hex(now), "-", getpid());
}

absl::Status Save(const std::string& path, const std::vector<SavedPage>& pages) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << FormatSavedPages(pages);
  out.flush();
  if (!out) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

int RunAndPrint(const Flags& flags, const Sample& sample, Exchange& exchange) {
  const RunOptions options{.codecs = flags.codecs,
                           .namespaces = flags.namespaces,
                           .durable = flags.durable,
                           .run_id = RunId()};
  const auto report = Run(sample, exchange, options, ShowProgress);
  if (!report.ok()) return Fail(report.status(), 1);
  if (!flags.save.empty()) {
    if (const auto status = Save(flags.save, report->saved); !status.ok()) return Fail(status, 1);
  }
  std::fputs((flags.json ? ReportJson(*report) : ReportTable(*report)).c_str(), stdout);
  return 0;
}

int VerifyAndPrint(const Flags& flags, const Sample& sample, Exchange& exchange) {
  const auto text = ReadWholeFile(flags.verify, kSavedBytesMax);
  if (!text.ok()) return Fail(text.status(), 2);
  const auto saved = ParseSavedPages(*text);
  if (!saved.ok()) {
    return Fail(
        absl::InvalidArgumentError(absl::StrCat(flags.verify, ": ", saved.status().message())), 2);
  }
  const auto report = Verify(sample, exchange, *saved, ShowProgress);
  if (!report.ok()) return Fail(report.status(), 1);
  std::fputs((flags.json ? VerifyJson(*report) : VerifyText(*report)).c_str(), stdout);
  return 0;
}

int Start(const Flags& flags) {
  const auto sample = LoadSample(flags.data);
  if (!sample.ok()) return Fail(sample.status(), 2);
  client::Options options;
  options.server = flags.server;
  options.client_name = "crumb-demo";
  options.data_plane = flags.plane == "grpc" ? client::DataPlane::kGrpc : client::DataPlane::kUcx;
  auto exchange = Exchange::Connect(options, *sample);
  if (!exchange.ok()) return Fail(exchange.status(), 3);
  return flags.verify.empty() ? RunAndPrint(flags, *sample, **exchange)
                              : VerifyAndPrint(flags, *sample, **exchange);
}

}  // namespace
}  // namespace crumb::demo

int main(int argc, char** argv) {
  crumb::demo::Flags flags;
  CLI::App app(
      "Puts real KV pages of SmolLM2-135M into a running crumbd, gets them back, and prints what "
      "each codec costs in bytes and in attention error.\n"
      "Example: crumb-demo --server unix:/run/crumb/crumbd.sock --namespaces 8 --durable");
  app.add_option("--server", flags.server, "unix:PATH or HOST:PORT; default: as crumbctl");
  app.add_option("--data", flags.data, "folder with smollm2_qkv_sample.npz")->capture_default_str();
  app.add_option("--namespaces", flags.namespaces, "repetitions per codec, each its own namespace")
      ->check(CLI::Range(1u, crumb::demo::kNamespacesMax))
      ->capture_default_str();
  app.add_option("--codec,--codecs", flags.codecs, "codecs, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--plane", flags.plane, "how data travel")
      ->check(CLI::IsMember({"ucx", "grpc"}))
      ->capture_default_str();
  CLI::Option* durable =
      app.add_flag("--durable", flags.durable, "answer puts after the durable write");
  CLI::Option* save =
      app.add_option("--save", flags.save, "write what was got to this file, for --verify");
  CLI::Option* verify =
      app.add_option("--verify", flags.verify, "get what --save wrote again, compare, do no more");
  save->needs(durable)->excludes(verify);
  verify->excludes(durable);
  app.add_flag("--json", flags.json, "print JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return crumb::demo::Start(flags);
}
