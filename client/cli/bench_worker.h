// One benchmark client: its own Client and thread, `depth` requests of `batch` blocks in flight.
#ifndef CRUMB_CLIENT_CLI_BENCH_WORKER_H_
#define CRUMB_CLIENT_CLI_BENCH_WORKER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/rng.h"
#include "client/cli/bench_values.h"
#include "client/cli/histogram.h"
#include "crumb/client.h"

namespace crumb::cli {

enum class BenchVerb : uint8_t { kPut, kGet, kLookup, kMixed };

struct BenchPlan {
  BenchVerb verb = BenchVerb::kGet;
  std::string key_prefix;  // makes the keys of this run its own
  uint64_t value_bytes = 0;
  uint32_t batch = 1;
  uint32_t depth = 16;
  uint32_t seconds = 5;
  uint64_t keys = 0;  // stored before a get or lookup
  uint64_t seed = 0;
  bool compare = false;  // byte by byte with what was put
  bool share = true;     // memory that the daemon maps, where it can; else the library copies
  const BenchValues* values = nullptr;
  std::atomic<bool>* stop = nullptr;
};

struct BenchTally {
  Histogram latency_us;  // of requests
  uint64_t requests = 0;
  uint64_t pages = 0;  // moved or looked up with success
  uint64_t misses = 0;
  uint64_t wrong = 0;                    // bytes that are not what was put
  std::array<uint64_t, 256> failures{};  // by code
  uint64_t next_key = 0;                 // keys this worker put: [first, next)
  double seconds = 0;
  std::string error;

  void Merge(const BenchTally& other);
};

class BenchWorker {
 public:
  // Worker w of a run puts keys w << 40 | i, so no two put the same.
  BenchWorker(const BenchPlan& plan, std::unique_ptr<client::Client> client, uint32_t index);
  ~BenchWorker();

  // Registers and lends. REQUIRES: before the others.
  client::Status Start(const client::LayoutSpec* spec, const client::Layout* layout);
  // Puts keys [0, plan.keys) of worker 0.
  client::Status Prefill();
  void Run(BenchTally* tally);
  // Deletes this worker's first `count` keys; the number of those that may be there still.
  uint64_t Clean(uint64_t count);

  const client::Layout& layout() const { return layout_; }
  client::Client* client() { return client_.get(); }

 private:
  struct Lane {
    client::Ticket ticket = 0;
    bool is_put = false;
    uint64_t submitted_us = 0;
    std::vector<uint64_t> keys;
  };
  client::Status MakeMemory();
  uint8_t* SlotOf(size_t lane, size_t block);
  uint64_t OwnKey(uint64_t number) const { return uint64_t{index_} << 40 | number; }
  std::string NameOf(uint64_t key) const;
  client::Status Submit(size_t lane, BenchVerb verb, BenchTally* tally);
  client::Status SubmitPut(size_t lane, const std::vector<client::Block>& blocks);
  void ChooseKeys(BenchVerb verb, Lane* lane, BenchTally* tally);
  void Account(const client::Completion& done, BenchTally* tally);
  size_t LaneOf(client::Ticket ticket) const;

  BenchPlan plan_;
  std::unique_ptr<client::Client> client_;
  uint32_t index_;
  Rng rng_;
  client::Layout layout_;
  uint32_t region_set_ = 0;
  std::unique_ptr<client::SharedMemory> shared_;
  std::vector<uint8_t> private_;
  uint8_t* memory_ = nullptr;  // of one of them
  uint64_t memory_bytes_ = 0;
  std::vector<Lane> lanes_;
  std::vector<std::string> names_;     // reused
  std::vector<client::Block> blocks_;  // reused
};

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_BENCH_WORKER_H_
