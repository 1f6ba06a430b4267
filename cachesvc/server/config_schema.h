// The table of configuration keys: one row per key with its kind, range and default, and how texts
// become values. config.cc merges sources over it; docs/configuration.md describes it (a test
// compares the two). Any thread.
#ifndef CRUMB_CACHESVC_SERVER_CONFIG_SCHEMA_H_
#define CRUMB_CACHESVC_SERVER_CONFIG_SCHEMA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cachesvc/server/config.h"

namespace crumb {

enum class KeyKind : uint8_t {
  kSize,      // bytes with KiB MiB GiB TiB, or N% of memory (nvme.*: of the volume)
  kCount,     // a whole number
  kDuration,  // N with us ms s m h
  kFlag,      // true, false
  kText,      // free text, at most 1024 bytes, no control characters
  kChoice,    // one of `choices`, separated by |
  kAddress,   // HOST:PORT or off
  kPath,      // absolute
  kPaths,     // a list of these, or one
};

struct KeySpec {
  const char* name = nullptr;  // "pool.dram_bytes"
  KeyKind kind = KeyKind::kText;
  const char* fallback = "";      // the default; "" = computed from the machine (see config.cc)
  const char* choices = nullptr;  // kChoice; kPath: a word that is legal instead of a path
  uint64_t min = 0;               // kSize, kCount, kDuration (us)
  uint64_t max = 0;
  const char* remedy = "";  // appended to a range error where the range alone does not explain
  uint64_t& (*number)(Config&) = nullptr;
  std::string& (*text)(Config&) = nullptr;
  bool& (*flag)(Config&) = nullptr;
  std::vector<std::string>& (*list)(Config&) = nullptr;  // kPaths; `max` bounds their number
};

absl::Span<const KeySpec> ConfigKeys();
const KeySpec* FindKey(absl::string_view name);
// The known key that `name` most likely stands for; empty if none is near.
std::string NearestKey(absl::string_view name);

// Parses `text` into the key's field. `percent_of` is what N% means for sizes. The error says what
// is wrong with the value and the remedy, without key and place.
absl::Status AssignKey(const KeySpec& key, const std::string& text, uint64_t percent_of,
                       Config& config);
// The field as YAML text that AssignKey reads back.
std::string PrintKey(const KeySpec& key, Config config);

absl::StatusOr<uint64_t> ParseSize(absl::string_view text, uint64_t percent_of);
std::string FormatSize(uint64_t bytes);
absl::StatusOr<uint64_t> ParseDuration(absl::string_view text);
std::string FormatDuration(uint64_t us);
absl::StatusOr<uint64_t> ParseCount(absl::string_view text);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_CONFIG_SCHEMA_H_
