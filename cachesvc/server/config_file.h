// From YAML text to flat entries, nothing more: no key is known here. Refuses what people mistype
// and parsers forgive: tabs, CR, BOM, control characters, duplicate keys, anchors, aliases, lists
// of anything but plain values, several documents. Any thread.
#ifndef CRUMB_CACHESVC_SERVER_CONFIG_FILE_H_
#define CRUMB_CACHESVC_SERVER_CONFIG_FILE_H_

#include <string>
#include <vector>

#include "cachesvc/base/status.h"

namespace crumb {

struct ConfigEntry {
  std::string key;    // dotted
  std::string value;  // text as written; the items of a list a line each
  int line = 0;       // 1-based
  bool list = false;
};

inline constexpr size_t kConfigFileBytesMax = 1 << 20;
inline constexpr size_t kConfigEntriesMax = 1024;
inline constexpr int kConfigDepthMax = 8;
inline constexpr size_t kConfigListMax = 64;

// The error is one line that starts with "NAME:LINE: ".
absl::StatusOr<std::vector<ConfigEntry>> ParseConfigFile(const std::string& name,
                                                         const std::string& text);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_CONFIG_FILE_H_
