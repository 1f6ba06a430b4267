// Shadows and their messages. One thread: the shard.
#include "cachesvc/server/stream_hub.h"

#include <algorithm>
#include <utility>

#include "cachesvc/base/check.h"
#include "cachesvc/server/sessions.h"

namespace crumb {

StreamHub::StreamHub(Engine* engine, LoopbackTransport* loopback, uint32_t transport,
                     MutableBytes arena, uint32_t region_sets_max)
    : engine_(engine),
      loopback_(loopback),
      transport_(transport),
      arena_(arena),
      region_sets_max_(region_sets_max) {}

StreamHub::~StreamHub() {
  while (!shadows_.empty()) Close(SessionId{shadows_.begin()->first});
}

void StreamHub::Open(SessionId session, std::string tenant) {
  auto shadow = std::make_unique<Shadow>();
  shadow->hub = this;
  shadow->tenant = std::move(tenant);
  shadows_[session.value] = std::move(shadow);
}

// The engine's part is made at the first data verb: most sessions never use one.
absl::Status StreamHub::Connect(Shadow* shadow) {
  if (shadow->peer.value != 0) return absl::OkStatus();
  CRUMB_ASSIGN(const uint64_t id, RandomId());
  shadow->session = {id};
  CRUMB_TRY(engine_->OpenSession(shadow->session, shadow->tenant));
  const PeerId peer = loopback_->AddPeer(&StreamHub::OnMessage, shadow);
  absl::Status attached = peer.value == 0 ? absl::ResourceExhaustedError("too many loopback peers")
                                          : engine_->AttachPeer(shadow->session, transport_, peer);
  if (!attached.ok()) {
    if (peer.value != 0) loopback_->ClosePeer(peer);
    engine_->CloseSession(shadow->session);
    return attached;
  }
  shadow->peer = peer;
  return absl::OkStatus();
}

void StreamHub::OnMessage(void* arg, Bytes message) {
  auto* shadow = static_cast<Shadow*>(arg);
  WireReply reply;
  CRUMB_CHECK(ParseReply(message, &reply) == WireCheck::kOk);  // our own engine wrote it
  const auto found = shadow->calls.find(reply.header.request_id);
  if (found == shadow->calls.end()) return;  // Close answered it
  StreamCall* call = found->second;
  shadow->calls.erase(found);
  std::vector<WireBlockReply> replies;
  replies.reserve(reply.header.block_count);
  for (uint32_t i = 0; i < reply.header.block_count; ++i) replies.push_back(reply.block(i));
  call->OnReplies(BlockResult::kOk, replies);
}

// The set over the whole arena whose slots have the layout's size; the least recently used one
// makes room.
BlockResult StreamHub::FindRegionSet(Shadow* shadow, const StreamRequest& request, uint32_t* set) {
  ++turn_;
  size_t oldest = 0;
  for (size_t i = 0; i < shadow->sets.size(); ++i) {
    RegionSlot& known = shadow->sets[i];
    if (known.registered && known.layout_handle == request.layout_handle &&
        known.slot_bytes == request.slot_bytes) {
      known.used = turn_;
      *set = static_cast<uint32_t>(i + 1);
      return BlockResult::kOk;
    }
    if (known.used < shadow->sets[oldest].used) oldest = i;
  }
  if (shadow->sets.size() < region_sets_max_) {
    oldest = shadow->sets.size();
    shadow->sets.emplace_back();
  }
  RegionSetSpec spec;
  spec.regions.push_back(
      {.address = reinterpret_cast<uintptr_t>(arena_.data()), .bytes = arena_.size(), .rkey = {}});
  spec.slots = static_cast<uint32_t>(arena_.size() / request.slot_bytes);
  spec.slot_bytes = request.slot_bytes;
  RegionSlot& slot = shadow->sets[oldest];
  slot.registered = false;
  *set = static_cast<uint32_t>(oldest + 1);
  const absl::Status registered =
      engine_->RegisterRegions(shadow->session, *set, request.layout_handle, std::move(spec));
  // Transfers under another layout's set are in flight: their turn comes first.
  if (absl::IsFailedPrecondition(registered)) return BlockResult::kBusy;
  if (!registered.ok()) return BlockResult::kInvalid;
  slot = {.layout_handle = request.layout_handle,
          .slot_bytes = request.slot_bytes,
          .used = turn_,
          .registered = true};
  return BlockResult::kOk;
}

BlockResult StreamHub::Send(Shadow* shadow, const StreamRequest& request) {
  const bool moves = request.type == WireType::kPut || request.type == WireType::kGet;
  const uint16_t slots_per_block = moves ? 1 : 0;
  WireHeader header;
  header.type = request.type;
  header.flags = request.flags;
  header.block_count = static_cast<uint16_t>(request.blocks.size());
  header.request_id = request.request_id;
  header.session_id = shadow->session.value;
  header.deadline_us = request.deadline_us;
  header.layout_handle = request.layout_handle;
  header.slots_per_block = slots_per_block;
  header.form = request.form;
  if (moves) {
    uint32_t set = 0;
    const BlockResult found = FindRegionSet(shadow, request, &set);
    if (found != BlockResult::kOk) return found;
    header.region_set = set;
  }
  const uint32_t size = RequestBytes(static_cast<uint32_t>(request.blocks.size()), slots_per_block);
  if (size == 0) return BlockResult::kInvalid;
  message_.assign(size, 0);
  const MutableBytes out(message_.data(), message_.size());
  WriteWireHeader(header, out);
  const uint32_t slot = request.slot;
  for (uint32_t i = 0; i < request.blocks.size(); ++i) {
    WriteWireBlock(i, request.blocks[i], absl::Span<const uint32_t>(&slot, slots_per_block), out);
  }
  FinishWireMessage(out);
  return loopback_->Inject(shadow->peer, out);
}

void StreamHub::Start(const StreamRequest& request, StreamCall* call) {
  const auto found = shadows_.find(request.session.value);
  if (found == shadows_.end()) return call->OnReplies(BlockResult::kUnavailable, {});
  Shadow* shadow = found->second.get();
  if (!Connect(shadow).ok()) return call->OnReplies(BlockResult::kBusy, {});
  const BlockResult sent = Send(shadow, request);
  if (sent != BlockResult::kOk) return call->OnReplies(sent, {});
  shadow->calls[request.request_id] = call;
}

void StreamHub::Cancel(SessionId session, uint64_t request_id) {
  const auto found = shadows_.find(session.value);
  if (found == shadows_.end() || found->second->calls.count(request_id) == 0) return;
  Shadow* shadow = found->second.get();
  WireHeader header;
  header.type = WireType::kCancel;
  header.request_id = request_id;
  header.session_id = shadow->session.value;
  message_.assign(RequestBytes(0, 0), 0);
  const MutableBytes out(message_.data(), message_.size());
  WriteWireHeader(header, out);
  FinishWireMessage(out);
  loopback_->Inject(shadow->peer, out);  // if it is full, the request ends by its deadline
}

// Afterwards no transfer of the shadow touches the arena: the loopback transport drops them with
// the peer.
void StreamHub::Disconnect(Shadow* shadow) {
  if (shadow->peer.value == 0) return;
  engine_->CloseSession(shadow->session);
  loopback_->ClosePeer(shadow->peer);
  shadow->peer = {};
}

void StreamHub::Close(SessionId session) {
  const auto found = shadows_.find(session.value);
  if (found == shadows_.end()) return;
  const std::unique_ptr<Shadow> shadow = std::move(found->second);
  shadows_.erase(found);
  Disconnect(shadow.get());
  for (const auto& [id, call] : shadow->calls) call->OnReplies(BlockResult::kUnavailable, {});
}

}  // namespace crumb
