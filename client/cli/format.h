// Numbers as people read them.
#ifndef CRUMB_CLIENT_CLI_FORMAT_H_
#define CRUMB_CLIENT_CLI_FORMAT_H_

#include <cstdint>
#include <string>

namespace crumb::cli {

std::string HumanBytes(double bytes);  // "1.50 MiB"
std::string HumanCount(double count);  // "1.23 M"
std::string HumanMicros(double us);    // "1.23 ms"
// Columns aligned with spaces; the first row is the head.
std::string Table(const std::string& tab_separated_rows);
inline constexpr uint64_t kSizeMax = 1ull << 50;
// "64KiB", "1MiB", "512" to bytes; false for anything else, 0 or over kSizeMax.
bool ParseSize(const std::string& text, uint64_t* bytes);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_FORMAT_H_
