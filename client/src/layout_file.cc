// Reader of layout files over yaml-cpp. Its exceptions end here. The file is untrusted: bounded
// size, every key known, every number in range, no duplicates.
#include "crumb/layout_file.h"

#include <yaml-cpp/yaml.h>

#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cachesvc/base/identity.h"
#include "client/src/layout_spec.h"
#include "client/src/status_map.h"

namespace crumb::client {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;

using Setter = std::function<absl::Status(const YAML::Node&)>;
using Setters = std::map<std::string, Setter>;

int LineOf(const YAML::Node& node) { return node.Mark().line + 1; }

absl::Status Wrong(const YAML::Node& node, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", LineOf(node), ": ", what));
}

absl::StatusOr<std::string> Scalar(const YAML::Node& node) {
  if (!node.IsScalar()) return Wrong(node, "a single value is expected here");
  return node.Scalar();
}

Setter Text(std::string* out) {
  return [out](const YAML::Node& node) -> absl::Status {
    CRUMB_ASSIGN(*out, Scalar(node));
    if (out->size() > kNameBytesMax) {
      return Wrong(node, absl::StrCat("longer than ", kNameBytesMax, " bytes"));
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<uint64_t> ParseWhole(const YAML::Node& node, absl::string_view text) {
  uint64_t value = 0;
  const bool digits =
      !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
  if (!digits || !absl::SimpleAtoi(text, &value)) {
    return Wrong(node, absl::StrCat("\"", text, "\" is not a whole number"));
  }
  return value;
}

template <typename T>
Setter Whole(T* out) {
  return [out](const YAML::Node& node) -> absl::Status {
    CRUMB_ASSIGN(const std::string text, Scalar(node));
    CRUMB_ASSIGN(const uint64_t value, ParseWhole(node, text));
    if (value > std::numeric_limits<T>::max()) {
      return Wrong(node, absl::StrCat(text, " is more than ", std::numeric_limits<T>::max()));
    }
    *out = static_cast<T>(value);
    return absl::OkStatus();
  };
}

Setter Number(double* out) {
  return [out](const YAML::Node& node) -> absl::Status {
    CRUMB_ASSIGN(const std::string text, Scalar(node));
    if (!absl::SimpleAtod(text, out) || !(*out >= 0.0) || *out > 1e30) {
      return Wrong(node, absl::StrCat("\"", text, "\" is not a number from 0 to 1e30"));
    }
    return absl::OkStatus();
  };
}

Setter Flag(bool* out) {
  return [out](const YAML::Node& node) -> absl::Status {
    CRUMB_ASSIGN(const std::string text, Scalar(node));
    if (text != "true" && text != "false") {
      return Wrong(node, absl::StrCat("\"", text, "\" is not true or false"));
    }
    *out = text == "true";
    return absl::OkStatus();
  };
}

// "7" or "0-29", appended to `out`.
absl::Status AddRange(const YAML::Node& node, std::vector<uint32_t>* out) {
  CRUMB_ASSIGN(const std::string text, Scalar(node));
  const size_t dash = text.find('-');
  CRUMB_ASSIGN(const uint64_t first, ParseWhole(node, text.substr(0, dash)));
  uint64_t last = first;
  if (dash != std::string::npos) {
    CRUMB_ASSIGN(last, ParseWhole(node, text.substr(dash + 1)));
  }
  if (last < first || last > std::numeric_limits<uint32_t>::max()) {
    return Wrong(node, absl::StrCat("\"", text, "\" is not a range FIRST-LAST"));
  }
  if (last - first >= kLayersMax || out->size() + (last - first) >= kLayersMax) {
    return Wrong(node, absl::StrCat("more than ", kLayersMax, " entries"));
  }
  for (uint64_t id = first; id <= last; ++id) out->push_back(static_cast<uint32_t>(id));
  return absl::OkStatus();
}

Setter Ranges(std::vector<uint32_t>* out) {
  return [out](const YAML::Node& node) -> absl::Status {
    if (node.IsScalar()) return AddRange(node, out);
    if (!node.IsSequence()) return Wrong(node, "a list of numbers and ranges is expected here");
    for (const YAML::Node& item : node) CRUMB_TRY(AddRange(item, out));
    return absl::OkStatus();
  };
}

absl::Status ReadMap(const YAML::Node& node, const Setters& setters) {
  if (!node.IsMap()) return Wrong(node, "KEY: VALUE lines are expected here");
  std::set<std::string> seen;
  for (const auto& pair : node) {
    CRUMB_ASSIGN(const std::string key, Scalar(pair.first));
    const auto found = setters.find(key);
    if (found == setters.end()) {
      const auto name = [](std::string* text, const auto& entry) { text->append(entry.first); };
      return Wrong(pair.first, absl::StrCat("unknown key \"", key.substr(0, 100), "\"; known are ",
                                            absl::StrJoin(setters, ", ", name)));
    }
    if (!seen.insert(key).second) return Wrong(pair.first, absl::StrCat(key, " appears twice"));
    if (absl::Status status = found->second(pair.second); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(status.message(), " (", key, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadGroup(const YAML::Node& node, LayerGroup* out) {
  return ReadMap(node, {{"kind", Text(&out->kind)},
                        {"kv_heads", Whole(&out->kv_heads)},
                        {"k_dim", Whole(&out->k_dim)},
                        {"v_dim", Whole(&out->v_dim)},
                        {"window", Whole(&out->window)},
                        {"layers", Ranges(&out->layer_ids)}});
}

absl::Status ReadLayout(const YAML::Node& root, LayoutSpec* spec) {
  const auto rope = [spec](const YAML::Node& node) {
    return ReadMap(node, {{"kind", Text(&spec->rope_kind)},
                          {"theta", Number(&spec->rope_theta)},
                          {"factor", Number(&spec->rope_factor)},
                          {"original_positions", Whole(&spec->rope_original_positions)},
                          {"extra", Text(&spec->rope_extra)}});
  };
  const auto groups = [spec](const YAML::Node& node) -> absl::Status {
    if (!node.IsSequence()) return Wrong(node, "a list of layer groups is expected here");
    for (const YAML::Node& item : node) {
      if (spec->groups.size() >= kLayersMax) return Wrong(item, "too many groups");
      CRUMB_TRY(ReadGroup(item, &spec->groups.emplace_back()));
    }
    return absl::OkStatus();
  };
  return ReadMap(root, {{"name", Text(&spec->name)},
                        {"model", Text(&spec->model)},
                        {"revision", Text(&spec->revision)},
                        {"weights_dtype", Text(&spec->weights_dtype)},
                        {"dtype", Text(&spec->dtype)},
                        {"rope", rope},
                        {"k_before_rope", Flag(&spec->k_before_rope)},
                        {"groups", groups},
                        {"page_tokens", Whole(&spec->page_tokens)},
                        {"namespace", Text(&spec->name_space)},
                        {"head_groups", Whole(&spec->head_groups)},
                        {"part_layer_counts", Ranges(&spec->part_layer_counts)},
                        {"codec", Text(&spec->codec)},
                        {"rotation", Text(&spec->rotation)},
                        {"effort", Text(&spec->effort)},
                        {"metadata", Text(&spec->metadata)},
                        {"keep_non_finite_raw", Flag(&spec->keep_non_finite_raw)}});
}

absl::StatusOr<LayoutSpec> ReadYaml(std::string_view yaml) {
  if (yaml.size() > kFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("larger than ", kFileBytesMax, " bytes"));
  }
  LayoutSpec spec;
  try {
    const YAML::Node root = YAML::Load(std::string(yaml));
    CRUMB_TRY(ReadLayout(root, &spec));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("line ", error.mark.line + 1, ": not YAML: ", error.msg));
  }
  CRUMB_TRY(CheckSpec(spec).status());
  return spec;
}

}  // namespace

Status ParseLayout(std::string_view yaml, std::string_view name, LayoutSpec* out) {
  absl::StatusOr<LayoutSpec> spec = ReadYaml(yaml);
  if (!spec.ok()) {
    return {Code::kInvalid,
            absl::StrCat("layout file ", std::string(name), ": ", spec.status().message())};
  }
  *out = *std::move(spec);
  return {};
}

Status LoadLayoutFile(const std::string& path, LayoutSpec* out) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kFileBytesMax + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file && !file.eof()) {
    return {Code::kInvalid, absl::StrCat("layout file ", path, ": cannot be read: ",
                                         errno != 0 ? std::strerror(errno) : "unknown error")};
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return ParseLayout(text, path, out);
}

}  // namespace crumb::client
