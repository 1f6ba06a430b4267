// What a trip does. Each step either moves it on (true) or waits for the GPU, the daemon or room.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/page_header.h"
#include "client/src/worker_codec.h"

namespace crumb::client {
namespace {

constexpr uint64_t kInnerIds = 1ull << 63;  // the client's own count from 1

uint32_t TokensOf(const Trip& trip, uint32_t index) {
  const WireBlock& block = trip.request->blocks[index];
  return block.token_count != 0 ? block.token_count : trip.set->parts[block.part].page_tokens;
}

}  // namespace

MutableBytes WorkerCodec::At(const Trip& trip, uint32_t index) const {
  return area_->At(trip.blocks[index].slot, trip.staged().slot_bytes);
}

void WorkerCodec::GiveSlot(Trip* trip, uint32_t index) {
  TripBlock& block = trip->blocks[index];
  if (block.slot == BounceArea::kNone) return;
  area_->Give(std::exchange(block.slot, BounceArea::kNone), trip->staged().slot_bytes);
}

void WorkerCodec::Settle(Trip* trip, uint32_t index, BlockResult result) {
  TripBlock& block = trip->blocks[index];
  block.settled = true;
  block.reply.result = result;
}

// Slots for as much as there is room for. False: for nothing.
bool WorkerCodec::StartPiece(Trip* trip) {
  trip->as_raw = trip->packed.empty();
  std::vector<uint32_t>& left = trip->as_raw ? trip->raw : trip->packed;
  size_t count = 0;
  for (; count < left.size(); ++count) {
    const uint32_t slot = area_->Take(trip->staged().slot_bytes);
    if (slot == BounceArea::kNone) break;
    trip->blocks[left[count]].slot = slot;
  }
  if (count == 0) return false;
  const auto end = left.begin() + static_cast<std::ptrdiff_t>(count);
  trip->piece.assign(left.begin(), end);
  left.erase(left.begin(), end);
  trip->submitted = 0;
  if (trip->put()) {
    for (const uint32_t index : trip->piece) {
      const WorkerPart& part = trip->set->parts[trip->request->blocks[index].part];
      TripBlock& block = trip->blocks[index];
      block.codec = trip->as_raw ? part.raw : part.pack;
      block.tokens = TokensOf(*trip, index);
      block.payload_at = 0;
    }
  }
  trip->step = trip->put() ? Trip::Step::kGpu : Trip::Step::kSend;
  return true;
}

GpuJob WorkerCodec::JobOf(const Trip& trip, uint32_t index) const {
  const TripBlock& block = trip.blocks[index];
  GpuJob job;
  job.kind = trip.put() ? GpuJobKind::kEncode : GpuJobKind::kDecode;
  job.effort = trip.set->effort;
  job.codec = block.codec;
  job.table = trip.set->parts[trip.request->blocks[index].part].table;
  job.tokens = block.tokens;
  job.slots = trip.request->SlotsOf(index);
  job.payload = At(trip, index).data() + block.payload_at;
  job.token = uint64_t{trip.index} << 32 | index;
  return job;
}

// False: jobs are left.
bool WorkerCodec::RunJobs(Trip* trip) {
  if (trip->ended) trip->submitted = static_cast<uint32_t>(trip->piece.size());
  while (trip->submitted < trip->piece.size()) {
    const uint32_t index = trip->piece[trip->submitted];
    if (!link_->health().ok()) {
      trip->blocks[index].note = std::string(link_->health().message());
      Settle(trip, index, BlockResult::kUnavailable);
    } else if (link_->Submit(JobOf(*trip, index))) {
      ++trip->running;
    } else {
      return false;
    }
    ++trip->submitted;
  }
  if (trip->running != 0) return false;
  EndJobs(trip);
  return true;
}

// All of the piece is back from the GPU.
void WorkerCodec::EndJobs(Trip* trip) {
  std::vector<uint32_t> packed;
  for (const uint32_t index : trip->piece) {
    const TripBlock& block = trip->blocks[index];
    if (trip->put() && !block.settled && !trip->ended) {
      if (trip->as_raw || block.packed_ok) {
        packed.push_back(index);
        continue;
      }
      trip->raw.push_back(index);  // the daemon says what becomes of it
    } else if (!block.settled) {
      Settle(trip, index, trip->ended ? BlockResult::kCancelled : BlockResult::kOk);
    }
    GiveSlot(trip, index);
  }
  trip->piece = std::move(packed);
  trip->step = trip->piece.empty() ? Trip::Step::kRoom : Trip::Step::kSend;
}

bool WorkerCodec::Send(Trip* trip) {
  const PlaneRequest& asked = *trip->request;
  const uint64_t now_us = parts_.clock->now_us();
  if (trip->ended || now_us >= trip->until_us) {
    EndAll(trip, trip->ended ? BlockResult::kCancelled : BlockResult::kTimeout);
    return true;
  }
  const StagedSlots& staged = trip->staged();
  auto inner = std::make_shared<PlaneRequest>();
  inner->id = kInnerIds | ++next_inner_;
  inner->type = asked.type;
  inner->flags = asked.flags;
  inner->form = trip->as_raw ? PageForm::kRaw : trip->put() ? PageForm::kPacked : PageForm::kPage;
  inner->verify = false;  // here
  inner->layout_handle = asked.layout_handle;
  inner->region_set = staged.region_set;
  inner->memory = staged.memory;
  inner->deadline_ms = static_cast<uint32_t>((trip->until_us - now_us + 999) / 1000);
  inner->wait_ms = asked.wait_ms == 0 ? 0 : std::min(asked.wait_ms, inner->deadline_ms);
  inner->grace_ms = asked.grace_ms;
  inner->slots_per_block = 1;
  for (const uint32_t index : trip->piece) {
    const WorkerPart& part = trip->set->parts[asked.blocks[index].part];
    WireBlock block = asked.blocks[index];
    uint64_t bytes = part.raw_bytes;
    if (inner->form == PageForm::kPacked) bytes = part.pack->payload_bytes();
    if (inner->form == PageForm::kPage) bytes = 1;  // not known yet; the slot bounds it
    if (inner->form == PageForm::kPacked) {
      block.value_bytes = static_cast<uint32_t>(bytes);
      block.codec_tag = CodecTag(trip->set->codec_id);
    }
    if (inner->form == PageForm::kPage) {
      block.value_bytes = static_cast<uint32_t>(staged.slot_bytes);
    }
    inner->blocks.push_back(block);
    inner->raw_bytes.push_back(bytes);
    inner->slots.push_back(trip->blocks[index].slot);
  }
  const uint64_t id = inner->id;
  const BlockResult sent = parts_.inner->Submit(std::move(inner));
  if (sent == BlockResult::kBusy) return false;
  if (sent != BlockResult::kOk) {
    EndAll(trip, sent);
    return true;
  }
  trip->inner_id = id;
  by_inner_id_.emplace(id, trip->index);
  trip->step = Trip::Step::kWire;
  return false;
}

void WorkerCodec::OnSent(Trip* trip, const PlaneReply& reply) {
  trip->unheard = trip->unheard && reply.unheard;
  std::vector<uint32_t> piece = std::exchange(trip->piece, {});
  const bool fits = reply.blocks.size() == piece.size();
  for (size_t i = 0; i < piece.size(); ++i) {
    const uint32_t index = piece[i];
    if (!fits) {
      Settle(trip, index, BlockResult::kCorrupt);
    } else {
      if (i < reply.notes.size()) trip->blocks[index].note = reply.notes[i];
      trip->put() ? OnPut(trip, index, reply.blocks[i]) : OnGot(trip, index, reply.blocks[i]);
    }
    if (trip->piece.empty() || trip->piece.back() != index) GiveSlot(trip, index);
  }
  trip->submitted = 0;
  trip->step = trip->piece.empty() ? Trip::Step::kRoom : Trip::Step::kGpu;
}

void WorkerCodec::OnPut(Trip* trip, uint32_t index, const WireBlockReply& reply) {
  // It wants the page raw, or the layout has another codec by now.
  if (reply.result == BlockResult::kMismatch && !trip->as_raw) {
    trip->raw.push_back(index);
    return;
  }
  trip->blocks[index].reply = reply;
  Settle(trip, index, reply.result);
}

void WorkerCodec::OnGot(Trip* trip, uint32_t index, const WireBlockReply& reply) {
  TripBlock& block = trip->blocks[index];
  block.reply = reply;
  BlockResult result = reply.result;
  if (result == BlockResult::kOk) result = Inspect(*trip, index, reply);
  // kInvalid: a raw page, which is longer than a slot for packed ones.
  const bool other = result == BlockResult::kMismatch || result == BlockResult::kInvalid;
  if (other && !trip->as_raw) {
    trip->raw.push_back(index);
    return;
  }
  if (result != BlockResult::kOk) return Settle(trip, index, result);
  const WorkerPart& part = trip->set->parts[trip->request->blocks[index].part];
  block.codec = part.raw;
  block.tokens = TokensOf(*trip, index);
  block.payload_at = 0;
  if (!trip->as_raw) {
    const PageHeader header = LoadHeader(At(*trip, index));
    block.codec = part.Find(header.codec_id);
    block.tokens = header.token_count;
    block.payload_at = kPageHeaderBytes;
  }
  block.reply.value_bytes = static_cast<uint32_t>(part.raw_bytes);
  block.reply.checksum = 0;  // of bytes that lie in GPU memory
  trip->piece.push_back(index);
}

// Whether what lies in the slot may be unpacked. kMismatch: nobody here knows its codec.
BlockResult WorkerCodec::Inspect(const Trip& trip, uint32_t index,
                                 const WireBlockReply& reply) const {
  const WireBlock& asked = trip.request->blocks[index];
  const WorkerPart& part = trip.set->parts[asked.part];
  const MutableBytes slot = At(trip, index);
  if (reply.value_bytes > slot.size()) return BlockResult::kCorrupt;
  const Bytes value = Bytes(slot).subspan(0, reply.value_bytes);
  const bool verify = trip.request->verify;
  if (trip.as_raw) {
    const bool whole = value.size() == part.raw_bytes && (!verify || Xxh3(value) == reply.checksum);
    return whole ? BlockResult::kOk : BlockResult::kCorrupt;
  }
  if (value.size() < kPageHeaderBytes) return BlockResult::kCorrupt;
  const PageHeader header = LoadHeader(value);
  const PageCheck check = verify ? CheckPage(value) : CheckHeaderFields(header);
  const bool fits = check == PageCheck::kOk && header.part == asked.part &&
                    header.identity_prefix == trip.set->identity_prefix &&
                    header.payload_bytes == value.size() - kPageHeaderBytes &&
                    header.token_count >= 1 && header.token_count <= part.page_tokens &&
                    (asked.token_count == 0 || asked.token_count == header.token_count);
  if (!fits) return BlockResult::kCorrupt;
  const GpuCodec* codec = part.Find(header.codec_id);
  if (codec == nullptr) return BlockResult::kMismatch;
  return codec->payload_bytes() == header.payload_bytes ? BlockResult::kOk : BlockResult::kCorrupt;
}

// Of everything that has no result yet. REQUIRES: nothing of it is on the GPU or at the daemon.
void WorkerCodec::EndAll(Trip* trip, BlockResult result) {
  for (uint32_t i = 0; i < trip->blocks.size(); ++i) {
    if (!trip->blocks[i].settled) Settle(trip, i, result);
    GiveSlot(trip, i);
  }
  trip->piece.clear();
  trip->packed.clear();
  trip->raw.clear();
  trip->step = Trip::Step::kRoom;
}

void WorkerCodec::Finish(Trip* trip) {
  PlaneReply& out = done_.emplace_back();
  out.id = trip->request->id;
  out.verified = true;
  out.unheard = trip->unheard;
  for (TripBlock& block : trip->blocks) {
    CRUMB_CHECK(block.settled && block.slot == BounceArea::kNone);
    out.blocks.push_back(block.reply);
    out.notes.push_back(std::move(block.note));
  }
  by_id_.erase(out.id);
  free_trips_.push_back(trip->index);
  trip->Reset();
}

void WorkerCodec::Advance(Trip* trip) {
  for (bool moves = trip->step != Trip::Step::kFree; moves;) {
    switch (trip->step) {
      case Trip::Step::kRoom:
        hungry_ -= std::exchange(trip->hungry, false) ? 1 : 0;
        if (trip->ended) EndAll(trip, BlockResult::kCancelled);
        if (trip->packed.empty() && trip->raw.empty()) return Finish(trip);
        if (parts_.clock->now_us() >= trip->until_us) {
          EndAll(trip, BlockResult::kTimeout);
          break;
        }
        moves = StartPiece(trip);
        trip->hungry = !moves;
        hungry_ += trip->hungry ? 1 : 0;
        break;
      case Trip::Step::kGpu:
        moves = RunJobs(trip);
        break;
      case Trip::Step::kSend:
        moves = Send(trip);
        break;
      case Trip::Step::kWire:
      case Trip::Step::kFree:
        return;
    }
  }
}

}  // namespace crumb::client
