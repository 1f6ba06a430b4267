// What is in flight: a Request per wire message, a Block per block of a put, get or delete, and
// the disk operations they share. Plain data in slabs; the state machines are in put.cc, get.cc,
// prefetch.cc, erase.cc and disk.cc. One thread (the shard), except that Block::job and
// DiskRead::job are read and written by a worker between Submit and the return of their token.
#ifndef CRUMB_CACHESVC_CORE_OPS_H_
#define CRUMB_CACHESVC_CORE_OPS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "cachesvc/base/wire.h"
#include "cachesvc/core/binding.h"
#include "cachesvc/core/index.h"
#include "cachesvc/core/page_job.h"
#include "cachesvc/core/slab.h"
#include "cachesvc/net/gpu_memory.h"

namespace crumb::core {

// A region set in a peer's GPU memory, as kernels name it.
struct GpuSet {
  uint32_t region_set = 0;
  GpuLink* link = nullptr;               // there while the peer is, and while a hold is
  uint64_t address = 0, slot_bytes = 0;  // contiguous sets: of slot 0, of each
  std::vector<uint32_t> tables;  // by part: of GpuLink::AddPlaces; kNoId: the part is not here
};

struct Peer {
  bool used = false;
  uint32_t generation = 0;
  uint32_t transport = 0;
  PeerId id;
  SessionId session;
  std::vector<uint32_t> requests;  // in flight; at most requests_per_peer_max
  // What its blocks hold. No peer may hold more of a thing than is left of it for all others.
  uint32_t blocks = 0, transfers = 0;
  std::array<uint64_t, 2> staged_bytes{};  // by StageHalf
  std::vector<GpuSet> gpu_sets;
};

struct Request {
  bool used = false;
  uint32_t generation = 0;
  uint32_t peer = kNoId;  // kNoId: gone, nobody to answer
  WireHeader header;
  EngineOp op = EngineOp::kPut;
  uint64_t received_us = 0;
  bool overdue = false;  // its deadline has passed
  uint32_t blocks_left = 0;
  Tier deepest = Tier::kNone;
  std::vector<uint32_t> blocks;  // ids by index; kNoId once answered
  std::vector<WireBlockReply> replies;
};

// What a block does next when it runs.
enum class Step : uint8_t {
  kPutStart,   // rules, one writer per key
  kPutStage,   // staging for the raw page
  kPutSlot,    // slot for the packed page, evicting if need be
  kPutPull,    // worker's memory -> us
  kPutEncode,  // device queue
  kPutPublish,
  kPutReplace,  // the new page must be on disk before it replaces one that is
  kPutDurable,
  kGetStart,
  kGetLoad,       // NVMe -> memory, shared with others
  kGetLoadApart,  // NVMe -> staging, when the pool is full of pins
  kGetStage,
  kGetWork,  // device queue
  kGetPush,  // us -> worker's memory
  kPrefetchStart,
  kEraseStart,
  kEraseDisk,
};

// At which precision a put is stored, and for how long.
enum class Place : uint8_t {
  kFinal,  // as it will stay
  kSink,   // raw for good
  kFresh,  // raw for now
};

// Work that will report back and keeps the block's memory in use until it does.
enum class Pending : uint8_t { kNone, kTransfer, kJob, kGpu, kLoadApart, kAppend, kErase };

struct Block {
  bool used = false;
  uint32_t generation = 0;
  uint32_t prev = 0, next = 0;
  List<Block>* list = nullptr;  // where it waits; null while running or pending
  uint32_t id = 0;

  uint32_t request = kNoId;  // kNoId: answered, only cleaning up
  uint16_t index = 0;
  WireType type = WireType::kPut;
  PageForm form = PageForm::kRaw;
  Step step = Step::kPutStart;
  Pending pending = Pending::kNone;
  BlockResult doom = BlockResult::kOk;  // answer with this once the transfer ended
  bool durable = false, wait_for_put = false;
  bool leading = false;  // owns its key among puts and deletes
  bool pulled = false;   // the raw page is in staging
  bool flushed = false;  // a flush came after it started: it must not publish
  bool page_owned = false, page_pinned = false;
  bool promotes = false;   // what it gets from NVMe comes to memory
  bool dram_only = false;  // its page may not lie in HBM
  bool exists = false;     // kPutDurable of a page that was there already
  bool seen = false;       // its page was there for all to see, and is put again to be durable
  bool write_failed = false;

  uint32_t peer = kNoId, peer_generation = 0;
  uint32_t region_set = 0;
  SessionId session;
  std::shared_ptr<const Binding> binding;
  BlockKey key, parent;
  WireBlock wire;
  uint32_t known_end = 0;  // of its chain, as far as its request says; 0: it does not
  std::array<uint32_t, kSlotsPerBlockMax> slots{};
  uint32_t slot_count = 0;

  List<Block> followers;  // puts and deletes of the key that wait for this one
  SlotId staging, staging2, page;
  uint32_t gpu_stage = kNoId;       // where it passes through EngineState::gpu_stage
  StageHalf half = StageHalf::kIn;  // of staging and staging2
  uint64_t slot_bytes = 0;          // of the slot it waits for
  SlabKind slot_kind = SlabKind::kLasting;
  uint64_t starved_us = 0;  // since when there is nothing to evict for it; 0: there is
  uint32_t rung = 0;        // of the ladder
  Place place = Place::kFinal;
  EntryId entry = kNoId;
  uint32_t entry_generation = 0;
  std::vector<Segment> segments;
  MappedHold lent;              // held for the job, or empty
  GpuHold gpu;                  // held for work on the peer's GPU, or empty
  uint64_t gpu_ticket = 0;      // how far that must have come first; 0: no matter
  uint32_t lent_transport = 0;  // whose they are
  PageJob job;

  WireBlockReply reply;
  uint8_t lossy_depth = 0;
  uint64_t phase_us = 0;  // when the present phase began
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_OPS_H_
