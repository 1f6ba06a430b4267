// From what a worker asks to what travels: every block checked against its layout and its memory,
// keys digested. Thread: the Client's.
#ifndef CRUMB_CLIENT_SRC_REQUEST_BUILD_H_
#define CRUMB_CLIENT_SRC_REQUEST_BUILD_H_

#include <memory>
#include <vector>

#include "cachesvc/base/status.h"
#include "client/src/data_plane.h"
#include "client/src/layout_spec.h"
#include "client/src/link.h"

namespace crumb::client {

struct BuildInput {
  WireType type = WireType::kGet;
  const LayoutEntry* layout = nullptr;
  const Lent* lent = nullptr;  // put and get
  uint32_t region_set = 0;
  const std::vector<Block>* blocks = nullptr;
  RequestOptions options;
  uint32_t deadline_ms_default = 0;
  uint32_t grace_ms = 0;
};

// INVALID_ARGUMENT names the block and the field. `id` is left to the caller.
// Fills `out`, whatever it holds; allocates nothing once its vectors are large enough.
absl::Status BuildRequest(const BuildInput& input, PlaneRequest* out);

// Keys of 1..256 bytes to digests; used by Pin as well.
absl::StatusOr<Digest> DigestKey(std::string_view key, size_t block);

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_REQUEST_BUILD_H_
