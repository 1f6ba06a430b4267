// Transport between one daemon and simulated workers that lend plain memory. Messages of one peer
// keep their order, those of different peers do not; a transfer is moved in several waves at
// different times, so it can be seen half done; peers die, get cut off for a while, and are closed
// by the daemon. It also watches the daemon: buffers and segments of a transfer in flight must not
// change, nothing may be used after its completion.
#ifndef CRUMB_TESTS_SIM_SIM_TRANSPORT_H_
#define CRUMB_TESTS_SIM_SIM_TRANSPORT_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "cachesvc/net/transport.h"
#include "tests/sim/sim_core.h"

namespace crumb::sim {

// The worker's end.
class SimPeer {
 public:
  virtual ~SimPeer() = default;
  virtual void OnMessage(Bytes message) = 0;
  // The daemon closed the connection.
  virtual void OnClosed() = 0;
};

struct SimTransportOptions {
  uint32_t transfers_max = 64;
  uint32_t sends_per_peer_max = 5;  // fewer than a worker asks at once: answers must wait
  uint32_t slow_factor = 1;         // times the usual latency
};

class SimTransport final : public Transport {
 public:
  SimTransport(SimContext* context, const SimTransportOptions& options);
  ~SimTransport() override;

  // Worker side. `peer` and `memory` stay valid until KillPeer, OnClosed or the transport's end.
  PeerId AddPeer(SimPeer* peer, MutableBytes memory);
  void Inject(PeerId id, Bytes message);
  // The worker died: its memory is not touched from here on. Its transfers fail, then kPeerDown.
  void KillPeer(PeerId id);
  // Nothing moves to or from the peer until then.
  void CutOff(PeerId id, uint64_t duration_us);

  size_t transfers_pending() const { return transfers_.size(); }
  size_t transfers_peak() const { return transfers_peak_; }
  bool has_ready() const { return !ready_.empty(); }

  BlockResult Send(PeerId id, Bytes message) override;
  BlockResult Pull(const Transfer& transfer) override;
  BlockResult Push(const Transfer& transfer) override;
  absl::Status RegisterRegions(PeerId id, uint32_t region_set, const RegionSet& set) override;
  void ClosePeer(PeerId id) override;
  size_t Poll(absl::Span<NetEvent> events) override;
  bool Arm() override { return ready_.empty(); }
  int wake_fd() const override { return SimContext::kNoSleepFd; }

 private:
  using Buffer = std::vector<uint8_t>;
  enum class Direction : uint8_t { kPull, kPush };
  enum class State : uint8_t { kOpen, kDead, kClosed };
  struct PeerInfo {
    SimPeer* peer = nullptr;
    MutableBytes memory;
    State state = State::kOpen;
    uint64_t cut_off_until_us = 0;
    std::map<uint32_t, std::vector<Region>> region_sets;
    std::deque<Buffer> inbox, outbox;
    uint32_t transfers = 0;
  };
  struct Moving {
    Transfer transfer;
    Direction direction = Direction::kPull;
    std::vector<Segment> segments;  // as they were at the start
    std::vector<std::vector<size_t>> waves;
    uint64_t content = 0;  // hash of a push's local bytes at the start
    size_t waves_left = 0;
  };
  struct Ready {
    NetEvent event;
    Buffer message;
  };

  BlockResult Start(const Transfer& transfer, Direction direction);
  bool Fits(const PeerInfo& info, const Transfer& transfer) const;
  void RunWave(uint64_t id, size_t wave);
  void EndTransfer(uint64_t id, BlockResult result);
  void FailTransfersOf(PeerId id);
  void ReportDown(PeerId id);
  void DeliverIn(PeerId id);
  void DeliverOut(PeerId id);
  // Runs `then` now, or when the peer can be reached again.
  void WhenReachable(PeerId id, uint64_t delay_us, void (SimTransport::*then)(PeerId));
  uint64_t LocalContent(const Moving& moving) const;
  uint64_t Delay(uint64_t high_us) { return Latency(rng_, 5, high_us) * options_.slow_factor; }

  SimContext* const context_;
  const SimTransportOptions options_;
  Rng rng_;
  uint64_t next_peer_ = 1;
  uint64_t next_transfer_ = 0;
  std::map<uint64_t, PeerInfo> peers_;
  std::map<uint64_t, Moving> transfers_;
  size_t transfers_peak_ = 0;
  std::deque<Ready> ready_;
  std::vector<Buffer> polled_;  // messages handed out by the last Poll
};

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_TRANSPORT_H_
