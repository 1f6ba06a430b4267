// GPU memory that a worker lends: handles travel over the unix socket, the control thread turns
// them into mappings (opening one waits for the device), and the engine's kernels read and write
// them. The transport moves no byte of it: it knows who lends what, holds it for transfers, and
// lets it go when the worker is gone. One thread, the transport's.
#ifndef CRUMB_CACHESVC_NET_GPU_MEMORY_H_
#define CRUMB_CACHESVC_NET_GPU_MEMORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cachesvc/net/mapped_memory.h"
#include "cachesvc/net/transport.h"
#include "cachesvc/net/uds_frames.h"

namespace crumb {

class GpuLink;  // gpu/codec/gpu_link.h: a peer's way to its GPU; here only kept

// Device memory of a peer, mapped here.
struct GpuMapping {
  uint64_t address = 0;  // a device address of this process
  uint64_t bytes = 0;
  uint64_t id = 0;                // the mapper's; 0: nothing is mapped
  std::shared_ptr<GpuLink> link;  // one for all mappings of a peer
};

struct GpuOffer {
  uint64_t token = 0;                              // comes back with the answer
  std::array<uint8_t, kUdsGpuShareBytes> share{};  // gpu/device/gpu_share.h, unchecked
  std::shared_ptr<GpuLink> link;  // of the peer's earlier offers, or null: one is made
};

struct GpuAnswer {
  uint64_t token = 0;
  UdsRefusal refusal = UdsRefusal::kNone;
  GpuMapping mapping;  // at least as long as what was offered; refused: empty, without a link
};

// What turns offers into mappings, on a thread that may wait. Called by the transport's thread; the
// daemon wakes that thread when an answer is there. Outlives the transport; what that never took an
// answer for stays the mapper's.
class GpuMapper {
 public:
  virtual ~GpuMapper() = default;
  // False: too many at once. Else one answer comes, however late: its peer may be gone by then.
  virtual bool Map(const GpuOffer& offer) = 0;
  virtual size_t Poll(absl::Span<GpuAnswer> answers) = 0;
  // Nothing of this process uses it any more, but for other mappings of the same link. With id 0:
  // the link alone is let go. Never waits.
  virtual void Unmap(GpuMapping mapping) = 0;
};

struct GpuHold {
  std::vector<uint32_t> files;  // the transport's own, until Release
  PeerId peer;                  // value 0: nothing is held
  bool held() const { return peer.value != 0; }
};

// What a transport offers besides moving bytes, for peers that lend GPU memory.
class GpuMemory {
 public:
  virtual ~GpuMemory() = default;
  // The link of a region set in GPU memory; null: it is in host memory, not there, or some of it
  // was taken back. A set never mixes both. One link for all sets of a peer, valid until the Poll
  // after its kPeerDown (after ClosePeer: the next one) and while a hold is on it.
  virtual GpuLink* LinkOf(PeerId peer, uint32_t region_set) const = 0;
  // Device addresses of the set's regions, in their order. REQUIRES: LinkOf is not null.
  virtual std::vector<uint64_t> AddressesOf(PeerId peer, uint32_t region_set) const = 0;
  // Whether the peer's GPU has come as far as a request says (WireHeader::gpu_ticket): a load.
  // False for ever where the peer lent no word. WHY no event of CUDA's: one of a worker that was
  // killed never comes, and a stream that waits for it holds up others (measured on an H200).
  virtual bool Reached(PeerId peer, uint64_t ticket) const = 0;
  // kOk: the set stays mapped until Release, whatever becomes of the peer, and counts as one of its
  // transfers; its kPeerDown comes after the Release. Else nothing is held: kBusy, kUnavailable,
  // kInvalid (LinkOf is null).
  virtual BlockResult HoldGpu(PeerId peer, uint32_t region_set, GpuHold* hold) = 0;
  // False: the peer went away or was closed meanwhile, and the transfer counts as failed.
  virtual bool ReleaseGpu(GpuHold* hold, MappedUse use, uint64_t bytes) = 0;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_GPU_MEMORY_H_
