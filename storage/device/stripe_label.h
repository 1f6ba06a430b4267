// The label of one member of a striped set: what a member says of itself at the start, so that a
// wrong, missing, foreign or copied one is found before anything is changed. Little-endian, version
// and checksum; two copies, each in one sector, which a device writes whole or not at all. Pure;
// any thread. PROMISE: a parser believes nothing.
#ifndef CRUMB_STORAGE_DEVICE_STRIPE_LABEL_H_
#define CRUMB_STORAGE_DEVICE_STRIPE_LABEL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

inline constexpr uint32_t kStripeFormatVersion = 1;
inline constexpr uint32_t kStripeMembersMin = 2, kStripeMembersMax = 16;
// A request that crosses a multiple of this goes to two members (docs/storage.md has figures).
inline constexpr uint32_t kStripeUnitBytes = 1u << 20;
inline constexpr uint32_t kStripeUnitBytesMin = 64u << 10, kStripeUnitBytesMax = 1u << 30;
// In front of each member's data, so that they begin at a boundary that devices like.
inline constexpr uint64_t kStripeLabelBytes = 1u << 20;
inline constexpr std::array<uint64_t, 2> kStripeLabelOffsets = {0, 32 * 1024};
inline constexpr uint32_t kStripeLabelBlock = 4096;

enum class StripeState : uint32_t {
  kForming = 1,  // not every member was labelled yet: the set has never held anything
  kFormed = 2,
};

struct StripeLabel {
  std::array<char, 8> magic = {'C', 'R', 'U', 'M', 'B', 'S', 'E', 'T'};
  uint32_t format_version = kStripeFormatVersion;
  uint32_t struct_bytes = 512;
  uint64_t set_id = 0;  // of this formatting, never 0
  uint32_t index = 0;   // of this member
  uint32_t count = 0;   // of members
  uint32_t unit_bytes = kStripeUnitBytes;
  StripeState state = StripeState::kForming;
  std::array<uint8_t, 464> zero{};
  uint64_t checksum = 0;  // XXH3-64 of bytes 0-503; stays there in every version
};
static_assert(sizeof(StripeLabel) == 512 && std::is_trivially_copyable_v<StripeLabel>);
static_assert(offsetof(StripeLabel, checksum) == 504);

struct StripeHead {
  bool blank = false;    // nothing but zeros
  bool foreign = false;  // neither blank nor labelled
  bool whole = false;    // both copies are there and say the same
  StripeLabel label;     // unless blank or foreign
};

// `head`: the first bytes of a member, as many as there are. FAILED_PRECONDITION: a label of a
// newer format.
absl::StatusOr<StripeHead> ParseStripeHead(Bytes head);

// Both copies in their places; `out` has at least the last one's block.
void StoreStripeLabel(StripeLabel label, MutableBytes out);

// FAILED_PRECONDITION with the remedy if `head` is that of a member, which is no log by itself.
absl::Status RefuseStripeMember(Bytes head);

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_STRIPE_LABEL_H_
