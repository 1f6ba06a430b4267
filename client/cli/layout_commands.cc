// crumbctl layout add / ls.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/cli.h"
#include "client/cli/format.h"
#include "crumb/layout_file.h"

namespace crumb::cli {
namespace {

nlohmann::json ToJson(const client::Layout& layout) {
  return {{"name", layout.name},           {"hash", layout.hash_hex},
          {"model", layout.model},         {"revision", layout.revision},
          {"dtype", layout.dtype},         {"page_tokens", layout.page_tokens},
          {"codec", layout.codec},         {"codec_note", layout.codec_note},
          {"windows", layout.windows},     {"rotation", layout.rotation},
          {"raw_bytes", layout.raw_bytes}, {"payload_bytes", layout.payload_bytes}};
}

std::string Row(const client::Layout& layout) {
  const double raw = layout.raw_bytes.empty() ? 0 : static_cast<double>(layout.raw_bytes[0]);
  const double packed =
      layout.payload_bytes.empty() ? 0 : static_cast<double>(layout.payload_bytes[0]);
  return absl::StrCat(layout.name.empty() ? "-" : layout.name, "\t", layout.hash_hex.substr(0, 16),
                      "\t", layout.model, "\t", layout.codec, "\t", layout.page_tokens, "\t",
                      layout.raw_bytes.size(), "\t", HumanBytes(raw), "\t", HumanBytes(packed),
                      "\n");
}

constexpr char kHead[] = "NAME\tHASH\tMODEL\tCODEC\tTOKENS\tPARTS\tRAW PAGE\tSTORED\n";

void Show(Context* context, const std::vector<client::Layout>& layouts) {
  if (context->globals.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const client::Layout& layout : layouts) all.push_back(ToJson(layout));
    context->out << nlohmann::json{{"layouts", all}}.dump(2) << "\n";
    return;
  }
  std::string rows = kHead;
  for (const client::Layout& layout : layouts) rows += Row(layout);
  context->out << Table(rows);
  for (const client::Layout& layout : layouts) {
    if (layout.codec_note.empty()) continue;
    context->err << (layout.name.empty() ? layout.hash_hex : layout.name) << ": "
                 << layout.codec_note << "\n";
  }
}

void LayoutAdd(Context* context, const std::string& path) {
  client::LayoutSpec spec;
  if (const client::Status status = client::LoadLayoutFile(path, &spec); !status.ok()) {
    context->Fail(status);
    return;
  }
  const auto client = OpenClient(context, client::DataPlane::kGrpc);
  if (client == nullptr) return;
  client::Layout layout;
  if (const client::Status status = client->RegisterLayout(spec, &layout); !status.ok()) {
    context->Fail(status);
    return;
  }
  Show(context, {layout});
}

void LayoutLs(Context* context) {
  const auto client = OpenClient(context, client::DataPlane::kGrpc);
  if (client == nullptr) return;
  std::vector<client::Layout> layouts;
  if (const client::Status status = client->ListLayouts(&layouts); !status.ok()) {
    context->Fail(status);
    return;
  }
  Show(context, layouts);
}

}  // namespace

void AddLayoutCommands(CLI::App* app, Context* context) {
  CLI::App* layout = app->add_subcommand("layout", "Layouts: what the bytes of a page mean");
  layout->require_subcommand(1);
  layout->footer("Example: crumbctl layout add docs/examples/smollm2.yaml\n");
  CLI::App* add = layout->add_subcommand("add", "Registers a layout file");
  auto path = std::make_shared<std::string>();
  add->add_option("FILE", *path, "YAML file; docs/crumbctl.md has the format")->required();
  add->footer("Example: crumbctl layout add docs/examples/smollm2.yaml\n");
  add->callback([context, path] { LayoutAdd(context, *path); });
  CLI::App* ls = layout->add_subcommand("ls", "Lists layouts with their hashes");
  ls->footer("Example: crumbctl --json layout ls\n");
  ls->callback([context] { LayoutLs(context); });
}

}  // namespace crumb::cli
