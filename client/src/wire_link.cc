// Messages out, replies in. Bounded: so many polls per Pump, so many events per poll.
#include "client/src/wire_link.h"

#include <algorithm>
#include <array>

#include "cachesvc/base/check.h"

namespace crumb::client {
namespace {

constexpr size_t kEventsPerPoll = 64;
constexpr int kPollsMax = 16;

uint32_t ToMicroseconds(uint32_t ms) {
  constexpr uint32_t kMax = 0xffffffffu / 1000;
  return std::min(ms, kMax) * 1000;
}

}  // namespace

void WireLink::Close() {
  if (!lost_) {
    static_cast<void>(SendBare(WireType::kGoodbye, 0));  // best effort: the connection ends anyway
    Pump(nullptr);
  }
  transport_.ClosePeer(peer_);
  lost_ = true;
}

MutableBytes WireLink::Message(uint32_t bytes) {
  CRUMB_CHECK(bytes != 0);
  message_.assign(bytes, 0);
  return {message_.data(), message_.size()};
}

WireHeader WireLink::HeaderFor(WireType type, uint64_t id) const {
  WireHeader header;
  header.type = type;
  header.request_id = id;
  header.session_id = session_;
  return header;
}

BlockResult WireLink::SendBare(WireType type, uint64_t id) {
  const MutableBytes out = Message(RequestBytes(0, 0));
  WriteWireHeader(HeaderFor(type, id), out);
  FinishWireMessage(out);
  return Sent(transport_.Send(peer_, out));
}

BlockResult WireLink::Send(const PlaneRequest& request, absl::Span<const uint32_t> slots,
                           uint32_t slots_per_block) {
  if (lost_) return BlockResult::kUnavailable;
  const auto count = static_cast<uint32_t>(request.blocks.size());
  CRUMB_CHECK(slots.size() == uint64_t{count} * slots_per_block);
  const MutableBytes out = Message(RequestBytes(count, slots_per_block));
  WireHeader header = HeaderFor(request.type, request.id);
  header.flags = request.flags;
  header.block_count = static_cast<uint16_t>(count);
  // A waiting get ends with its wait.
  header.deadline_us = ToMicroseconds(request.wait_ms != 0 ? request.wait_ms : request.deadline_ms);
  header.layout_handle = request.layout_handle;
  header.region_set = request.region_set;
  header.slots_per_block = static_cast<uint16_t>(slots_per_block);
  header.form = request.form;
  header.gpu_ticket = request.gpu_ticket;
  WriteWireHeader(header, out);
  for (uint32_t i = 0; i < count; ++i) {
    WriteWireBlock(i, request.blocks[i], slots.subspan(i * slots_per_block, slots_per_block), out);
  }
  FinishWireMessage(out);
  return Sent(transport_.Send(peer_, out));
}

BlockResult WireLink::Sent(BlockResult result) {
  if (result == BlockResult::kOk || result == BlockResult::kBusy) return result;
  lost_ = true;
  return BlockResult::kUnavailable;
}

void WireLink::Pump(ReplyList* replies) {
  std::array<NetEvent, kEventsPerPoll> events;
  for (int round = 0; round < kPollsMax && !lost_; ++round) {
    const size_t count = transport_.Poll(absl::MakeSpan(events));
    for (size_t i = 0; i < count; ++i) Handle(events[i], replies);
    if (count < events.size()) return;
  }
}

void WireLink::Handle(const NetEvent& event, ReplyList* replies) {
  if (event.kind == NetEventKind::kPeerDown) lost_ = true;
  if (event.kind != NetEventKind::kMessage || replies == nullptr) return;
  WireReply reply;
  if (ParseReply(event.message, &reply) != WireCheck::kOk) {
    lost_ = true;
    return;
  }
  PlaneReply& out = replies->Next(reply.header.request_id);
  for (uint32_t i = 0; i < reply.header.block_count; ++i) out.blocks.push_back(reply.block(i));
}

v1::RegisterRegionsRequest DescribeSet(const LendOrder& order, const RegionSetSpec& spec) {
  v1::RegisterRegionsRequest request;
  request.set_region_set(order.region_set);
  request.set_layout_handle(order.layout_handle);
  request.set_slots(spec.slots);
  request.set_slots_per_block(spec.slots_per_block);
  request.set_slot_bytes(spec.slot_bytes);
  request.set_head_group_first(spec.head_group_first);
  request.set_head_group_count(spec.head_group_count);
  for (const TensorPlace& place : spec.tensors) {
    v1::TensorPlace* to = request.add_tensors();
    to->set_region(place.region);
    to->set_offset(place.offset);
    to->set_slot_stride(place.slot_stride);
    to->set_token_stride(place.token_stride);
    to->set_head_stride(place.head_stride);
  }
  return request;
}

void AddRegion(const Region& region, v1::RegisterRegionsRequest* request) {
  v1::Region* to = request->add_regions();
  to->set_address(region.address);
  to->set_bytes(region.bytes);
  to->set_rkey(region.rkey);
}

}  // namespace crumb::client
