// The file between `crumb-demo --save` and `--verify`: which durable pages were got, and the
// SHA-256 of each as it was delivered. Text, one page a line; checked when it is read. Any thread.
#ifndef CRUMB_CLIENT_DEMO_SAVED_PAGES_H_
#define CRUMB_CLIENT_DEMO_SAVED_PAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cachesvc/base/hash.h"
#include "cachesvc/base/status.h"

namespace crumb::demo {

struct SavedPage {
  std::string codec;
  std::string name_space;
  uint32_t page = 0;
  Sha256 hash{};
  friend bool operator==(const SavedPage&, const SavedPage&) = default;
};

inline constexpr uint64_t kSavedBytesMax = 64ull << 20;

std::string FormatSavedPages(const std::vector<SavedPage>& pages);
// INVALID_ARGUMENT names the line.
absl::StatusOr<std::vector<SavedPage>> ParseSavedPages(const std::string& text);

}  // namespace crumb::demo

#endif  // CRUMB_CLIENT_DEMO_SAVED_PAGES_H_
