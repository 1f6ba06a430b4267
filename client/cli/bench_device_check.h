// What should come back of a page: the page itself where it was kept raw, else what the reference
// codec decodes of what it makes of it. Also rotation sets for codecs that need one where no model
// is at hand. One thread.
#ifndef CRUMB_CLIENT_CLI_BENCH_DEVICE_CHECK_H_
#define CRUMB_CLIENT_CLI_BENCH_DEVICE_CHECK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "crumb/types.h"
#include "gpu/codec/page_codec.h"

namespace crumb::cli {

// Squared difference of what came back and what the reference decodes, over the energy of what was
// put. Searches of two backends choose other codes here and there; a page of other rows differs by
// one or two.
inline constexpr double kDeviceDifferenceMax = 0.02;

struct DeviceCheckTally {
  uint64_t pages = 0;
  uint64_t exact = 0;  // bit for bit
  uint64_t wrong = 0;
  double worst = 0;  // difference of a page that is not exact
  double error = 0;  // of the worst page: of what came back to what was put
};

class DeviceReference {
 public:
  // `shape` is the one part of the layout; `set` null where the codec uses none.
  DeviceReference(PartShape shape, CodecKind kind, Effort effort,
                  std::shared_ptr<const RotationSet> set);
  // One page: compares, counts, and says whether it is what it should be. INVALID_ARGUMENT: that
  // precision has no codec here.
  absl::StatusOr<bool> Check(Bytes put, Bytes got, client::Precision precision,
                             DeviceCheckTally* tally);

 private:
  absl::StatusOr<const PageCodec*> CodecFor(client::Precision precision);

  const PartShape shape_;
  const CodecKind kind_;
  const Effort effort_;
  const std::shared_ptr<const RotationSet> set_;
  std::map<CodecKind, std::unique_ptr<PageCodec>> codecs_;
  std::vector<uint8_t> payload_, decoded_;
};

// Kinds that want a rotation set.
bool WantsRotation(CodecKind kind);
// Reflections, a mean and a query moment for each layer; the same for the same geometry.
absl::StatusOr<std::shared_ptr<const RotationSet>> MakeUpRotations(uint32_t layers, uint32_t dim,
                                                                   const std::string& model);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_BENCH_DEVICE_CHECK_H_
