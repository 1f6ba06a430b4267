// The log on spdlog. Any thread; the sink's lock orders lines.
#include "cachesvc/server/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"

namespace crumb {
namespace {

constexpr uint64_t kRepeatUs = 1'000'000;
constexpr size_t kTopicsMax = 256;
constexpr size_t kMessageBytesMax = 4096;

// Control characters would let a message forge lines of its own.
std::string Printable(absl::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMessageBytesMax)) {
    out.push_back(static_cast<uint8_t>(c) < 0x20 || c == 0x7f ? '?' : c);
  }
  return out;
}

spdlog::level::level_enum LevelOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

std::string JsonText(absl::string_view text) {
  return nlohmann::json(std::string(text.substr(0, kMessageBytesMax)))
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string FormatText(absl::string_view message, const std::vector<LogField>& fields) {
  std::string line = Printable(message);
  for (const LogField& field : fields) {
    const std::string value = Printable(field.value);
    const bool quote = value.empty() || value.find_first_of(" =\"") != std::string::npos;
    absl::StrAppend(&line, " ", field.name, "=", quote ? "\"" : "", value, quote ? "\"" : "");
  }
  return line;
}

std::string FormatJson(absl::string_view message, const std::vector<LogField>& fields) {
  std::string line = absl::StrCat("\"msg\":", JsonText(message));
  for (const LogField& field : fields) {
    absl::StrAppend(&line, ",\"", field.name, "\":", JsonText(field.value));
  }
  return line;
}

struct Log::Impl {
  struct Topic {
    uint64_t last_us = 0;
    uint64_t left_out = 0;
    bool written = false;
  };

  explicit Impl(const Clock& c) : clock(c) {}

  const Clock& clock;
  bool json = false;
  std::unique_ptr<spdlog::logger> logger;
  std::mutex mutex;  // of topics
  std::map<std::string, Topic> topics;
};

Log::Log(const LogOptions& options, const Clock& clock) : impl_(std::make_unique<Impl>(clock)) {
  impl_->json = options.format == "json";
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  impl_->logger = std::make_unique<spdlog::logger>("crumbd", std::move(sink));
  impl_->logger->set_level(options.level == "debug"     ? spdlog::level::debug
                           : options.level == "warning" ? spdlog::level::warn
                           : options.level == "error"   ? spdlog::level::err
                                                        : spdlog::level::info);
  impl_->logger->flush_on(spdlog::level::trace);
  const std::string pattern =
      impl_->json ? absl::StrCat("{\"time\":\"%Y-%m-%dT%H:%M:%S.%fZ\",\"level\":\"%l\",\"node\":",
                                 absl::StrReplaceAll(JsonText(options.node), {{"%", "%%"}}), ",%v}")
                  : "%Y-%m-%dT%H:%M:%S.%eZ %-7l %v";
  impl_->logger->set_formatter(
      std::make_unique<spdlog::pattern_formatter>(pattern, spdlog::pattern_time_type::utc));
}

Log::~Log() = default;

void Log::Write(LogLevel level, absl::string_view message, const std::vector<LogField>& fields) {
  if (!impl_->logger->should_log(LevelOf(level))) return;
  const std::string line = impl_->json ? FormatJson(message, fields) : FormatText(message, fields);
  impl_->logger->log(LevelOf(level), spdlog::string_view_t(line.data(), line.size()));
}

void Log::WriteLimited(LogLevel level, const char* topic, absl::string_view message,
                       const std::vector<LogField>& fields) {
  uint64_t left_out = 0;
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    if (impl_->topics.size() >= kTopicsMax && impl_->topics.count(topic) == 0) return;
    Impl::Topic& entry = impl_->topics[topic];
    const uint64_t now = impl_->clock.now_us();
    if (entry.written && now - entry.last_us < kRepeatUs) {
      ++entry.left_out;
      return;
    }
    left_out = entry.left_out;
    entry = {.last_us = now, .left_out = 0, .written = true};
  }
  if (left_out == 0) return Write(level, message, fields);
  std::vector<LogField> more = fields;
  more.push_back({"left_out", absl::StrCat(left_out)});
  Write(level, message, more);
}

}  // namespace crumb
