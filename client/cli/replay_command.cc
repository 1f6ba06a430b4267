// crumbctl replay: hit ratios of a trace by simulation, at equal bytes. Needs no daemon.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cachesvc/base/page_header.h"
#include "client/cli/cli.h"
#include "client/cli/format.h"
#include "client/cli/replay_sim.h"
#include "client/cli/replay_tiers.h"
#include "gpu/codec/payload_layout.h"

namespace crumb::cli {
namespace {

constexpr uint32_t kDim = 128;
constexpr uint32_t kTokenUnit = 2 * kDim * 2;  // K and V of one head in BF16
constexpr uint32_t kPercents[] = {1, 5, 10, 20, 50};

struct ReplayArgs {
  std::string file;
  std::vector<std::string> tier_bytes, policies = {"s3fifo", "lru", "belady"};
  std::vector<std::string> precisions = {"int2", "raw"};
  uint32_t token_bytes = 131072;
  uint32_t block_tokens = 0;
  std::string nvme_bytes;  // empty: memory alone
  std::vector<std::string> admissions = {"all", "seen"}, promotions = {"first", "second"};
};

// What a page of so many tokens takes in the pool.
absl::StatusOr<uint64_t> SlotBytes(const ReplayArgs& args, uint32_t tokens,
                                   const std::string& precision) {
  const CodecKind kind = precision == "raw"    ? CodecKind::kRaw
                         : precision == "int4" ? CodecKind::kCrumbInt4
                                               : CodecKind::kCrumbInt2;
  PartShape shape;
  shape.page_tokens = tokens;
  shape.raw_bytes = uint64_t{tokens} * args.token_bytes;
  if (tokens > kPageTokensMax || shape.raw_bytes > kRawPageBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a block of ", tokens, " tokens of ", args.token_bytes,
                     " bytes is larger than a page can be; lower --token-bytes"));
  }
  shape.layers.push_back({.heads = args.token_bytes / kTokenUnit, .k_dim = kDim, .v_dim = kDim});
  CRUMB_ASSIGN(const PayloadLayout layout,
               PayloadLayout::Make(shape, CodecDescriptor::Default(kind, {})));
  return PageSlotBytes(layout.payload_bytes());
}

PolicyKind PolicyOf(const std::string& name) {
  return name == "lru" ? PolicyKind::kLru : PolicyKind::kS3Fifo;
}

absl::StatusOr<ReplayResult> Replay(const Trace& trace, const std::string& policy, uint64_t pages) {
  if (policy == "belady") return ReplayBelady(trace, pages);
  return ReplayPolicy(trace, PolicyOf(policy), pages);
}

// A row of the curve, for every combination of rules.
absl::Status AddTiers(const ReplayArgs& args, const Trace& trace, uint64_t slot,
                      nlohmann::json* row) {
  uint64_t nvme_bytes = 0;
  if (!ParseSize(args.nvme_bytes, &nvme_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nvme-bytes \"", args.nvme_bytes,
                     "\": use bytes, or a whole number of MiB, GiB or TiB, e.g. 256GiB"));
  }
  (*row)["nvme"] = nlohmann::json::array();
  for (const std::string& policy : args.policies) {
    if (policy == "belady") continue;
    for (const std::string& admission : args.admissions) {
      for (const std::string& promotion : args.promotions) {
        const TierRules rules = {
            .policy = PolicyOf(policy),
            .admission = admission == "all" ? NvmeAdmission::kAll : NvmeAdmission::kSeen,
            .promotion = promotion == "first" ? NvmePromotion::kFirst : NvmePromotion::kSecond,
            .dram_pages = (*row)["pages"].get<uint64_t>(),
            .nvme_pages = nvme_bytes / slot};
        CRUMB_ASSIGN(const TierResult result, ReplayTiers(trace, rules));
        (*row)["nvme"].push_back({{"policy", policy},
                                  {"admission", admission},
                                  {"promotion", promotion},
                                  {"ratio", result.Ratio(result.dram_hits + result.nvme_hits)},
                                  {"dram_ratio", result.Ratio(result.dram_hits)},
                                  {"written_bytes", result.written * slot},
                                  {"read_bytes", result.nvme_hits * slot}});
      }
    }
  }
  return absl::OkStatus();
}

void PrintTiers(Context* context, const nlohmann::json& report) {
  std::string rows =
      "memory\tprecision\tpolicy\tadmission\tpromotion\thits\tfrom memory\twritten\tread\n";
  for (const nlohmann::json& row : report["curve"]) {
    for (const nlohmann::json& nvme : row["nvme"]) {
      absl::StrAppend(
          &rows,
          absl::StrJoin({HumanBytes(row["tier_bytes"].get<double>()),
                         row["precision"].get<std::string>(), nvme["policy"].get<std::string>(),
                         nvme["admission"].get<std::string>(), nvme["promotion"].get<std::string>(),
                         absl::StrFormat("%.3f", nvme["ratio"].get<double>()),
                         absl::StrFormat("%.3f", nvme["dram_ratio"].get<double>()),
                         HumanBytes(nvme["written_bytes"].get<double>()),
                         HumanBytes(nvme["read_bytes"].get<double>())},
                        "\t"),
          "\n");
    }
  }
  context->out << "\n" << Table(rows);
}

void Print(Context* context, const ReplayArgs& args, const nlohmann::json& report) {
  if (context->globals.json) {
    context->out << report.dump(2) << "\n";
    return;
  }
  context->out << absl::StreamFormat(
      "%d requests, %d block reads, %d blocks of %d tokens; raw they take %s\n"
      "hit ratio without a limit %.3f\n\n",
      report["requests"].get<uint64_t>(), report["reads"].get<uint64_t>(),
      report["blocks"].get<uint64_t>(), report["block_tokens"].get<uint64_t>(),
      HumanBytes(report["footprint_bytes"].get<double>()), report["ratio_unlimited"].get<double>());
  std::string rows =
      absl::StrCat("memory\tof raw\tprecision\tpages\t", absl::StrJoin(args.policies, "\t"), "\n");
  for (const nlohmann::json& row : report["curve"]) {
    absl::StrAppend(&rows, HumanBytes(row["tier_bytes"].get<double>()), "\t",
                    absl::StrFormat("%.1f %%", row["percent"].get<double>()), "\t",
                    row["precision"].get<std::string>(), "\t", row["pages"].get<uint64_t>());
    for (const std::string& policy : args.policies) {
      absl::StrAppend(&rows, absl::StrFormat("\t%.3f", row["ratio"][policy].get<double>()));
    }
    absl::StrAppend(&rows, "\n");
  }
  context->out << Table(rows);
  if (!args.nvme_bytes.empty()) PrintTiers(context, report);
}

absl::StatusOr<nlohmann::json> Curve(const ReplayArgs& args, const Trace& trace,
                                     uint32_t block_tokens) {
  CRUMB_ASSIGN(const uint64_t raw_slot, SlotBytes(args, block_tokens, "raw"));
  const uint64_t footprint = raw_slot * trace.blocks();
  std::vector<uint64_t> tiers;
  for (const std::string& text : args.tier_bytes) {
    if (!ParseSize(text, &tiers.emplace_back())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tier-bytes \"", text,
                       "\": use bytes, or a whole number of MiB, GiB or TiB, e.g. 64GiB"));
    }
  }
  for (const uint32_t percent : kPercents) {
    if (args.tier_bytes.empty()) tiers.push_back(footprint / 100 * percent);
  }
  nlohmann::json report = {{"requests", trace.request_ends.size()},
                           {"reads", trace.reads.size()},
                           {"blocks", trace.blocks()},
                           {"block_tokens", block_tokens},
                           {"footprint_bytes", footprint},
                           {"ratio_unlimited", ReplayBelady(trace, trace.blocks()).ratio()},
                           {"curve", nlohmann::json::array()}};
  for (const uint64_t bytes : tiers) {
    for (const std::string& precision : args.precisions) {
      CRUMB_ASSIGN(const uint64_t slot, SlotBytes(args, block_tokens, precision));
      nlohmann::json row = {
          {"tier_bytes", bytes},
          {"percent", 100.0 * static_cast<double>(bytes) / static_cast<double>(footprint)},
          {"precision", precision},
          {"pages", bytes / slot}};
      for (const std::string& policy : args.policies) {
        CRUMB_ASSIGN(const ReplayResult result, Replay(trace, policy, bytes / slot));
        row["ratio"][policy] = result.ratio();
        row["stranded"][policy] = result.stranded;
      }
      if (!args.nvme_bytes.empty()) CRUMB_TRY(AddTiers(args, trace, slot, &row));
      report["curve"].push_back(std::move(row));
    }
  }
  return report;
}

void RunReplay(Context* context, const ReplayArgs& args) {
  if (args.token_bytes % kTokenUnit != 0) {
    return context->Usage(absl::StrCat("--token-bytes ", args.token_bytes,
                                       ": use a multiple of 512 (K and V of one head in BF16)"));
  }
  const absl::StatusOr<Trace> trace = ReadTraceFile(args.file);
  if (!trace.ok()) return context->Fail(trace.status());
  const uint32_t tokens = args.block_tokens != 0 ? args.block_tokens : trace->block_tokens;
  const absl::StatusOr<nlohmann::json> report = Curve(args, *trace, tokens);
  if (!report.ok()) return context->Fail(report.status());
  Print(context, args, *report);
}

}  // namespace

void AddReplayCommand(CLI::App* app, Context* context) {
  auto args = std::make_shared<ReplayArgs>();
  CLI::App* command = app->add_subcommand(
      "replay",
      "Hit ratios of a trace by simulation: what a larger pool or a packed one would give");
  command->add_option("TRACE", args->file, "JSON lines with input_length and hash_ids")->required();
  command->add_option("--tier-bytes", args->tier_bytes,
                      "Memory for pages; may be given again (1, 5, 10, 20 and 50 % of what all "
                      "blocks take raw)");
  command->add_option("--policy", args->policies, "Eviction; may be given again (all three)")
      ->check(CLI::IsMember({"s3fifo", "lru", "belady"}));
  command->add_option("--precision", args->precisions, "Of pages; may be given again (int2, raw)")
      ->check(CLI::IsMember({"int2", "int4", "raw"}));
  command
      ->add_option("--token-bytes", args->token_bytes,
                   "Raw KV of one token (131072: 32 layers, 8 heads of 128, BF16)")
      ->check(CLI::Range(kTokenUnit, 1u << 24));
  command
      ->add_option("--block-tokens", args->block_tokens,
                   "Tokens of a block (as the trace's lengths imply)")
      ->check(CLI::Range(1u, kPageTokensMax));
  command->add_option("--nvme-bytes", args->nvme_bytes,
                      "An NVMe tier behind the memory: what it adds under each pair of rules");
  command
      ->add_option("--admission", args->admissions,
                   "nvme.admission; may be given again (all, seen)")
      ->check(CLI::IsMember({"all", "seen"}));
  command
      ->add_option("--promotion", args->promotions,
                   "nvme.promotion; may be given again (first, second)")
      ->check(CLI::IsMember({"first", "second"}));
  command->footer("Example: crumbctl replay trace.jsonl --tier-bytes 64GiB --precision int2\n");
  command->callback([context, args] { RunReplay(context, *args); });
}

}  // namespace crumb::cli
