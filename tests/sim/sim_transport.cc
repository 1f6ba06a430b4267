// Schedules of messages and transfers.
#include "tests/sim/sim_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cachesvc/base/hash.h"
#include "cachesvc/base/wire.h"

namespace crumb::sim {
namespace {

constexpr uint64_t kWavesMax = 4;

}  // namespace

SimTransport::SimTransport(SimContext* context, const SimTransportOptions& options)
    : context_(context), options_(options), rng_(context->rng.Next()) {}

SimTransport::~SimTransport() { context_->events.CancelAll(this); }

PeerId SimTransport::AddPeer(SimPeer* peer, MutableBytes memory) {
  const PeerId id{next_peer_++};
  PeerInfo info;
  info.peer = peer;
  info.memory = memory;
  peers_.emplace(id.value, std::move(info));
  return id;
}

void SimTransport::WhenReachable(PeerId id, uint64_t delay_us, void (SimTransport::*then)(PeerId)) {
  context_->events.After(this, delay_us, [this, id, then] {
    const auto found = peers_.find(id.value);
    if (found == peers_.end()) return;
    const uint64_t now = context_->clock.now_us();
    if (found->second.cut_off_until_us > now) {
      WhenReachable(id, found->second.cut_off_until_us - now, then);
      return;
    }
    (this->*then)(id);
  });
}

void SimTransport::Inject(PeerId id, Bytes message) {
  const auto found = peers_.find(id.value);
  if (found == peers_.end() || found->second.state != State::kOpen) return;
  found->second.inbox.emplace_back(message.begin(), message.end());
  WhenReachable(id, Delay(60), &SimTransport::DeliverIn);
}

void SimTransport::DeliverIn(PeerId id) {
  PeerInfo& info = peers_.at(id.value);
  if (info.state != State::kOpen || info.inbox.empty()) return;
  Ready ready;
  ready.event = {.kind = NetEventKind::kMessage, .peer = id, .message = {}};
  ready.message = std::move(info.inbox.front());
  info.inbox.pop_front();
  context_->trace.Add("to daemon", id.value, Xxh3(ready.message));
  ready_.push_back(std::move(ready));
}

BlockResult SimTransport::Send(PeerId id, Bytes message) {
  if (message.empty() || message.size() > kWireMessageBytesMax) return BlockResult::kInvalid;
  const auto found = peers_.find(id.value);
  if (found == peers_.end() || found->second.state != State::kOpen) {
    return BlockResult::kUnavailable;
  }
  PeerInfo& info = found->second;
  if (info.outbox.size() >= options_.sends_per_peer_max) return BlockResult::kBusy;
  info.outbox.emplace_back(message.begin(), message.end());
  WhenReachable(id, Delay(60), &SimTransport::DeliverOut);
  return BlockResult::kOk;
}

void SimTransport::DeliverOut(PeerId id) {
  PeerInfo& info = peers_.at(id.value);
  if (info.state != State::kOpen || info.outbox.empty()) return;
  const Buffer message = std::move(info.outbox.front());
  info.outbox.pop_front();
  context_->trace.Add("to worker", id.value, Xxh3(message));
  info.peer->OnMessage(message);
}

absl::Status SimTransport::RegisterRegions(PeerId id, uint32_t region_set, const RegionSet& set) {
  const auto found = peers_.find(id.value);
  if (found == peers_.end() || found->second.state != State::kOpen) {
    return absl::UnavailableError("the peer is gone");
  }
  PeerInfo& info = found->second;
  if (info.region_sets.contains(region_set) && info.transfers > 0) {
    return absl::FailedPreconditionError("transfers are in flight");
  }
  if (info.region_sets.size() >= kRegionSetsPerPeerMax) {
    return absl::ResourceExhaustedError("too many region sets");
  }
  info.region_sets[region_set] = set.spec().regions;
  return absl::OkStatus();
}

bool SimTransport::Fits(const PeerInfo& info, const Transfer& transfer) const {
  const auto set = info.region_sets.find(transfer.region_set);
  if (set == info.region_sets.end()) return false;
  for (const Segment& segment : transfer.segments) {
    if (segment.region >= set->second.size()) return false;
    const Region& region = set->second[segment.region];
    const uint64_t offset = segment.address - region.address;
    if (segment.address < region.address || offset > region.bytes ||
        segment.bytes > region.bytes - offset) {
      return false;
    }
    if (segment.local_offset > transfer.local.size() ||
        segment.bytes > transfer.local.size() - segment.local_offset) {
      return false;
    }
  }
  return true;
}

uint64_t SimTransport::LocalContent(const Moving& moving) const {
  uint64_t hash = 0;
  for (const Segment& segment : moving.segments) {
    hash = Xxh3({reinterpret_cast<const uint8_t*>(&hash), sizeof(hash)},
                moving.transfer.local.subspan(segment.local_offset, segment.bytes));
  }
  return hash;
}

BlockResult SimTransport::Pull(const Transfer& transfer) {
  return Start(transfer, Direction::kPull);
}
BlockResult SimTransport::Push(const Transfer& transfer) {
  return Start(transfer, Direction::kPush);
}

BlockResult SimTransport::Start(const Transfer& transfer, Direction direction) {
  const auto found = peers_.find(transfer.peer.value);
  if (found == peers_.end() || found->second.state != State::kOpen) {
    return BlockResult::kUnavailable;
  }
  if (!Fits(found->second, transfer)) {
    context_->Fail("a transfer outside the lent regions or the local buffer was started");
    return BlockResult::kInvalid;
  }
  if (transfers_.size() >= options_.transfers_max || (!transfers_.empty() && rng_.Chance(1, 40))) {
    return BlockResult::kBusy;
  }
  Moving moving;
  moving.transfer = transfer;
  moving.direction = direction;
  moving.segments.assign(transfer.segments.begin(), transfer.segments.end());
  moving.waves.resize(1 + rng_.Below(kWavesMax));
  moving.waves_left = moving.waves.size();
  uint64_t bytes = 0;
  for (size_t i = 0; i < moving.segments.size(); ++i) {
    moving.waves[rng_.Below(moving.waves.size())].push_back(i);
    bytes += moving.segments[i].bytes;
    if (direction == Direction::kPull) {
      // Whoever looks before the completion sees rubbish.
      std::memset(transfer.local.data() + moving.segments[i].local_offset, 0x5a,
                  moving.segments[i].bytes);
    }
  }
  if (direction == Direction::kPush) moving.content = LocalContent(moving);
  const uint64_t id = next_transfer_++;
  context_->trace.Add(direction == Direction::kPull ? "pull" : "push", transfer.peer.value, bytes,
                      moving.content);
  ++found->second.transfers;
  const size_t waves = moving.waves.size();
  transfers_.emplace(id, std::move(moving));
  transfers_peak_ = std::max(transfers_peak_, transfers_.size());
  for (size_t wave = 0; wave < waves; ++wave) {
    context_->events.After(this, Delay(120), [this, id, wave] { RunWave(id, wave); });
  }
  return BlockResult::kOk;
}

void SimTransport::RunWave(uint64_t id, size_t wave) {
  const auto found = transfers_.find(id);
  if (found == transfers_.end()) return;  // it failed meanwhile
  Moving& moving = found->second;
  const PeerInfo& info = peers_.at(moving.transfer.peer.value);
  const uint64_t now = context_->clock.now_us();
  if (info.cut_off_until_us > now) {
    context_->events.After(this, info.cut_off_until_us - now,
                           [this, id, wave] { RunWave(id, wave); });
    return;
  }
  for (size_t i : moving.waves[wave]) {
    const Segment& segment = moving.segments[i];
    uint8_t* const local = moving.transfer.local.data() + segment.local_offset;
    uint8_t* const remote = reinterpret_cast<uint8_t*>(segment.address);
    if (moving.direction == Direction::kPull) {
      std::memcpy(local, remote, segment.bytes);
    } else {
      std::memcpy(remote, local, segment.bytes);
    }
  }
  if (--moving.waves_left == 0) EndTransfer(id, BlockResult::kOk);
}

void SimTransport::EndTransfer(uint64_t id, BlockResult result) {
  const Moving& moving = transfers_.at(id);
  const absl::Span<const Segment> now = moving.transfer.segments;
  const bool same = std::equal(now.begin(), now.end(), moving.segments.begin(),
                               moving.segments.end(), [](const Segment& a, const Segment& b) {
                                 return a.address == b.address &&
                                        a.local_offset == b.local_offset && a.bytes == b.bytes;
                               });
  if (!same) context_->Fail("the segments of a transfer were changed while it was in flight");
  if (moving.direction == Direction::kPush && LocalContent(moving) != moving.content) {
    context_->Fail("a buffer was changed while it was being pushed");
  }
  context_->trace.Add("transfer done", moving.transfer.peer.value, static_cast<uint64_t>(result));
  Ready ready;
  ready.event = {.kind = NetEventKind::kTransferDone,
                 .peer = moving.transfer.peer,
                 .token = moving.transfer.token,
                 .result = result,
                 .message = {}};
  ready_.push_back(std::move(ready));
  --peers_.at(moving.transfer.peer.value).transfers;
  transfers_.erase(id);
}

void SimTransport::FailTransfersOf(PeerId id) {
  std::vector<uint64_t> mine;
  for (const auto& [number, moving] : transfers_) {
    if (moving.transfer.peer == id) mine.push_back(number);
  }
  for (uint64_t number : mine) EndTransfer(number, BlockResult::kUnavailable);
}

void SimTransport::KillPeer(PeerId id) {
  const auto found = peers_.find(id.value);
  if (found == peers_.end() || found->second.state != State::kOpen) return;
  found->second.state = State::kDead;
  context_->trace.Add("worker dies", id.value);
  FailTransfersOf(id);
  context_->events.After(this, Latency(rng_, 10, 500), [this, id] { ReportDown(id); });
}

void SimTransport::ReportDown(PeerId id) {
  const auto found = peers_.find(id.value);
  if (found->second.state != State::kDead) return;  // closed meanwhile: no event
  Ready ready;
  ready.event = {.kind = NetEventKind::kPeerDown, .peer = id, .message = {}};
  ready_.push_back(std::move(ready));
  found->second.state = State::kClosed;
}

void SimTransport::CutOff(PeerId id, uint64_t duration_us) {
  const auto found = peers_.find(id.value);
  if (found == peers_.end()) return;
  context_->trace.Add("cut off", id.value, duration_us);
  found->second.cut_off_until_us = context_->clock.now_us() + duration_us;
}

void SimTransport::ClosePeer(PeerId id) {
  const auto found = peers_.find(id.value);
  if (found == peers_.end() || found->second.state == State::kClosed) return;
  PeerInfo& info = found->second;
  context_->trace.Add("daemon closes", id.value);
  if (info.state == State::kOpen) {
    SimPeer* const peer = info.peer;
    context_->events.After(peer, Latency(rng_, 5, 60), [peer] { peer->OnClosed(); });
  }
  FailTransfersOf(id);
  info.state = State::kClosed;
  info.inbox.clear();
  info.outbox.clear();
  std::erase_if(ready_, [id](const Ready& ready) {
    return ready.event.peer == id && ready.event.kind != NetEventKind::kTransferDone;
  });
}

size_t SimTransport::Poll(absl::Span<NetEvent> events) {
  polled_.clear();  // frees what the last Poll handed out: a use of it is seen by the sanitizer
  size_t count = 0;
  while (count < events.size() && !ready_.empty()) {
    polled_.push_back(std::move(ready_.front().message));
    events[count] = ready_.front().event;
    events[count].message = polled_.back();
    ready_.pop_front();
    ++count;
  }
  return count;
}

}  // namespace crumb::sim
