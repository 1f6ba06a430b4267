// The texts of the keys' values; the keys are in config_keys.cc. Any thread.
#include "cachesvc/server/config_schema.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cachesvc/base/rng.h"

namespace crumb {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kGiB = 1024 * kMiB;
constexpr uint64_t kTiB = 1024 * kGiB;
constexpr uint64_t kSecond = 1'000'000;
constexpr uint64_t kHour = 3600 * kSecond;
constexpr size_t kTextBytesMax = 1024;

struct Unit {
  absl::string_view name;
  uint64_t factor;
};
constexpr std::array<Unit, 4> kSizeUnits = {
    {{"TiB", kTiB}, {"GiB", kGiB}, {"MiB", kMiB}, {"KiB", kKiB}}};
constexpr std::array<Unit, 5> kTimeUnits = {
    {{"h", kHour}, {"m", 60 * kSecond}, {"s", kSecond}, {"ms", 1000}, {"us", 1}}};

absl::Status ValueError(absl::string_view text, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text.substr(0, 80), "\" ", what));
}

// Leading digits of `text` as a number; the rest without blanks in front goes to `unit`.
bool SplitNumber(absl::string_view text, uint64_t* number, absl::string_view* unit) {
  const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  if (end == 0 || !absl::SimpleAtoi(text.substr(0, end), number)) return false;
  *unit = text.substr(end);
  while (!unit->empty() && unit->front() == ' ') unit->remove_prefix(1);
  return true;
}

absl::StatusOr<uint64_t> Multiply(absl::string_view text, uint64_t number, uint64_t factor) {
  const Wide product = static_cast<Wide>(number) * factor;
  if (product > std::numeric_limits<uint64_t>::max()) return ValueError(text, "is out of range");
  return static_cast<uint64_t>(product);
}

std::string FormatNumber(KeyKind kind, uint64_t value) {
  if (kind == KeyKind::kSize) return FormatSize(value);
  if (kind == KeyKind::kDuration) return FormatDuration(value);
  return absl::StrCat(value);
}

absl::Status AssignNumber(const KeySpec& key, const std::string& text, uint64_t percent_of,
                          Config& config) {
  uint64_t value = 0;
  if (key.kind == KeyKind::kSize) {
    CRUMB_ASSIGN(value, ParseSize(text, percent_of));
  } else if (key.kind == KeyKind::kDuration) {
    CRUMB_ASSIGN(value, ParseDuration(text));
  } else {
    CRUMB_ASSIGN(value, ParseCount(text));
  }
  if (value < key.min || value > key.max) {
    const std::string range = *key.remedy != '\0' && key.max == 0
                                  ? std::string(key.remedy)
                                  : absl::StrCat("must be ", FormatNumber(key.kind, key.min),
                                                 " to ", FormatNumber(key.kind, key.max),
                                                 *key.remedy != '\0' ? ": " : "", key.remedy);
    return ValueError(text, absl::StrCat("is out of range: ", range));
  }
  key.number(config) = value;
  return absl::OkStatus();
}

absl::Status CheckText(const KeySpec& key, const std::string& text) {
  if (text.size() > kTextBytesMax) {
    return ValueError(text, absl::StrCat("is longer than ", kTextBytesMax, " bytes"));
  }
  for (const char c : text) {
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) {
      return absl::InvalidArgumentError("the value has a control character: remove it");
    }
  }
  if (key.kind == KeyKind::kChoice) {
    const std::vector<absl::string_view> choices = absl::StrSplit(key.choices, '|');
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      return ValueError(text,
                        absl::StrCat("is not known: write ", choices.size() > 1 ? "one of " : "",
                                     absl::StrJoin(choices, ", ")));
    }
  }
  if (key.kind == KeyKind::kAddress && text != kOff) return ParseHostPort(text).status();
  const bool path = key.kind == KeyKind::kPath || key.kind == KeyKind::kPaths;
  if (path && !(key.choices != nullptr && text == key.choices) && !text.starts_with('/')) {
    return ValueError(text, "must be an absolute path: start it with /");
  }
  return absl::OkStatus();
}

// Without double and trailing slashes.
std::string PlainPath(const std::string& text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '/', absl::SkipEmpty());
  return absl::StrCat("/", absl::StrJoin(parts, "/"));
}

// A line each. In one line "/a,/b" and "/a, /b" are two paths, "/a,b" is one: only what starts with
// / begins another.
std::vector<std::string> SplitPaths(absl::string_view text) {
  std::vector<std::string> paths;
  size_t begin = 0;
  for (size_t end = text.find_first_of(",\n"); end != absl::string_view::npos;
       end = text.find_first_of(",\n", end + 1)) {
    size_t next = end + 1;
    if (text[end] == ',') {
      next = text.find_first_not_of(' ', next);
      if (next == absl::string_view::npos || text[next] != '/') continue;
    }
    paths.emplace_back(text.substr(begin, end - begin));
    begin = next;
  }
  paths.emplace_back(text.substr(begin));
  return paths;
}

absl::Status AssignPaths(const KeySpec& key, const std::string& text, Config& config) {
  std::vector<std::string> paths = SplitPaths(text);
  if (paths.size() > key.max) {
    return absl::InvalidArgumentError(
        absl::StrCat(paths.size(), " paths are too many: ", key.max, " are possible"));
  }
  for (size_t i = 0; i < paths.size(); ++i) {
    CRUMB_TRY(CheckText(key, paths[i]));
    paths[i] = PlainPath(paths[i]);
    if (std::find(paths.begin(), paths.begin() + static_cast<ptrdiff_t>(i), paths[i]) !=
        paths.begin() + static_cast<ptrdiff_t>(i)) {
      return ValueError(paths[i], "is named twice: name each place once");
    }
  }
  key.list(config) = std::move(paths);
  return absl::OkStatus();
}

// YAML would read some paths and texts as something else.
std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  out.push_back('"');
  return out;
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

absl::string_view LastPart(absl::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == absl::string_view::npos ? name : name.substr(dot + 1);
}

}  // namespace

const KeySpec* FindKey(absl::string_view name) {
  for (const KeySpec& key : ConfigKeys()) {
    if (name == key.name) return &key;
  }
  return nullptr;
}

std::string NearestKey(absl::string_view name) {
  constexpr size_t kWordBytesMin = 4;
  name = name.substr(0, 128);
  const KeySpec* best = &ConfigKeys()[0];
  size_t best_distance = std::numeric_limits<size_t>::max();
  for (const KeySpec& key : ConfigKeys()) {
    // The right word in the wrong section counts as near.
    const size_t distance = std::min(EditDistance(name, key.name),
                                     EditDistance(LastPart(name), LastPart(key.name)) + 2);
    if (distance < best_distance) {
      best = &key;
      best_distance = distance;
    }
  }
  // Further away it would be a guess, but the beginning of a key is none.
  const bool near = best_distance <= name.size() / 3;
  if (near) return best->name;
  for (const KeySpec& key : ConfigKeys()) {
    if (name.size() >= kWordBytesMin && absl::StartsWith(key.name, name)) return key.name;
  }
  return "";
}

absl::StatusOr<uint64_t> ParseSize(absl::string_view text, uint64_t percent_of) {
  constexpr absl::string_view kHow =
      "is not a size: write a whole number with KiB, MiB, GiB or TiB, or a percentage such as 25%";
  uint64_t number = 0;
  absl::string_view unit;
  if (!SplitNumber(text, &number, &unit)) return ValueError(text, kHow);
  if (unit.empty()) return number;
  if (unit == "%") {
    if (number > 100) return ValueError(text, "is out of range: a percentage is 0% to 100%");
    return static_cast<uint64_t>(static_cast<Wide>(percent_of) * number / 100);
  }
  for (const Unit& known : kSizeUnits) {
    if (unit == known.name) return Multiply(text, number, known.factor);
    if (absl::EqualsIgnoreCase(unit, known.name) ||
        (unit.size() == 2 && unit[1] == 'B' && unit[0] == known.name[0])) {
      return ValueError(text, absl::StrCat("is not a size: write ", number, known.name));
    }
  }
  return ValueError(text, kHow);
}

std::string FormatSize(uint64_t bytes) {
  for (const Unit& unit : kSizeUnits) {
    if (bytes > 0 && bytes % unit.factor == 0) return absl::StrCat(bytes / unit.factor, unit.name);
  }
  return absl::StrCat(bytes);
}

absl::StatusOr<uint64_t> ParseDuration(absl::string_view text) {
  uint64_t number = 0;
  absl::string_view unit;
  if (SplitNumber(text, &number, &unit)) {
    for (const Unit& known : kTimeUnits) {
      if (unit == known.name) return Multiply(text, number, known.factor);
    }
  }
  return ValueError(text,
                    "is not a duration: write a whole number with us, ms, s, m or h, e.g. 5s");
}

std::string FormatDuration(uint64_t us) {
  for (const Unit& unit : kTimeUnits) {
    if (us > 0 && us % unit.factor == 0) return absl::StrCat(us / unit.factor, unit.name);
  }
  return absl::StrCat(us, "us");
}

absl::StatusOr<uint64_t> ParseCount(absl::string_view text) {
  uint64_t number = 0;
  absl::string_view unit;
  if (!SplitNumber(text, &number, &unit) || !unit.empty()) {
    return ValueError(text, "is not a whole number: write digits only");
  }
  return number;
}

absl::Status AssignKey(const KeySpec& key, const std::string& text, uint64_t percent_of,
                       Config& config) {
  if (key.number != nullptr) return AssignNumber(key, text, percent_of, config);
  if (key.flag != nullptr) {
    if (text != "true" && text != "false")
      return ValueError(text, "is no flag: write true or false");
    key.flag(config) = text == "true";
    return absl::OkStatus();
  }
  if (key.list != nullptr) return AssignPaths(key, text, config);
  CRUMB_TRY(CheckText(key, text));
  key.text(config) = key.kind == KeyKind::kPath && text.starts_with('/') ? PlainPath(text) : text;
  return absl::OkStatus();
}

std::string PrintKey(const KeySpec& key, Config fields) {
  if (key.number != nullptr) return FormatNumber(key.kind, key.number(fields));
  if (key.flag != nullptr) return key.flag(fields) ? "true" : "false";
  if (key.list != nullptr) {
    const std::vector<std::string>& paths = key.list(fields);
    if (paths.size() == 1) return Quoted(paths.front());
    return absl::StrCat("[",
                        absl::StrJoin(paths, ", ",
                                      [](std::string* out, const std::string& path) {
                                        absl::StrAppend(out, Quoted(path));
                                      }),
                        "]");
  }
  const std::string& text = key.text(fields);
  if (key.kind == KeyKind::kChoice || key.kind == KeyKind::kAddress) return text;
  return Quoted(text);
}

}  // namespace crumb
