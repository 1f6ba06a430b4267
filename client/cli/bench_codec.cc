// crumbctl bench codec: encode and decode rates of every codec on one core, in bytes of BF16. Needs
// no daemon. Values are about normal; rotations are Hadamard matrices, which cost what any cost.
#include "client/cli/bench_codec.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "cachesvc/base/clock.h"
#include "client/cli/bench_values.h"
#include "client/cli/cli.h"
#include "client/cli/format.h"
#include "gpu/codec/page_codec.h"

namespace crumb::cli {
namespace {

struct CodecArgs {
  uint32_t dim = 128, tokens = 64, heads = 8, layers = 1;
  std::string effort = "normal", only;
  double seconds = 0.5;
};

constexpr CodecKind kKinds[] = {
    CodecKind::kRaw,       CodecKind::kCrumbInt2, CodecKind::kCrumbK3V2,
    CodecKind::kCrumbInt4, CodecKind::kOscarInt2, CodecKind::kHadamardInt2,
    CodecKind::kNaiveInt2, CodecKind::kInt4,      CodecKind::kHadamardInt4};

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
  }
  return RotationSet::Make(std::move(contents));
}

// Calls `work` until the time is up; returns calls per second.
template <typename Work>
double RateOf(double seconds, const Work& work) {
  const SteadyClock clock;
  const uint64_t start_us = clock.now_us();
  uint64_t calls = 0;
  uint64_t now_us = start_us;
  do {
    work();
    ++calls;
    now_us = clock.now_us();
  } while (static_cast<double>(now_us - start_us) < seconds * 1e6);
  return static_cast<double>(calls) / (static_cast<double>(now_us - start_us) / 1e6);
}

absl::StatusOr<nlohmann::json> Measure(const CodecArgs& args, CodecKind kind, Effort effort) {
  CRUMB_ASSIGN(const crumb::Layout layout, ShapeFor(args));
  CRUMB_ASSIGN(const std::shared_ptr<const RotationSet> rotations, RotationsFor(args));
  const PartShape& shape = layout.parts()[0];
  const CodecDescriptor descriptor = CodecDescriptor::Default(kind, rotations->hash());
  CRUMB_ASSIGN(const std::unique_ptr<PageCodec> codec,
               PageCodec::Create(shape, descriptor, rotations));
  const std::unique_ptr<PageCodec::Scratch> scratch = codec->MakeScratch();
  std::vector<uint8_t> raw(shape.raw_bytes), payload(codec->payload_bytes()), back(raw.size());
  BenchValues(ValueKind::kBf16, raw.size(), 1).Fill(0, absl::MakeSpan(raw));
  BlockResult result = BlockResult::kOk;
  const double encodes = RateOf(args.seconds, [&] {
    result = codec->Encode(raw, args.tokens, effort, absl::MakeSpan(payload), scratch.get()).result;
  });
  if (result != BlockResult::kOk) return absl::InternalError("the codec refused the page");
  bool decoded = true;
  const double decodes = RateOf(args.seconds, [&] {
    decoded =
        codec->Decode(payload, args.tokens, Frame::kOriginal, absl::MakeSpan(back), scratch.get());
  });
  if (!decoded) return absl::InternalError("the codec could not read its own page");
  const auto bytes = static_cast<double>(raw.size());
  return nlohmann::json{{"codec", ToString(kind)},
                        {"raw_bytes", raw.size()},
                        {"payload_bytes", payload.size()},
                        {"encode_bytes_per_second", encodes * bytes},
                        {"decode_bytes_per_second", decodes * bytes}};
}

void BenchCodec(Context* context, const CodecArgs& args) {
  absl::StatusOr<Effort> effort = ParseEffort(args.effort);
  if (!effort.ok()) return context->Usage(std::string(effort.status().message()));
  nlohmann::json all = nlohmann::json::array();
  std::string rows = "CODEC\tENCODE GB/s\tDECODE GB/s\tRAW/STORED\n";
  for (CodecKind kind : kKinds) {
    if (!args.only.empty() && args.only != ToString(kind)) continue;
    absl::StatusOr<nlohmann::json> one = Measure(args, kind, *effort);
    if (!one.ok()) return context->Fail(one.status());
    const auto number = [&one](const char* key) { return (*one)[key].get<double>(); };
    rows += absl::StrFormat(
        "%s\t%.3f\t%.3f\t%.2f\n", ToString(kind), number("encode_bytes_per_second") / 1e9,
        number("decode_bytes_per_second") / 1e9, number("raw_bytes") / number("payload_bytes"));
    all.push_back(*std::move(one));
  }
  if (all.empty()) return context->Usage("--codec " + args.only + ": there is no such codec");
  if (context->globals.json) {
    context->out << nlohmann::json{{"effort", args.effort},
                                   {"tokens", args.tokens},
                                   {"heads", args.heads},
                                   {"dim", args.dim},
                                   {"codecs", all}}
                        .dump(2)
                 << "\n";
  } else {
    context->out << Table(rows);
  }
}

}  // namespace

void AddBenchCodec(CLI::App* bench, Context* context) {
  auto args = std::make_shared<CodecArgs>();
  CLI::App* codec = bench->add_subcommand("codec", "Codecs on one core; needs no daemon");
  codec->add_option("--dim", args->dim, "Head dimension (128)")
      ->check(CLI::IsMember({64, 128, 256}));
  codec->add_option("--tokens", args->tokens, "Tokens per page (64)")->check(CLI::Range(1, 4096));
  codec->add_option("--heads", args->heads, "KV heads (8)")->check(CLI::Range(1, 64));
  codec->add_option("--layers", args->layers, "Layers (1)")->check(CLI::Range(1, 64));
  codec->add_option("--effort", args->effort, "draft, normal or best (normal)");
  codec->add_option("--codec", args->only, "This codec only");
  codec->add_option("--seconds", args->seconds, "Per measurement (0.5)")
      ->check(CLI::Range(0.01, 600.0));
  codec->footer("Example: crumbctl bench codec --codec crumb-int2 --effort best\n");
  codec->callback([context, args] { BenchCodec(context, *args); });
}

}  // namespace crumb::cli
