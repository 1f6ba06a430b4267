// crumbctl rotation import / ls / show / export.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "client/cli/cli.h"
#include "client/cli/file_io.h"
#include "client/cli/format.h"

namespace crumb::cli {
namespace {

using client::RotationSummary;

nlohmann::json ToJson(const RotationSummary& set) {
  nlohmann::json layers = nlohmann::json::array();
  for (const client::RotationLayerSummary& layer : set.layers) {
    layers.push_back({{"layer", layer.layer_id},
                      {"k_heads", layer.k_heads},
                      {"k_dim", layer.k_dim},
                      {"k_hash", layer.k_hash_hex},
                      {"v_heads", layer.v_heads},
                      {"v_dim", layer.v_dim},
                      {"v_hash", layer.v_hash_hex}});
  }
  return {{"hash", set.hash_hex},       {"model", set.model},           {"revision", set.revision},
          {"objective", set.objective}, {"provenance", set.provenance}, {"gamma", set.gamma},
          {"moments", set.has_moments}, {"means", set.has_means},       {"layers", layers}};
}

void ShowList(Context* context, const std::vector<RotationSummary>& sets) {
  if (context->globals.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const RotationSummary& set : sets) all.push_back(ToJson(set));
    context->out << nlohmann::json{{"rotations", all}}.dump(2) << "\n";
    return;
  }
  std::string rows = "HASH\tMODEL\tREVISION\tLAYERS\tMOMENTS\tMEANS\tOBJECTIVE\n";
  for (const RotationSummary& set : sets) {
    absl::StrAppend(&rows, set.hash_hex.substr(0, 16), "\t", set.model, "\t", set.revision, "\t",
                    set.layers.size(), "\t", set.has_moments ? "yes" : "no", "\t",
                    set.has_means ? "yes" : "no", "\t", set.objective, "\n");
  }
  context->out << Table(rows);
}

void ShowOne(Context* context, const RotationSummary& set) {
  if (context->globals.json) {
    context->out << ToJson(set).dump(2) << "\n";
    return;
  }
  context->out << "hash        " << set.hash_hex << "\nmodel       " << set.model
               << "\nrevision    " << set.revision << "\nobjective   " << set.objective
               << "\nprovenance  " << set.provenance << "\ngamma       " << set.gamma
               << "\nmoments     " << (set.has_moments ? "yes" : "no") << "\nmeans       "
               << (set.has_means ? "yes" : "no") << "\n\n";
  std::string rows = "LAYER\tK\tK HASH\tV\tV HASH\n";
  for (const client::RotationLayerSummary& layer : set.layers) {
    absl::StrAppend(&rows, layer.layer_id, "\t", layer.k_heads, "x", layer.k_dim, "\t",
                    layer.k_hash_hex.substr(0, 16), "\t", layer.v_heads, "x", layer.v_dim, "\t",
                    layer.v_hash_hex.substr(0, 16), "\n");
  }
  context->out << Table(rows);
}

void Import(Context* context, const client::RotationFiles& files) {
  absl::StatusOr<std::unique_ptr<client::Admin>> admin = OpenAdmin(context->globals);
  if (!admin.ok()) return context->Fail(admin.status());
  absl::StatusOr<RotationSummary> set = (*admin)->ImportRotation(files);
  if (!set.ok()) return context->Fail(set.status());
  ShowOne(context, *set);
}

void List(Context* context) {
  absl::StatusOr<std::unique_ptr<client::Admin>> admin = OpenAdmin(context->globals);
  if (!admin.ok()) return context->Fail(admin.status());
  absl::StatusOr<std::vector<RotationSummary>> sets = (*admin)->ListRotations("");
  if (!sets.ok()) return context->Fail(sets.status());
  ShowList(context, *sets);
}

void Show(Context* context, const std::string& prefix) {
  absl::StatusOr<std::unique_ptr<client::Admin>> admin = OpenAdmin(context->globals);
  if (!admin.ok()) return context->Fail(admin.status());
  absl::StatusOr<std::vector<RotationSummary>> sets = (*admin)->ListRotations(prefix);
  if (!sets.ok()) return context->Fail(sets.status());
  if (sets->empty()) {
    return context->Fail(absl::NotFoundError(
        absl::StrCat("no rotation set's hash begins with ", prefix, "; see crumbctl rotation ls")));
  }
  if (sets->size() > 1) {
    return context->Usage(absl::StrCat(prefix, " is the prefix of ", sets->size(),
                                       " rotation sets; give more digits"));
  }
  ShowOne(context, (*sets)[0]);
}

void Export(Context* context, const std::string& prefix, const std::string& path) {
  absl::StatusOr<std::unique_ptr<client::Admin>> admin = OpenAdmin(context->globals);
  if (!admin.ok()) return context->Fail(admin.status());
  std::string file;
  constexpr size_t kFileBytesMax = 4ull << 30;
  absl::Status status = (*admin)->ExportRotation(prefix, [&file](const std::string& piece) {
    if (file.size() + piece.size() > kFileBytesMax) {
      return absl::DataLossError("the rotation set is larger than any can be");
    }
    file += piece;
    return absl::OkStatus();
  });
  if (!status.ok()) return context->Fail(status);
  status = WriteFile(path, AsBytes(file));
  if (!status.ok()) return context->FailOutput(path, status);
  context->err << file.size() << " bytes\n";
}

}  // namespace

void AddRotationCommands(CLI::App* app, Context* context) {
  CLI::App* rotation = app->add_subcommand("rotation", "Rotation sets of models");
  rotation->require_subcommand(1);
  rotation->footer("Example: crumbctl rotation ls\n");
  auto files = std::make_shared<client::RotationFiles>();
  CLI::App* take = rotation->add_subcommand(
      "import", "Imports a flat rotation file, or a K and a V file of RotationZoo");
  take->add_option("FILE", files->paths, "Files")->required()->expected(1, 2);
  take->add_option("--model", files->model, "Model id")->required();
  take->add_option("--revision", files->revision, "Revision of the weights")->required();
  take->add_option("--provenance", files->provenance, "Who calibrated on what; free text");
  take->footer(
      "Example: crumbctl rotation import k_rotation.pt v_rotation.pt --model Qwen/Qwen3-8B "
      "--revision main\n");
  take->callback([context, files] { Import(context, *files); });
  CLI::App* ls = rotation->add_subcommand("ls", "Lists rotation sets");
  ls->footer("Example: crumbctl --json rotation ls\n");
  ls->callback([context] { List(context); });
  auto prefix = std::make_shared<std::string>();
  CLI::App* show = rotation->add_subcommand("show", "Shows one set with its layers");
  show->add_option("HASH", *prefix, "Hash, or a unique prefix")->required();
  show->footer("Example: crumbctl rotation show 1a2b3c\n");
  show->callback([context, prefix] { Show(context, *prefix); });
  auto path = std::make_shared<std::string>();
  CLI::App* save = rotation->add_subcommand("export", "Writes one set as a flat file");
  save->add_option("HASH", *prefix, "Hash, or a unique prefix")->required();
  save->add_option("-o,--output", *path, "Output file; - is standard output")->required();
  save->footer("Example: crumbctl rotation export 1a2b3c -o qwen3.crot\n");
  save->callback([context, prefix, path] { Export(context, *prefix, *path); });
}

}  // namespace crumb::cli
