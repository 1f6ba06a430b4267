// Everything one engine holds. Plain data with invariants kept by engine_impl; sized once from
// EngineLimits. One thread (the shard).
#ifndef CRUMB_CACHESVC_CORE_ENGINE_STATE_H_
#define CRUMB_CACHESVC_CORE_ENGINE_STATE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cachesvc/core/disk_ops.h"
#include "cachesvc/core/engine.h"
#include "cachesvc/core/engine_books.h"
#include "cachesvc/core/ops.h"
#include "cachesvc/core/page_moves.h"
#include "cachesvc/core/session.h"
#include "cachesvc/core/timer_heap.h"
#include "cachesvc/net/gpu_memory.h"
#include "cachesvc/net/mapped_memory.h"
#include "gpu/codec/gpu_link.h"
#include "gpu/pool/staging_area.h"

namespace crumb::core {

inline constexpr uint32_t kEventsPerPoll = 64;
inline constexpr uint32_t kFlushesMax = 8;     // sweeping at once
inline constexpr uint32_t kAppendsMax = 256;   // disk writes in flight, however many the log takes
inline constexpr uint32_t kReadsMax = 256;     // disk reads in flight
inline constexpr uint32_t kDemotionsMax = 32;  // in flight
inline constexpr uint32_t kMovesMax = 128;     // between HBM and DRAM, in flight
inline constexpr uint64_t kInlineBytesMax = 20 * 1024;  // of a page that the shard copies itself
inline constexpr uint64_t kInlineBytesPerTurn = 256 * 1024;
inline constexpr uint64_t kRetryUs = 1000;  // how soon refused work is tried again at the latest

// Whether a slot could be had: it was, it will be, it cannot be.
enum class Grant : uint8_t { kGot, kWait, kNever };
// What room is wanted for: a slot of a class and kind, for a block or for a demotion.
struct RoomWanted {
  uint64_t bytes = 0;
  SlabKind kind = SlabKind::kLasting;
  uint32_t demotion = kNoId;
};
// Whether a key has an entry: it has, it has none, one that is just being forgotten.
enum class Live : uint8_t { kYes, kNo, kLater };
enum class Way : uint8_t { kPull, kPush };
struct TransferPlan {
  Way way = Way::kPull;
  MutableBytes local;
  uint32_t tokens = 0;
};

struct PolledEvents {
  std::array<NetEvent, kEventsPerPoll> events;
  size_t count = 0;
};

struct EngineState : EngineBooks {
  EngineState(const EngineOptions& engine_options, EngineBooks books);

  uint64_t now() const { return options.clock->now_us(); }
  PagePool& pool() const { return *options.pool; }
  uint32_t FindPeer(uint32_t transport, PeerId id) const;
  Session* FindSession(SessionId id) const;

  const EngineOptions options;
  SegmentLog* log = nullptr;
  std::vector<Transport*> transports;
  std::vector<MappedMemory*> mapped;  // by transport; null: what its peers lend is not mapped
  std::vector<GpuMemory*> gpus;       // by transport; null: its peers lend no GPU memory
  std::vector<GpuLink*> links;        // with work in flight
  std::array<GpuDone, kEventsPerPoll> gpu_done;
  size_t gpu_done_count = 0;
  std::vector<PolledEvents> polled;  // by transport
  std::array<uint64_t, kEventsPerPoll> jobs_done{};
  size_t jobs_done_count = 0;
  std::array<LogEvent, kEventsPerPoll> log_events;
  size_t log_event_count = 0;
  mutable int epoll_fd = -1;

  absl::flat_hash_map<uint32_t, std::shared_ptr<const Binding>> bindings;  // by handle
  // The same by identity and tenant.
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, std::shared_ptr<const Binding>> layouts;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Session>> sessions;
  std::vector<std::unique_ptr<Session>> closing;  // gone, but for their pins
  absl::flat_hash_map<std::pair<uint32_t, uint64_t>, uint32_t> peer_ids;
  // Of DRAM's raw pages on the link that lowers, by identity and part; kNoId: it has no room.
  absl::flat_hash_map<std::pair<uint64_t, uint32_t>, uint32_t> raw_tables;
  absl::flat_hash_map<BlockKey, uint32_t, BlockKeyHash> leaders;        // puts and deletes, by key
  absl::flat_hash_map<std::pair<uint64_t, EntryId>, uint32_t> pin_ids;  // by session and entry

  absl::flat_hash_map<EntryId, uint32_t> client_pins;  // how many; of entries that are pinned

  WorkerScratch scratch;
  StagingArea gpu_stage;  // of EngineOptions::gpu_stage, in units of kPageAlignment

  Slab<Peer> peers;
  Slab<Request> requests;
  Slab<Block> blocks;
  Slab<DiskAppend> appends;
  Slab<DiskRead> reads;
  Slab<Demotion> demotions;
  Slab<Move> moves;
  Slab<FlushOp> flushes;
  Slab<PinRecord> pins;
  TimerHeap request_timers, pin_timers;

  List<Block> ready, parked, slot_wait, transfer_wait, queue_wait, disk_wait;
  List<Block> prefetch_wait;                 // for a read to end, or for cold room
  List<Block> fresh_wait;                    // for room in the fresh share
  List<Block> share_wait;                    // their peer holds more than its share
  List<Block> gate_wait;                     // for what their worker's GPU does first
  std::array<List<Block>, 2> stage_wait;     // by StageHalf
  const List<Block>* retrying = nullptr;     // the list whose first block is being run
  std::vector<uint32_t> unsent, unverified;  // requests whose reply the peer's queue refused; reads
                                             // that wait for room in the device queue
  std::vector<ForgetOp> forgets;
  std::vector<uint64_t> unknown_layouts;  // identities that put pages without a position
  std::vector<std::vector<Segment>> spare_segments;
  std::vector<MappedHold> spare_lent;
  uint64_t inline_bytes_left = 0;  // that this turn may still copy and hash itself
  std::vector<uint8_t> reply_buffer;

  bool flush_blocks_appends = false;  // the log has not yet taken a flush of everything
  DrainOp drain;
  bool draining = false;
  uint32_t evictions = 0;                  // appends for eviction in flight
  uint32_t transfers = 0, prefetches = 0;  // in flight; the second: reads
  uint64_t prefetched_bytes = 0;           // in memory, raised by prefetch and not yet got
  uint32_t transient_slots = 0;            // main slots that operations in flight hold or pin
  uint32_t lowering = 0;                   // moves to DRAM
  uint64_t lowering_bytes = 0;             // of HBM, that they will free
  uint64_t hbm_short = 0;                  // a page of so many bytes found no room in HBM
  uint32_t clear_owner = kNoId;            // the demotion that a run of slabs is being emptied for
  EntryId index_hand = 0;                  // where a full index looks for a page on disk to forget
  EngineStats counts;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_ENGINE_STATE_H_
