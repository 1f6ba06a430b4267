// Random schedules against a model. Several workers put, get, look up, delete, pin, flush and
// cancel over pools that are too small, with a device that delays, fails and crashes. The model
// knows which versions of a key a hit may show; everything must end; nothing may leak.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "cachesvc/base/rng.h"
#include "tests/unit/cachesvc/core/engine_fixture.h"

namespace crumb::testing {
namespace {

constexpr uint32_t kRawLayout = 2;  // the same identity, stored raw: always better
constexpr uint64_t kNever = UINT64_MAX;

// Bytes come in equal groups of four, so that every codec of the rig keeps them.
std::vector<uint8_t> VersionPage(uint64_t key, uint64_t version) {
  std::vector<uint8_t> page(kRawBytes);
  Rng rng(key * 1'000'003 + version);
  for (size_t group = 0; group < page.size() / 4; ++group) {
    auto value = static_cast<uint8_t>(rng.Below(64));
    if (group < 8) value = static_cast<uint8_t>(version >> (group * 6) & 63);
    std::memset(page.data() + group * 4, value, 4);
  }
  return page;
}

uint64_t VersionIn(const std::vector<uint8_t>& page) {
  uint64_t version = 0;
  for (size_t group = 0; group < 8; ++group) version |= uint64_t{page[group * 4]} << (group * 6);
  return version;
}

struct Version {
  uint64_t key = 0;
  uint64_t put_sent = 0;
  uint64_t put_ended = kNever;
  BlockResult result = BlockResult::kMiss;
  bool durable = false;
  uint64_t forgotten_sent = kNever;  // a delete or flush that began after the put had ended ...
  uint64_t forgotten_at = kNever;    // ... and was answered then
};

struct Flight {
  WireType type = WireType::kPut;
  size_t worker = 0;
  uint64_t key = 0;
  uint64_t version = 0;
  uint32_t slot = 0;
  uint64_t sent = 0;
  PageForm form = PageForm::kRaw;
  bool durable = false;
};

struct Chances {       // of 1000, per step
  uint64_t keys = 24;  // how many there are
  uint64_t fail_io = 0;
  uint64_t delay_io = 0;
  uint64_t drop_worker = 0;
  uint64_t flush = 0;
  uint64_t crash = 0;
};

class Schedule {
 public:
  Schedule(uint64_t seed, const RigOptions& options, const Chances& chances)
      : rng_(seed), chances_(chances), keys_(chances.keys), rig_(options) {
    Begin();
  }

  void Steps(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) Step();
  }
  void Run(int steps) {
    Steps(steps);
    EndAll();
    CheckNothingLeaks();
  }
  uint64_t hits() const { return hits_; }
  EngineStats stats() const { return rig_.engine->stats(); }

  // After a power loss everything that was answered durable, and not forgotten since, is there.
  void CheckDurable() {
    chances_ = {.keys = keys_};
    Crash();
    for (uint64_t key = 0; key < keys_; ++key) {
      bool promised = false;
      for (const auto& [number, version] : versions_) {
        const bool stored =
            version.result == BlockResult::kOk || version.result == BlockResult::kExists;
        if (version.key != key || !version.durable || !stored) continue;
        promised = promised || last_forget_[key] < version.put_sent;
      }
      if (!promised) continue;
      ++promised_;
      std::vector<uint8_t> page;
      const WireBlockReply reply = rig_.Get(key, &page);
      EXPECT_EQ(reply.result, BlockResult::kOk) << "a durable page is lost: key " << key;
    }
  }
  uint64_t promised() const { return promised_; }

 private:
  static constexpr size_t kWorkers = 3;
  static constexpr uint32_t kSlots = 32;

  void Begin() {
    workers_.clear();
    EXPECT_TRUE(rig_.engine->BindLayout(kRawLayout, rig_.Bind(CodecKind::kRaw)).ok());
    for (size_t i = 0; i < kWorkers; ++i) NewWorker(i);
    if (rig_.faults != nullptr) {
      rig_.faults->SetPlan([this](const IoRequest&, uint64_t) {
        Fault fault;
        if (rng_.Chance(chances_.fail_io, 1000)) fault.error = 5;
        if (rng_.Chance(chances_.delay_io, 1000)) {
          fault.delay_polls = static_cast<uint32_t>(rng_.Below(20));
        }
        return fault;
      });
    }
  }

  void NewWorker(size_t at) {
    Worker& worker = rig_.AddWorker({.session = next_session_++, .slots = kSlots});
    RegionSetSpec spec = worker.Spec();
    EXPECT_TRUE(rig_.engine->RegisterRegions(worker.session, 2, kRawLayout, std::move(spec)).ok());
    if (at < workers_.size()) {
      workers_[at] = &worker;
    } else {
      workers_.push_back(&worker);
    }
    free_slots_[at].clear();
    for (uint32_t slot = 0; slot < kSlots; ++slot) free_slots_[at].insert(slot);
  }

  void Step() {
    ++time_;
    const uint64_t what = rng_.Below(1000);
    if (what < chances_.drop_worker) {
      DropWorker(rng_.Below(kWorkers));
    } else if (what < 20 + chances_.flush) {
      if (what < chances_.flush) Flush();
    } else if (what < 500) {
      SendSomething(rng_.Below(kWorkers));
    } else if (what < 520) {
      rig_.clock.Advance(rng_.Below(3000));
    } else if (rng_.Chance(chances_.crash, 1000)) {
      Crash();
    }
    rig_.queue.steps = rng_.Below(4);
    if (rng_.Chance(1, 2)) rig_.Turn();
    Collect();
    if (time_ % 16 == 0) CheckGauges();
  }

  void CheckGauges() {
    const EngineStats stats = rig_.engine->stats();
    EXPECT_LE(stats.pool_used_bytes, stats.pool_capacity_bytes);
    EXPECT_LE(stats.staging_used_bytes, stats.staging_capacity_bytes);
    EXPECT_LE(stats.nvme.used_bytes, stats.nvme.capacity_bytes);
    EXPECT_LE(stats.pool_pinned, stats.pool_pages);
    uint64_t pages = 0;
    for (const uint64_t count : stats.pages) pages += count;
    EXPECT_EQ(pages, stats.index_entries);
    EXPECT_LE(stats.index_entries, rig_.options.limits.index_entries_max);
    EXPECT_LE(stats.waiters, rig_.options.limits.waiters_max);
    EXPECT_LE(stats.prefetches, rig_.options.limits.prefetches_max);
    uint64_t in_flight = 0;
    for (const uint64_t count : stats.in_flight) in_flight += count;
    EXPECT_LE(in_flight, rig_.options.limits.requests_max);
  }

  void SendSomething(size_t at) {
    if (free_slots_[at].empty()) return;
    Worker& worker = *workers_[at];
    Flight flight{.worker = at, .key = rng_.Below(chances_.keys), .sent = time_};
    flight.slot = *free_slots_[at].begin();
    RequestSpec spec{.blocks = {{.digest = DigestNumber(flight.key), .slot = flight.slot}}};
    const uint64_t kind = rng_.Below(11);
    if (kind < 4) {
      spec.type = WireType::kPut;
      flight.version = next_version_++;
      if (rng_.Chance(1, 4)) {
        spec.layout = kRawLayout;
        spec.region_set = 2;
      }
      flight.durable = rng_.Chance(1, 3);
      if (flight.durable) spec.flags = kWireFlagDurable;
      worker.Fill(flight.slot, VersionPage(flight.key, flight.version));
      versions_[flight.version] = {.key = flight.key, .put_sent = time_, .durable = flight.durable};
    } else if (kind < 8) {
      spec.type = WireType::kGet;
      if (rng_.Chance(1, 5)) spec.flags = kWireFlagWait;
      if (rng_.Chance(1, 6)) spec.form = flight.form = PageForm::kPage;
    } else if (kind < 9) {
      spec.type = WireType::kDelete;
      last_forget_[flight.key] = time_;
    } else if (kind < 10) {
      spec.type = WireType::kLookup;
    } else {
      spec.type = WireType::kPrefetch;
    }
    flight.type = spec.type;
    if (rng_.Chance(1, 10)) spec.deadline_us = static_cast<uint32_t>(1 + rng_.Below(2000));
    if (kind == 9 && rng_.Chance(1, 4)) return Pin(worker, flight.key);
    free_slots_[at].erase(flight.slot);
    const uint64_t id = worker.Send(spec);
    flights_[{at, id}] = flight;
    if (rng_.Chance(1, 30)) {
      worker.Send({.type = WireType::kCancel, .blocks = {}, .request_id = id});
    }
  }

  void Pin(Worker& worker, uint64_t key) {
    rig_.engine->Pin({.layout_handle = kLayout,
                      .session = worker.session,
                      .digests = {DigestNumber(key)},
                      .ttl_us = rng_.Below(2) * 2000});
  }

  void Flush() {
    const uint64_t sent = time_;
    for (uint64_t key = 0; key < keys_; ++key) last_forget_[key] = time_;
    FlushRequest request;
    if (rng_.Chance(1, 2)) request.tenant = "t";
    auto* self = this;
    ++flushes_running_;
    rig_.engine->Flush(request, [self, sent](const absl::Status& status) {
      --self->flushes_running_;
      if (status.code() == absl::StatusCode::kResourceExhausted) return;
      for (auto& [number, version] : self->versions_) self->Forget(version, sent);
    });
  }

  void Forget(Version& version, uint64_t sent) const {
    if (version.put_ended < sent) version.forgotten_at = std::min(version.forgotten_at, time_);
  }

  void DropWorker(size_t at) {
    Worker& worker = *workers_[at];
    if (rng_.Chance(1, 2)) {
      rig_.transport->KillPeer(worker.peer);
      rig_.Settle();
      rig_.engine->CloseSession(worker.session);
    } else {
      rig_.engine->CloseSession(worker.session);
      rig_.Settle();
    }
    Collect();
    for (auto it = flights_.begin(); it != flights_.end();) {
      if (it->first.first == at) {
        EndPut(it->second, BlockResult::kUnavailable);
        it = flights_.erase(it);
      } else {
        ++it;
      }
    }
    NewWorker(at);
  }

  // An answer that never came: the put may have happened or not, until now.
  void EndPut(const Flight& flight, BlockResult result) {
    if (flight.type != WireType::kPut) return;
    Version& version = versions_[flight.version];
    version.put_ended = time_;
    version.result = result;
  }

  void Crash() {
    Collect();
    const MemDevice::Survives survives = [this](const MemDevice::Write&, uint64_t) {
      return rng_.Chance(1, 2);
    };
    for (const auto& [name, flight] : flights_) EndPut(flight, BlockResult::kUnavailable);
    flights_.clear();
    flushes_running_ = 0;
    rig_.Restart(&survives);
    Begin();
  }

  void Collect() {
    for (auto it = flights_.begin(); it != flights_.end();) {
      Worker& worker = *workers_[it->first.first];
      const auto reply = worker.replies.find(it->first.second);
      if (reply == worker.replies.end()) {
        ++it;
        continue;
      }
      const Flight flight = it->second;
      it = flights_.erase(it);
      free_slots_[flight.worker].insert(flight.slot);
      OnReply(flight, reply->second.blocks.at(0));
    }
  }

  void OnReply(const Flight& flight, const WireBlockReply& reply) {
    EXPECT_NE(reply.result, BlockResult::kInvalid);
    EXPECT_NE(reply.result, BlockResult::kCorrupt);
    EXPECT_NE(reply.result, BlockResult::kMismatch);
    if (flight.type == WireType::kPut) return EndPut(flight, reply.result);
    if (flight.type == WireType::kDelete && reply.result == BlockResult::kOk) {
      for (auto& [number, version] : versions_) {
        if (version.key == flight.key) Forget(version, flight.sent);
      }
    }
    if (flight.type == WireType::kGet && reply.result == BlockResult::kOk) CheckHit(flight, reply);
  }

  void CheckHit(const Flight& flight, const WireBlockReply& reply) {
    ++hits_;
    std::vector<uint8_t> page = workers_[flight.worker]->Read(flight.slot, reply.value_bytes);
    ASSERT_EQ(Xxh3(page), reply.checksum);
    if (flight.form == PageForm::kPage) {
      ASSERT_EQ(CheckPage(page), PageCheck::kOk);
      const PageHeader header = LoadHeader(page);
      const size_t repeat = kRawBytes / header.payload_bytes;
      std::vector<uint8_t> raw(kRawBytes);
      for (size_t i = 0; i < raw.size(); ++i) raw[i] = page[kPageHeaderBytes + i / repeat];
      page = raw;
    }
    const uint64_t number = VersionIn(page);
    ASSERT_TRUE(versions_.count(number)) << "a version that nobody put: " << number;
    const Version& version = versions_[number];
    ASSERT_EQ(version.key, flight.key) << "a page of another key";
    ASSERT_EQ(page, VersionPage(flight.key, number)) << "torn or mixed";
    ASSERT_FALSE(version.forgotten_at < flight.sent) << "a forgotten page came back";
    if (version.put_ended == kNever) return;
    const bool stored =
        version.result == BlockResult::kOk || version.result == BlockResult::kNotDurable ||
        version.result == BlockResult::kTimeout || version.result == BlockResult::kCancelled ||
        version.result == BlockResult::kUnavailable;
    ASSERT_TRUE(stored) << "a put that failed left a trace: " << ToString(version.result);
  }

  void EndAll() {
    rig_.queue.steps = 64;
    chances_ = {.keys = keys_};
    for (int i = 0; i < 20 && (!flights_.empty() || flushes_running_ > 0); ++i) {
      rig_.Settle();
      rig_.clock.Advance(1'000'000);
      Collect();
    }
    EXPECT_EQ(flights_.size(), 0u) << "requests that never end";
    EXPECT_EQ(flushes_running_, 0) << "flushes that never end";
  }

  void CheckNothingLeaks() {
    rig_.clock.Advance(100'000'000);
    rig_.Settle();
    rig_.ExpectAtRest();
    const EngineStats before = rig_.engine->stats();
    EXPECT_EQ(before.pins, 0u);
    bool flushed = false;
    rig_.engine->Flush({}, [&flushed](const absl::Status&) { flushed = true; });
    rig_.Settle();
    EXPECT_TRUE(flushed);
    const EngineStats after = rig_.engine->stats();
    EXPECT_EQ(after.pool_used_bytes, 0u);
    EXPECT_EQ(after.index_entries, 0u);
    EXPECT_LE(before.pool_used_bytes, before.pool_capacity_bytes);
  }

  Rng rng_;
  Chances chances_;
  uint64_t keys_;
  Rig rig_;
  std::vector<Worker*> workers_;
  std::map<size_t, std::set<uint32_t>> free_slots_;
  std::map<std::pair<size_t, uint64_t>, Flight> flights_;
  std::map<uint64_t, Version> versions_;
  uint64_t next_version_ = 1;
  uint64_t next_session_ = 100;
  uint64_t time_ = 1;
  uint64_t hits_ = 0;
  uint64_t promised_ = 0;
  std::map<uint64_t, uint64_t> last_forget_;  // by key: when a delete or flush was sent last
  int flushes_running_ = 0;
};

RigOptions SmallRig(uint64_t nvme_bytes) {
  RigOptions options;
  options.main_bytes = 192 << 10;
  options.staging_bytes = 1 << 20;
  options.nvme_bytes = nvme_bytes;
  options.limits.index_entries_max = 4096;
  options.limits.blocks_in_flight_max = 256;
  options.limits.requests_max = 64;
  return options;
}

}  // namespace

// Runs `seeds` schedules; returns the counters of all of them.
struct Totals {
  uint64_t hits = 0, nvme_hits = 0, evicted = 0, dropped = 0, reclaimed = 0;
};

Totals RunSchedules(uint64_t seeds, const RigOptions& options, const Chances& chances) {
  Totals totals;
  for (uint64_t seed = 1; seed <= seeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Schedule schedule(seed, options, chances);
    schedule.Run(1000);
    const EngineStats stats = schedule.stats();
    totals.hits += schedule.hits();
    totals.nvme_hits += stats.hits[static_cast<size_t>(Tier::kNvme)];
    totals.evicted += stats.evicted_to_nvme;
    totals.dropped += stats.evicted_dropped;
    totals.reclaimed += stats.nvme.segments_reclaimed;
  }
  return totals;
}

TEST(EngineRandomTest, MemoryOnlySchedulesShowOnlyWhatWasPut) {
  const Totals totals = RunSchedules(10, SmallRig(0), {.keys = 100, .drop_worker = 2, .flush = 2});
  EXPECT_GT(totals.hits, 500u);
  EXPECT_GT(totals.dropped, 100u);
}

TEST(EngineRandomTest, SchedulesOverNvmeShowOnlyWhatWasPut) {
  const Totals totals = RunSchedules(10, SmallRig(8 << 20),
                                     {.keys = 100, .delay_io = 300, .drop_worker = 2, .flush = 1});
  EXPECT_GT(totals.nvme_hits, 100u);
  EXPECT_GT(totals.evicted, 100u);
}

TEST(EngineRandomTest, SchedulesUnderTheRulesOfScarceWritesAndRoomShowOnlyWhatWasPut) {
  RigOptions options = SmallRig(8 << 20);
  options.nvme_admission = NvmeAdmission::kSeen;
  options.nvme_promotion = NvmePromotion::kSecond;
  const Totals totals = RunSchedules(
      10, options, {.keys = 100, .fail_io = 5, .delay_io = 300, .drop_worker = 2, .flush = 1});
  EXPECT_GT(totals.nvme_hits, 50u);
  EXPECT_GT(totals.evicted, 50u);
  EXPECT_GT(totals.dropped, 100u);
}

TEST(EngineRandomTest, SchedulesOverAFailingDeviceShowOnlyWhatWasPut) {
  const Totals totals = RunSchedules(10, SmallRig(8 << 20),
                                     {.keys = 100, .fail_io = 30, .delay_io = 300, .flush = 1});
  EXPECT_GT(totals.hits, 300u);
}

TEST(EngineRandomTest, SchedulesWithCrashesShowOnlyWhatWasPut) {
  const Totals totals =
      RunSchedules(10, SmallRig(8 << 20),
                   {.keys = 60, .delay_io = 300, .drop_worker = 2, .flush = 1, .crash = 20});
  EXPECT_GT(totals.hits, 300u);
}

TEST(EngineRandomTest, WhatWasAnsweredDurableSurvivesAnyCrash) {
  uint64_t promised = 0;
  for (uint64_t seed = 1; seed <= 10 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Schedule schedule(seed, SmallRig(64 << 20), {.keys = 60, .delay_io = 300, .crash = 5});
    schedule.Steps(1000);
    schedule.CheckDurable();
    promised += schedule.promised();
  }
  EXPECT_GT(promised, 100u);
}

}  // namespace crumb::testing
