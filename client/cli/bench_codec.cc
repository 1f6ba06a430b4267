// crumbctl bench codec: encode and decode rates of every codec on one core, in bytes of BF16, where
// their time goes, and what the core could do at most. Needs no daemon. Values are about normal;
// rotations are Hadamard matrices, which cost what any cost.
#include "client/cli/bench_codec.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cachesvc/base/hash.h"
#include "client/cli/bench_gpu_codec.h"
#include "client/cli/bench_values.h"
#include "client/cli/cli.h"
#include "client/cli/format.h"
#include "gpu/codec/core_rate.h"
#include "gpu/codec/gpu_bench.h"
#include "gpu/codec/kind_traits.h"
#include "gpu/codec/page_codec.h"
#include "gpu/codec/phase_times.h"

namespace crumb::cli {
namespace {

constexpr double kCoreSeconds = 0.2;
constexpr int kDeviceMax = 1023;

absl::StatusOr<crumb::Layout> ShapeFor(const CodecArgs& args) {
  Identity identity;
  identity.model = "crumbctl-bench-codec";
  identity.revision = "1";
  identity.weights_dtype = "bf16";
  identity.page_tokens = args.tokens;
  AttentionGroup& group = identity.groups.emplace_back();
  group.kv_heads = args.heads;
  group.k_dim = args.dim;
  group.v_dim = args.dim;
  for (uint32_t i = 0; i < args.layers; ++i) group.layer_ids.push_back(i);
  return crumb::Layout::Make(std::move(identity));
}

// Hadamard matrices, a mean and a query moment: what a calibrated set has, so that crumb's search
// has all of its work.
absl::StatusOr<std::shared_ptr<const RotationSet>> RotationsFor(const CodecArgs& args) {
  RotationSet::Contents contents;
  contents.model = "crumbctl-bench-codec";
  contents.revision = "1";
  contents.objective = "hadamard";
  for (uint32_t i = 0; i < args.layers; ++i) {
    RotationLayer& layer = contents.layers.emplace_back();
    layer.layer_id = i;
    layer.k = {.heads = 1, .dim = args.dim, .matrix = HadamardMatrix(args.dim)};
    layer.v = layer.k;
    layer.kv_heads = 1;
    layer.k_dim = args.dim;
    for (uint32_t row = 0; row < args.dim; ++row) {
      layer.k_mean.push_back(static_cast<float>(row % 5) * 0.25f);
      for (uint32_t column = 0; column < args.dim; ++column) {
        const float own = 1.0f + static_cast<float>(row % 7);
        layer.query_moment.push_back(row == column ? own : 0.25f);
      }
    }
  }
  return RotationSet::Make(std::move(contents));
}

// Calls `work` until the time is up; returns calls per second of the core.
template <typename Work>
double RateOf(double seconds, const Work& work) {
  const uint64_t start_ns = ThreadTimeNs();
  uint64_t calls = 0;
  uint64_t spent_ns = 0;
  do {
    work();
    ++calls;
    spent_ns = ThreadTimeNs() - start_ns;
  } while (static_cast<double>(spent_ns) < seconds * 1e9);
  return static_cast<double>(calls) / (static_cast<double>(spent_ns) / 1e9);
}

// Nanoseconds per page of every phase that took any, by name.
nlohmann::json PhasesOf(const PhaseTimes& times, double pages) {
  nlohmann::json phases = nlohmann::json::object();
  for (size_t i = 0; i < times.ns.size(); ++i) {
    if (times.ns[i] != 0) phases[kCodecPhaseNames[i]] = static_cast<double>(times.ns[i]) / pages;
  }
  return phases;
}

// One codec with the buffers of a page.
class Subject {
 public:
  static absl::StatusOr<Subject> Make(const CodecArgs& args, CodecKind kind) {
    CRUMB_ASSIGN(const crumb::Layout layout, ShapeFor(args));
    CRUMB_ASSIGN(const std::shared_ptr<const RotationSet> rotations, RotationsFor(args));
    CRUMB_ASSIGN(const CodecBackend backend, ParseCodecBackend(args.backend));
    const CodecDescriptor descriptor = CodecDescriptor::Default(kind, rotations->hash());
    CRUMB_ASSIGN(std::unique_ptr<PageCodec> codec,
                 PageCodec::Create(layout.parts()[0], descriptor, rotations, backend));
    return Subject(args, std::move(codec), layout.parts()[0].raw_bytes);
  }

  bool Encode(Effort effort) {
    const EncodeReport report =
        codec_->Encode(raw_, tokens_, effort, absl::MakeSpan(payload_), scratch_.get());
    return report.result == BlockResult::kOk;
  }
  bool Decode() {
    return codec_->Decode(payload_, tokens_, Frame::kOriginal, absl::MakeSpan(back_),
                          scratch_.get());
  }
  // Pages that `work` does in the time, and where it went.
  template <typename Work>
  nlohmann::json Phases(double seconds, const Work& work) {
    PhaseTimes times;
    scratch_->MeasureInto(&times);
    double pages = 0;
    RateOf(seconds, [&] {
      work();
      ++pages;
    });
    scratch_->MeasureInto(nullptr);
    return PhasesOf(times, pages);
  }
  size_t raw_bytes() const { return raw_.size(); }
  const std::vector<uint8_t>& payload() const { return payload_; }

 private:
  Subject(const CodecArgs& args, std::unique_ptr<PageCodec> codec, uint64_t raw_bytes)
      : tokens_(args.tokens),
        codec_(std::move(codec)),
        scratch_(codec_->MakeScratch()),
        raw_(raw_bytes),
        payload_(codec_->payload_bytes()),
        back_(raw_bytes) {
    BenchValues(ValueKind::kBf16, raw_.size(), 1).Fill(0, absl::MakeSpan(raw_));
  }

  uint32_t tokens_;
  std::unique_ptr<PageCodec> codec_;
  std::unique_ptr<PageCodec::Scratch> scratch_;
  std::vector<uint8_t> raw_, payload_, back_;
};

// Whether a codec has a product with a rotation at all.
bool Rotates(CodecKind kind) { return TraitsOf(kind).rotation != RotationUse::kNone; }

absl::StatusOr<nlohmann::json> Measure(const CodecArgs& args, CodecKind kind, double core_rate) {
  CRUMB_ASSIGN(const Effort effort, ParseEffort(args.effort));
  CRUMB_ASSIGN(Subject subject, Subject::Make(args, kind));
  bool fine = true;
  const auto encode = [&] { fine &= subject.Encode(effort); };
  const auto decode = [&] { fine &= subject.Decode(); };
  const double encodes = RateOf(args.seconds, encode);
  const double decodes = RateOf(args.seconds, decode);
  const nlohmann::json encode_phases = subject.Phases(args.seconds / 4, encode);
  const nlohmann::json decode_phases = subject.Phases(args.seconds / 4, decode);
  if (!fine) return absl::InternalError("the codec refused the page, or could not read its own");
  uint64_t sums = 0;
  const double checksums = RateOf(args.seconds / 8, [&] { sums ^= Xxh3(subject.payload()); });
  const auto bytes = static_cast<double>(subject.raw_bytes());
  // Multiply-adds of the rotation of a page, against what the core can do.
  const double products = bytes / 2 * args.dim;
  const auto share = [&](double pages) {
    const bool known = Rotates(kind) && core_rate > 0;
    return known ? nlohmann::json(pages * products / core_rate) : nlohmann::json();
  };
  return nlohmann::json{{"codec", ToString(kind)},
                        {"raw_bytes", subject.raw_bytes()},
                        {"payload_bytes", subject.payload().size()},
                        {"encode_bytes_per_second", encodes * bytes},
                        {"decode_bytes_per_second", decodes * bytes},
                        {"encode_share_of_core", share(encodes)},
                        {"decode_share_of_core", share(decodes)},
                        {"encode_phases_ns", encode_phases},
                        {"decode_phases_ns", decode_phases},
                        {"checksum_ns", 1e9 / checksums}};
}

std::string PhaseText(const nlohmann::json& phases) {
  std::string text;
  for (const char* name : kCodecPhaseNames) {  // in the order of the work
    if (!phases.contains(name)) continue;
    absl::StrAppendFormat(&text, "%s%s %.1f", text.empty() ? "" : ", ", name,
                          phases[name].get<double>() / 1e3);
  }
  return text.empty() ? "-" : text;
}

std::string RowOf(const nlohmann::json& one, CodecKind kind) {
  const auto number = [&one](const char* key) { return one[key].get<double>(); };
  const auto share = [&](const char* key) -> std::string {
    return one[key].is_null() ? "-" : absl::StrFormat("%.0f %%", 100 * number(key));
  };
  return absl::StrFormat("%s\t%.3f\t%s\t%.3f\t%s\t%.2f\n", ToString(kind),
                         number("encode_bytes_per_second") / 1e9, share("encode_share_of_core"),
                         number("decode_bytes_per_second") / 1e9, share("decode_share_of_core"),
                         number("raw_bytes") / number("payload_bytes"));
}

void Print(Context* context, const CodecArgs& args, const nlohmann::json& document,
           const std::string& rows) {
  if (context->globals.json) {
    context->out << document.dump(2) << "\n";
    return;
  }
  context->out << Table(rows) << "\nMicroseconds of a page of " << args.tokens << " tokens:\n";
  std::string phases = "CODEC\tENCODE\tDECODE\tCHECKSUM\n";
  for (const nlohmann::json& one : document["codecs"]) {
    absl::StrAppendFormat(&phases, "%s\t%s\t%s\t%.1f\n", one["codec"].get<std::string>(),
                          PhaseText(one["encode_phases_ns"]), PhaseText(one["decode_phases_ns"]),
                          one["checksum_ns"].get<double>() / 1e3);
  }
  const nlohmann::json& core = document["core"];
  const auto rate = [&core](const char* key) { return core[key].get<double>() / 1e9; };
  context->out
      << Table(phases) << "\n"
      << absl::StrFormat(
             "backend %s; this core: %.0f G multiply-adds/s in BF16, %.0f in FP32; OF CORE "
             "is what the rotation's products are of that\n",
             document["backend"].get<std::string>(), rate("bf16_multiply_adds_per_second"),
             rate("fp32_multiply_adds_per_second"));
}

// The rate of the products that a backend makes; the reference's are held against FP32.
double RateFor(CodecBackend backend, const CoreRates& core) {
  return backend == CodecBackend::kAvx512 ? core.bf16 : core.fp32;
}

void BenchCodec(Context* context, const CodecArgs& args) {
  absl::StatusOr<Effort> effort = ParseEffort(args.effort);
  if (!effort.ok()) return context->Usage(std::string(effort.status().message()));
  absl::StatusOr<CodecBackend> wanted = ParseCodecBackend(args.backend);
  if (!wanted.ok()) return context->Usage(std::string(wanted.status().message()));
  absl::StatusOr<CodecBackend> backend = ResolveCodecBackend(*wanted);
  if (!backend.ok()) return context->Fail(backend.status());
  // The core's rates are those of its best instructions, whatever backend is looked at.
  const CoreRates core =
      MeasureCore(SupportedCodecBackends().back(), std::min(args.seconds, kCoreSeconds));
  nlohmann::json all = nlohmann::json::array();
  std::string rows = "CODEC\tENCODE GB/s\tOF CORE\tDECODE GB/s\tOF CORE\tRAW/STORED\n";
  for (CodecKind kind : kBenchKinds) {
    if (!args.only.empty() && args.only != ToString(kind)) continue;
    absl::StatusOr<nlohmann::json> one = Measure(args, kind, RateFor(*backend, core));
    if (!one.ok()) return context->Fail(one.status());
    rows += RowOf(*one, kind);
    all.push_back(*std::move(one));
  }
  const nlohmann::json document = {{"effort", args.effort},
                                   {"backend", ToString(*backend)},
                                   {"tokens", args.tokens},
                                   {"heads", args.heads},
                                   {"dim", args.dim},
                                   {"layers", args.layers},
                                   {"core",
                                    {{"bf16_multiply_adds_per_second", core.bf16},
                                     {"fp32_multiply_adds_per_second", core.fp32}}},
                                   {"codecs", all}};
  Print(context, args, document, rows);
}

// Checks of options: empty if they are well, as CLI11 asks.
std::string CheckCodec(const std::string& word) {
  return std::string(ParseCodecKind(word).status().message());
}

std::string CheckDevice(const std::string& word) {
  int device = 0;
  if (!absl::SimpleAtoi(word, &device)) {
    return absl::StrCat("'", word, "' is not a number; GPUs are numbered from 0, nvidia-smi -L");
  }
  if (device >= 0 && device <= kDeviceMax) return "";
  return absl::StrCat(device, " is not 0 to ", kDeviceMax);
}

}  // namespace

void AddBenchCodec(CLI::App* bench, Context* context) {
  auto args = std::make_shared<CodecArgs>();
  CLI::App* codec =
      bench->add_subcommand("codec", "Codecs on one core, or on a GPU; needs no daemon");
  codec->add_option("--dim", args->dim, "Head dimension (128)")
      ->check(CLI::IsMember({64, 128, 256}));
  codec->add_option("--tokens", args->tokens, "Tokens per page (64); a multiple of 16 for --device")
      ->check(CLI::Range(1, 4096));
  codec->add_option("--heads", args->heads, "KV heads (8)")->check(CLI::Range(1, 64));
  codec->add_option("--layers", args->layers, "Layers (1)")->check(CLI::Range(1, 64));
  codec->add_option("--effort", args->effort, "draft, normal or best (normal)");
  codec->add_option("--codec", args->only, "This codec only")->check(CheckCodec);
  CLI::Option* backend =
      codec->add_option("--backend", args->backend, "auto, reference, avx2 or avx512 (auto)");
  CLI::Option* seconds = codec->add_option("--seconds", args->seconds, "Per measurement (0.5)")
                             ->check(CLI::Range(0.01, 600.0));
  CLI::Option* device = codec->add_option("--device", args->device, "Measure this GPU instead")
                            ->check(CheckDevice)
                            ->excludes(backend)
                            ->excludes(seconds);
  codec->add_option("--pages", args->pages, "GPU: pages of a launch, beside 1, 8 and 64 (4096)")
      ->check(CLI::Range(1u, kGpuBenchPagesMax))
      ->needs(device);
  codec->add_option("--frame", args->frame, "GPU: decode to the frame original or rotated")
      ->check(CLI::IsMember({"original", "rotated"}))
      ->needs(device);
  codec->footer(
      "Example: crumbctl bench codec --codec crumb-int2 --effort best\n"
      "         crumbctl bench codec --device 0 --codec oscar-int2\n");
  codec->callback([context, args] {
    args->device < 0 ? BenchCodec(context, *args) : BenchGpuCodec(context, *args);
  });
}

}  // namespace crumb::cli
