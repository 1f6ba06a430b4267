// One life of an engine with windows for chain sequences: small pools, a sample codec, one worker
// with plain memory. The disk outlives it. See chain_sequence.h.
#ifndef CRUMB_TESTS_SIM_CHAIN_DAEMON_H_
#define CRUMB_TESTS_SIM_CHAIN_DAEMON_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cachesvc/base/wire.h"
#include "cachesvc/core/engine.h"
#include "tests/sim/chain_sequence.h"
#include "tests/sim/sim_device_queue.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_transport.h"

namespace crumb::sim {

inline constexpr uint32_t kChainTokens = 16;
inline constexpr uint64_t kChainRawBytes = 2ull * kChainTokens * 128 * 2;
inline constexpr uint64_t kChainSlotBytes = 12 << 10;
inline constexpr uint32_t kChainLentSlots = 24;

struct ChainDaemonPlan {
  WindowPolicy windows;
  uint8_t fresh_percent = 25;
  uint64_t idle_us = 0;
  bool tier = false;
  SimDeviceOptions device;
  ChainPlant plant = ChainPlant::kNone;
};

class ChainDaemon final : public SimPeer {
 public:
  using OnReply = std::function<void(const WireReply&)>;
  static std::unique_ptr<ChainDaemon> Start(SimContext* context, SimDisk* disk,
                                            const ChainDaemonPlan& plan, OnReply on_reply);
  ~ChainDaemon() override;

  // The worker: a new one after it died.
  void Connect();
  void KillWorker();
  bool connected() const { return connected_; }
  void Send(const WireHeader& header, absl::Span<const WireBlock> blocks, uint32_t first_slot);
  MutableBytes slot(uint32_t index);
  BlockResults Pin(const Digest& digest, uint64_t ttl_us);

  int Turn();
  bool idle() const;
  Engine& engine() { return *engine_; }
  PagePool& pool() { return *pool_; }
  SimTransport& transport() { return *transport_; }
  void StopFaults();
  void CutPower();

  void OnMessage(Bytes message) override;
  void OnClosed() override { connected_ = false; }

 private:
  ChainDaemon(SimContext* context, OnReply on_reply)
      : context_(context), on_reply_(std::move(on_reply)) {}
  absl::Status Build(SimDisk* disk, const ChainDaemonPlan& plan);

  SimContext* const context_;
  const OnReply on_reply_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<SimDeviceQueue> queue_;
  std::unique_ptr<DeviceQueue> lying_queue_;
  std::unique_ptr<SimTransport> transport_;
  std::unique_ptr<SimBlockDevice> device_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<SegmentLog> log_;
  std::vector<uint8_t> memory_;
  bool connected_ = false;
  PeerId peer_;
  SessionId session_;
};

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_CHAIN_DAEMON_H_
