// crumbctl status / flush.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/cli.h"
#include "client/cli/format.h"

namespace crumb::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kDepthMax = 8;

std::string Value(const std::string& key, const Json& value) {
  if (value.is_number() && (absl::EndsWith(key, "bytes") || absl::EndsWith(key, "bytes_total"))) {
    return HumanBytes(value.get<double>());
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// The document of /api/v1/status as indented lines. No recursion: an explicit, bounded stack.
void Render(const Json& document, std::ostream* out) {
  struct Frame {
    const Json* node;
    Json::const_iterator next;
  };
  std::vector<Frame> stack = {{&document, document.begin()}};
  while (!stack.empty()) {
    Frame& frame = stack.back();
    if (frame.next == frame.node->end()) {
      stack.pop_back();
      continue;
    }
    const Json& value = *frame.next;
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

// A member, or null where a daemon of another version does not have it.
const Json& At(const Json& node, const char* key) {
  static const Json kNull;
  const auto found = node.is_object() ? node.find(key) : node.end();
  return node.is_object() && found != node.end() ? *found : kNull;
}
double Number(const Json& node, const char* key) {
  const Json& value = At(node, key);
  return value.is_number() ? value.get<double>() : 0.0;
}
std::string Text(const Json& node, const char* key) {
  const Json& value = At(node, key);
  return value.is_string() ? value.get<std::string>() : std::string("-");
}

void PrintTiers(const Json& document, std::ostream* out) {
  std::string rows = "TIER\tUSED\tCAPACITY\tPAGES\tHITS\n";
  for (const auto& [name, tier] : At(document, "tiers").items()) {
    absl::StrAppend(&rows, name, "\t", HumanBytes(Number(tier, "used_bytes")), "\t",
                    HumanBytes(Number(tier, "capacity_bytes")), "\t",
                    HumanCount(Number(tier, "pages")), "\t", HumanCount(Number(tier, "hits")),
                    "\n");
  }
  *out << "\n" << Table(rows);
}

void PrintOperations(const Json& document, std::ostream* out) {
  std::string rows = "VERB\tREQUESTS\tIN FLIGHT\tPAGES BY RESULT\n";
  for (const auto& [verb, counts] : At(document, "operations").items()) {
    absl::StrAppend(&rows, verb, "\t", HumanCount(Number(counts, "requests")), "\t",
                    HumanCount(Number(counts, "in_flight")), "\t");
    for (const auto& [result, count] : At(counts, "pages").items()) {
      absl::StrAppend(&rows, result, " ", count.dump(), "  ");
    }
    rows += "\n";
  }
  *out << "\n" << Table(rows);
}

// "-" where nothing was measured yet.
std::string Measured(const Json& node, const char* key, int decimals, const char* unit) {
  if (!At(node, key).is_number()) return "-";
  return absl::StrFormat("%.*f%s", decimals, Number(node, key), unit);
}

std::string NvmeWrites(const Json& nvme) {
  const Json& budget = At(nvme, "write_budget");
  const double per_day = Number(budget, "bytes_per_day");
  std::string text = absl::StrCat(HumanBytes(Number(nvme, "bytes_written")), ", amplification ",
                                  Measured(nvme, "write_amplification", 2, ""), ", ");
  if (per_day == 0) return text + "no budget";
  const double left = Number(budget, "left_bytes");
  absl::StrAppend(&text, left < 0 ? "over budget by " : "may write ",
                  HumanBytes(left < 0 ? -left : left), left < 0 ? "" : " now", ", ",
                  HumanBytes(per_day), " a day, ", HumanCount(Number(budget, "unwritten_pages")),
                  " pages not written for it");
  return text;
}

std::string NvmeScrub(const Json& nvme) {
  const Json& scrub = At(nvme, "scrub");
  return absl::StrFormat("%s good, %s bad, %s passes, %.0f %% of the next; %s pages rescued",
                         HumanCount(Number(scrub, "good_pages")),
                         HumanCount(Number(scrub, "bad_pages")),
                         HumanCount(Number(scrub, "passes")), 100 * Number(scrub, "progress"),
                         HumanCount(Number(nvme, "rescued_pages")));
}

void PrintSummary(const Json& document, std::ostream* out) {
  const Json& codec = At(document, "codec");
  const Json& process = At(document, "process");
  const Json& nvme = At(document, "nvme");
  *out << "crumbd " << Text(document, "version") << " on " << Text(document, "node") << ", "
       << Text(document, "state") << ", up "
       << absl::StrFormat("%.0f s", Number(document, "uptime_seconds")) << "\n";
  *out << absl::StrFormat("hit ratio %.1f %%, compression %s, %d sessions, %s resident\n",
                          100 * Number(document, "hit_ratio"), Measured(codec, "ratio", 2, " x"),
                          static_cast<int64_t>(Number(At(document, "clients"), "sessions")),
                          HumanBytes(Number(process, "resident_bytes")));
  PrintTiers(document, out);
  PrintOperations(document, out);
  const Json& failures = At(document, "checksum_failures");
  const Json& gpu = At(document, "gpu");
  *out << "\ngpu                " << Text(gpu, "description") << "\nhbm                "
       << Text(gpu, "hbm") << "\nnvme               " << Text(nvme, "description")
       << "\nnvme writes        " << NvmeWrites(nvme) << "\nnvme scrub         " << NvmeScrub(nvme)
       << "\nucx                " << Text(At(document, "ucx"), "description")
       << "\nerror K, V         " << Measured(codec, "relative_error_k", 4, "") << ", "
       << Measured(codec, "relative_error_v", 4, " of the energy") << "\nchecksum failures  "
       << absl::StrFormat("dram %.0f, nvme %.0f", Number(failures, "dram"),
                          Number(failures, "nvme"))
       << "\n";
}

void Status(Context* context) {
  absl::StatusOr<std::unique_ptr<client::Admin>> admin = OpenAdmin(context->globals);
  if (!admin.ok()) return context->Fail(admin.status());
  absl::StatusOr<std::string> text = (*admin)->StatusJson();
  if (!text.ok()) return context->Fail(text.status());
  const Json document = Json::parse(*text, nullptr, false);
  if (document.is_discarded() || !document.is_object()) {
    return context->Fail(absl::DataLossError("the daemon's status is not a JSON object"));
  }
  if (context->globals.json) {
    context->out << document.dump(2) << "\n";
    return;
  }
  if (At(document, "tiers").is_object() && At(document, "operations").is_object()) {
    PrintSummary(document, &context->out);
  } else {
    Render(document, &context->out);
  }
  const Json& warnings = At(document, "warnings");
  for (size_t i = 0; warnings.is_array() && i < warnings.size(); ++i) {
    context->err << "warning: "
                 << (warnings[i].is_string() ? warnings[i].get<std::string>() : warnings[i].dump())
                 << "\n";
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
    context->out << Json{{"flushed", hash.empty() ? "all" : hash}}.dump() << "\n";
  } else {
    context->err << "flushed " << (hash.empty() ? "everything" : "layout " + layout_text) << "\n";
  }
}

void ResizeNvme(Context* context, const std::string& text) {
  uint64_t bytes = 0;
  if (!ParseSize(text, &bytes)) {
    return context->Usage(absl::StrCat("BYTES \"", text, "\": use 200GiB, 1TiB, up to 1024TiB"));
  }
  absl::StatusOr<std::unique_ptr<client::Admin>> admin = OpenAdmin(context->globals);
  if (!admin.ok()) return context->Fail(admin.status());
  const absl::StatusOr<client::NvmeSize> size = (*admin)->ResizeNvme(bytes);
  if (!size.ok()) return context->Fail(size.status());
  if (context->globals.json) {
    context->out << Json{{"bytes", size->bytes},
                         {"bytes_before", size->bytes_before},
                         {"configured_bytes", size->configured_bytes}}
                        .dump()
                 << "\n";
  } else {
    context->err << "the NVMe tier has " << size->bytes << " bytes, it had " << size->bytes_before
                 << "\n";
  }
  if (size->bytes == size->configured_bytes) return;
  context->err << "warning: nvme.bytes says " << size->configured_bytes
               << ": the next start goes back to that; change the configuration too\n";
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
  CLI::App* nvme = app->add_subcommand("nvme", "The NVMe tier");
  nvme->require_subcommand(1);
  auto bytes = std::make_shared<std::string>();
  CLI::App* resize = nvme->add_subcommand(
      "resize", "Another size, while it serves; pages behind a lower end are forgotten");
  resize->add_option("BYTES", *bytes, "Size, also with KiB MiB GiB TiB; at least four segments")
      ->required();
  resize->footer("Example: crumbctl nvme resize 200GiB\n");
  resize->callback([context, bytes] { ResizeNvme(context, *bytes); });
}

}  // namespace crumb::cli
