// One engine in a box for tests: loopback transport, a clock that only the test moves, a device
// queue that runs jobs when the test polls, and workers that lend plain memory. Nothing here waits
// or sleeps: Settle turns the engine until nothing moves.
#ifndef CRUMB_TESTS_UNIT_CACHESVC_CORE_ENGINE_FIXTURE_H_
#define CRUMB_TESTS_UNIT_CACHESVC_CORE_ENGINE_FIXTURE_H_

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/hash.h"
#include "cachesvc/base/wire.h"
#include "cachesvc/core/engine.h"
#include "cachesvc/net/loopback_transport.h"
#include "cachesvc/net/mapped_memory.h"
#include "gpu/pool/arena.h"
#include "storage/device/fault_device.h"
#include "storage/device/mem_device.h"
#include "storage/segment/segment_log.h"
#include "tests/unit/cachesvc/core/fake_codec.h"
#include "tests/unit/cachesvc/core/fake_gpu.h"

namespace crumb::testing {

class ManualClock final : public Clock {
 public:
  uint64_t now_us() const override { return now_us_; }
  void Advance(uint64_t us) { now_us_ += us; }

 private:
  uint64_t now_us_ = 1'000'000;
};

// Runs at most `steps` jobs per Poll; refuses more than `jobs_max`.
class InlineQueue final : public DeviceQueue {
 public:
  size_t jobs_max = 64;
  size_t steps = 64;

  bool Submit(const DeviceJob& job) override {
    if (jobs_.size() >= jobs_max) return false;
    jobs_.push_back(job);
    return true;
  }
  size_t Poll(absl::Span<uint64_t> done) override {
    size_t count = 0;
    while (count < done.size() && count < steps && !jobs_.empty()) {
      const DeviceJob job = jobs_.front();
      jobs_.pop_front();
      job.run(job.arg, 0);
      done[count++] = job.token;
    }
    return count;
  }
  size_t in_flight() const override { return jobs_.size(); }
  uint32_t worker_count() const override { return 1; }
  int wake_fd() const override { return -1; }

 private:
  std::deque<DeviceJob> jobs_;
};

// Holds transfers back while `hold` is set, as a stalled peer would.
class HoldingTransport final : public Transport {
 public:
  bool hold = false;
  PeerId deaf;  // takes no message
  FakeGpu* gpu = nullptr;

  explicit HoldingTransport(LoopbackTransport* inner) : inner_(inner) {}
  size_t held() const { return held_.size(); }

  BlockResult Send(PeerId peer, Bytes message) override {
    return peer == deaf ? BlockResult::kBusy : inner_->Send(peer, message);
  }
  BlockResult Pull(const Transfer& transfer) override { return Start(transfer, true); }
  BlockResult Push(const Transfer& transfer) override { return Start(transfer, false); }
  absl::Status RegisterRegions(PeerId peer, uint32_t region_set, const RegionSet& set) override {
    if (gpu != nullptr) gpu->Register(peer, set);
    return inner_->RegisterRegions(peer, region_set, set);
  }
  void ClosePeer(PeerId peer) override;
  size_t Poll(absl::Span<NetEvent> events) override;
  bool Arm() override { return inner_->Arm(); }
  int wake_fd() const override { return -1; }

 private:
  struct Held {
    Transfer transfer;
    bool pull = false;
  };
  BlockResult Start(const Transfer& transfer, bool pull);

  LoopbackTransport* inner_;
  std::deque<Held> held_;
  std::deque<Transfer> failed_;
};

inline constexpr uint32_t kLayout = 1;
inline constexpr uint32_t kRegionSet = 1;
inline constexpr uint32_t kTokens = 16;
inline constexpr uint64_t kRawBytes = 2ull * kTokens * 128 * 2;  // K and V, one head, bf16: 8 KiB

inline Identity SmallIdentity(uint32_t head_groups = 1) {
  Identity identity;
  identity.model = "test/model";
  identity.revision = "1";
  identity.weights_dtype = "bf16";
  identity.page_tokens = kTokens;
  identity.head_groups = head_groups;
  identity.groups.push_back({.kind = AttentionKind::kGqa,
                             .kv_heads = head_groups,
                             .k_dim = 128,
                             .v_dim = 128,
                             .window = 0,
                             .layer_ids = {0}});
  return identity;
}

inline Digest DigestNumber(uint64_t number) {
  return DigestOf(Bytes(reinterpret_cast<const uint8_t*>(&number), sizeof(number)));
}

// A page that says which one it is; finite as bf16.
inline std::vector<uint8_t> PageOf(uint64_t seed) {
  std::vector<uint8_t> page(kRawBytes);
  uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (uint8_t& byte : page) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    byte = static_cast<uint8_t>(state >> 33) & 0x3f;
  }
  return page;
}

struct Reply {
  uint64_t request_id = 0;
  std::vector<WireBlockReply> blocks;
};

struct BlockSpec {
  Digest digest;
  Digest parent{};
  uint32_t token_start = 0;
  uint16_t token_count = 0;
  uint16_t part = 0;
  uint32_t slot = 0;
  uint32_t value_bytes = 0;
};

struct RequestSpec {
  WireType type = WireType::kPut;
  std::vector<BlockSpec> blocks = {};
  uint16_t flags = 0;
  PageForm form = PageForm::kRaw;
  uint32_t deadline_us = 0;
  uint32_t layout = kLayout;
  uint32_t region_set = kRegionSet;
  uint64_t request_id = 0;  // 0: the next
  uint64_t session = 0;     // 0: the worker's own
  uint64_t gpu_ticket = 0;
};

// A worker: one session, one peer, `slots` values of lent memory.
class Worker {
 public:
  struct Options {
    uint64_t session = 1;
    std::string tenant = "t";
    uint32_t slots = 64;
    uint32_t layout = kLayout;
  };
  Worker(Engine* engine, LoopbackTransport* transport, const Options& options);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  std::vector<uint8_t> Message(RequestSpec spec);
  // Sends without waiting; returns the request id.
  uint64_t Send(const RequestSpec& spec);
  BlockResult SendBytes(Bytes message) { return transport_->Inject(peer, message); }
  bool Answered(uint64_t request_id) const { return replies.count(request_id) > 0; }
  // The one block's answer; a failure if there is none yet.
  WireBlockReply Answer(uint64_t request_id) const;
  RegionSetSpec Spec();  // the lent memory
  void Fill(uint32_t slot, const std::vector<uint8_t>& value);
  std::vector<uint8_t> Read(uint32_t slot, size_t bytes = kRawBytes) const;

  PeerId peer;
  SessionId session;
  std::map<uint64_t, Reply> replies;  // by request id

 private:
  static void OnMessage(void* arg, Bytes message);

  LoopbackTransport* transport_;
  uint32_t slots_ = 0;
  uint64_t slot_bytes_ = kRawBytes + 2 * kPageHeaderBytes;
  std::vector<uint8_t> memory_;
  uint64_t next_request_ = 1;
};

struct RigOptions {
  uint64_t main_bytes = 1 << 20;
  uint64_t staging_bytes = 256 << 10;
  EngineLimits limits = {};
  PolicyKind policy = PolicyKind::kS3Fifo;
  CodecKind codec = CodecKind::kCrumbInt2;
  bool keep_non_finite_raw = false;
  uint32_t parts = 1;
  uint8_t max_lossy_depth = 255;
  WindowPolicy windows = {};
  uint8_t fresh_percent = 50;
  uint64_t fresh_idle_us = 0;
  uint64_t nvme_bytes = 0;  // 0: no tier; else at least 8 MiB
  NvmeAdmission nvme_admission = NvmeAdmission::kAll;
  NvmePromotion nvme_promotion = NvmePromotion::kFirst;
  DiskUpkeep disk = {};
  uint64_t hbm_bytes = 0;  // 0: no HBM tier
  uint64_t gpu_stage_bytes = 0;
  FakeGpu* gpu = nullptr;               // workers may lend GPU memory
  MappedMemory* mapped = nullptr;       // what workers lend is mapped, as this says
  DeviceQueue* device_queue = nullptr;  // null: the rig's own, which runs jobs in Poll
  SegmentLogOptions log = {};
};

// The engine and what it stands on.
class Rig {
 public:
  explicit Rig(const RigOptions& options = {});
  ~Rig();

  // What a restart of the process does: the engine, its memory and its sessions are gone, the
  // device keeps what it has. `crash` decides what survives of writes that were not made stable;
  // without it the log closes in order.
  void Restart(const MemDevice::Survives* crash = nullptr);

  // Codecs that put pages under `kind` first, then up the ladder to raw.
  LayoutBinding Bind(CodecKind kind, const std::string& tenant = "t") const;
  Worker& AddWorker(const Worker::Options& options);
  Worker& worker(size_t index = 0) { return *workers_[index]; }
  void Turn();
  // Turns until a few turns in a row did nothing and the log is idle.
  void Settle();

  // One block, sent and settled.
  WireBlockReply Put(uint64_t key, const std::vector<uint8_t>& page, uint16_t flags = 0);
  WireBlockReply Get(uint64_t key, std::vector<uint8_t>* page, PageForm form = PageForm::kRaw);
  WireBlockReply Ask(const RequestSpec& spec, size_t worker = 0);
  // A put of one block under a chain: parent (0 = none) and position.
  WireBlockReply PutChained(uint64_t key, uint64_t parent, uint32_t token_start);
  WireBlockReply Lookup(uint64_t key);
  WireBlockReply Delete(uint64_t key);
  // Nothing is in flight and nothing is pinned by operations.
  void ExpectAtRest() const;

  RigOptions options;
  ManualClock clock;
  InlineQueue queue;
  std::unique_ptr<PagePool> pool, hbm;
  Arena hbm_memory, gpu_stage_memory;
  std::shared_ptr<GpuLink> lower, raise;
  std::unique_ptr<LoopbackTransport> transport;
  std::unique_ptr<HoldingTransport> wire;  // around it; what the engine sees
  std::shared_ptr<const Layout> layout;
  std::unique_ptr<MemDevice> device;
  std::unique_ptr<FaultDevice> faults;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<SegmentLog> log;

 private:
  void Start();
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_UNIT_CACHESVC_CORE_ENGINE_FIXTURE_H_
