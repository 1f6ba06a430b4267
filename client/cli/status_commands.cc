// crumbctl status / flush.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/cli.h"
#include "client/cli/format.h"

namespace crumb::cli {
namespace {

constexpr int kDepthMax = 8;

std::string Value(const std::string& key, const nlohmann::json& value) {
  if (value.is_number() && (absl::EndsWith(key, "bytes") || absl::EndsWith(key, "bytes_total"))) {
    return HumanBytes(value.get<double>());
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// The document of /api/v1/status as indented lines. No recursion: an explicit, bounded stack.
void Render(const nlohmann::json& document, std::ostream* out) {
  struct Frame {
    const nlohmann::json* node;
    nlohmann::json::const_iterator next;
  };
  std::vector<Frame> stack = {{&document, document.begin()}};
  while (!stack.empty()) {
    Frame& frame = stack.back();
    if (frame.next == frame.node->end()) {
      stack.pop_back();
      continue;
    }
    const nlohmann::json& value = *frame.next;
    const std::string indent((stack.size() - 1) * 2, ' ');
    const std::string key = frame.node->is_object() ? frame.next.key() : std::string("-");
    ++frame.next;
    const bool nested = value.is_structured() && !value.empty();
    if (nested && stack.size() < kDepthMax) {
      *out << indent << key << "\n";
      stack.push_back({&value, value.begin()});
    } else {
      const size_t width = key.size() < 28 ? 28 - key.size() : 1;
      *out << indent << key << std::string(width, ' ') << Value(key, value) << "\n";
    }
  }
}

void Status(Context* context) {
  absl::StatusOr<std::unique_ptr<client::Admin>> admin = OpenAdmin(context->globals);
  if (!admin.ok()) return context->Fail(admin.status());
  absl::StatusOr<std::string> text = (*admin)->StatusJson();
  if (!text.ok()) return context->Fail(text.status());
  const nlohmann::json document = nlohmann::json::parse(*text, nullptr, false);
  if (document.is_discarded() || !document.is_object()) {
    return context->Fail(absl::DataLossError("the daemon's status is not a JSON object"));
  }
  if (context->globals.json) {
    context->out << document.dump(2) << "\n";
  } else {
    Render(document, &context->out);
  }
}

void Flush(Context* context, const std::string& layout_text, const std::string& tenant) {
  std::string hash;
  if (!layout_text.empty()) {
    const auto client = OpenClient(context, client::DataPlane::kGrpc);
    client::Layout layout;
    if (client == nullptr || !FindLayout(context, client.get(), layout_text, &layout)) return;
    hash = layout.hash_hex;
  }
  absl::StatusOr<std::unique_ptr<client::Admin>> admin = OpenAdmin(context->globals);
  if (!admin.ok()) return context->Fail(admin.status());
  if (absl::Status status = (*admin)->Flush(hash, tenant); !status.ok()) {
    return context->Fail(status);
  }
  if (context->globals.json) {
    context->out << nlohmann::json{{"flushed", hash.empty() ? "all" : hash}}.dump() << "\n";
  } else {
    context->err << "flushed " << (hash.empty() ? "everything" : "layout " + layout_text) << "\n";
  }
}

}  // namespace

void AddStatusCommands(CLI::App* app, Context* context) {
  CLI::App* status = app->add_subcommand("status", "Tiers, hits, rates, clients, warnings");
  status->footer("Example: crumbctl --json status\n");
  status->callback([context] { Status(context); });
  auto layout = std::make_shared<std::string>();
  auto tenant = std::make_shared<std::string>();
  CLI::App* flush = app->add_subcommand(
      "flush",
      "Forgets everything, or one layout or tenant, in all tiers; durable when it returns");
  flush->add_option("--layout", *layout, "Name of the layout, or a prefix of its hash");
  flush->add_option("--tenant", *tenant, "Name of the tenant");
  flush->footer("Example: crumbctl flush --layout smollm2\n");
  flush->callback([context, layout, tenant] { Flush(context, *layout, *tenant); });
}

}  // namespace crumb::cli
