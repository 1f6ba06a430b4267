// crumbctl quality record / ls: what runs of models measured with packed pages.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/cli.h"
#include "client/cli/file_io.h"
#include "client/cli/format.h"

namespace crumb::cli {
namespace {

using client::EvaluationSummary;

constexpr size_t kFileBytesMax = 1 << 20;

absl::Status Wrong(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// nlohmann's exceptions end here.
absl::StatusOr<EvaluationSummary> ParseEvaluation(const std::string& path,
                                                  const std::string& text) {
  const nlohmann::json file = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object()) return Wrong(path, "no JSON object");
  static constexpr const char* kTexts[] = {"model", "revision", "codec", "date", "source"};
  static constexpr const char* kNumbers[] = {"perplexity_change", "kl"};
  std::set<std::string> known = {"rotation", "tokens"};
  for (const char* key : kTexts) {
    known.insert(key);
    if (!file.contains(key) || !file[key].is_string()) {
      return Wrong(path, absl::StrCat(key, ": a text is missing"));
    }
  }
  for (const char* key : kNumbers) {
    known.insert(key);
    if (!file.contains(key) || !file[key].is_number()) {
      return Wrong(path, absl::StrCat(key, ": a number is missing"));
    }
  }
  if (!file.contains("tokens") || !file["tokens"].is_number_unsigned()) {
    return Wrong(path, "tokens: a whole number is missing");
  }
  if (file.contains("rotation") && !file["rotation"].is_string()) {
    return Wrong(path, "rotation: is no text; write the set's hash, or leave it out");
  }
  for (const auto& [key, unused] : file.items()) {
    if (!known.contains(key)) return Wrong(path, absl::StrCat(key, ": there is no such key"));
  }
  return EvaluationSummary{.model = file["model"],
                           .revision = file["revision"],
                           .rotation = file.value("rotation", ""),
                           .codec = file["codec"],
                           .date = file["date"],
                           .source = file["source"],
                           .perplexity_change = file["perplexity_change"],
                           .kl = file["kl"],
                           .tokens = file["tokens"],
                           .within_bounds = false};
}

nlohmann::json ToJson(const EvaluationSummary& one) {
  return {{"model", one.model},
          {"revision", one.revision},
          {"rotation", one.rotation},
          {"codec", one.codec},
          {"perplexity_change", one.perplexity_change},
          {"kl", one.kl},
          {"tokens", one.tokens},
          {"date", one.date},
          {"source", one.source},
          {"within_bounds", one.within_bounds}};
}

void Show(Context* context, const std::vector<EvaluationSummary>& all) {
  if (context->globals.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const EvaluationSummary& one : all) list.push_back(ToJson(one));
    context->out << nlohmann::json{{"evaluations", list}}.dump(2) << "\n";
    return;
  }
  std::string rows =
      "MODEL\tREVISION\tROTATION\tCODEC\tPERPLEXITY\tKL\tTOKENS\tDATE\tGOOD ENOUGH\n";
  for (const EvaluationSummary& one : all) {
    absl::StrAppend(&rows, one.model, "\t", one.revision, "\t",
                    one.rotation.empty() ? "-" : one.rotation.substr(0, 16), "\t", one.codec, "\t",
                    absl::StrFormat("%+.3g %%", one.perplexity_change * 100), "\t", one.kl, "\t",
                    one.tokens, "\t", one.date, "\t", one.within_bounds ? "yes" : "no", "\n");
  }
  context->out << Table(rows);
}

void Record(Context* context, const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kFileBytesMax);
  if (!text.ok()) return context->Usage(std::string(text.status().message()));
  const absl::StatusOr<EvaluationSummary> evaluation = ParseEvaluation(path, *text);
  if (!evaluation.ok()) return context->Usage(std::string(evaluation.status().message()));
  absl::StatusOr<std::unique_ptr<client::Admin>> admin = OpenAdmin(context->globals);
  if (!admin.ok()) return context->Fail(admin.status());
  const absl::StatusOr<EvaluationSummary> kept = (*admin)->RecordEvaluation(*evaluation);
  if (!kept.ok()) return context->Fail(kept.status());
  Show(context, {*kept});
  context->err << "layouts heed it when they are registered next\n";
}

void List(Context* context) {
  absl::StatusOr<std::unique_ptr<client::Admin>> admin = OpenAdmin(context->globals);
  if (!admin.ok()) return context->Fail(admin.status());
  const absl::StatusOr<std::vector<EvaluationSummary>> all = (*admin)->ListEvaluations();
  if (!all.ok()) return context->Fail(all.status());
  Show(context, *all);
}

}  // namespace

void AddQualityCommands(CLI::App* app, Context* context) {
  CLI::App* quality = app->add_subcommand("quality", "What packed pages cost models");
  quality->require_subcommand(1);
  quality->footer("Example: crumbctl quality ls\n");
  auto path = std::make_shared<std::string>();
  CLI::App* record = quality->add_subcommand(
      "record", "Records an evaluation: 2-bit codecs are used where one is good enough");
  record->add_option("FILE", *path, "JSON: see docs/codec.md")->required();
  record->footer("Example: crumbctl quality record evaluation.json\n");
  record->callback([context, path] { Record(context, *path); });
  CLI::App* ls = quality->add_subcommand("ls", "Lists recorded evaluations");
  ls->footer("Example: crumbctl --json quality ls\n");
  ls->callback([context] { List(context); });
}

}  // namespace crumb::cli
