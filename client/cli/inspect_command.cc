// crumbctl page inspect: needs no daemon. Exit 1 if the page does not verify.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"
#include "client/cli/cli.h"
#include "client/cli/file_io.h"
#include "client/cli/format.h"
#include "client/cli/inspect_page.h"
#include "client/src/layout_spec.h"
#include "crumb/layout_file.h"

namespace crumb::cli {
namespace {

struct InspectArgs {
  std::string file, layout, rotation;
  bool rows = false;
};

std::string FlagNames(uint32_t flags) {
  std::string out;
  if ((flags & kPageFlagRawTail) != 0) out += " raw-tail";
  if ((flags & kPageFlagSink) != 0) out += " sink";
  if ((flags & kPageFlagStepped) != 0) out += " stepped";
  if ((flags & kPageFlagNonFinite) != 0) out += " non-finite";
  return out.empty() ? "none" : out.substr(1);
}

nlohmann::json HeaderJson(const PageHeader& header, PageCheck check) {
  nlohmann::json out = {{"check", ToString(check)},
                        {"format_version", header.format_version},
                        {"precision", ToString(header.precision)},
                        {"provenance", ToString(header.provenance)},
                        {"identity_prefix", absl::StrFormat("%016x", header.identity_prefix)},
                        {"codec_id", absl::StrFormat("%016x", header.codec_id)},
                        {"key", Hex(header.key.bytes)},
                        {"parent_prefix", absl::StrFormat("%016x", header.parent_prefix)},
                        {"token_count", header.token_count},
                        {"part", header.part},
                        {"lossy_depth", header.lossy_depth},
                        {"flags", FlagNames(header.flags)},
                        {"payload_bytes", header.payload_bytes},
                        {"raw_bytes", header.raw_bytes},
                        {"tenant_prefix", absl::StrFormat("%016x", header.tenant_prefix)},
                        {"checksum", absl::StrFormat("%016x", header.checksum)}};
  out["token_start"] = header.token_start == kTokenStartUnknown
                           ? nlohmann::json("unknown")
                           : nlohmann::json(header.token_start);
  if (StampIsValid(header)) {
    out["stamp"] = {{"segment", header.segment},
                    {"generation", header.generation},
                    {"log_sequence", header.log_sequence}};
  }
  return out;
}

nlohmann::json RowJson(const RowStats& stats, bool single) {
  nlohmann::json out = {{"layer", stats.layer_id}, {"tensor", stats.is_v ? "V" : "K"},
                        {"head", stats.head},      {"rms", stats.rms},
                        {"mean", stats.mean},      {"min", stats.min},
                        {"max", stats.max},        {"non_finite", stats.non_finite}};
  if (single) {
    out["token"] = stats.token;
  } else {
    out["rows"] = stats.rows;
  }
  return out;
}

std::string RowText(const RowStats& stats, bool single) {
  return absl::StrFormat("%d\t%s\t%d\t%d\t%.5g\t%.5g\t%.5g\t%.5g\t%d\n", stats.layer_id,
                         stats.is_v ? "V" : "K", stats.head, single ? stats.token : stats.rows,
                         stats.rms, stats.mean, stats.min, stats.max, stats.non_finite);
}

absl::StatusOr<std::vector<RowStats>> Rows(const InspectArgs& args, Bytes page) {
  client::LayoutSpec spec;
  if (client::Status status = client::LoadLayoutFile(args.layout, &spec); !status.ok()) {
    return absl::InvalidArgumentError(status.message);
  }
  CRUMB_ASSIGN(const crumb::Layout layout, client::CheckSpec(spec));
  std::shared_ptr<const RotationSet> rotations;
  if (!args.rotation.empty()) {
    CRUMB_ASSIGN(rotations, RotationSet::Load(args.rotation));
  }
  if (layout.identity().dtype != RawDtype::kBf16) {
    return absl::InvalidArgumentError(absl::StrCat("statistics are for bf16 pages; this layout is ",
                                                   ToString(layout.identity().dtype)));
  }
  CRUMB_ASSIGN(const std::vector<uint8_t> raw, DecodePage(page, layout, rotations));
  const PageHeader header = LoadHeader(page);
  std::vector<RowStats> rows = StatsOfRows(raw, layout.parts()[header.part], header.token_count);
  return args.rows ? rows : Summarise(rows);
}

void PrintText(Context* context, const nlohmann::json& document, const std::string& rows) {
  for (const auto& [key, value] : document["header"].items()) {
    context->out << absl::StrFormat("%-18s%s\n", key,
                                    value.is_string() ? value.get<std::string>() : value.dump());
  }
  if (!rows.empty()) context->out << "\n" << Table(rows);
}

void Inspect(Context* context, const InspectArgs& args) {
  absl::StatusOr<std::string> file = ReadFile(args.file, kRawPageBytesMax + 2 * kPageAlignment);
  if (!file.ok()) return context->Fail(file.status());
  if (file->size() < kPageHeaderBytes) {
    context->err << "crumbctl: " << args.file << ": " << file->size()
                 << " bytes are no page: the header alone has " << kPageHeaderBytes << "\n";
    context->exit = kExitFailed;
    return;
  }
  const Bytes page = AsBytes(*file);
  const PageCheck check = CheckPage(page);
  nlohmann::json document = {{"file", args.file}, {"header", HeaderJson(LoadHeader(page), check)}};
  std::string rows;
  if (check != PageCheck::kOk) {
    context->err << "crumbctl: " << args.file << ": does not verify: " << ToString(check) << "\n";
    context->exit = kExitFailed;
  } else if (!args.layout.empty()) {
    absl::StatusOr<std::vector<RowStats>> stats = Rows(args, page);
    if (!stats.ok()) return context->Fail(stats.status());
    rows = absl::StrCat("LAYER\tTENSOR\tHEAD\t", args.rows ? "TOKEN" : "ROWS",
                        "\tRMS\tMEAN\tMIN\tMAX\tNON-FINITE\n");
    for (const RowStats& one : *stats) {
      rows += RowText(one, args.rows);
      document["rows"].push_back(RowJson(one, args.rows));
    }
  }
  if (context->globals.json) {
    context->out << document.dump(2) << "\n";
  } else {
    PrintText(context, document, rows);
  }
}

}  // namespace

void AddInspectCommands(CLI::App* app, Context* context) {
  CLI::App* page = app->add_subcommand("page", "Page files");
  page->require_subcommand(1);
  page->footer("Example: crumbctl page inspect page.crpg\n");
  auto args = std::make_shared<InspectArgs>();
  CLI::App* inspect = page->add_subcommand(
      "inspect", "Header and checksum of a page file (get --form page); with --layout, its rows");
  inspect->add_option("FILE", args->file, "The page; - is standard input")->required();
  auto* layout = inspect->add_option("--layout", args->layout, "Layout file of the page (YAML)");
  inspect->add_option("--rotation", args->rotation, "Flat rotation file (rotation export)")
      ->needs(layout);
  inspect->add_flag("--rows", args->rows, "Every row, not one line per head")->needs(layout);
  inspect->footer(
      "Example: crumbctl page inspect page.crpg --layout smollm2.yaml --rotation smollm2.crot\n");
  inspect->callback([context, args] { Inspect(context, *args); });
}

}  // namespace crumb::cli
