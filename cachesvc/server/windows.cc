// The table of windows and the text form of rules. No state.
#include "cachesvc/server/windows.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace crumb {
namespace {

constexpr uint32_t kWindowTokensMax = 65536;
constexpr char kConfigured[] = "codec.windows";

struct KnownModel {
  const char* pattern;
  uint32_t sink_tokens, recent_tokens;
  const char* source;
};

// What was published for 2-bit KV with exact windows. The best windows of one model are not those
// of another: a row needs a measurement of its own.
constexpr KnownModel kKnown[] = {
    {"*Qwen3-8B*", 128, 2048,
     "FutureMLS-Lab/OSCAR, rotation/run/qwen3-8b.sh: GPQA as in BF16 at 128/2048"},
    {"*Qwen3-30B-A3B*", 128, 1024, "FutureMLS-Lab/OSCAR: saturates at 128/1024"},
    {"*GLM-5.2*", 64, 512, "FutureMLS-Lab/OSCAR: best of 64/256, 64/512, 64/1024"},
    {"*gemma-4*", 64, 512, "FutureMLS-Lab/OSCAR: the recipe of this family"},
};
constexpr KnownModel kDefault = {"*", 64, 256, "the default: OSCAR's recipes"};

// Greedy with one point of return: linear space, no recursion.
bool Fits(absl::string_view pattern, absl::string_view text) {
  size_t p = 0, t = 0, star = absl::string_view::npos, back = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      back = t;
    } else if (p < pattern.size() && absl::ascii_tolower(static_cast<unsigned char>(pattern[p])) ==
                                         absl::ascii_tolower(static_cast<unsigned char>(text[t]))) {
      ++p;
      ++t;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      t = ++back;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

absl::StatusOr<WindowPolicy> ParsePolicy(absl::string_view text) {
  if (text == "off") return WindowPolicy{};
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '/');
  WindowPolicy windows{.on = true};
  const bool read = parts.size() == 2 && absl::SimpleAtoi(parts[0], &windows.sink_tokens) &&
                    absl::SimpleAtoi(parts[1], &windows.recent_tokens);
  if (!read || windows.sink_tokens > kWindowTokensMax || windows.recent_tokens > kWindowTokensMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text,
                     "\" is no pair of windows: write SINK/RECENT in tokens, e.g. "
                     "64/256, each at most ",
                     kWindowTokensMax, ", or off"));
  }
  return windows;
}

}  // namespace

absl::StatusOr<std::vector<WindowRule>> ParseWindows(const std::string& text) {
  std::vector<WindowRule> rules;
  if (text == "auto") return rules;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const absl::string_view rule = absl::StripAsciiWhitespace(part);
    const size_t equals = rule.rfind('=');
    const bool named = equals != absl::string_view::npos;
    if (rule.empty()) {
      return absl::InvalidArgumentError(
          text.empty() ? "it is empty: write auto, off or SINK/RECENT, e.g. 64/256"
                       : absl::StrCat("a rule is missing beside a comma of \"", text,
                                      "\": remove that comma, or write a rule there, e.g. "
                                      "*/Qwen3-8B=128/2048"));
    }
    if (rule == "auto" || (named && equals == 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", rule, "\": write auto alone, or PATTERN=SINK/RECENT, e.g. */Qwen3-8B=128/2048"));
    }
    CRUMB_ASSIGN(const WindowPolicy windows, ParsePolicy(named ? rule.substr(equals + 1) : rule));
    rules.push_back({.pattern = named ? std::string(rule.substr(0, equals)) : "*",
                     .windows = windows,
                     .source = kConfigured});
  }
  return rules;
}

WindowRule WindowsOf(const std::string& text, const std::string& model) {
  const absl::StatusOr<std::vector<WindowRule>> rules = ParseWindows(text);
  if (rules.ok()) {
    for (const WindowRule& rule : *rules) {
      if (Fits(rule.pattern, model)) return rule;
    }
  }
  const KnownModel* found = &kDefault;
  for (const KnownModel& known : kKnown) {
    if (!Fits(known.pattern, model)) continue;
    found = &known;
    break;
  }
  return {.pattern = found->pattern,
          .windows = {.on = true,
                      .sink_tokens = found->sink_tokens,
                      .recent_tokens = found->recent_tokens},
          .source = found->source};
}

WindowRule WindowsFor(const std::string& text, const Identity& identity) {
  WindowRule rule = WindowsOf(text, identity.model);
  const uint64_t most = uint64_t{kWindowPagesMax} * std::max(identity.page_tokens, 1u);
  if (!rule.windows.on || rule.windows.recent_tokens <= most) return rule;
  rule.source = absl::StrCat(rule.source, ", cut from ", rule.windows.recent_tokens, ": at most ",
                             kWindowPagesMax, " pages");
  rule.windows.recent_tokens = static_cast<uint32_t>(most);
  return rule;
}

std::string FormatWindows(const WindowRule& rule) {
  if (!rule.windows.on) return absl::StrCat("off (", rule.source, ")");
  return absl::StrCat(rule.windows.sink_tokens, "/", rule.windows.recent_tokens, " (", rule.source,
                      ")");
}

}  // namespace crumb
