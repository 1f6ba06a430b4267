// The running log: a slab of operations on the device, and small machines that each move one thing
// (sealing, preparing the next segment, tombstones, superblock, quarantine) when Advance finds that
// it can move. One thread; no allocation after construction. Included by storage/segment/*.cc only.
#ifndef CRUMB_STORAGE_SEGMENT_SEGMENT_LOG_IMPL_H_
#define CRUMB_STORAGE_SEGMENT_SEGMENT_LOG_IMPL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cachesvc/base/clock.h"
#include "storage/device/aligned_buffer.h"
#include "storage/device/index_queue.h"
#include "storage/segment/fixed_queue.h"
#include "storage/segment/log_ops.h"
#include "storage/segment/log_state.h"
#include "storage/segment/segment_log.h"

namespace crumb {

inline constexpr uint32_t kFlushesMax = 16;
inline constexpr uint32_t kOwnOpsMax =
    16;  // mark, sync or footer, tombstones, superblock, retire, resize
inline constexpr uint32_t kForgivenPerWrites = 256;  // one device error per so many good writes

struct SegmentLog::Impl : LogOps {
  Impl(std::unique_ptr<LogState> state_in, BlockDevice* device_in, const Clock* clock_in);
  ~Impl();

  // segment_log.cc: operations, events, progress, shutdown
  void Issue(const Op& op);
  void PassToDevice();
  void DrainDevice();
  void OnCompletion(const IoCompletion& completion);
  void Advance();
  void Emit(const LogEvent& event);
  size_t TakeEvents(absl::Span<LogEvent> out);
  bool idle() const;
  bool WaitUntilIdle();
  absl::Status Close();
  SegmentLogStats Stats() const;
  bool MayWrite() const;
  void OnDeviceError();
  void OnWriteError();
  void OnWriteOk();

  // log_append.cc: appending, sealing, preparing and reclaiming segments
  BlockResult Append(MutableBytes slot, bool durable, uint64_t token);
  void OnAppended(const Op& op, int error);
  bool Fits(uint32_t blocks, uint32_t records, uint32_t tombstones) const;
  BlockResult Reserve(uint32_t blocks, uint32_t records, uint32_t tombstones);
  void OpenReady();
  void StartSeal();
  void AdvanceSeal();
  void OnSealSynced(const Op& op, int error);
  void OnFooter(const Op& op, int error);
  void PrepareNext();
  void OnMark(const Op& op, int error);
  void ReclaimOldest();
  void MaybeFree(uint32_t segment);
  FooterBuilder* BuilderOf(uint32_t segment);

  // log_read.cc: reading, verifying, quarantine
  Record* FindRecord(const BlockKey& key, const DiskLocation& location);
  Record* FindLive(const BlockKey& key, const DiskLocation& location);
  BlockResult Read(const ReadRequest& request);
  size_t Records(uint32_t index, uint32_t offset_blocks, absl::Span<LogRecord> out) const;
  std::optional<DiskLocation> NextReclaimed() const;
  void OnRead(const Op& op, int error);
  void Corrupt(const BlockKey& key, const DiskLocation& location);
  void AdvanceQuarantine();
  void OnRetired(const Op& op, int error);

  // log_resize.cc
  BlockResult Resize(uint64_t bytes, uint64_t token);
  uint32_t Limit() const;
  void AdvanceResize();
  void AdvanceBlank();
  void OnBlank(const Op& op, int error);
  bool IsVacated();
  bool CarryTombstones();
  void ReadForCarry(uint64_t at, uint64_t bytes);
  void OnCarry(const Op& op, int error);
  bool TakeMark();
  bool TakeEntries();
  void TakeScanned(int error);
  void OnResizeStable();
  void GiveUp();
  void SetSegmentCount(uint32_t count);
  void EndResize(BlockResult result);

  // log_forget.cc: tombstones, flush
  BlockResult Erase(const BlockKey& key, const DiskLocation& location, uint64_t token);
  void Forget(uint32_t segment, Record* record, uint64_t token);
  void PushTombstone(const BlockKey& key, uint64_t token);
  bool MayComeBack(const BlockKey& key) const;
  void LoseErase(uint64_t log_sequence);
  void AdvanceErases();
  void EndErases(uint32_t count, BlockResult result);
  void OnTombstones(const Op& op, int error);
  BlockResult Flush(uint64_t token);
  void DropSegment(uint32_t segment);
  bool HeadIsBehind() const;
  void AdvanceSuperblock();
  void WriteSuperblockCopy();
  void OnSuperblock(int error);

  std::unique_ptr<LogState> state;
  BlockDevice* device;
  const Clock* clock;
  std::vector<Op> ops;
  IndexQueue free_ops, pending_ops;  // pending: not yet taken by the device
  FixedQueue<LogEvent> events;
  FixedQueue<PendingErase> erases;
  FixedQueue<uint64_t> flushes;  // tokens
  IndexQueue quarantine;         // segments to retire
  AlignedBuffer mark_block, retire_block, tombstone_block, superblock_block;
  Report report;
  Resizing resizing;

  uint32_t reads = 0, appends = 0, erases_out = 0, flushes_out = 0;  // until their event is taken
  uint32_t sealing = kNoSegment, preparing = kNoSegment, retiring = kNoSegment;
  uint32_t preparing_generation = 0;
  bool want_next = false;  // somebody waits for a segment to open
  bool closed = false;
  uint32_t tombstones_in_flight = 0;
  bool superblock_busy = false;
  uint32_t flushes_in_flight = 0;  // covered by the superblock being written
  uint32_t superblock_copy = 0;
  Superblock head_in_flight;                   // what it says
  Superblock head_stable = state->superblock;  // what both copies say
  uint64_t head_retry_us = 0;                  // not before, after one that failed
  uint64_t reclaims_in_flight = 0;             // covered by it
  uint64_t lost_sequence = 0;  // of the newest tombstone that could not be written; 0: none
  uint32_t errors = 0;
  uint64_t good_writes = 0, off_until_us = 0;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_SEGMENT_LOG_IMPL_H_
