// The engine's paths over its state, one file per path, named in front of its methods.
// INVARIANT: a block is in exactly one of: a waiting list, pending work, running, free.
// INVARIANT: an entry's location holds the same image as its slot.
#ifndef CRUMB_CACHESVC_CORE_ENGINE_IMPL_H_
#define CRUMB_CACHESVC_CORE_ENGINE_IMPL_H_

#include "cachesvc/core/engine_disk.h"

namespace crumb::core {

class EngineImpl : public EngineDisk, public SegmentLog::RecoverySink {
 public:
  using EngineDisk::EngineDisk;
  void Expect(uint64_t records) override;
  void OnRecords(absl::Span<const RecoveredRecord> records) override;
  int Poll();
  int RunReady();
  // messages.cc, peers.cc
  absl::Status AttachPeer(SessionId session, uint32_t transport, PeerId peer);
  uint32_t Introduce(uint32_t transport, PeerId id, const WireHeader& header);
  void DropPeer(uint32_t peer);
  void OnNetEvent(uint32_t transport, const NetEvent& event);
  void OnMessage(uint32_t transport, PeerId id, Bytes message);
  void StartRequest(uint32_t peer, const WireRequest& message);
  BlockResult CheckRequest(uint32_t peer, const WireRequest& message) const;
  uint32_t MakeRequest(uint32_t peer, const WireHeader& header);
  void MakeBlock(uint32_t request, const WireRequest& message, uint32_t at, uint32_t known_end);
  void Refuse(uint32_t peer, const WireHeader& header, BlockResult result);
  bool TrySend(const Request& request);
  void RetryUnsent();
  void CompleteRequest(uint32_t request);
  void FreeRequest(uint32_t request);
  void CancelRequest(uint32_t request, BlockResult result);
  void DropStalledPeer(uint32_t request);
  // blocks.cc
  void Run(Block& block) override;
  bool RunStep(Block& block);
  int RetryList(List<Block>& list);
  int RetryShares();
  void Finish(Block& block, BlockResult result) override;
  void Cleanup(Block& block) override;
  void Expire(Block& block, BlockResult result);
  void RunJob(Block& block) override;
  void OnJobDone(uint64_t token);
  void EndJob(Block& block);
  // put.cc; steps return true when the block goes on at once
  bool PutStart(Block& block);
  bool PutStage(Block& block);
  bool PutSlot(Block& block);
  bool PutPull(Block& block);
  bool PutEncode(Block& block);
  bool PutPublish(Block& block);
  bool PutReplace(Block& block);
  bool PutDurable(Block& block);
  void OnPutJob(Block& block) override;
  BlockResult CheckParent(Block& block, const Session& session);
  BlockResult ExpectPage(Block& block);
  bool PutExists(Block& block);
  bool Publish(Block& block, const DiskLocation& location, bool durable);
  void DescribePut(Block& block);
  bool ClimbLadder(Block& block, uint32_t rung);
  // get.cc
  bool GetStart(Block& block);
  bool GetLoad(Block& block);
  bool GetLoadApart(Block& block);
  bool StaysOnNvme(Block& block, EntryId id);
  bool GetStage(Block& block);
  bool GetWork(Block& block);
  bool GetPush(Block& block);
  void GetFromMemory(Block& block, EntryId id, Tier tier);
  void DescribeHit(Block& block, const Entry& entry, Tier tier);
  void OnGetJob(Block& block);
  void OnGetPushed(Block& block) override;
  void Park(Block& block);
  void WakeParked(const BlockKey& key);
  // prefetch.cc
  bool PrefetchStart(Block& block);
  bool PrefetchRead(Block& block, EntryId id);
  bool EndPrefetch(Block& block, BlockResult result);
  Grant AcquireColdSlot(Block& block, uint64_t bytes);
  void NotePrefetched(EntryId id);
  // lookup.cc, erase.cc
  void RunLookup(uint32_t request, const WireRequest& message);
  bool EraseStart(Block& block);
  bool EraseDisk(Block& block);
  void EraseUnknown(Block& block);
  // transfer.cc
  bool PrepareTransfer(Block& block, const TransferPlan& plan, Transfer* transfer);
  bool BeginTransfer(Block& block, BlockResult begun) override;
  void StartTransfer(Block& block, const TransferPlan& plan);
  bool HoldLent(Block& block, const TransferPlan& plan);
  bool EndLent(Block& block);
  void OnTransferDone(uint64_t token, BlockResult result);
  // slots.cc
  Grant AcquireSlot(Block& block, uint64_t bytes, SlabKind kind = SlabKind::kLasting);
  Grant AcquireFresh(Block& block, uint64_t bytes);
  Grant MakeRoom(const RoomWanted& wanted) override;
  Grant MakeRoomByClearing(const RoomWanted& wanted);
  Grant ClearSlot(SlotId slot, uint32_t demotion);
  Grant EvictOne(EntryId id);
  bool GoesToNvme(EntryId id) const;
  Grant EvictFresh(EntryId id, uint32_t wanted_by);
  bool AcquireStaging(Block& block, uint64_t bytes, StageHalf half);
  void ForgetPage(EntryId id) override;
  EntryId InsertEntry(const BlockKey& key);
  void KeepEvictionsAhead();
  // disk.cc
  BlockResult StartAppend(EntryId id, bool durable, bool evict);
  BlockResult StartBlockAppend(Block& block, bool durable);
  void OnLogEvent(const LogEvent& event);
  void OnAppended(const LogEvent& event);
  void EndBlockAppend(DiskAppend& append, const LogEvent& event);
  void EndEntryAppend(DiskAppend& append, const LogEvent& event);
  void ForgetRecord(const BlockKey& key, const DiskLocation& location, uint32_t flush) override;
  void RetryForgets();
  BlockResult StartRead(EntryId id, SlotId slot, Block* apart);
  void OnRead(const LogEvent& event);
  void VerifyRead(uint32_t id);
  void RetryUnverified();
  void EndRead(uint32_t id, BlockResult result);
  void EndReadApart(DiskRead& read, BlockResult result);
  void StartOver(Block& block, List<Block>& list);
  void WaitForSuccessor(uint32_t id, uint32_t append);
  void Promote(DiskRead& read);
  void OnReclaimed(const LogEvent& event);
  // flush.cc, drain.cc, pins.cc
  Live FindLive(const BlockKey& key, EntryId* id) override;
  bool Forget(EntryId id, uint32_t flush);
  bool IsSwept(EntryId id, uint32_t flush_id) const;
  bool FlushMatches(EntryId id, uint32_t flush_id) const;
  void SpareFromFlushes(EntryId id);
  void StartFlush(const FlushRequest& request, std::function<void(absl::Status)> done);
  int RunFlushes();
  void QueueBehind(uint32_t id);
  bool IsBehind(FlushOp* flush) const;
  void LetFlushesGoOn(uint32_t ended, BlockResult worst);
  void AskLogToFlush(uint32_t id);
  void EndFlushIfDone(uint32_t id);
  void StartDrain(uint64_t deadline_us, std::function<void()> done);
  int RunDrain();
  BlockResult PinBlock(Session& session, const Binding& binding, const Digest& digest,
                       uint64_t ttl_us);
  BlockResult PinOne(Session& session, EntryId id, uint64_t ttl_us);
  void Unpin(uint32_t pin);
  int RunTimers();
  int RunClosing();
  EngineStats Stats() const;
};
}  // namespace crumb::core
#endif  // CRUMB_CACHESVC_CORE_ENGINE_IMPL_H_
