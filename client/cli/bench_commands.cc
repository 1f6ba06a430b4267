// crumbctl bench get / put / lookup / mixed: plan, threads, report, clean-up. bench codec is in
// bench_codec.cc.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cachesvc/base/clock.h"
#include "cachesvc/base/identity.h"
#include "client/cli/bench_codec.h"
#include "client/cli/bench_cpu.h"
#include "client/cli/bench_device.h"
#include "client/cli/bench_worker.h"
#include "client/cli/cli.h"
#include "client/cli/format.h"

namespace crumb::cli {
namespace {

constexpr uint64_t kFillBytes = 256ull << 20;
constexpr uint64_t kKeysMax = 1ull << 22;
constexpr uint64_t kMemoryMax = 4ull << 30;

struct BenchArgs {
  std::string transport = "auto", size_text = "256KiB", layout;
  uint32_t clients = 1, batch = 1, depth = 16, seconds = 5;
  uint64_t keys = 0;
  uint32_t spin_us = 0;
  bool verify = false, private_memory = false;
};

// Ctrl-C ends a run early, with its report and its clean-up; a second one ends crumbctl at once. A
// flag, because a signal handler may touch nothing else.
std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);
extern "C" void RequestStop(int) {
  stop_requested.store(true, std::memory_order_relaxed);
  std::signal(SIGINT, SIG_DFL);
}

// One layer of opaque bytes, the same for every run of one size: a layout stays registered, and
// keys tell the runs apart. Pages above the bound of a row are cut into "tokens".
absl::StatusOr<client::LayoutSpec> OpaqueLayout(uint64_t value_bytes) {
  uint64_t tokens = 1;
  while (tokens <= kPageTokensMax &&
         (value_bytes % tokens != 0 || value_bytes / tokens > kHeadDimMax)) {
    ++tokens;
  }
  if (tokens > kPageTokensMax || value_bytes > kRawPageBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("--value-bytes ", value_bytes,
                                                   ": no page has this size; take a multiple of ",
                                                   "4 KiB up to ", kRawPageBytesMax));
  }
  client::LayoutSpec spec;
  spec.name = absl::StrCat("bench-", value_bytes);
  spec.model = "crumbctl-bench";
  spec.revision = "1";
  spec.weights_dtype = "none";
  spec.dtype = "opaque";
  spec.rope_kind = "none";
  spec.codec = "raw";
  spec.page_tokens = static_cast<uint32_t>(tokens);
  client::LayerGroup& group = spec.groups.emplace_back();
  group.kind = "mha";
  group.kv_heads = 1;
  group.k_dim = static_cast<uint32_t>(value_bytes / tokens);
  group.layer_ids = {0};
  return spec;
}

struct Run {
  BenchPlan plan;
  client::LayoutSpec spec;
  bool own = true;
  client::Layout layout;
  std::unique_ptr<BenchValues> values;
  std::vector<std::unique_ptr<BenchWorker>> workers;
  std::vector<BenchTally> tallies;
  BenchTally total;
  double cpu_seconds = 0;
  double daemon_cpu_seconds = -1;  // not known
  std::string plane;
};

bool BringsBytes(BenchVerb verb) { return verb == BenchVerb::kGet || verb == BenchVerb::kMixed; }

bool PlanRun(Context* context, const BenchArgs& args, Run* run) {
  BenchPlan& plan = run->plan;
  const uint64_t nonce = SteadyClock().now_us() ^ static_cast<uint64_t>(::getpid()) << 40;
  plan.key_prefix = absl::StrFormat("bench-%016x", nonce);
  plan.batch = args.batch;
  plan.depth = args.depth;
  plan.seconds = args.seconds;
  plan.seed = nonce;
  plan.stop = &stop_requested;
  plan.share = !args.private_memory;
  run->own = args.layout.empty();
  ValueKind kind = ValueKind::kBytes;
  if (run->own) {
    if (!ParseSize(args.size_text, &plan.value_bytes)) {
      context->Usage(absl::StrCat("--value-bytes \"", args.size_text, "\": use 4096, 64KiB, 1MiB"));
      return false;
    }
    absl::StatusOr<client::LayoutSpec> spec = OpaqueLayout(plan.value_bytes);
    if (!spec.ok()) {
      context->Fail(spec.status());
      return false;
    }
    run->spec = *std::move(spec);
  } else {
    const auto client = OpenClient(context, client::DataPlane::kGrpc);
    if (client == nullptr || !FindLayout(context, client.get(), args.layout, &run->layout)) {
      return false;
    }
    plan.value_bytes = run->layout.raw_bytes[0];
    if (run->layout.dtype == "bf16") kind = ValueKind::kBf16;
  }
  // Lossy pages come back changed: for those the checksum of each answer is the check. Puts and
  // look-ups bring nothing back.
  plan.compare = args.verify && BringsBytes(plan.verb) && (run->own || run->layout.codec == "raw");
  plan.keys =
      args.keys != 0 ? args.keys : std::clamp<uint64_t>(kFillBytes / plan.value_bytes, 64, 65536);
  if (plan.verb == BenchVerb::kPut) plan.keys = 0;
  if (uint64_t{args.clients} * args.depth * args.batch > kMemoryMax / plan.value_bytes) {
    context->Usage(absl::StrCat("clients x depth x batch x value bytes is over ",
                                HumanBytes(static_cast<double>(kMemoryMax)), "; lower one"));
    return false;
  }
  run->values = std::make_unique<BenchValues>(kind, plan.value_bytes, plan.seed);
  plan.values = run->values.get();
  return true;
}

bool StartWorkers(Context* context, const BenchArgs& args, Run* run) {
  for (uint32_t i = 0; i < args.clients; ++i) {
    client::Options options = ClientOptionsFor(context->globals, PlaneOf(args.transport));
    options.spin_us = args.spin_us;
    std::unique_ptr<client::Client> client = OpenClient(context, options);
    if (client == nullptr) return false;
    run->plane = client->data_plane();
    auto worker = std::make_unique<BenchWorker>(run->plan, std::move(client), i);
    const client::Status status =
        worker->Start(run->own ? &run->spec : nullptr, run->own ? nullptr : &run->layout);
    if (!status.ok()) {
      context->Fail(status);
      return false;
    }
    run->layout = worker->layout();
    run->workers.push_back(std::move(worker));
  }
  if (run->plan.keys == 0) return true;
  const client::Status status = run->workers[0]->Prefill();
  if (!status.ok()) context->Fail(status);
  if (status.code == client::Code::kCancelled) context->exit = kExitInterrupted;
  return status.ok();
}

void RunWorkers(const Globals& globals, Run* run) {
  run->tallies.resize(run->workers.size());
  const double daemon_before = DaemonCpuSeconds(globals);
  const double before = CpuSeconds();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < run->workers.size(); ++i) {
    threads.emplace_back([run, i] { run->workers[i]->Run(&run->tallies[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  run->cpu_seconds = CpuSeconds() - before;
  const double daemon_after = DaemonCpuSeconds(globals);
  if (daemon_before >= 0 && daemon_after >= daemon_before) {
    run->daemon_cpu_seconds = daemon_after - daemon_before;
  }
  for (const BenchTally& tally : run->tallies) run->total.Merge(tally);
}

// Deletes the run's keys, and says which layout still has some.
void CleanUp(Context* context, Run* run) {
  uint64_t left = 0;
  for (size_t i = 0; i < run->workers.size(); ++i) {
    left +=
        run->workers[i]->Clean(i < run->tallies.size() ? run->tallies[i].next_key : run->plan.keys);
  }
  if (left == 0 || run->layout.hash_hex.empty()) return;
  context->err << "crumbctl: " << left << " of the benchmark's pages could not be deleted"
               << (run->own ? "; crumbctl flush --layout " + run->layout.hash_hex : std::string())
               << "\n";
}

nlohmann::json PerGigabyte(double cpu_seconds, double bytes) {
  if (cpu_seconds < 0 || bytes <= 0) return nullptr;
  return cpu_seconds / (bytes / 1e9);
}

nlohmann::json ReportOf(const Run& run, const BenchArgs& args, const char* verb) {
  const BenchTally& total = run.total;
  const bool moves = run.plan.verb != BenchVerb::kLookup;
  const auto pages = static_cast<double>(total.pages);
  const double bytes = moves ? pages * static_cast<double>(run.plan.value_bytes) : 0.0;
  const double seconds = total.seconds > 0 ? total.seconds : 1e-9;
  nlohmann::json failures = nlohmann::json::object();
  for (size_t i = 0; i < total.failures.size(); ++i) {
    if (total.failures[i] == 0) continue;
    failures[client::ToString(static_cast<client::Code>(i))] = total.failures[i];
  }
  return {
      {"verb", verb},
      {"data_plane", run.plane},
      {"codec", run.layout.codec},
      {"value_bytes", run.plan.value_bytes},
      {"clients", args.clients},
      {"batch", args.batch},
      {"depth", args.depth},
      {"spin_us", args.spin_us},
      {"shared_memory", !args.private_memory},
      {"seconds", total.seconds},
      {"requests", total.requests},
      {"pages", total.pages},
      {"misses", total.misses},
      {"failures", failures},
      {"wrong", total.wrong},
      {"compared", run.plan.compare},
      {"bytes_per_second", moves ? nlohmann::json(bytes / seconds) : nlohmann::json(nullptr)},
      {"pages_per_second", pages / seconds},
      {"kv_tokens_per_second", run.own ? nlohmann::json(nullptr)
                                       : nlohmann::json(pages * run.layout.page_tokens / seconds)},
      {"p50_us", total.latency_us.Percentile(0.5)},
      {"p99_us", total.latency_us.Percentile(0.99)},
      {"p999_us", total.latency_us.Percentile(0.999)},
      {"max_us", total.latency_us.max()},
      {"client_cpu_seconds_per_gb", PerGigabyte(run.cpu_seconds, bytes)},
      {"daemon_cpu_seconds_per_gb", PerGigabyte(run.daemon_cpu_seconds, bytes)}};
}

// What only verbs that move bytes have.
void PrintBytes(std::ostream& out, const nlohmann::json& report) {
  out << absl::StrFormat("%-22s%s/s\n", "bytes",
                         HumanBytes(report["bytes_per_second"].get<double>()));
  const auto per_gigabyte = [&report](const char* key) {
    return report[key].is_null() ? std::string("-")
                                 : absl::StrFormat("%.3f", report[key].get<double>());
  };
  out << absl::StrFormat("%-22s%s client, %s daemon\n", "CPU seconds per GB",
                         per_gigabyte("client_cpu_seconds_per_gb"),
                         per_gigabyte("daemon_cpu_seconds_per_gb"));
}

const char* ComparedText(const nlohmann::json& report) {
  if (!report["compared"].get<bool>()) return "";
  return report["verb"] == "mixed" ? " (every byte of the gets compared)"
                                   : " (every byte compared)";
}

void Print(Context* context, const nlohmann::json& report) {
  if (context->globals.json) {
    context->out << report.dump(2) << "\n";
    return;
  }
  std::ostream& out = context->out;
  const auto number = [&report](const char* key) { return report[key].get<double>(); };
  out << report["verb"].get<std::string>() << " over " << report["data_plane"].get<std::string>()
      << ", values of " << HumanBytes(number("value_bytes")) << " ("
      << report["codec"].get<std::string>() << "), " << report["clients"] << " client(s), batch "
      << report["batch"] << ", depth " << report["depth"] << "\n";
  if (!report["bytes_per_second"].is_null()) PrintBytes(out, report);
  out << absl::StrFormat("%-22s%s/s\n", "pages", HumanCount(number("pages_per_second")));
  const nlohmann::json& tokens = report["kv_tokens_per_second"];
  out << absl::StrFormat(
      "%-22s%s\n", "KV tokens",
      tokens.is_null() ? "- (opaque pages)" : HumanCount(tokens.get<double>()) + "/s");
  out << absl::StrFormat("%-22s%s / %s / %s\n", "p50 / p99 / p99.9", HumanMicros(number("p50_us")),
                         HumanMicros(number("p99_us")), HumanMicros(number("p999_us")));
  out << absl::StrFormat("%-22s%d ok, %d missed, %d wrong%s\n", "pages",
                         report["pages"].get<uint64_t>(), report["misses"].get<uint64_t>(),
                         report["wrong"].get<uint64_t>(), ComparedText(report));
  if (!report["failures"].empty())
    out << "failures              " << report["failures"].dump() << "\n";
}

void Bench(Context* context, const BenchArgs& args, BenchVerb verb, const char* name) {
  Run run;
  run.plan.verb = verb;
  stop_requested.store(false);
  if (!PlanRun(context, args, &run)) return;
  auto* const before = std::signal(SIGINT, RequestStop);
  if (StartWorkers(context, args, &run)) {
    RunWorkers(context->globals, &run);
    Print(context, ReportOf(run, args, name));
    if (!run.total.error.empty()) {
      context->Fail(absl::UnavailableError(run.total.error));
    } else if (run.total.wrong != 0 || run.total.pages == 0) {
      context->exit = kExitFailed;
      context->err << "crumbctl: bench: "
                   << (run.total.wrong != 0 ? "pages came back wrong" : "no page was answered")
                   << "\n";
    }
  }
  CleanUp(context, &run);
  std::signal(SIGINT, before);
}

void AddVerb(CLI::App* bench, Context* context, BenchVerb verb, const char* name) {
  auto args = std::make_shared<BenchArgs>();
  CLI::App* command = bench->add_subcommand(name, absl::StrCat("Measures ", name));
  command->add_option("--transport", args->transport, "Data plane (auto: what clients take)")
      ->check(CLI::IsMember({"auto", "shm", "ucx", "grpc"}));
  auto* size = command->add_option("--value-bytes", args->size_text,
                                   "Opaque values of this size, under keys that are deleted "
                                   "afterwards (256KiB)");
  command->add_option("--layout", args->layout, "Pages of a registered layout instead")
      ->excludes(size);
  command->add_option("--clients", args->clients, "Clients, a thread each (1)")
      ->check(CLI::Range(1, 64));
  command->add_option("--batch", args->batch, "Blocks per request (1)")->check(CLI::Range(1, 256));
  command->add_option("--depth", args->depth, "Requests in flight per client (16)")
      ->check(CLI::Range(1, 64));
  command->add_option("--seconds", args->seconds, "How long (5)")->check(CLI::Range(1, 86400));
  command->add_option("--keys", args->keys, "Keys stored first (256 MiB of them)")
      ->check(CLI::Range(uint64_t{1}, kKeysMax));
  command->add_option("--spin-us", args->spin_us, "Poll so long before sleeping (0)")
      ->check(CLI::Range(0, 1000));
  command->add_flag("--private-memory", args->private_memory,
                    "Memory that is not shared: over shm the library copies");
  command->add_flag("--verify", args->verify,
                    BringsBytes(verb) ? "Compare every byte that is got with what was put"
                                      : "Nothing to compare: no bytes come back");
  command->footer(absl::StrCat("Example: crumbctl bench ", name,
                               " --transport shm --value-bytes 256KiB --depth 16",
                               BringsBytes(verb) ? " --verify\n" : "\n"));
  command->callback([context, args, verb, name] { Bench(context, *args, verb, name); });
}

}  // namespace

void AddBenchCommands(CLI::App* app, Context* context) {
  CLI::App* bench = app->add_subcommand("bench", "Measures the daemon, or the codecs");
  bench->require_subcommand(0, 1);  // none: --device
  bench->footer(
      "Example: crumbctl bench get --seconds 5\n"
      "         crumbctl bench --device 0 --codec oscar-int2 --spin-us 1000\n");
  AddVerb(bench, context, BenchVerb::kGet, "get");
  AddVerb(bench, context, BenchVerb::kPut, "put");
  AddVerb(bench, context, BenchVerb::kLookup, "lookup");
  AddVerb(bench, context, BenchVerb::kMixed, "mixed");
  AddBenchCodec(bench, context);
  AddBenchDevice(bench, context);
}

}  // namespace crumb::cli
