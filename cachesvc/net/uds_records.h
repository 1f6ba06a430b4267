// What the unix-socket transport remembers: one record per peer, lent file, copy under way and
// event. Plain data. One thread, the transport's; see uds_core.h for what workers read.
#ifndef CRUMB_CACHESVC_NET_UDS_RECORDS_H_
#define CRUMB_CACHESVC_NET_UDS_RECORDS_H_

#include <sys/types.h>

#include <memory>
#include <vector>

#include "cachesvc/net/bounded_ring.h"
#include "cachesvc/net/gpu_memory.h"
#include "cachesvc/net/peer_regions.h"
#include "cachesvc/net/slot_pool.h"
#include "cachesvc/net/uds_socket.h"
#include "cachesvc/net/uds_transport.h"

namespace crumb {

class UdsCore;

// What epoll calls descriptors that are no peer's; the number of a peer is larger.
inline constexpr uint64_t kUdsListener = 1;
inline constexpr uint64_t kUdsTimer = 2;
inline constexpr uint64_t kUdsPool = 3;

inline constexpr uint32_t kNoUdsFile = UINT32_MAX;

// kLeaving: its socket is closed, transfers are still ending. kDown: nothing is left but its
// kPeerDown, in the event ring.
enum class UdsPeerState : uint8_t { kFree, kOpen, kLeaving, kDown };

struct UdsRange {     // a region, as this process sees it
  RegionRange named;  // what its lender calls it
  uint32_t file = 0;  // index into UdsCore::files_
  uint32_t generation = 0;
  uint8_t* at = nullptr;     // host memory
  uint64_t gpu_address = 0;  // GPU memory
};

struct UdsSet {
  uint32_t number = 0;
  std::vector<UdsRange> ranges;
  std::vector<RegionRange> named;  // of ranges, for the common check
  bool gpu = false;
  GpuLink* link = nullptr;          // of a GPU set all of whose memory is lent
  std::vector<uint32_t> gpu_files;  // indices, each once
};

struct UdsSendRecord {
  uint32_t slot = kSlotNone;
  uint32_t bytes = 0;
};

// Of a peer that lent GPU memory: the same from then on.
struct UdsGpuPeer {
  std::array<uint8_t, 16> device{};
  UdsMapping word;  // base null: none was lent
  std::shared_ptr<GpuLink> link;
};

struct UdsPeerRecord {
  UdsPeerState state = UdsPeerState::kFree;
  PeerId id;
  int fd = -1;
  UdsPeer process;
  bool heard = false;
  bool report = false;    // kPeerDown is owed
  bool stopped = false;   // in stopped_
  uint32_t watched = 0;   // the events that epoll looks for
  uint64_t since_us = 0;  // of the connection
  uint32_t messages = 0;  // received and not yet polled
  uint32_t transfers = 0;
  uint64_t mapped_bytes = 0;
  BoundedRing<UdsSendRecord> sends{1};
  std::vector<UdsSet> sets;
  std::vector<uint32_t> files;      // indices
  std::unique_ptr<UdsGpuPeer> gpu;  // null: it has no link
};

// Memory of a GPU that a peer lends.
struct UdsGpuFile {
  std::array<uint8_t, 16> device{};
  UdsMapping word;      // its peer's, if this is the first that is mapped
  bool pending = true;  // the mapper has not answered: neither mapped nor lent yet
  GpuMapping mapping;
};

// A file that a peer lends, mapped; or memory of a GPU, which counts as one.
struct UdsFile {
  bool used = false;
  bool lent = false;  // false: taken back, or its peer is gone
  uint64_t name = 0;  // the lender's
  uint32_t generation = 0;
  uint32_t holds = 0;
  UdsMapping mapping;               // GPU memory: its size alone
  std::unique_ptr<UdsGpuFile> gpu;  // null: host memory
};

struct UdsCopy {
  UdsCore* owner = nullptr;
  MappedUse use = MappedUse::kRead;
  bool done = false;  // every byte was moved
  uint64_t bytes = 0;
  Transfer transfer;
  MappedHold hold;
};

// The worker's half: a file that the other side has, or is being given.
struct UdsLentFile {
  uint64_t name = 0;
  dev_t device = 0;
  ino_t inode = 0;
  std::array<uint8_t, kUdsGpuShareBytes> share{};  // GPU memory, where device and inode are 0
  uint64_t bytes = 0;
  uint32_t regions = 0;
  bool answered = false;
  UdsRefusal refusal = UdsRefusal::kNone;
};

struct UdsEvent {
  NetEvent event;
  uint32_t slot = kSlotNone;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UDS_RECORDS_H_
