// What a transport knows about memory that its peers lent: address ranges under region set
// numbers, and the check that every transfer passes before a byte moves.
// Must never let a segment outside a registered range or outside local memory through.
// One thread, the transport's.
#ifndef CRUMB_CACHESVC_NET_PEER_REGIONS_H_
#define CRUMB_CACHESVC_NET_PEER_REGIONS_H_

#include <cstdint>
#include <vector>

#include "cachesvc/net/transport.h"

namespace crumb {

// PeerId values: a serial number that never repeats, above the number of the peer's slot.
inline constexpr uint32_t kPeerSlotBits = 16;
inline constexpr uint32_t kPeersLimit = 1u << kPeerSlotBits;
inline PeerId MakePeerId(uint64_t serial, uint32_t slot) {
  return PeerId{(serial << kPeerSlotBits) | slot};
}
inline uint32_t PeerSlot(PeerId id) { return static_cast<uint32_t>(id.value & (kPeersLimit - 1)); }

struct RegionRange {
  uint64_t address = 0;
  uint64_t bytes = 0;
};

// True if every segment is non-empty, inside its region and inside `local`, and there is at least
// one.
bool SegmentsFit(absl::Span<const RegionRange> regions, const Transfer& transfer);

std::vector<RegionRange> RangesOf(const RegionSet& set);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_PEER_REGIONS_H_
