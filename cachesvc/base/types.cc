// Names of the shared enums, as metrics, logs and tools print them.
#include "cachesvc/base/types.h"

namespace crumb {

const char* ToString(Precision precision) {
  switch (precision) {
    case Precision::kRaw:
      return "raw";
    case Precision::kInt4:
      return "int4";
    case Precision::kK3V2:
      return "k3v2";
    case Precision::kInt2:
      return "int2";
  }
  return "unknown";
}

const char* ToString(Provenance provenance) {
  switch (provenance) {
    case Provenance::kPrefill:
      return "prefill";
    case Provenance::kDecode:
      return "decode";
    case Provenance::kTranscoded:
      return "transcoded";
  }
  return "unknown";
}

const char* ToString(Tier tier) {
  switch (tier) {
    case Tier::kNone:
      return "none";
    case Tier::kHbm:
      return "hbm";
    case Tier::kDram:
      return "dram";
    case Tier::kNvme:
      return "nvme";
    case Tier::kPeer:
      return "peer";
  }
  return "unknown";
}

const char* ToString(BlockResult result) {
  static constexpr const char* kNames[kBlockResultCount] = {
      "ok",      "miss",      "busy",        "no_space", "quota",
      "timeout", "invalid",   "unavailable", "corrupt",  "io",
      "exists",  "cancelled", "non_finite",  "mismatch", "not_durable"};
  const auto index = static_cast<size_t>(result);
  return index < kBlockResultCount ? kNames[index] : "unknown";
}

}  // namespace crumb
