// What is in flight between the engine and the log, shared by the blocks that wait for it; and the
// tokens under which work comes back. Plain data; the paths are in disk.cc. One thread (the
// shard), except that DiskRead::job is a worker's between Submit and the return of its token.
#ifndef CRUMB_CACHESVC_CORE_DISK_OPS_H_
#define CRUMB_CACHESVC_CORE_DISK_OPS_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "cachesvc/core/index.h"
#include "cachesvc/core/ops.h"
#include "cachesvc/core/page_job.h"
#include "cachesvc/core/slab.h"

namespace crumb::core {

// Who wants a page read: a get or a prefetch; else nobody, and it goes to staging.
enum class ReadFor : uint8_t { kPage, kRescue, kScrub };

// A write of a page to the log. The slot is pinned until it ends.
struct DiskAppend {
  bool used = false;
  uint32_t generation = 0;
  BlockKey key;
  EntryId entry = kNoId;  // kNoId: of a put that is not published yet (`block`)
  uint32_t entry_generation = 0;
  uint32_t block = kNoId;
  uint32_t demotion = kNoId;  // whose new slot it writes, while the entry has the old one
  uint32_t rescue = kNoId;    // that it ends; else the slot is pinned
  SlotId slot;
  bool durable = false;
  bool evict = false;
  uint64_t page_bytes = 0;
  uint32_t flush = kNoId;  // counted by this flush once the entry is gone
  uint64_t started_us = 0;
  List<Block> waiters;
};

// A read of a page from the log into a slot that becomes the entry's when it verified.
struct DiskRead {
  bool used = false;
  uint32_t generation = 0;
  BlockKey key;
  EntryId entry = kNoId;
  uint32_t entry_generation = 0;
  uint32_t block = kNoId;  // read apart, for this block alone
  DiskLocation location;
  SlotId slot;
  ReadFor purpose = ReadFor::kPage;
  uint32_t rescue = kNoId;
  bool prefetch = false;  // counted in EngineState::prefetches
  uint64_t started_us = 0;
  PageJob job;
  List<Block> waiters;
};

struct FlushOp {
  bool used = false;
  uint32_t generation = 0;
  bool everything = false;
  bool by_tenant = false, by_identity = false;
  uint64_t tenant_prefix = 0, identity_prefix = 0;
  bool log_asked = false, log_done = false;  // `everything` only
  uint32_t cursor = 0;                       // entries below it are swept, and others came after
  uint32_t cursor_end = 0;
  uint32_t waiting_for = 0;  // erases and appends in flight
  // What made pages go before it came, and is not stable yet: flushes, by number; tombstones and
  // reclaimed segments, up to these counts; a segment being retired; tombstones that the log has no
  // room for.
  uint8_t behind = 0;
  uint64_t erases_before = 0, reclaims_before = 0;
  bool retiring_before = false;
  bool forgets_before = false;
  BlockResult worst = BlockResult::kOk;
  std::function<void(absl::Status)> done;
};

struct DrainOp {
  bool active = false;
  uint64_t deadline_us = 0;
  uint32_t hbm_cursor = 0, cursor = 0;
  std::function<void()> done;
};

// A record that must be forgotten on disk as soon as the log takes the tombstone.
struct ForgetOp {
  BlockKey key;
  DiskLocation location;
  uint32_t flush = kNoId;
};

// Tokens of the queue, the log and the transports: what, which, and which life of it.
enum class TokenKind : uint8_t {
  kBlock = 1,
  kRead = 2,
  kAppend = 3,
  kFlush = 4,
  kFlushErase = 5,
  kDemotion = 6,
  kMove = 7,
  kResize = 8
};
constexpr uint64_t MakeToken(TokenKind kind, uint32_t id, uint32_t generation) {
  return static_cast<uint64_t>(kind) << 56 | uint64_t{generation & 0xffffff} << 32 | id;
}
constexpr TokenKind KindOf(uint64_t token) { return static_cast<TokenKind>(token >> 56); }
constexpr uint32_t IdOf(uint64_t token) { return static_cast<uint32_t>(token); }
constexpr bool TokenIs(uint64_t token, uint32_t generation) {
  return (token >> 32 & 0xffffff) == (generation & 0xffffff);
}

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_DISK_OPS_H_
