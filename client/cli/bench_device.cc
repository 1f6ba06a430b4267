// Plan, memory, phases, check, report, clean-up. The same steps run without a GPU, over host
// memory, in a test.
#include "client/cli/bench_device.h"

#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/clock.h"
#include "cachesvc/base/identity.h"
#include "client/cli/bench_cpu.h"
#include "client/cli/bench_device_check.h"
#include "client/cli/bench_device_pages.h"
#include "client/cli/bench_device_report.h"
#include "client/cli/bench_device_run.h"
#include "client/cli/bench_values.h"
#include "client/cli/cli.h"
#include "client/cli/file_io.h"
#include "client/cli/stop_signals.h"
#include "client/src/layout_spec.h"

namespace crumb::cli {
namespace {

constexpr char kModel[] = "crumbctl-bench-device";
constexpr uint64_t kWarmBatches = 3;
constexpr uint64_t kMemoryMax = 64ull << 30;  // of one GPU, for the worker's pages
constexpr double kAloneSeconds = 1.0;
constexpr int kDeviceMax = 1023;

// One side: a worker with its GPU, connection and pages.
struct Side {
  std::unique_ptr<GpuWorker> worker;  // null: the other side's
  std::unique_ptr<DevicePages> pages;
  std::unique_ptr<client::Client> client;  // goes before the pages; null: the other side's
  client::Layout layout;
  uint32_t set = 0;

  Side() = default;
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  ~Side() { client.reset(); }
};

struct Run {
  explicit Run(const DeviceArgs& asked) : args(asked) {
    shape = {.layers = asked.layers,
             .heads = asked.heads,
             .dim = asked.dim,
             .page_tokens = asked.page_tokens,
             .block_tokens = asked.block_tokens};
  }
  GpuWorker* getter() const { return get.worker == nullptr ? put.worker.get() : get.worker.get(); }
  client::Client* get_client() const {
    return get.client == nullptr ? put.client.get() : get.client.get();
  }

  const DeviceArgs& args;
  DeviceShape shape;
  CodecKind kind = CodecKind::kRaw;
  Effort effort = Effort::kNormal;
  std::shared_ptr<const RotationSet> made_up;
  std::unique_ptr<BenchValues> values;
  std::unique_ptr<StopSignals> signals;
  Side put, get;
  DevicePhase put_phase, get_phase;
  DeviceReport report;
};

absl::Status CheckArgs(Run* run) {
  const DeviceArgs& args = run->args;
  CRUMB_ASSIGN(run->kind, ParseCodecKind(args.codec));
  CRUMB_ASSIGN(run->effort, ParseEffort(args.effort));
  if (args.page_tokens % args.block_tokens != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--block-tokens ", args.block_tokens, " must divide --page-tokens ", args.page_tokens));
  }
  const uint64_t page = run->shape.page_bytes();
  if (page > kRawPageBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("pages of ", page, " bytes; at most ", kRawPageBytesMax,
                     ": lower --layers, --kv-heads or --page-tokens"));
  }
  if (page > kMemoryMax / (uint64_t{args.batch} * (args.depth + 1))) {
    return absl::InvalidArgumentError(
        "pages of one GPU would take more than 64 GiB: lower --batch, --depth or --layers");
  }
  return absl::OkStatus();
}

client::LayoutSpec SpecOf(const Run& run, const std::string& rotation) {
  const DeviceArgs& args = run.args;
  client::LayoutSpec spec;
  // The codec is no part of an identity; the name space makes it one here, so that every choice has
  // a layout of its own, which stays registered.
  spec.name_space = absl::StrCat(args.codec, "-", args.effort);
  if (!rotation.empty()) absl::StrAppend(&spec.name_space, "-", rotation.substr(0, 16));
  spec.name = absl::StrCat("bench-device-", args.layers, "x", args.heads, "x", args.dim, "x",
                           args.page_tokens, "-", spec.name_space);
  spec.model = kModel;
  spec.revision = "1";
  spec.page_tokens = args.page_tokens;
  spec.codec = args.codec;
  spec.effort = args.effort;
  spec.rotation = rotation;
  client::LayerGroup& group = spec.groups.emplace_back();
  group.kv_heads = args.heads;
  group.k_dim = group.v_dim = args.dim;
  for (uint32_t id = 0; id < args.layers; ++id) group.layer_ids.push_back(id);
  return spec;
}

// A made-up rotation set, imported; its hash. Sets of the same geometry are the same set.
absl::StatusOr<std::string> ImportMadeUp(const Globals& globals, const RotationSet& set) {
  char path[] = "/tmp/crumbctl-rotations-XXXXXX";
  const int fd = ::mkstemp(path);
  if (fd < 0) return absl::UnavailableError("/tmp: no temporary file can be made there");
  ::close(fd);
  absl::StatusOr<client::RotationSummary> summary = absl::UnknownError("not imported");
  absl::Status status = WriteFile(path, AsBytes(set.Serialize()));
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<client::Admin>> admin = OpenAdmin(globals);
    if (admin.ok()) {
      summary = (*admin)->ImportRotation(
          {.model = kModel, .revision = "1", .provenance = "", .paths = {path}});
      status = summary.status();
    } else {
      status = admin.status();
    }
  }
  ::unlink(path);
  CRUMB_TRY(status);
  return summary->hash_hex;
}

// The set that the daemon uses, for the reference; null where it names none.
absl::StatusOr<std::shared_ptr<const RotationSet>> SetOf(const Globals& globals,
                                                         const std::string& hash) {
  if (hash.empty()) return std::shared_ptr<const RotationSet>();
  CRUMB_ASSIGN(const std::unique_ptr<client::Admin> admin, OpenAdmin(globals));
  std::string file;
  CRUMB_TRY(admin->ExportRotation(hash, [&file](const std::string& piece) {
    file += piece;
    return absl::OkStatus();
  }));
  return RotationSet::Parse(AsBytes(file));
}

absl::Status FromClient(const client::Status& status) {
  if (status.ok()) return absl::OkStatus();
  switch (status.code) {
    case client::Code::kInvalid:
    case client::Code::kMismatch:
      return absl::InvalidArgumentError(status.message);
    case client::Code::kBusy:
    case client::Code::kNoSpace:
      return absl::ResourceExhaustedError(status.message);
    case client::Code::kTimeout:
      return absl::DeadlineExceededError(status.message);
    default:
      return absl::UnavailableError(status.message);
  }
}

// Pages of `side`, lent over `client`.
absl::Status MakePages(Run* run, const client::LayoutSpec& spec, GpuWorker* worker, uint32_t pages,
                       std::pair<Side*, client::Client*> lender) {
  auto [side, client] = lender;
  CRUMB_TRY(FromClient(client->RegisterLayout(spec, &side->layout)));
  CRUMB_ASSIGN(side->pages, DevicePages::Make(worker, run->shape, pages));
  const bool here = run->args.place == "worker";
  const client::CodecPlace place = here                          ? client::CodecPlace::kWorker
                                   : run->args.place == "daemon" ? client::CodecPlace::kDaemon
                                                                 : client::CodecPlace::kAuto;
  CRUMB_TRY(FromClient(side->pages->Lend(client, side->layout, &side->set, place)));
  if (!here) return absl::OkStatus();
  client::GpuRegionsInfo info;
  const client::Status known = client->DescribeGpuRegions(side->set, &info);
  if (known.ok() && info.place == client::CodecPlace::kWorker) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--place worker: ", known.ok() ? info.note : known.message));
}

absl::Status Prepare(Context* context, Run* run) {
  const DeviceArgs& args = run->args;
  std::string rotation = args.rotation;
  if (rotation.empty() && WantsRotation(run->kind)) {
    CRUMB_ASSIGN(run->made_up, MakeUpRotations(args.layers, args.dim, kModel));
    CRUMB_ASSIGN(rotation, ImportMadeUp(context->globals, *run->made_up));
  }
  const client::LayoutSpec spec = SpecOf(*run, rotation);
  CRUMB_TRY(
      MakePages(run, spec, run->put.worker.get(), args.batch, {&run->put, run->put.client.get()}));
  CRUMB_TRY(
      MakePages(run, spec, run->getter(), args.batch * args.depth, {&run->get, run->get_client()}));
  run->values = std::make_unique<BenchValues>(ValueKind::kBf16, run->shape.page_bytes(), 1);
  std::vector<uint8_t> page(run->shape.page_bytes());
  for (uint32_t i = 0; i < args.batch; ++i) {
    run->values->Fill(i, {page.data(), page.size()});
    CRUMB_TRY(run->put.pages->Write(i, Bytes(page.data(), page.size())));
  }
  // Bytes that nothing wrote must not look like a page.
  return run->get.pages->Fill(0x7f);
}

DevicePhase PhaseOf(const Run& run, bool put, const std::string& prefix) {
  const Side& side = put ? run.put : run.get;
  DevicePhase phase;
  phase.put = put;
  phase.client = put ? run.put.client.get() : run.get_client();
  phase.layout = &side.layout;
  phase.region_set = side.set;
  phase.pages = side.pages.get();
  phase.stream = (put ? run.put.worker.get() : run.getter())->stream();
  phase.key_prefix = prefix;
  phase.batch = run.args.batch;
  phase.depth = run.args.depth;
  phase.warm = kWarmBatches;
  phase.batches = run.args.batches;
  phase.stored = kWarmBatches + run.args.batches;
  phase.rate = run.args.rate;
  phase.stopped = [signals = run.signals.get()] { return signals->Wait(0) != 0; };
  return phase;
}

// One phase, beside the load if that is asked for.
absl::Status Measure(const Globals& globals, const Run& run, DevicePhase* phase,
                     DevicePhaseReport* out) {
  GpuWorker* const worker = phase->put ? run.put.worker.get() : run.getter();
  std::unique_ptr<GpuLoad> load;
  if (run.args.kernel_load) {
    CRUMB_ASSIGN(load, worker->StartLoad());
    out->kernel_us = load->kernel_us();
    out->kernels_alone = LoadAlone(phase->client, *load, kAloneSeconds);
  }
  phase->load = load.get();
  out->gpu = worker->name();
  out->device = phase->put || run.args.peer < 0 ? run.args.device : run.args.peer;
  const double before = DaemonCpuSeconds(globals);
  RunDevicePhase(*phase, &out->tally);
  const double after = DaemonCpuSeconds(globals);
  if (before >= 0 && after >= before) out->daemon_cpu_seconds = after - before;
  phase->load = nullptr;
  if (load != nullptr) CRUMB_TRY(load->status());
  return out->tally.error.empty() ? absl::OkStatus() : absl::UnavailableError(out->tally.error);
}

// Gets one batch again and compares its first and last page.
absl::Status CheckBatch(Run* run, uint64_t batch, DeviceReference* reference) {
  CRUMB_TRY(run->get.pages->Fill(0x7f));
  DevicePhase phase = run->get_phase;
  phase.warm = batch;
  phase.batches = 1;
  phase.rate = 0;
  std::vector<client::Completion> done;
  std::vector<std::string> names(phase.batch);
  std::vector<client::Block> blocks(phase.batch);
  for (uint32_t i = 0; i < phase.batch; ++i) {
    names[i] = DeviceKey(phase.key_prefix, batch, i);
    blocks[i].key = names[i];
    blocks[i].slots = phase.pages->SlotsOf(i);
  }
  client::RequestOptions options;
  options.stream = phase.stream;
  client::Ticket ticket = 0;
  CRUMB_TRY(FromClient(
      phase.client->SubmitGet(*phase.layout, phase.region_set, blocks, options, &ticket)));
  while (phase.client->in_flight() > 0) phase.client->Drain(100, &done);
  if (done.empty()) return absl::UnavailableError("the daemon was lost");
  const uint64_t bytes = run->shape.page_bytes();
  std::vector<uint8_t> put(bytes), got(bytes);
  for (const uint32_t i : {0u, phase.batch - 1}) {
    const client::Result& result = done[0].results[i];
    if (result.code != client::Code::kOk) continue;  // pushed out of the pool meanwhile
    run->values->Fill(SourceOf(batch, i, phase.batch), {put.data(), bytes});
    CRUMB_TRY(run->get.pages->Read(i, {got.data(), bytes}));
    CRUMB_TRY(
        reference
            ->Check({put.data(), bytes}, {got.data(), bytes}, result.precision, &run->report.check)
            .status());
  }
  return absl::OkStatus();
}

absl::Status Check(Context* context, Run* run, const client::LayoutSpec& spec) {
  CRUMB_ASSIGN(const auto set, SetOf(context->globals, run->get.layout.rotation));
  CRUMB_ASSIGN(const crumb::Layout shape, client::CheckSpec(spec));
  CRUMB_ASSIGN(const CodecKind kind, ParseCodecKind(run->get.layout.codec));
  DeviceReference reference(shape.parts()[0], kind, run->effort, set);
  for (const uint64_t batch : {run->get_phase.stored / 2, run->get_phase.stored - 1}) {
    CRUMB_TRY(CheckBatch(run, batch, &reference));
  }
  return absl::OkStatus();
}

absl::Status MeasureAll(Context* context, Run* run) {
  const uint64_t nonce = SteadyClock().now_us() ^ static_cast<uint64_t>(::getpid()) << 40;
  const std::string prefix = absl::StrFormat("bench-device-%016x", nonce);
  run->put_phase = PhaseOf(*run, true, prefix);
  run->get_phase = PhaseOf(*run, false, prefix);
  DeviceReport& report = run->report;
  report.args = run->args;
  report.shape = run->shape;
  report.warm = kWarmBatches;
  report.data_plane = run->put.client->data_plane();
  report.codec = run->get.layout.codec;
  report.codec_note = run->get.layout.codec_note;
  report.payload_bytes = run->get.layout.payload_bytes[0];
  CRUMB_TRY(Measure(context->globals, *run, &run->put_phase, &report.put));
  CRUMB_TRY(Measure(context->globals, *run, &run->get_phase, &report.get));
  if (run->signals->Wait(0) != 0) return absl::OkStatus();
  return Check(context, run, SpecOf(*run, run->get.layout.rotation));
}

void Judge(Context* context, const DeviceReport& report) {
  const DeviceTally& got = report.get.tally;
  if (report.check.wrong == 0 && got.pages != 0 && report.put.tally.pages != 0) return;
  context->exit = kExitFailed;
  context->err << "crumbctl: bench: "
               << (report.check.wrong != 0 ? "pages came back wrong" : "no page was answered")
               << "\n";
}

bool Connect(Context* context, Run* run) {
  client::Options options = ClientOptionsFor(context->globals, client::DataPlane::kShm);
  options.spin_us = run->args.spin_us;
  options.bytes_in_flight_max = UINT64_MAX;  // --depth is the bound
  options.client_name = "crumbctl bench";
  run->put.client = OpenClient(context, options);
  if (run->put.client == nullptr) return false;
  if (run->args.peer < 0) return true;
  run->get.client = OpenClient(context, options);
  return run->get.client != nullptr;
}

absl::Status OpenWorkers(Run* run, const GpuWorkerOpener& open) {
  CRUMB_ASSIGN(run->put.worker, open(run->args.device));
  if (run->args.peer < 0) return absl::OkStatus();
  CRUMB_ASSIGN(run->get.worker, open(run->args.peer));
  return absl::OkStatus();
}

std::string CheckDevice(const std::string& word) {
  const bool digits = !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
  if (digits && word.size() <= 4 && std::stoi(word) <= kDeviceMax) return "";
  return absl::StrCat("'", word, "' is no number of a GPU (0 to ", kDeviceMax, "); nvidia-smi -L");
}

void AddShape(CLI::App* bench, DeviceArgs* args, CLI::Option* device) {
  const auto number = [bench, device](const char* name, uint32_t* to, const char* what) {
    return bench->add_option(name, *to, what)->needs(device);
  };
  number("--layers", &args->layers, "Layers (80)")->check(CLI::Range(1, 1024));
  number("--kv-heads", &args->heads, "KV heads (8)")->check(CLI::Range(1, 256));
  number("--dim", &args->dim, "Head dimension (128)")->check(CLI::IsMember({64, 128, 256}));
  number("--page-tokens", &args->page_tokens, "Tokens of a page (64)")
      ->check(CLI::Range(1u, kPageTokensMax));
  number("--block-tokens", &args->block_tokens, "Tokens of the engine's slots (16)")
      ->check(CLI::Range(1u, kPageTokensMax));
  number("--batch", &args->batch, "Pages of a request (32)")->check(CLI::Range(1, 256));
  number("--depth", &args->depth, "Requests in flight (1)")->check(CLI::Range(1, 64));
  number("--batches", &args->batches, "Batches put, then got (50)")->check(CLI::Range(1, 100000));
  number("--spin-us", &args->spin_us, "Poll so long before sleeping (0)")
      ->check(CLI::Range(0, 1000));
}

}  // namespace

void BenchDevice(Context* context, const DeviceArgs& args, const GpuWorkerOpener& open) {
  Run run(args);
  if (absl::Status status = CheckArgs(&run); !status.ok()) {
    return context->Usage(std::string(status.message()));
  }
  if (absl::Status status = OpenWorkers(&run, open); !status.ok()) return context->Fail(status);
  if (!Connect(context, &run)) return;
  absl::StatusOr<std::unique_ptr<StopSignals>> signals = StopSignals::Take();
  if (!signals.ok()) return context->Fail(signals.status());
  run.signals = *std::move(signals);
  absl::Status status = Prepare(context, &run);
  if (status.ok()) status = MeasureAll(context, &run);
  if (status.ok()) {
    context->out << (context->globals.json ? DeviceReportJson(run.report)
                                           : DeviceReportText(run.report));
    Judge(context, run.report);
  } else {
    context->Fail(status);
  }
  if (run.put_phase.client == nullptr) return;
  if (const uint64_t left = CleanDevice(run.put_phase, run.put_phase.stored); left != 0) {
    context->err << "crumbctl: " << left
                 << " of the benchmark's pages could not be deleted; crumbctl flush --layout "
                 << run.put.layout.hash_hex << "\n";
  }
}

void AddBenchDevice(CLI::App* bench, Context* context) {
  auto args = std::make_shared<DeviceArgs>();
  CLI::Option* device =
      bench->add_option("--device", args->device, "Worker's memory on this GPU: puts, then gets")
          ->check(CheckDevice);
  bench->add_option("--peer-device", args->peer, "Gets into this GPU's memory instead")
      ->check(CheckDevice)
      ->needs(device);
  AddShape(bench, args.get(), device);
  bench->add_option("--codec", args->codec, "Of the pages (crumb-int4)")->needs(device);
  bench->add_option("--effort", args->effort, "draft, normal or best (normal)")->needs(device);
  bench->add_option("--rotation", args->rotation, "Hash of a set of the daemon (one is made up)")
      ->needs(device);
  bench->add_option("--place", args->place, "Where the codec runs: auto, daemon or worker (auto)")
      ->check(CLI::IsMember({"auto", "daemon", "worker"}))
      ->needs(device);
  bench->add_option("--rate", args->rate, "Batches a second (as many as go)")
      ->check(CLI::Range(0.01, 1e6))
      ->needs(device);
  bench
      ->add_flag("--kernel-load", args->kernel_load,
                 "Keep the worker's GPU busy, and count what that loses")
      ->needs(device);
  bench->callback([bench, context, args] {
    const bool verb = !bench->get_subcommands().empty();
    if (args->device < 0) {
      if (!verb) context->Usage("bench: name a verb, or --device N for a worker's GPU memory");
      return;
    }
    if (verb) return context->Usage("bench: --device before a verb: name one or the other");
    BenchDevice(context, *args, OpenGpuWorker);
  });
}

}  // namespace crumb::cli
