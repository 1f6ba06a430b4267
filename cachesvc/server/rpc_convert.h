// Between protobuf messages and our types: every field of outside origin is checked here, once.
// Pure; any thread.
#ifndef CRUMB_CACHESVC_SERVER_RPC_CONVERT_H_
#define CRUMB_CACHESVC_SERVER_RPC_CONVERT_H_

#include <grpcpp/support/status.h>

#include <string>
#include <vector>

#include "cachesvc/base/wire.h"
#include "cachesvc/core/engine.h"
#include "cachesvc/server/layouts.h"
#include "crumb/v1/cache.pb.h"

namespace crumb {

inline constexpr size_t kChunkBytesMax = 1 << 20;
// A chunk and its header, and the largest control message.
inline constexpr int kMessageBytesMax = 4 << 20;

grpc::Status ToGrpc(const absl::Status& status);

// Bounds only; Layout::Make checks what the fields mean.
absl::StatusOr<Identity> FromProto(const v1::Identity& in);
v1::Identity ToProto(const Identity& in);
v1::LayoutInfo ToProto(const BoundLayout& in);

v1::Result ToProto(BlockResult result);
v1::TierKind ToProto(Tier tier);
v1::PrecisionKind ToProto(Precision precision);
absl::StatusOr<PageForm> FromProto(v1::Form form);
absl::StatusOr<Provenance> FromProto(v1::ProvenanceKind kind);

// The digest that a block is named by: of its key (1 to 256 bytes), or given (16 bytes).
absl::StatusOr<Digest> DigestFrom(const v1::BlockName& name);
// Names of a look-up, delete or pin: 1 to kBlocksPerRequestMax, parts of `layout`.
absl::StatusOr<std::vector<WireBlock>> BlocksFrom(
    const google::protobuf::RepeatedPtrField<v1::BlockName>& names, const BoundLayout& layout);

struct PutPlan {
  WireBlock block;
  PageForm form = PageForm::kRaw;
  uint64_t value_bytes = 0;
  uint16_t flags = 0;
};
// `header` against the layout: part, lengths, tokens, names.
absl::StatusOr<PutPlan> PlanPut(const v1::PutHeader& header, const BoundLayout& layout);

absl::StatusOr<RegionSetSpec> FromProto(const v1::RegisterRegionsRequest& in);

// Milliseconds of a request as the wire has them, bounded by `us_max`.
uint32_t DeadlineUs(uint64_t ms, uint64_t us_max);

// Where a page's first NaN or Inf is, in words.
std::string DescribeNonFinite(uint64_t packed_place);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_RPC_CONVERT_H_
