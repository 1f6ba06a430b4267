// The parser, exit codes, and what commands share.
#include "client/cli/cli.h"

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/file_io.h"
#include "client/src/address.h"
#include "client/src/status_map.h"

namespace crumb::cli {
namespace {

constexpr size_t kHashPrefixMin = 4;
constexpr char kVersion[] = "crumbctl 0.1.0";

constexpr char kFooter[] =
    "Exit codes: 0 ok, 1 not found or a check failed, 2 usage, 3 unreachable, 4 refused (auth, "
    "quota, busy), 5 deadline, 130 Ctrl-C, 141 the reader of the output went, "
    "143 SIGTERM.\n"
    "Example: crumbctl status\n"
    "         crumbctl --server unix:/run/crumb/crumbd.sock layout add model.yaml\n";

void AddGlobals(CLI::App* app, Globals* globals) {
  app->add_option("--server", globals->server,
                  "unix:PATH or HOST:PORT; else CRUMB_SERVER, then "
                  "$XDG_RUNTIME_DIR/crumb/crumbd.sock, /run/crumb/crumbd.sock, 127.0.0.1:7411");
  app->add_flag("--json", globals->json, "Machine-readable output");
  app->add_option("--token-file", globals->token_file, "File that holds the access token");
  app->add_option("--tls-ca", globals->tls_ca, "PEM file of the authorities to trust");
  app->add_option("--tls-cert", globals->tls_cert, "PEM file of this client's certificate");
  app->add_option("--tls-key", globals->tls_key, "PEM file of its key");
  app->add_option("--deadline-ms", globals->deadline_ms, "Deadline of each request")
      ->check(CLI::Range(1, 600000));
}

}  // namespace

int ExitOf(client::Code code) {
  switch (code) {
    case client::Code::kOk:
    case client::Code::kExists:
      return kExitOk;
    case client::Code::kInvalid:
    case client::Code::kMismatch:
      return kExitUsage;
    case client::Code::kUnavailable:
      return kExitUnreachable;
    case client::Code::kBusy:
    case client::Code::kNoSpace:
    case client::Code::kQuota:
    case client::Code::kDenied:
    case client::Code::kNonFinite:
      return kExitRefused;
    case client::Code::kTimeout:
      return kExitDeadline;
    case client::Code::kMiss:
    case client::Code::kCorrupt:
    case client::Code::kIo:
    case client::Code::kCancelled:
    case client::Code::kNotDurable:
      return kExitFailed;
  }
  return kExitFailed;
}

namespace {

// WHY: "exists" is a success of a page that was put, and a refusal of anything else.
int ExitOfFailure(client::Code code) {
  return code == client::Code::kExists ? kExitRefused : ExitOf(code);
}

}  // namespace

void Context::Fail(const absl::Status& status) {
  err << "crumbctl: " << status.message() << "\n";
  exit = ExitOfFailure(client::CodeOf(status));
}

void Context::Fail(const client::Status& status) {
  err << "crumbctl: "
      << (status.message.empty() ? client::ToString(status.code) : status.message.c_str()) << "\n";
  exit = ExitOfFailure(status.code);
}

void Context::Usage(const std::string& message) {
  err << "crumbctl: " << message << "\n";
  exit = kExitUsage;
}

void Context::FailOutput(const std::string& path, const absl::Status& status) {
  if (path != "-" || !ReaderIsGone()) return Fail(status);
  exit = kExitClosedPipe;
}

absl::StatusOr<client::ChannelOptions> ChannelFor(const Globals& globals) {
  client::ChannelOptions options;
  CRUMB_ASSIGN(options.server,
               client::ResolveServer(globals.server, client::ServerPlaces::FromEnvironment()));
  options.token_file = globals.token_file;
  options.tls_ca = globals.tls_ca;
  options.tls_cert = globals.tls_cert;
  options.tls_key = globals.tls_key;
  return options;
}

absl::StatusOr<std::unique_ptr<client::Admin>> OpenAdmin(const Globals& globals) {
  CRUMB_ASSIGN(const client::ChannelOptions options, ChannelFor(globals));
  return client::Admin::Open(options, globals.deadline_ms);
}

client::Options ClientOptionsFor(const Globals& globals, client::DataPlane plane) {
  client::Options options;
  options.server = globals.server;
  options.data_plane = plane;
  options.deadline_ms = globals.deadline_ms;
  options.client_name = kVersion;
  options.token_file = globals.token_file;
  options.tls_ca = globals.tls_ca;
  options.tls_cert = globals.tls_cert;
  options.tls_key = globals.tls_key;
  return options;
}

client::DataPlane PlaneOf(const std::string& transport) {
  if (transport == "shm") return client::DataPlane::kShm;
  if (transport == "ucx") return client::DataPlane::kUcx;
  return transport == "grpc" ? client::DataPlane::kGrpc : client::DataPlane::kAuto;
}

std::unique_ptr<client::Client> OpenClient(Context* context, client::DataPlane plane) {
  return OpenClient(context, ClientOptionsFor(context->globals, plane));
}

std::unique_ptr<client::Client> OpenClient(Context* context, const client::Options& options) {
  std::unique_ptr<client::Client> out;
  const client::Status status = client::Client::Connect(options, &out);
  if (!status.ok()) context->Fail(status);
  return out;
}

bool FindLayout(Context* context, client::Client* client, const std::string& text,
                client::Layout* out) {
  std::vector<client::Layout> layouts;
  if (const client::Status status = client->ListLayouts(&layouts); !status.ok()) {
    context->Fail(status);
    return false;
  }
  std::vector<const client::Layout*> found;
  for (const client::Layout& layout : layouts) {
    const bool by_hash = text.size() >= kHashPrefixMin && absl::StartsWith(layout.hash_hex, text);
    if (layout.name == text || by_hash) found.push_back(&layout);
  }
  if (found.size() == 1) {
    *out = *found[0];
    return true;
  }
  if (found.empty()) {
    context->Fail(absl::NotFoundError(absl::StrCat(
        "no layout \"", text, "\" is registered; see crumbctl layout ls, or crumbctl layout add")));
    return false;
  }
  std::string hashes;
  for (const client::Layout* layout : found) absl::StrAppend(&hashes, " ", layout->hash_hex);
  context->Usage(
      absl::StrCat("layout \"", text, "\" means several; name one by its hash:", hashes));
  return false;
}

namespace {

// The parser misses a command before it looks at the words that it did not take: those are why.
bool NameUnknownWord(const CLI::App& app, const CLI::ParseError& error, std::ostream& err) {
  const std::vector<std::string> words = app.remaining(true);
  if (words.empty() || error.get_name() != "RequiredError") return false;
  err << "crumbctl: unknown word \"" << words[0] << "\"; crumbctl --help lists the commands\n";
  return true;
}

// What was printed must have arrived; a reader that took what it wanted and went is no news.
int ExitAfterOutput(const Context& context) {
  context.out.flush();
  if (context.out) return context.exit;
  if (ReaderIsGone()) return kExitClosedPipe;
  context.err << "crumbctl: the output could not be written\n";
  return kExitFailed;
}

}  // namespace

int RunCrumbctl(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  Context context{.globals = {}, .out = out, .err = err};
  CLI::App app("Talks to crumbd, the KV-cache daemon.", "crumbctl");
  app.footer(kFooter);
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.fallthrough();
  AddGlobals(&app, &context.globals);
  AddStatusCommands(&app, &context);
  AddDoctorCommand(&app, &context);
  AddLayoutCommands(&app, &context);
  AddPageCommands(&app, &context);
  AddRotationCommands(&app, &context);
  AddQualityCommands(&app, &context);
  AddBenchCommands(&app, &context);
  AddInspectCommands(&app, &context);
  AddReplayCommand(&app, &context);
  std::vector<std::string> reversed(args.rbegin(), args.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    if (NameUnknownWord(app, error, err)) return kExitUsage;
    // Help and version are "errors" with code 0 to CLI11, printed on `out`.
    return app.exit(error, out, err) == 0 ? ExitAfterOutput(context) : kExitUsage;
  } catch (const std::exception& error) {
    err << "crumbctl: " << error.what() << "\n";
    return kExitFailed;
  }
  return ExitAfterOutput(context);
}

}  // namespace crumb::cli
