// lookup: where each page is, in order; pins nothing, touches nothing, moves nothing. Works in
// passes over the batch (keys, table cells, entries, answers), because what it costs is waiting for
// the cipher and for memory, and both overlap within a pass.
#include "cachesvc/core/engine_impl.h"

namespace crumb::core {
namespace {

// A look-up promises what a get of the raw page would find.
bool CanLookUp(const Binding& binding, const WireBlock& wire, const Index& index, EntryId id) {
  if (wire.token_count != 0 && wire.token_count != index.at(id).token_count) return false;
  return binding.FindReader(wire.part, index.kind(id).codec_id) != nullptr;
}

// Tokens at the end of a prefix that are raw. A block's tokens count once all its parts that were
// asked for, one behind the other, are raw.
class RawTail {
 public:
  uint64_t Add(Precision precision, uint32_t tokens, bool last_part) {
    raw_ = raw_ && precision == Precision::kRaw;
    if (!last_part) return tail_;
    tail_ = raw_ ? tail_ + tokens : 0;
    raw_ = true;
    return tail_;
  }

 private:
  uint64_t tail_ = 0;
  bool raw_ = true;  // the parts of this block so far
};

using Keys = std::array<BlockKey, kBlocksPerRequestMax>;

// The keys of all blocks, and their way through the index begun. Blocks that are not sane get keys
// too, which nobody looks up.
void PrepareKeys(const Binding& binding, const Index& index, const WireRequest& message,
                 Keys* keys) {
  const uint32_t count = message.header.block_count;
  for (uint32_t i = 0; i < count; ++i) {
    const WireBlock wire = message.block(i);
    (*keys)[i] = KeyDeriver::Plain(wire.digest, wire.part);
  }
  binding.keys().DeriveInPlace(absl::MakeSpan(keys->data(), count));
  for (uint32_t i = 0; i < count; ++i) index.PrefetchCell((*keys)[i].prefix64());
  for (uint32_t i = 0; i < count; ++i) index.PrefetchEntry((*keys)[i].prefix64());
}

}  // namespace

void EngineImpl::RunLookup(uint32_t request_id, const WireRequest& message) {
  Request& request = requests[request_id];
  const WireHeader& header = message.header;
  const std::shared_ptr<const Binding> binding =
      FindBinding(header.layout_handle, *FindSession(peers[request.peer].session));
  const bool stop_at_gap = (header.flags & kWireFlagStopAtGap) != 0;
  bool stopped = false;
  RawTail tail;
  Keys keys;
  PrepareKeys(*binding, index, message, &keys);
  for (uint32_t i = 0; i < header.block_count; ++i) {
    const WireBlock wire = message.block(i);
    WireBlockReply& reply = request.replies[i];
    EntryId id = kNoId;
    if (stopped) {
      reply.result = BlockResult::kMiss;
    } else if (wire.digest == Digest{} || wire.part >= binding->part_count()) {
      reply.result = BlockResult::kInvalid;
    } else if (FindLive(keys[i], &id) == Live::kYes &&
               index.kind(id).lossy_depth <= options.max_lossy_depth &&
               CanLookUp(*binding, wire, index, id)) {
      const PageKind& kind = index.kind(id);
      reply = {.result = BlockResult::kOk,
               .tier = index.at(id).tier(),
               .precision = kind.precision,
               .lossy_depth = kind.lossy_depth,
               .value_bytes = kind.raw_bytes};
    } else {
      reply.result = BlockResult::kMiss;
    }
    const bool last_part =
        i + 1 == header.block_count || message.block(i + 1).digest != wire.digest;
    if (reply.result == BlockResult::kOk) {
      reply.checksum = tail.Add(reply.precision, index.at(id).token_count, last_part);
    } else {
      tail = {};
    }
    if (reply.result != BlockResult::kOk && stop_at_gap) stopped = true;
    ++counts.blocks[static_cast<size_t>(EngineOp::kLookup)][static_cast<size_t>(reply.result)];
    ++counts.lookup_blocks[static_cast<size_t>(reply.tier)];
    request.deepest = std::max(request.deepest, reply.tier);
  }
  request.blocks_left = 0;
  CompleteRequest(request_id);
}

}  // namespace crumb::core
