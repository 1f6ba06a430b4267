// Formatting without locale.
#include "client/cli/format.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace crumb::cli {
std::string HumanBytes(double bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024.0 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024.0;
  return unit == 0 ? absl::StrFormat("%.0f B", bytes)
                   : absl::StrFormat("%.2f %s", bytes, kUnits[unit]);
}

std::string HumanCount(double count) {
  static constexpr std::array<const char*, 4> kUnits = {"", " k", " M", " G"};
  size_t unit = 0;
  for (; count >= 1000.0 && unit + 1 < kUnits.size(); ++unit) count /= 1000.0;
  return unit == 0 ? absl::StrFormat("%.0f", count)
                   : absl::StrFormat("%.2f%s", count, kUnits[unit]);
}

std::string HumanMicros(double us) {
  if (us < 1000.0) return absl::StrFormat("%.0f us", us);
  if (us < 1'000'000.0) return absl::StrFormat("%.2f ms", us / 1000.0);
  return absl::StrFormat("%.2f s", us / 1'000'000.0);
}

std::string Table(const std::string& tab_separated_rows) {
  std::vector<std::vector<std::string>> rows;
  std::vector<size_t> widths;
  for (absl::string_view line : absl::StrSplit(tab_separated_rows, '\n', absl::SkipEmpty())) {
    rows.push_back(absl::StrSplit(line, '\t'));
    widths.resize(std::max(widths.size(), rows.back().size()));
    for (size_t i = 0; i < rows.back().size(); ++i) {
      widths[i] = std::max(widths[i], rows.back()[i].size());
    }
  }
  std::string out;
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      out += row[i];
      if (i + 1 < row.size()) out.append(widths[i] - row[i].size() + 2, ' ');
    }
    out += '\n';
  }
  return out;
}

bool ParseSize(const std::string& text, uint64_t* bytes) {
  const size_t digits = text.find_first_not_of("0123456789");
  const std::string unit = digits == std::string::npos ? "" : text.substr(digits);
  uint64_t factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  if (unit == "KiB") factor = 1ull << 10;
  if (unit == "MiB") factor = 1ull << 20;
  if (unit == "GiB") factor = 1ull << 30;
  if (unit == "TiB") factor = 1ull << 40;
  uint64_t count = 0;
  if (factor == 0 || !absl::SimpleAtoi(text.substr(0, digits), &count)) return false;
  if (count == 0 || count > kSizeMax / factor) return false;
  *bytes = count * factor;
  return true;
}

}  // namespace crumb::cli
