// The seam between the Client and the way its data travels: mapped memory and a unix socket, UCX
// active messages, or gRPC streams. Thread: the Client's. PROMISE: a request that Submit took is
// answered by Poll exactly once, or the plane says lost(); after either, the lent memory it named
// is not touched by this process's side any more.
#ifndef CRUMB_CLIENT_SRC_DATA_PLANE_H_
#define CRUMB_CLIENT_SRC_DATA_PLANE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/wire.h"
#include "client/src/gpu_gate.h"
#include "client/src/lent_memory.h"
#include "client/src/shared_map.h"

namespace crumb::client {

struct PlaneRequest {
  uint64_t id = 0;  // unique among requests in flight
  WireType type = WireType::kGet;
  uint16_t flags = 0;  // kWireFlag*
  PageForm form = PageForm::kRaw;
  bool verify = true;          // get: hash what arrived
  uint32_t layout_handle = 0;  // the daemon's
  uint32_t region_set = 0;
  std::shared_ptr<const LentMemory> memory;  // null: no data moves
  uint64_t gpu_ticket = 0;                   // WireHeader's
  uint32_t deadline_ms = 0;
  uint32_t wait_ms = 0;
  uint32_t grace_ms = 0;
  std::vector<WireBlock> blocks;
  std::vector<uint64_t> raw_bytes;  // length of each value in lent memory; 0: not known yet
  std::vector<uint32_t> slots;      // slots_per_block for each block
  uint32_t slots_per_block = 0;

  absl::Span<const uint32_t> SlotsOf(size_t block) const {
    return absl::MakeConstSpan(slots).subspan(block * slots_per_block, slots_per_block);
  }
  ValuePlace PlaceOf(size_t block, uint64_t bytes) const {
    return {.part = blocks[block].part,
            .slots = SlotsOf(block),
            .bytes = bytes,
            .tokens = blocks[block].token_count};
  }
  // Whether a get may have brought so many bytes.
  bool MayHold(size_t block, uint64_t bytes) const {
    if (bytes == 0 || (form == PageForm::kRaw && bytes != raw_bytes[block])) return false;
    return memory->Fits(PlaceOf(block, bytes));
  }
};

struct PlaneReply {
  uint64_t id = 0;
  bool verified = false;  // the plane itself checked lengths and hashes of what it delivered
  bool unheard = false;   // the plane ended it, at its deadline or cancelled: no word of the daemon
  std::vector<WireBlockReply> blocks;
  std::vector<std::string> notes;  // per block, or empty
};

// Replies whose memory is used again.
class ReplyList {
 public:
  PlaneReply& Next(uint64_t id) {
    if (count_ == replies_.size()) replies_.emplace_back();
    PlaneReply& reply = replies_[count_++];
    reply.id = id;
    reply.verified = false;
    reply.unheard = false;
    reply.blocks.clear();
    reply.notes.clear();
    return reply;
  }
  void Clear() { count_ = 0; }
  size_t size() const { return count_; }
  PlaneReply& at(size_t index) { return replies_[index]; }
  absl::Span<const PlaneReply> all() const { return {replies_.data(), count_}; }

 private:
  std::vector<PlaneReply> replies_;
  size_t count_ = 0;
};

// kAnswer: end it early, its reply is awaited. kAbandon: its time is over; whatever comes of it is
// dropped.
enum class CancelKind : uint8_t { kAnswer, kAbandon };

// Where the codec of a region set runs, and why not elsewhere.
struct CodecPlaced {
  CodecPlace place = CodecPlace::kDaemon;
  std::string note;
};

struct LendOrder {
  uint32_t region_set = 0;
  uint32_t layout_handle = 0;  // the daemon's
  uint64_t value_bytes_max = 0;
  const LentMemory* memory = nullptr;
  const SharedMap* shared = nullptr;
  const GpuGate* gate = nullptr;          // of GPU memory; else null
  const crumb::Layout* layout = nullptr;  // of GPU memory
  CodecPlace place = CodecPlace::kAuto;
};

class Plane {
 public:
  virtual ~Plane() = default;
  // kOk, kBusy, kUnavailable, or kInvalid (can never be sent); only kOk leads to a reply.
  virtual BlockResult Submit(std::shared_ptr<const PlaneRequest> request) = 0;
  // Of a request in flight. True: its lent memory is not touched any more, although its reply may
  // still come (kAbandon only).
  virtual bool Cancel(uint64_t id, CancelKind kind) = 0;
  // Progress; adds what finished.
  virtual void Poll(ReplyList* replies) = 0;
  // Prepares for sleep on wake_fd; false = there is work, poll again.
  virtual bool Arm() = 0;
  virtual int wake_fd() const = 0;
  // When to Poll again although wake_fd says nothing; UINT64_MAX: never.
  virtual uint64_t NextPollUs(uint64_t /*now_us*/) const { return UINT64_MAX; }
  // Makes lent memory reachable under `region_set`. A plane that moves no GPU memory refuses it.
  virtual absl::Status Lend(const LendOrder& order) = 0;
  virtual void Unlend(uint32_t region_set) = 0;
  // Of lent GPU memory.
  virtual CodecPlaced PlacedAt(uint32_t /*region_set*/) const { return {}; }
  // The other side is gone; nothing will be answered any more.
  virtual bool lost() const = 0;
};

// A plane, and what it is: "ucx 1.13.1 (posix, cma)".
struct NamedPlane {
  std::unique_ptr<Plane> plane;
  std::string name;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_DATA_PLANE_H_
