// Which windows a layout's pages have: codec.windows of the configuration where it says so, else a
// table of models with sources, else 64/256. Pure; any thread.
#ifndef CRUMB_CACHESVC_SERVER_WINDOWS_H_
#define CRUMB_CACHESVC_SERVER_WINDOWS_H_

#include <string>
#include <vector>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "cachesvc/core/layout_binding.h"

namespace crumb {

struct WindowRule {
  std::string pattern;  // of the model's name; * stands for anything
  WindowPolicy windows;
  std::string source;
};

// "auto", "off", "64/256", or rules "PATTERN=SINK/RECENT" and "PATTERN=off", separated by commas;
// the first that fits a model counts, and a last one without pattern fits every model.
// INVALID_ARGUMENT names the rule and the remedy.
absl::StatusOr<std::vector<WindowRule>> ParseWindows(const std::string& text);

// REQUIRES: `text` was parsed without error.
WindowRule WindowsOf(const std::string& text, const std::string& model);

// The same for a layout: a recent window that holds more pages than a chain is walked (4096) is cut
// to so many, and the source says so.
WindowRule WindowsFor(const std::string& text, const Identity& identity);

// "64/256 (OSCAR's recipes)" or "off (codec.windows)".
std::string FormatWindows(const WindowRule& rule);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_WINDOWS_H_
