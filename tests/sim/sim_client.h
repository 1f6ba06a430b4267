// A simulated inference worker's end at one daemon: lends memory, sends wire messages, and holds
// every answer against that daemon's model. It dies, comes back, sends rubbish, cancels, and puts
// what it got from one daemon to another. One thread.
#ifndef CRUMB_TESTS_SIM_SIM_CLIENT_H_
#define CRUMB_TESTS_SIM_SIM_CLIENT_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "cachesvc/base/wire.h"
#include "cachesvc/core/engine.h"
#include "tests/sim/lent_memory.h"
#include "tests/sim/sim_core.h"
#include "tests/sim/sim_model.h"
#include "tests/sim/sim_plan.h"
#include "tests/sim/sim_transport.h"

namespace crumb::sim {

// Pages that were got with their header, to be put again some time, here or elsewhere: bytes and
// where they came from. Of one worker, at all daemons.
struct KeptPage {
  std::vector<uint8_t> bytes;
  PutRecord source;
};
using KeptPages = std::map<uint32_t, KeptPage>;  // by key

struct SimClientOptions {
  uint32_t number = 0;  // of the worker
  uint32_t daemon = 0;
  uint32_t requests_max = 8;
  KeptPages* kept = nullptr;
  uint64_t default_deadline_us = 5'000'000;  // the daemon's
  uint64_t patience_us = 13'000'000;  // past a deadline; then an undisturbed get must be answered
};

class SimClient final : public SimPeer {
 public:
  SimClient(SimContext* context, Model* model, const std::vector<SimLayout>* layouts,
            const SimClientOptions& options);
  ~SimClient() override;

  // Opens a session and lends memory. The engine and the transport outlive the connection.
  void Connect(Engine* engine, SimTransport* transport);
  bool connected() const { return connected_; }
  // The process dies: its memory is gone at once.
  void Die();
  // The session of an earlier life, to be closed by whoever noticed; 0 = none left.
  SessionId TakeAbandonedSession();
  PeerId peer() const { return peer_; }

  void DoSomething(const Workload& workload);
  // Gets `key` and judges the answer. False if there is no room for a request now.
  bool Audit(KeyRef key);
  size_t outstanding() const { return requests_.size(); }
  uint64_t answered() const { return answered_; }
  // A network or a daemon that does not move until then: answers may be late.
  void Disturb(uint64_t until_us) { disturbed_until_us_ = std::max(disturbed_until_us_, until_us); }
  // Asks where every key is, in turn, and counts what is found. For gauges at rest.
  bool Census(KeyRef key);
  struct Found {
    uint64_t all = 0, in_memory = 0;
    std::array<uint64_t, kPrecisionCount> precisions{};
  };
  Found TakeCensus() { return std::exchange(found_, Found{}); }

  void OnMessage(Bytes message) override;
  void OnClosed() override;

 private:
  struct Block {
    KeyRef key;
    LentSlot slot;
    size_t put = 0;      // index in the model
    size_t removal = 0;  // same
    uint32_t value_bytes = 0;
    bool has_parent = false;
    KeyRef parent = {};
  };
  struct Request {
    WireType type = WireType::kGet;
    PageForm form = PageForm::kRaw;
    uint16_t flags = 0;
    Moment asked = 0;
    uint64_t asked_us = 0;
    uint32_t deadline_us = 0;
    bool census = false;
    std::vector<Block> blocks;
  };

  void SendPut(const Workload& workload);
  void SendPagePut(const Workload& workload);
  void SendGet(KeyRef first, uint32_t blocks, uint32_t wait_percent);
  void SendLookup();
  void SendPrefetch();
  void SendDelete();
  void SendCancel();
  void SendRubbish();
  void Pin(uint64_t ttl_us);
  KeyRef RandomKey();
  KeyRef RandomKeyLike(KeyRef key);
  void Send(Request request, LentArea area, uint32_t layout_handle);
  void Judge(const Request& request, const WireReply& reply);
  void JudgeGet(const Request& request, const Block& block, const WireBlockReply& answer);
  void JudgeBlock(const Request& request, const Block& block, const WireBlockReply& reply);
  void JudgeTime(const Request& request);
  void NoteServed(KeyRef key, const WireBlockReply& answer);
  void ChooseParent(const Workload& load, Block* block);
  KeySpace& space() const { return model_->space(); }
  void Forget(Request& request);
  void LoseEverything();

  SimContext* const context_;
  Model* const model_;
  const std::vector<SimLayout>* const layouts_;
  const SimClientOptions options_;
  Rng rng_;
  Engine* engine_ = nullptr;
  SimTransport* transport_ = nullptr;
  bool connected_ = false;
  SessionId session_, abandoned_;
  PeerId peer_;
  std::unique_ptr<LentMemory> memory_;
  uint64_t next_request_ = 1;
  uint64_t answered_ = 0;
  uint64_t disturbed_until_us_ = 0;
  // Keys that this session was served, or put, in a form that makes what follows them lossy.
  std::set<uint32_t> lossy_;
  Found found_;
  std::map<uint64_t, Request> requests_;
};

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_CLIENT_H_
