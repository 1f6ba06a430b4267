// Structured log lines to standard error, as text or one JSON object per line. Any thread but the
// shard's, which only counts. A message that repeats is written once a second, with how many were
// left out. Keys and pages never appear in it.
#ifndef CRUMB_CACHESVC_SERVER_LOG_H_
#define CRUMB_CACHESVC_SERVER_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cachesvc/base/clock.h"

namespace crumb {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

struct LogField {
  const char* name;
  std::string value;
};

struct LogOptions {
  std::string level = "info";   // debug, info, warning, error
  std::string format = "text";  // text, json
  std::string node;
};

class Log {
 public:
  Log(const LogOptions& options, const Clock& clock);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void Write(LogLevel level, absl::string_view message, const std::vector<LogField>& fields = {});
  // At most one line a second per `topic` (a constant; at most 256 different ones).
  void WriteLimited(LogLevel level, const char* topic, absl::string_view message,
                    const std::vector<LogField>& fields = {});
  void Info(absl::string_view message, const std::vector<LogField>& fields = {}) {
    Write(LogLevel::kInfo, message, fields);
  }
  void Warning(absl::string_view message, const std::vector<LogField>& fields = {}) {
    Write(LogLevel::kWarning, message, fields);
  }
  void Error(absl::string_view message, const std::vector<LogField>& fields = {}) {
    Write(LogLevel::kError, message, fields);
  }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One line of either format, without the time: what the formatter writes. For tests.
std::string FormatJson(absl::string_view message, const std::vector<LogField>& fields);
std::string FormatText(absl::string_view message, const std::vector<LogField>& fields);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_LOG_H_
