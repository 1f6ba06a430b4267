// Unix-socket transport, for workers on the daemon's own host: requests and replies are packets of
// one SOCK_SEQPACKET connection, lent memory is files passed over it once (SCM_RIGHTS) and mapped
// by the daemon, so that a page moves with one copy and no help of the worker. The client library
// uses the same class. One thread: created, polled and destroyed there. Must never let a peer hurt
// others: what it sends is checked, what it lends is copied by threads that survive its shrinking,
// every queue has a bound of its own per peer.
#ifndef CRUMB_CACHESVC_NET_UDS_TRANSPORT_H_
#define CRUMB_CACHESVC_NET_UDS_TRANSPORT_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "cachesvc/net/gpu_memory.h"
#include "cachesvc/net/mapped_memory.h"
#include "cachesvc/net/transport.h"

namespace crumb {

struct UdsOptions {
  uint32_t peers_max = 256;
  uint32_t transfers_max = 4096;
  uint32_t transfers_per_peer_max = 1024;
  uint32_t messages_max = 4096;          // received and not yet polled
  uint32_t messages_per_peer_max = 256;  // more wait in the socket
  uint32_t sends_max = 4096;             // given to Send and not yet taken by the socket
  uint32_t sends_per_peer_max = 256;
  uint32_t files_per_peer_max = 256;
  uint64_t mapped_bytes_per_peer_max = uint64_t{1} << 42;
  uint32_t copy_threads = 1;                  // of Pull and Push; started when first needed
  uint32_t inline_bytes_max = 16 * 1024;      // so much is copied at once, if it cannot shrink
  uint64_t first_word_us = 10'000'000;        // a peer that says nothing for so long is closed
  uint64_t lend_timeout_us = 5'000'000;       // Lend waits so long for the other side
  uint64_t lend_gpu_timeout_us = 60'000'000;  // LendGpu: mapping it, and codecs for a new GPU
  uint32_t gpu_offers_max = 256;              // LendGpu not yet answered
  uint32_t gpu_offers_per_peer_max = 8;
};

// Memory that a worker lends: part of a file that it has mapped itself, shared. A memfd sealed with
// F_SEAL_SHRINK is best; any other file of a memory file system (/dev/shm) will do.
struct SharedRange {
  int fd = -1;          // the caller's; must be open until Lend has returned
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
  uint64_t address = 0;  // of the caller's mapping: what names the memory from then on
};

// GPU memory that a worker lends: part of an allocation (gpu/device/cuda_share.h names it).
struct GpuRange {
  std::array<uint8_t, kUdsGpuShareBytes> share{};  // EncodeGpuShare of any range of the allocation
  // A sealed file whose first eight bytes the worker's GPU counts up: WireHeader::gpu_ticket. The
  // same for all of a connection. -1: its requests wait for nothing.
  int word_fd = -1;
  uint64_t address = 0;  // the worker's device address: what names the memory from then on
  uint64_t bytes = 0;
  uint64_t offset = 0;  // in the allocation
};

// Who is on the other side, by the kernel's word.
struct UdsPeer {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

struct UdsStats {
  uint64_t files_mapped = 0;      // gauge
  uint64_t bytes_mapped = 0;      // gauge: address space
  uint64_t holds = 0;             // gauge: of mapped memory
  uint64_t files_refused = 0;     // wrong kind, too short, too many, damaged message
  uint64_t copies_inline = 0;     // on the owner's thread
  uint64_t copies_faulted = 0;    // the memory was gone (SIGBUS)
  uint64_t holds_outlived = 0;    // ended after their peer: it went in the middle of a copy
  uint64_t frames_refused = 0;    // malformed: their peer was closed
  uint64_t gpu_links = 0;         // gauge: peers that lent GPU memory
  uint64_t gpu_mapped = 0;        // gauge: allocations of GPU memory
  uint64_t gpu_bytes_mapped = 0;  // gauge
  uint64_t gpu_refused = 0;       // offers: no GPU, not to be mapped, too many, another GPU
};

class UdsCore;  // uds_core.h

class UdsTransport final : public Transport, public MappedMemory, public GpuMemory {
 public:
  explicit UdsTransport(std::unique_ptr<UdsCore> core);  // Create calls it
  static absl::StatusOr<std::unique_ptr<UdsTransport>> Create(const UdsOptions& options);
  // Closes every peer and waits for copies under way: afterwards no memory is touched.
  ~UdsTransport() override;

  // The daemon's half. Binds and listens; the path must be free, the socket gets mode 0600. Peers
  // appear by their first message (kMessage of a PeerId not seen before).
  absl::Status Listen(const std::string& path);
  // Who maps GPU memory; none: it is refused (kNoGpu). Before Listen; must outlive this object, and
  // keeps what it has not answered.
  void SetGpuMapper(GpuMapper* mapper);
  // Of the connection accepted last; value 0: none yet.
  PeerId newest_peer() const;
  // Zeros for a peer that is not there.
  UdsPeer peer_info(PeerId peer) const;

  // The worker's half: one connection at a time; after its kPeerDown another may be made.
  // UNAVAILABLE: nobody listens there. Never blocks.
  absl::StatusOr<PeerId> Connect(const std::string& path);
  // After the first Send. Sends the file unless the other side has it, and waits for its word
  // (lend_timeout_us); what else arrives meanwhile is kept for Poll. The region goes into
  // RegisterRegions over the control plane as it is. Any number of ranges of one file; files are
  // told apart by device and inode. INVALID_ARGUMENT: nothing that can be lent, with the reason;
  // RESOURCE_EXHAUSTED: too much.
  absl::StatusOr<Region> Lend(const SharedRange& range);
  // The same for GPU memory, one allocation at a time: INVALID_ARGUMENT, FAILED_PRECONDITION (the
  // daemon cannot map it) and RESOURCE_EXHAUSTED say why and what helps.
  absl::StatusOr<Region> LendGpu(const GpuRange& range);
  // When the last region of a file or allocation is taken back, the other side unmaps it (when its
  // last transfer has ended).
  void Unlend(const Region& region);

  std::string Describe() const;  // "/run/crumb/crumbd.sock.data"
  NetStats stats() const;
  UdsStats uds_stats() const;

  BlockResult Send(PeerId peer, Bytes message) override;
  BlockResult Pull(const Transfer& transfer) override;
  BlockResult Push(const Transfer& transfer) override;
  absl::Status RegisterRegions(PeerId peer, uint32_t region_set, const RegionSet& set) override;
  void ClosePeer(PeerId peer) override;
  size_t Poll(absl::Span<NetEvent> events) override;
  bool Arm() override;
  int wake_fd() const override;

  BlockResult Hold(const Transfer& transfer, MappedUse use, MappedHold* hold) override;
  bool Release(MappedHold* hold, MappedUse use, uint64_t bytes) override;

  GpuLink* LinkOf(PeerId peer, uint32_t region_set) const override;
  std::vector<uint64_t> AddressesOf(PeerId peer, uint32_t region_set) const override;
  bool Reached(PeerId peer, uint64_t ticket) const override;
  BlockResult HoldGpu(PeerId peer, uint32_t region_set, GpuHold* hold) override;
  bool ReleaseGpu(GpuHold* hold, MappedUse use, uint64_t bytes) override;

 private:
  std::unique_ptr<UdsCore> core_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UDS_TRANSPORT_H_
