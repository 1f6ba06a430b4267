// What a page file says: header, checksum, and where layout and codec are known, statistics of its
// rows. Pure functions over untrusted bytes; any thread.
#ifndef CRUMB_CLIENT_CLI_INSPECT_PAGE_H_
#define CRUMB_CLIENT_CLI_INSPECT_PAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/base/status.h"
#include "gpu/codec/descriptor.h"
#include "gpu/codec/rotation_set.h"

namespace crumb::cli {

// One row, or the summary of many.
struct RowStats {
  uint32_t layer_id = 0;
  bool is_v = false;
  uint32_t head = 0;   // global index
  uint32_t token = 0;  // of one row
  uint32_t rows = 0;
  double rms = 0, mean = 0, min = 0, max = 0;
  uint32_t non_finite = 0;  // elements
};

// The published descriptor that has this id, with the set's hash or without one; NOT_FOUND names
// the remedy.
absl::StatusOr<CodecDescriptor> FindDescriptor(uint64_t codec_id, const RotationSet* rotations);

// The raw page in the layout's order. INVALID_ARGUMENT: the page is not of this layout.
// REQUIRES: CheckPage(page) is kOk.
absl::StatusOr<std::vector<uint8_t>> DecodePage(Bytes page, const crumb::Layout& layout,
                                                std::shared_ptr<const RotationSet> rotations);

// Rows of a raw BF16 page in order; tokens past `token_count` are left out.
std::vector<RowStats> StatsOfRows(Bytes raw, const PartShape& shape, uint32_t token_count);
// One entry per layer, tensor and head.
std::vector<RowStats> Summarise(const std::vector<RowStats>& rows);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_INSPECT_PAGE_H_
