// What the simulated workers store: three layouts (exact bf16 pages, lossy pages through a codec
// ladder, opaque pages in two parts), their codecs, and the bytes of any version of any page. Made
// once, shared by all seeds; immutable.
#ifndef CRUMB_TESTS_SIM_SIM_LAYOUTS_H_
#define CRUMB_TESTS_SIM_SIM_LAYOUTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "cachesvc/core/engine.h"
#include "gpu/codec/page_codec.h"

namespace crumb::sim {

inline constexpr char kSimTenant[] = "sim";
inline constexpr uint32_t kSimPageTokens = 16;

struct SimLayout {
  uint32_t handle = 0;
  LayoutBinding binding;
  const PartShape& part(uint32_t index) const { return binding.layout->parts()[index]; }
};

// What a get must deliver after a put of some bytes: kept as lengths and hashes.
struct Expected {
  Precision precision = Precision::kRaw;
  uint64_t payload_hash = 0;  // as stored
  uint64_t raw_hash = 0;      // as decoded, rows past the count zero
  uint32_t payload_bytes = 0;
  uint32_t raw_bytes = 0;  // 0: nothing is expected
  bool refused = false;    // must not be stored at all
};

struct PutShape {
  uint32_t tokens = kSimPageTokens;
  bool position_known = true;
  bool non_finite = false;  // holds a NaN
};

absl::StatusOr<std::vector<SimLayout>> MakeSimLayouts();

// The raw bytes that a page is put with. Rows past the count are rubbish (NaN) on purpose: the
// daemon must neither keep them nor mind them.
std::vector<uint8_t> MakeValue(const PartShape& part, const PutShape& shape, uint64_t seed);

// The reference: the first codec of the ladder that fits (from unknown_position_precision on if the
// position is not known), then its decoder.
Expected Reference(const SimLayout& layout, uint32_t part, const PutShape& shape, Bytes raw);

// The same while it is raw, whatever the layout's codec.
Expected RawReference(const SimLayout& layout, uint32_t part, const PutShape& shape, Bytes raw);

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_LAYOUTS_H_
