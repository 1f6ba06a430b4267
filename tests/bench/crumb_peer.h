// One crumbd as a child process with one client, driven as a benchmark wants it: filled with
// distinct values, then gets of random ones or puts of new ones for some time, so many requests in
// flight. Any failure ends the program: a number with misses in it is none. One thread.
#ifndef CRUMB_TESTS_BENCH_CRUMB_PEER_H_
#define CRUMB_TESTS_BENCH_CRUMB_PEER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/rng.h"
#include "cachesvc/base/types.h"
#include "crumb/client.h"
#include "tests/support/child_daemon.h"

namespace crumb::bench {

struct Settings {
  std::string crumbd, transport = "shm", verb = "get";
  uint64_t value_bytes = 256 << 10;
  uint32_t depth = 16, batch = 1, spin_us = 0;
  double seconds = 1.0;
  bool ours_alone = false;
};

struct Tally {
  double mib_per_s = 0;
  uint64_t values = 0;
  std::vector<float> latencies_us;  // of requests
  double Percentile(double share);
};

double Now();  // seconds
uint64_t LastLevelCacheBytes();
std::string KeyOf(uint64_t number);
// Makes a value its key's own.
void Stamp(uint64_t number, MutableBytes value);
void FillRandom(MutableBytes memory);

// Ready, with a pool of so many bytes and no disk; null with a word on stderr.
std::unique_ptr<ChildDaemon> StartDaemon(const Settings& settings, const std::string& dir,
                                         uint64_t pool_bytes);

class CrumbPeer {
 public:
  // Connects, lends shared memory and puts `keys` values.
  CrumbPeer(const Settings& settings, uint64_t keys, const ChildDaemon& daemon);
  Tally Run(const std::string& verb);
  std::string plane() const { return client_->data_plane(); }

 private:
  struct Lane {
    client::Ticket ticket = 0;
    double sent = 0;
  };
  client::LayoutSpec Spec() const;
  void Submit(size_t lane, bool put);
  uint64_t Reap(Tally* tally);
  void Fill();

  const Settings& settings_;
  const uint64_t keys_;
  std::unique_ptr<client::SharedMemory> memory_;  // outlives the client
  std::unique_ptr<client::Client> client_;
  client::Layout layout_;
  uint32_t region_set_ = 0;
  std::vector<Lane> lanes_;
  std::vector<std::string> names_;
  std::vector<client::Block> blocks_;
  std::vector<client::Completion> done_;
  uint64_t next_key_ = 0;
  Rng rng_{2};
};

}  // namespace crumb::bench

#endif  // CRUMB_TESTS_BENCH_CRUMB_PEER_H_
