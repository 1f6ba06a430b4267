// An engine with real codecs and one worker over the loopback transport, for bars: puts and gets
// one page at a time. One thread turns it; the codec runs on a worker pool.
#ifndef CRUMB_TESTS_BARS_PROGRAMS_PAGE_BENCH_H_
#define CRUMB_TESTS_BARS_PROGRAMS_PAGE_BENCH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/wire.h"
#include "cachesvc/core/engine.h"
#include "cachesvc/net/loopback_transport.h"
#include "gpu/device/host_queue.h"
#include "storage/segment/segment_log.h"

namespace crumb::bars {

struct PageBenchOptions {
  uint64_t pool_bytes = 64ull << 20;
  std::shared_ptr<const Layout> layout;
  std::vector<CodecDescriptor> ladder;  // wanted precision first, raw last
  std::shared_ptr<const RotationSet> rotations;
  WindowPolicy windows;
  Effort effort = Effort::kNormal;
  uint64_t idle_us = 0;
  uint32_t index_entries_max = 1 << 16;
  BlockDevice* nvme = nullptr;  // of an NVMe tier; outlives the bench
};

// Moved by hand.
class HandClock final : public Clock {
 public:
  uint64_t now_us() const override { return now_us_; }
  void Advance(uint64_t us) { now_us_ += us; }

 private:
  uint64_t now_us_ = 1'000'000;
};

class PageBench {
 public:
  explicit PageBench(const PageBenchOptions& options);
  ~PageBench();

  struct Page {
    uint64_t key = 0, parent = 0;  // 0: none
    uint32_t token_start = 0;
    uint16_t token_count = 0;  // 0: a full page
  };
  WireBlockReply Put(const Page& page, Bytes raw);
  WireBlockReply Get(uint64_t key, PageForm form, std::vector<uint8_t>* value);
  WireBlockReply Lookup(uint64_t key);
  // Until no demotion is due or under way.
  void Settle();
  // Ends the NVMe tier in order, so that another bench may take its device. Nothing may follow.
  void Close();
  HandClock& clock() { return clock_; }
  EngineStats stats() const { return engine_->stats(); }

 private:
  static void OnMessage(void* arg, Bytes message);
  WireBlockReply Ask(WireHeader header, const WireBlock& block);
  void Turn();

  HandClock clock_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<HostQueue> queue_;
  std::unique_ptr<LoopbackTransport> transport_;
  std::unique_ptr<SegmentLog> log_;
  std::unique_ptr<Engine> engine_;
  std::vector<uint8_t> memory_;
  PeerId peer_;
  uint64_t next_request_ = 1;
  bool answered_ = false;
  WireBlockReply answer_;
};

}  // namespace crumb::bars

#endif  // CRUMB_TESTS_BARS_PROGRAMS_PAGE_BENCH_H_
