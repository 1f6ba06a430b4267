// Names of the public enums, as tools print them.
#include <array>

#include "crumb/types.h"

namespace crumb::client {

const char* ToString(Code code) {
  static constexpr std::array<const char*, 15> kNames = {
      "ok",      "miss",      "busy",        "no_space", "quota",
      "timeout", "invalid",   "unavailable", "corrupt",  "io",
      "exists",  "cancelled", "non_finite",  "mismatch", "not_durable"};
  const auto index = static_cast<size_t>(code);
  if (code == Code::kDenied) return "denied";
  return index < kNames.size() ? kNames[index] : "unknown";
}

const char* ToString(Tier tier) {
  static constexpr std::array<const char*, 5> kNames = {"none", "hbm", "dram", "nvme", "peer"};
  const auto index = static_cast<size_t>(tier);
  return index < kNames.size() ? kNames[index] : "unknown";
}

const char* ToString(Precision precision) {
  static constexpr std::array<const char*, 4> kNames = {"raw", "int4", "k3v2", "int2"};
  const auto index = static_cast<size_t>(precision);
  return index < kNames.size() ? kNames[index] : "unknown";
}

}  // namespace crumb::client
