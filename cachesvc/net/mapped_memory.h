// Lent memory that this process has mapped: what a transport offers besides moving bytes, so that
// whoever makes a page writes it where its reader wants it, and reads it where its writer has it.
// The lender may change the bytes at any moment, and unless `steady` take them away: only
// GuardedCopy touches them, and nothing is decided on bytes that were not copied first.
// One thread, the transport's, but for the copies.
#ifndef CRUMB_CACHESVC_NET_MAPPED_MEMORY_H_
#define CRUMB_CACHESVC_NET_MAPPED_MEMORY_H_

#include <cstdint>
#include <vector>

#include "cachesvc/net/transport.h"

namespace crumb {

struct MappedPiece {
  uint8_t* data = nullptr;    // in this process
  uint64_t local_offset = 0;  // in Transfer::local
  uint64_t bytes = 0;
};

struct MappedHold {  // reused, so that nothing is allocated for it in the long run
  std::vector<MappedPiece> pieces;
  std::vector<uint32_t> files;  // the transport's own, until Release
  PeerId peer;                  // value 0: nothing is held
  bool steady = false;          // cannot shrink: may be copied on any thread
  bool held() const { return peer.value != 0; }
};

enum class MappedUse : uint8_t { kRead, kWrite };

class MappedMemory {
 public:
  virtual ~MappedMemory() = default;
  // Checks a transfer as Pull and Push do and says where its segments are. kOk: the memory stays
  // mapped until Release, whatever becomes of the peer, and counts as one of its transfers; its
  // kPeerDown comes after the Release. Else nothing is held: kBusy, kUnavailable, kInvalid (also:
  // lent for reading only).
  virtual BlockResult Hold(const Transfer& transfer, MappedUse use, MappedHold* hold) = 0;
  // Ends a hold; `bytes` were moved (0: it failed). False: the peer went away or was closed
  // meanwhile, and the transfer counts as failed.
  virtual bool Release(MappedHold* hold, MappedUse use, uint64_t bytes) = 0;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_MAPPED_MEMORY_H_
