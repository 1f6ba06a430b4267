// crumbctl as a function: arguments in, text out, exit code back, so that tests run it in process.
// Data goes to `out`, words to `err`. One thread (bench makes its own).
#ifndef CRUMB_CLIENT_CLI_CLI_H_
#define CRUMB_CLIENT_CLI_CLI_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cachesvc/base/status.h"
#include "client/src/admin.h"
#include "crumb/client.h"

namespace CLI {
class App;
}

namespace crumb::cli {

// A contract: scripts rely on these numbers.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;       // not found, or a check failed
inline constexpr int kExitUsage = 2;        // wrong arguments or input files
inline constexpr int kExitUnreachable = 3;  // no daemon there
inline constexpr int kExitRefused = 4;      // auth, quota, busy, a name that is taken
inline constexpr int kExitDeadline = 5;
// What a shell reports of any program that these end.
inline constexpr int kExitInterrupted = 130;  // Ctrl-C
inline constexpr int kExitTerminated = 143;   // SIGTERM
inline constexpr int kExitClosedPipe = 141;   // the reader of the output went

// Of the result of a page. What fails as a whole goes through Context::Fail.
int ExitOf(client::Code code);

struct Globals {
  std::string server;
  std::string token_file, tls_ca, tls_cert, tls_key;
  uint32_t deadline_ms = 5000;
  bool json = false;
};

// What every command gets. `exit` is what the process will return.
struct Context {
  Globals globals;
  std::ostream& out;
  std::ostream& err;
  int exit = kExitOk;

  void Fail(const absl::Status& status);
  void Fail(const client::Status& status);
  void Usage(const std::string& message);
  // Data could not be written to `path`. Silent where standard output's reader went.
  void FailOutput(const std::string& path, const absl::Status& status);
};

// Address from --server, the environment or the usual places.
absl::StatusOr<client::ChannelOptions> ChannelFor(const Globals& globals);
absl::StatusOr<std::unique_ptr<client::Admin>> OpenAdmin(const Globals& globals);
// Reports into `context` when it fails; null then.
std::unique_ptr<client::Client> OpenClient(Context* context, const client::Options& options);
std::unique_ptr<client::Client> OpenClient(Context* context, client::DataPlane plane);
client::Options ClientOptionsFor(const Globals& globals, client::DataPlane plane);
// "shm", "ucx", "grpc"; anything else: the client's choice.
client::DataPlane PlaneOf(const std::string& transport);
// By name or by a unique prefix of the hash; reports into `context` when it fails.
bool FindLayout(Context* context, client::Client* client, const std::string& text,
                client::Layout* out);

// Each adds its commands to the parser; the callbacks keep `context`.
void AddStatusCommands(CLI::App* app, Context* context);
void AddDoctorCommand(CLI::App* app, Context* context);
void AddLayoutCommands(CLI::App* app, Context* context);
void AddPageCommands(CLI::App* app, Context* context);
void AddRotationCommands(CLI::App* app, Context* context);
void AddQualityCommands(CLI::App* app, Context* context);
void AddBenchCommands(CLI::App* app, Context* context);
void AddInspectCommands(CLI::App* app, Context* context);
void AddReplayCommand(CLI::App* app, Context* context);

int RunCrumbctl(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_CLI_H_
