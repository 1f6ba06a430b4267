// Wire messages in, replies out. A malformed message closes its peer; a well-formed one that asks
// for something wrong is refused and harms nobody else.
#include <algorithm>
#include <cstring>

#include "cachesvc/core/engine_impl.h"

namespace crumb::core {
namespace {

bool IsData(WireType type) {
  return type == WireType::kPut || type == WireType::kGet || type == WireType::kLookup ||
         type == WireType::kDelete || type == WireType::kPrefetch;
}

EngineOp OpOf(WireType type) {
  if (type == WireType::kPut) return EngineOp::kPut;
  if (type == WireType::kGet) return EngineOp::kGet;
  if (type == WireType::kPrefetch) return EngineOp::kPrefetch;
  return type == WireType::kLookup ? EngineOp::kLookup : EngineOp::kDelete;
}

// What can be said of a block without looking anything up.
bool BlockIsSane(const WireBlock& wire, const Binding& binding) {
  if (wire.digest == Digest{} || wire.digest == wire.parent) return false;
  if (wire.part >= binding.part_count()) return false;
  const uint32_t page_tokens = binding.part(wire.part).page_tokens;
  if (wire.token_count > page_tokens) return false;
  if (wire.token_start == kTokenStartUnknown) return true;
  return wire.token_start <= kTokenStartUnknown - 1 - page_tokens;
}

// How far the chain of each block of a put reaches within its own request: a prefill brings a whole
// chain at once, and only its newest pages need to be raw. 0: not known. A parent stands before its
// child, and not far.
using Ends = std::array<uint32_t, kBlocksPerRequestMax>;
constexpr uint32_t kParentStepsMax = 64;

void FindEnds(const WireRequest& message, const Binding& binding, Ends* ends) {
  for (uint32_t i = message.header.block_count; i-- > 0;) {
    const WireBlock wire = message.block(i);
    if (wire.part >= binding.part_count() || wire.token_start == kTokenStartUnknown) continue;
    const uint32_t count =
        wire.token_count == 0 ? binding.part(wire.part).page_tokens : wire.token_count;
    const uint64_t end = std::min<uint64_t>(uint64_t{wire.token_start} + count, UINT32_MAX - 1);
    (*ends)[i] = std::max((*ends)[i], static_cast<uint32_t>(end));
    if (wire.parent == Digest{}) continue;
    for (uint32_t step = 1; step <= std::min(i, kParentStepsMax); ++step) {
      const WireBlock before = message.block(i - step);
      if (before.part != wire.part || before.digest != wire.parent) continue;
      (*ends)[i - step] = std::max((*ends)[i - step], (*ends)[i]);
      break;
    }
  }
}

bool MovesData(WireType type) { return type == WireType::kPut || type == WireType::kGet; }

}  // namespace

void EngineImpl::OnNetEvent(uint32_t transport, const NetEvent& event) {
  switch (event.kind) {
    case NetEventKind::kMessage:
      return OnMessage(transport, event.peer, event.message);
    case NetEventKind::kTransferDone:
      return OnTransferDone(event.token, event.result);
    case NetEventKind::kPeerDown:
      if (const uint32_t peer = FindPeer(transport, event.peer); peer != kNoId) DropPeer(peer);
      return;
  }
}

void EngineImpl::OnMessage(uint32_t transport, PeerId id, Bytes message) {
  uint32_t peer = FindPeer(transport, id);
  WireRequest request;
  if (peer == kNoId && mapped[transport] == nullptr) {
    return transports[transport]->ClosePeer(id);  // dropped a moment ago
  }
  if (ParseRequest(message, &request) != WireCheck::kOk) {
    ++counts.bad_messages;
    return peer == kNoId ? transports[transport]->ClosePeer(id) : DropPeer(peer);
  }
  if (peer == kNoId) peer = Introduce(transport, id, request.header);
  if (peer == kNoId) return transports[transport]->ClosePeer(id);
  const WireHeader& header = request.header;
  if (header.session_id != peers[peer].session.value) {
    ++counts.bad_messages;
    return Refuse(peer, header, BlockResult::kInvalid);
  }
  if (IsData(header.type)) return StartRequest(peer, request);
  if (header.type == WireType::kHello) return Refuse(peer, header, BlockResult::kOk);
  if (header.type == WireType::kGoodbye) return DropPeer(peer);
  for (const uint32_t other : peers[peer].requests) {  // kCancel
    if (requests[other].header.request_id != header.request_id) continue;
    ++counts.cancelled;
    return CancelRequest(other, BlockResult::kCancelled);
  }
}

uint32_t EngineState::FindPeer(uint32_t transport, PeerId id) const {
  const auto it = peer_ids.find({transport, id.value});
  return it == peer_ids.end() ? kNoId : it->second;
}

Session* EngineState::FindSession(SessionId id) const {
  const auto it = sessions.find(id.value);
  return it == sessions.end() ? nullptr : it->second.get();
}

std::shared_ptr<const Binding> EngineBasics::FindBinding(uint32_t handle,
                                                         const Session& session) const {
  const auto it = bindings.find(handle);
  if (it == bindings.end() || it->second->tenant() != session.tenant) return nullptr;
  return it->second;
}

BlockResult EngineImpl::CheckRequest(uint32_t peer, const WireRequest& message) const {
  const WireHeader& header = message.header;
  const Session* session = FindSession(peers[peer].session);
  CRUMB_CHECK(session != nullptr);
  if (FindBinding(header.layout_handle, *session) == nullptr) return BlockResult::kInvalid;
  if (MovesData(header.type)) {
    const RegisteredSet* set = session->FindSet(header.region_set);
    if (set == nullptr || set->layout_handle != header.layout_handle) return BlockResult::kInvalid;
    if (header.slots_per_block != set->set.spec().slots_per_block) return BlockResult::kInvalid;
    if (header.form != PageForm::kRaw && !set->set.contiguous()) return BlockResult::kInvalid;
  }
  if (draining) return BlockResult::kUnavailable;
  if (requests.free() == 0) return BlockResult::kBusy;
  if (peers[peer].requests.size() >= options.limits.requests_per_peer_max) {
    return BlockResult::kBusy;
  }
  if (header.type != WireType::kLookup) {
    const uint32_t held = peers[peer].blocks;
    if (blocks.free() < header.block_count) return BlockResult::kBusy;
    if (held > 0 && held + header.block_count > blocks.free()) return BlockResult::kBusy;
  }
  return BlockResult::kOk;
}

void EngineImpl::StartRequest(uint32_t peer, const WireRequest& message) {
  const WireHeader& header = message.header;
  ++counts.requests[static_cast<size_t>(OpOf(header.type))];
  for (const uint32_t other : peers[peer].requests) {
    if (requests[other].header.request_id != header.request_id) continue;
    ++counts.bad_messages;  // two answers of one name could not be told apart
    return DropPeer(peer);
  }
  if (const BlockResult check = CheckRequest(peer, message); check != BlockResult::kOk) {
    return Refuse(peer, header, check);
  }
  const uint32_t request = MakeRequest(peer, header);
  if (header.type == WireType::kLookup) return RunLookup(request, message);
  Ends ends{};
  const Binding& binding = *bindings.at(header.layout_handle);
  if (header.type == WireType::kPut && binding.windows().on) FindEnds(message, binding, &ends);
  for (uint32_t i = 0; i < header.block_count; ++i) MakeBlock(request, message, i, ends[i]);
}

uint32_t EngineImpl::MakeRequest(uint32_t peer, const WireHeader& header) {
  const uint32_t id = requests.Take();
  Request& request = requests[id];
  request.peer = peer;
  request.header = header;
  request.op = OpOf(header.type);
  request.received_us = now();
  request.overdue = false;
  request.blocks_left = header.block_count;
  request.deepest = Tier::kNone;
  request.blocks.assign(header.block_count, kNoId);
  request.replies.assign(header.block_count, WireBlockReply{});
  peers[peer].requests.push_back(id);
  const uint64_t wanted =
      header.deadline_us == 0 ? options.limits.default_deadline_us : uint64_t{header.deadline_us};
  request_timers.Set(id, request.received_us + std::min(wanted, options.limits.deadline_us_max));
  return id;
}

void EngineImpl::MakeBlock(uint32_t request_id, const WireRequest& message, uint32_t at,
                           uint32_t known_end) {
  Request& request = requests[request_id];
  const WireHeader& header = message.header;
  const Peer& peer = peers[request.peer];
  const uint32_t id = blocks.Take();
  CRUMB_CHECK(id != kNoId);
  Block& block = blocks[id];
  const uint32_t generation = block.generation;
  block = Block{};
  block.used = true;
  block.generation = generation;
  block.id = id;
  block.request = request_id;
  block.index = static_cast<uint16_t>(at);
  block.type = header.type;
  block.form = header.form;
  block.durable = (header.flags & kWireFlagDurable) != 0;
  block.wait_for_put = (header.flags & kWireFlagWait) != 0;
  block.peer = request.peer;
  block.peer_generation = peer.generation;
  block.region_set = header.region_set;
  block.session = peer.session;
  block.binding = FindBinding(header.layout_handle, *FindSession(peer.session));
  block.wire = message.block(at);
  block.known_end = known_end;
  block.gpu_ticket = header.gpu_ticket;
  block.slot_count = header.slots_per_block;
  for (uint32_t i = 0; i < header.slots_per_block; ++i) block.slots[i] = message.slot(at, i);
  block.phase_us = request.received_us;
  request.blocks[at] = id;
  ++peers[request.peer].blocks;
  const Binding& binding = *block.binding;
  if (!BlockIsSane(block.wire, binding)) return Finish(block, BlockResult::kInvalid);
  block.key = binding.Key(block.wire.digest, block.wire.part);
  if (block.wire.parent != Digest{}) block.parent = binding.Key(block.wire.parent, block.wire.part);
  if (header.type == WireType::kPut) block.step = Step::kPutStart;
  if (header.type == WireType::kGet) block.step = Step::kGetStart;
  if (header.type == WireType::kPrefetch) block.step = Step::kPrefetchStart;
  if (header.type == WireType::kDelete) block.step = Step::kEraseStart;
  Wait(ready, block);
}

void EngineImpl::Refuse(uint32_t peer, const WireHeader& header, BlockResult result) {
  if (IsData(header.type)) {
    const auto op = static_cast<size_t>(OpOf(header.type));
    counts.blocks[op][static_cast<size_t>(result)] += header.block_count;
  }
  WireHeader reply_header;
  reply_header.type = WireType::kReply;
  reply_header.request_id = header.request_id;
  reply_header.session_id = header.session_id;
  reply_header.block_count = header.block_count;
  const MutableBytes out(reply_buffer.data(), ReplyBytes(header.block_count));
  WriteWireHeader(reply_header, out);
  for (uint32_t i = 0; i < header.block_count; ++i) {
    WriteWireBlockReply(i, WireBlockReply{.result = result}, out);
  }
  FinishWireMessage(out);
  // Every request is answered or its connection ends: nobody waits for an answer that was dropped.
  const BlockResult sent = transports[peers[peer].transport]->Send(peers[peer].id, out);
  if (sent == BlockResult::kBusy) DropPeer(peer);
}

bool EngineImpl::TrySend(const Request& request) {
  WireHeader header;
  header.type = WireType::kReply;
  header.request_id = request.header.request_id;
  header.session_id = request.header.session_id;
  header.block_count = static_cast<uint16_t>(request.replies.size());
  const MutableBytes out(reply_buffer.data(), ReplyBytes(header.block_count));
  WriteWireHeader(header, out);
  for (uint32_t i = 0; i < header.block_count; ++i) WriteWireBlockReply(i, request.replies[i], out);
  FinishWireMessage(out);
  const Peer& peer = peers[request.peer];
  return transports[peer.transport]->Send(peer.id, out) != BlockResult::kBusy;
}

void EngineImpl::RetryUnsent() {
  for (size_t i = unsent.size(); i > 0; --i) {
    const uint32_t id = unsent.front();
    unsent.erase(unsent.begin());
    TrySend(requests[id]) ? FreeRequest(id) : unsent.push_back(id);
  }
}

void EngineImpl::CompleteRequest(uint32_t id) {
  Request& request = requests[id];
  request_timers.Remove(id);
  const uint64_t took_us = now() - request.received_us;
  counts.latency[static_cast<size_t>(request.op)][static_cast<size_t>(request.deepest)].Add(
      took_us);
  if (request.peer != kNoId && !TrySend(request)) {
    unsent.push_back(id);
    request.overdue = true;  // the peer's, from now on: it has a grace to read its replies
    request_timers.Set(id, now() + options.limits.transfer_grace_us);
    return;
  }
  FreeRequest(id);
}

void EngineImpl::FreeRequest(uint32_t id) {
  Request& request = requests[id];
  if (request.peer != kNoId) {
    std::vector<uint32_t>& list = peers[request.peer].requests;
    list.erase(std::find(list.begin(), list.end(), id));
  }
  request_timers.Remove(id);
  requests.Give(id);
}

// Ends what can end now; blocks whose transfer is under way end after it.
void EngineImpl::CancelRequest(uint32_t id, BlockResult result) {
  const uint32_t generation = requests[id].generation;
  const size_t count = requests[id].blocks.size();
  for (size_t i = 0; i < count && requests.Alive(id, generation); ++i) {
    const uint32_t block = requests[id].blocks[i];
    if (block != kNoId) Expire(blocks[block], result);
  }
}

// A transfer that outlives its deadline by so much, or a reply that is not taken for so long, has a
// peer that is stopped or stuck: what it holds of ours must not stay with it for ever. The memory
// is ours again when the transport says so.
void EngineImpl::DropStalledPeer(uint32_t id) {
  const Request& request = requests[id];
  const bool stalled =
      request.blocks_left == 0 ||
      std::any_of(request.blocks.begin(), request.blocks.end(), [this](uint32_t block) {
        return block != kNoId && (blocks[block].pending == Pending::kTransfer ||
                                  blocks[block].pending == Pending::kGpu);
      });
  if (request.peer != kNoId && stalled) DropPeer(request.peer);
}

}  // namespace crumb::core
