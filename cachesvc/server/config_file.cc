// Flattens YAML by yaml-cpp's event interface: no tree is built and nothing of ours recurses. Any
// thread.
#include "cachesvc/server/config_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <sstream>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace crumb {
namespace {

// The key that a line seems to be about, for messages about the line itself.
std::string KeyOnLine(absl::string_view line) {
  const size_t first = line.find_first_not_of(" \t\r");
  if (first == absl::string_view::npos) return "";
  const size_t end = line.find_first_of(":#\r\t ", first);
  return std::string(line.substr(first, end == absl::string_view::npos ? end : end - first));
}

absl::Status LineError(const std::string& name, int line, absl::string_view text,
                       absl::string_view what) {
  const std::string key = KeyOnLine(text);
  return absl::InvalidArgumentError(
      absl::StrCat(name, ":", line, ": ", key.empty() ? "" : absl::StrCat(key, ": "), what));
}

// Length of the UTF-8 sequence that starts with `lead`; 0 if it cannot start one.
size_t Utf8Length(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xf0 && lead < 0xf5) return 4;
  return 0;
}

bool ValidUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(static_cast<uint8_t>(text[i]));
    if (length == 0 || length > text.size() - i) return false;
    for (size_t k = 1; k < length; ++k) {
      if ((static_cast<uint8_t>(text[i + k]) & 0xc0) != 0x80) return false;
    }
    i += length;
  }
  return true;
}

// Characters that YAML readers disagree about, line by line.
absl::Status CheckText(const std::string& name, const std::string& text) {
  if (text.starts_with("\xef\xbb\xbf") || text.starts_with("\xff\xfe") ||
      text.starts_with("\xfe\xff")) {
    return LineError(name, 1, absl::string_view(text).substr(text[0] == '\xef' ? 3 : 2),
                     "the file starts with a byte order mark: save it as plain UTF-8 without BOM");
  }
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (!ValidUtf8(line)) {
      return LineError(name, number, "", "not UTF-8: save the file as UTF-8");
    }
    for (const char c : line) {
      if (c == '\r') {
        return LineError(name, number, line,
                         "Windows line ending (CR LF): convert the file, e.g. with dos2unix");
      }
      if (c == '\t') {
        return LineError(name, number, line, "tab character: indent and align with spaces");
      }
      if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) {
        return LineError(name, number, "", "control character: remove it");
      }
    }
  }
  return absl::OkStatus();
}

// One level of nesting while parsing.
struct Level {
  std::string key;  // waiting for its value
  bool have_key = false;
  int line = 0;                               // of the key
  std::unordered_map<std::string, int> seen;  // key, line
};

class Flattener final : public YAML::EventHandler {
 public:
  explicit Flattener(std::string name) : name_(std::move(name)) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    if (levels_.empty()) return;  // an empty document: all defaults
    if (in_list_) return Fail(mark, absl::StrCat(Place(), "an empty item: remove it"));
    Level& level = levels_.back();
    if (!level.have_key) return Fail(mark, "a key is missing in front of the colon");
    FailAt(level.line,
           absl::StrCat(Path(), ": no value: give one, or remove the key for its default"));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { Fail(mark, kNoAnchors); }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    if (!error_.ok()) return;
    if (anchor != 0) return Fail(mark, kNoAnchors);
    if (levels_.empty() || !levels_.back().have_key || in_list_) {
      return Fail(mark, absl::StrCat(Place(), "takes one value, not a list"));
    }
    in_list_ = true;
    items_.clear();
  }
  void OnSequenceEnd() override {
    if (!error_.ok()) return;
    in_list_ = false;
    Level& level = levels_.back();
    AddEntry(
        {.key = Path(), .value = absl::StrJoin(items_, "\n"), .line = level.line, .list = true});
    level.have_key = false;
  }

  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                const std::string& value) override {
    if (!error_.ok()) return;
    if (anchor != 0) return Fail(mark, kNoAnchors);
    if (levels_.empty()) {
      return Fail(
          mark, absl::StrCat("expected \"key: value\" lines, found \"", value.substr(0, 40), "\""));
    }
    Level& level = levels_.back();
    if (!level.have_key) return TakeKey(mark, value);
    if (in_list_) {
      if (items_.size() >= kConfigListMax) return Fail(mark, "a list is too long");
      items_.push_back(value);
      return;
    }
    AddEntry({.key = Path(), .value = value, .line = mark.line + 1});
    level.have_key = false;
  }

  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    if (!error_.ok()) return;
    if (anchor != 0) return Fail(mark, kNoAnchors);
    if (!levels_.empty() && !levels_.back().have_key) {
      return Fail(mark, "a key must be a plain word");
    }
    if (in_list_) return Fail(mark, absl::StrCat(Place(), "a list takes plain values"));
    if (levels_.size() >= kConfigDepthMax)
      return Fail(mark, absl::StrCat(Place(), "nested too deep"));
    levels_.emplace_back();
  }
  void OnMapEnd() override {
    if (!error_.ok()) return;
    const bool empty = levels_.back().seen.empty();
    levels_.pop_back();
    if (empty && !levels_.empty()) {
      error_ = absl::InvalidArgumentError(
          absl::StrCat(name_, ": ", Path(), ": an empty section: give it keys, or remove it"));
    }
    if (!levels_.empty()) levels_.back().have_key = false;
  }

  const absl::Status& error() const { return error_; }
  std::vector<ConfigEntry>& entries() { return entries_; }

 private:
  static constexpr const char* kNoAnchors = "anchors and aliases are not allowed: repeat the value";

  void AddEntry(ConfigEntry entry) {
    if (entries_.size() >= kConfigEntriesMax) return FailAt(entry.line, "too many keys");
    entries_.push_back(std::move(entry));
  }
  void TakeKey(const YAML::Mark& mark, const std::string& key) {
    Level& level = levels_.back();
    level.key = key;
    level.have_key = true;
    level.line = mark.line + 1;
    const auto [at, fresh] = level.seen.emplace(key, mark.line + 1);
    if (!fresh) {
      Fail(mark, absl::StrCat(Path(), ": given twice, first in line ", at->second,
                              ": remove one of them"));
    }
  }
  std::string Path() const {
    std::vector<std::string> parts;
    for (const Level& level : levels_) parts.push_back(level.key);
    return absl::StrJoin(parts, ".");
  }
  std::string Place() const {
    return levels_.empty() || levels_.front().key.empty() ? "" : absl::StrCat(Path(), ": ");
  }
  void Fail(const YAML::Mark& mark, absl::string_view what) { FailAt(mark.line + 1, what); }
  void FailAt(int line, absl::string_view what) {
    if (!error_.ok()) return;
    error_ = absl::InvalidArgumentError(absl::StrCat(name_, ":", line, ": ", what));
  }

  const std::string name_;
  std::vector<Level> levels_;
  std::vector<ConfigEntry> entries_;
  bool in_list_ = false;
  std::vector<std::string> items_;
  absl::Status error_;
};

}  // namespace

absl::StatusOr<std::vector<ConfigEntry>> ParseConfigFile(const std::string& name,
                                                         const std::string& text) {
  if (text.size() > kConfigFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ":1: the file is over ", kConfigFileBytesMax, " bytes"));
  }
  CRUMB_TRY(CheckText(name, text));
  std::istringstream stream(text);
  Flattener flattener(name);
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(flattener);
    CRUMB_TRY(flattener.error());
    Flattener rest(name);
    if (parser.HandleNextDocument(rest)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ":1: more than one document: remove the \"---\" lines"));
    }
  } catch (const YAML::Exception& error) {  // ParserException, DeepRecursion, BadFile ...
    CRUMB_TRY(flattener.error());
    const int line = error.mark.is_null() ? 1 : error.mark.line + 1;
    const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
    const size_t index = std::min(static_cast<size_t>(line), lines.size()) - 1;
    return LineError(name, line, lines[index], absl::StrCat("not valid YAML: ", error.msg));
  }
  return std::move(flattener.entries());
}

}  // namespace crumb
