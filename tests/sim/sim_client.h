// A simulated inference worker: lends memory, sends wire messages, and holds every answer against
// the model. It dies, comes back, sends rubbish, cancels. One thread.
#ifndef CRUMB_TESTS_SIM_SIM_CLIENT_H_
#define CRUMB_TESTS_SIM_SIM_CLIENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cachesvc/base/wire.h"
#include "cachesvc/core/engine.h"
#include "tests/sim/lent_memory.h"
#include "tests/sim/sim_core.h"
#include "tests/sim/sim_model.h"
#include "tests/sim/sim_transport.h"

namespace crumb::sim {

struct SimClientOptions {
  uint32_t number = 0;
  uint32_t requests_max = 8;
};

// What a worker may do at random; weights out of their sum.
struct Workload {
  uint32_t put = 30, get = 40, lookup = 12, erase = 4, pin = 3, unpin = 2, cancel = 2, rubbish = 0;
  uint32_t page_put = 4;
  uint32_t durable_percent = 40;
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

  void OnMessage(Bytes message) override;
  void OnClosed() override;

 private:
  struct Block {
    KeyRef key;
    LentSlot slot;
    size_t put = 0;      // index in the model
    size_t removal = 0;  // same
    uint32_t value_bytes = 0;
  };
  struct Request {
    WireType type = WireType::kGet;
    PageForm form = PageForm::kRaw;
    uint16_t flags = 0;
    Moment asked = 0;
    uint32_t deadline_us = 0;
    std::vector<Block> blocks;
  };

  void SendPut(const Workload& workload);
  void SendPagePut(const Workload& workload);
  void SendGet(KeyRef first, uint32_t blocks);
  void SendLookup();
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
  // Pages that were got with their header, to be put again some time: bytes and the model's put.
  struct KeptPage {
    std::vector<uint8_t> bytes;
    size_t put = 0;
  };
  std::map<uint32_t, KeptPage> kept_pages_;  // by key
  std::map<uint64_t, Request> requests_;
};

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_CLIENT_H_
