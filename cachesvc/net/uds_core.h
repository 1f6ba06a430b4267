// The unix-socket transport's state: peers with their sockets and lent files, transfers under way,
// events not yet polled. Plain data that the files named in front of the methods work on.
// One thread, the transport's; a worker reads a UdsCopy's hold and transfer while it runs.
// INVARIANT: a file is mapped while a set may name it or a hold is on it; a peer's record is free
// only when nothing of it is left.
#ifndef CRUMB_CACHESVC_NET_UDS_CORE_H_
#define CRUMB_CACHESVC_NET_UDS_CORE_H_

#include <sys/epoll.h>

#include <memory>
#include <string>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/worker_pool.h"
#include "cachesvc/net/message_slots.h"
#include "cachesvc/net/uds_gpu.h"
#include "cachesvc/net/uds_records.h"
#include "cachesvc/net/uds_transport.h"

namespace crumb {

class UdsCore {
 public:
  static absl::StatusOr<std::unique_ptr<UdsCore>> Create(const UdsOptions& options);
  UdsCore(const UdsOptions& options, int epoll_fd, int timer_fd);
  ~UdsCore();

  // uds_transport.cc
  size_t Poll(absl::Span<NetEvent> events);
  bool Arm();
  NetStats stats() const;

  // uds_peers.cc
  absl::Status Listen(const std::string& path);
  absl::StatusOr<PeerId> Connect(const std::string& path);
  void Close(PeerId id);
  UdsPeerRecord* Find(PeerId id);
  UdsPeerRecord* FindOpen(PeerId id);
  BlockResult Send(PeerId id, Bytes message);  // uds_messages.cc

  // uds_lend.cc, the worker's half
  absl::StatusOr<Region> Lend(const SharedRange& range);
  absl::StatusOr<Region> LendGpu(const GpuRange& range);
  void Unlend(const Region& region);

  // uds_files.cc, the daemon's half
  absl::Status RegisterRegions(PeerId id, uint32_t region_set, const RegionSet& set);
  BlockResult Hold(const Transfer& transfer, MappedUse use, MappedHold* hold);
  bool Release(MappedHold* hold, MappedUse use, uint64_t bytes);
  BlockResult StartCopy(const Transfer& transfer, MappedUse use);  // uds_copies.cc
  UdsFile& file(uint32_t index) { return files_[index]; }
  uint32_t NewFile(UdsPeerRecord* peer, uint64_t name, const UdsMapping& mapping);
  void AnswerLend(UdsPeerRecord* peer, uint64_t file, UdsRefusal refusal);
  void UnmapIfUnused(uint32_t file);
  bool CanHold(const UdsPeerRecord& peer) const;
  void BeginHold(UdsPeerRecord* peer);
  bool EndHold(PeerId id, MappedUse use, uint64_t bytes);

  UdsGpu gpu;
  std::string path;
  PeerId newest;
  UdsStats uds_stats;
  int epoll_fd() const { return epoll_; }

 private:
  // uds_transport.cc
  void Progress();
  void OnReady(const epoll_event& ready);
  void PushEvent(const UdsEvent& event);
  bool TakeEvent(NetEvent* out);
  uint32_t SlotOf(const UdsPeerRecord& peer) const;

  // uds_peers.cc
  void AcceptSome();
  UdsPeerRecord* AddPeer(int fd);
  void WatchTimer();
  void CheckFirstWords();
  void SetTimer(uint64_t at_us);
  void Watch(UdsPeerRecord* peer);
  void Fail(UdsPeerRecord* peer);   // reports kPeerDown once nothing is under way
  void Leave(UdsPeerRecord* peer);  // the end of its socket
  void FinishLeaving(UdsPeerRecord* peer);
  void Free(UdsPeerRecord* peer);

  // uds_messages.cc
  void ReceiveSome(UdsPeerRecord* peer);
  bool ReceiveOne(UdsPeerRecord* peer);  // false: nothing more now
  void HandleFrame(UdsPeerRecord* peer, const UdsFrame& frame, int fd);
  void Malformed(UdsPeerRecord* peer);
  void TakeMessage(UdsPeerRecord* peer, Bytes message);
  bool CanReceive(const UdsPeerRecord& peer) const;
  BlockResult QueueFrame(UdsPeerRecord* peer, Bytes header, Bytes body);
  void FlushSends(UdsPeerRecord* peer);
  void DropSends(UdsPeerRecord* peer);
  void ResumeReading();

  // uds_lend.cc
  UdsLentFile* FindLent(uint64_t name);
  absl::Status WaitFor(uint64_t until_us, short events);
  absl::Status Give(const UdsFrame& frame, int fd, uint64_t timeout_us);
  absl::StatusOr<uint64_t> FileFor(const SharedRange& range);
  absl::StatusOr<uint64_t> GiveNew(UdsLentFile file, UdsFrame frame, int fd);
  Region Named(const UdsRkey& place, const RegionRange& range);
  void TakeAnswer(UdsPeerRecord* peer, const UdsFrame& frame);

  // uds_files.cc
  void Accept(UdsPeerRecord* peer, const UdsFrame& frame, int fd);
  UdsRefusal MapFile(UdsPeerRecord* peer, const UdsFrame& frame, int fd);
  void ForgetFile(UdsPeerRecord* peer, uint64_t file);
  absl::Status Resolve(const UdsPeerRecord& peer, const RegionSet& set, UdsSet* out) const;
  void ForgetAllFiles(UdsPeerRecord* peer);

  // uds_copies.cc
  static void RunCopy(void* arg, uint32_t worker) noexcept;
  static void RunUnmap(void* arg, uint32_t worker) noexcept;
  void EndCopy(UdsCopy* copy);
  void TakeJobs();
  void UnmapElsewhere(const UdsMapping& mapping);

  const UdsOptions options_;
  SteadyClock clock_;
  const int epoll_;
  const int timer_;
  int listen_ = -1;
  int spare_fd_ = -1;  // given up to refuse a connection when there is no descriptor left
  MessageSlots receive_slots_;
  MessageSlots send_slots_;
  std::unique_ptr<uint8_t[]> packet_;  // room for the largest, and one byte that must stay unused
  std::vector<UdsPeerRecord> peers_;
  std::vector<UdsFile> files_;
  std::vector<uint32_t> free_files_;
  std::vector<UdsCopy> copies_;
  std::vector<uint32_t> free_copies_;
  std::vector<UdsLentFile> lent_;  // the worker's half
  uint64_t last_file_ = 0;
  PeerId daemon_;                  // the worker's half: the connection
  std::vector<PeerId> unheard_;    // open and silent so far, oldest first
  std::vector<uint32_t> stopped_;  // peer slots that are not read for want of room
  std::vector<uint32_t> polled_;   // receive slots of the events of the last Poll
  BoundedRing<UdsEvent> events_;
  uint64_t serial_ = 0;
  uint32_t transfers_ = 0;  // begun and not complete, holds included
  NetStats stats_;
  std::unique_ptr<WorkerPool> pool_;  // last: its threads end first
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UDS_CORE_H_
