// The canonical form of an identity: TLV in fixed order, little-endian, every field present. Its
// SHA-256 is the identity's hash, so these bytes never change (tests/golden/identity_*.hex).
// Internal to base: callers use Layout. Any thread.
//
//   u32 magic "CRID", u16 version 1, u16 zero, then records {u16 tag, u16 zero, u32 length, value}:
//   1 model, 2 revision, 3 weights_dtype (bytes)
//   4 rope.kind (bytes), 5 rope.theta, 6 rope.factor (IEEE-754 doubles), 7 rope.original_positions
//     (u64), 8 rope.extra (bytes)
//   9 k_before_rope (u8), 10 dtype (u8), 11 page_tokens (u32), 12 name_space (bytes)
//   13 groups: u32 count, then per group u32 kind, kv_heads, k_dim, v_dim, window, layer count, and
//      u32 per layer id
//   14 head_groups (u32), 15 part_layer_counts: u32 each; empty = one group of all layers
#ifndef CRUMB_CACHESVC_BASE_IDENTITY_FORM_H_
#define CRUMB_CACHESVC_BASE_IDENTITY_FORM_H_

#include <string>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

inline constexpr size_t kCanonicalBytesMax = 64 * 1024;

std::string CanonicalForm(const Identity& identity);

// Reads the fields without judging them (Layout::Make does). Untrusted input; INVALID_ARGUMENT
// names the field. Allocates no more than the input's size justifies.
absl::StatusOr<Identity> ParseCanonicalForm(Bytes canonical);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_IDENTITY_FORM_H_
