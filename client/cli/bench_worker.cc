// The loop of one benchmark client: submit, drain, check, submit again until the time is up.
#include "client/cli/bench_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/clock.h"
#include "client/src/status_map.h"

namespace crumb::cli {
namespace {

constexpr uint32_t kDrainMs = 100;
constexpr uint32_t kCleanBatch = 256;

}  // namespace

void BenchTally::Merge(const BenchTally& other) {
  latency_us.Merge(other.latency_us);
  requests += other.requests;
  pages += other.pages;
  misses += other.misses;
  wrong += other.wrong;
  for (size_t i = 0; i < failures.size(); ++i) failures[i] += other.failures[i];
  seconds = std::max(seconds, other.seconds);
  if (error.empty()) error = other.error;
}

BenchWorker::BenchWorker(const BenchPlan& plan, std::unique_ptr<client::Client> client,
                         uint32_t index)
    : plan_(plan),
      client_(std::move(client)),
      index_(index),
      rng_(plan.seed + 0x9e3779b9u * (index + 1)),
      memory_bytes_(uint64_t{plan.depth} * plan.batch * plan.value_bytes),
      lanes_(plan.depth) {}

// Lent memory outlives the client.
BenchWorker::~BenchWorker() { client_.reset(); }

client::Status BenchWorker::MakeMemory() {
  if (!plan_.share) {
    private_.resize(memory_bytes_);
    memory_ = private_.data();
    return {};
  }
  client::Status status = client::SharedMemory::Create(memory_bytes_, &shared_);
  if (!status.ok()) return status;
  memory_ = shared_->data();
  return client_->ShareMemory(shared_->range());
}

uint8_t* BenchWorker::SlotOf(size_t lane, size_t block) {
  return memory_ + (lane * plan_.batch + block) * plan_.value_bytes;
}

std::string BenchWorker::NameOf(uint64_t key) const {
  return absl::StrCat(plan_.key_prefix, "/", key);
}

client::Status BenchWorker::Start(const client::LayoutSpec* spec, const client::Layout* layout) {
  if (spec != nullptr) {
    if (client::Status status = client_->RegisterLayout(*spec, &layout_); !status.ok()) {
      return status;
    }
  } else {
    std::vector<client::Layout> all;
    if (client::Status status = client_->ListLayouts(&all); !status.ok()) return status;
    for (client::Layout& one : all) {
      if (one.hash_hex == layout->hash_hex && one.codec == layout->codec) layout_ = std::move(one);
    }
    if (layout_.handle == 0) return {client::Code::kMiss, "the layout is gone"};
  }
  if (client::Status status = MakeMemory(); !status.ok()) return status;
  return client_->LendPages(layout_, memory_, memory_bytes_, plan_.value_bytes, &region_set_);
}

void BenchWorker::ChooseKeys(BenchVerb verb, Lane* lane, BenchTally* tally) {
  lane->keys.clear();
  for (uint32_t i = 0; i < plan_.batch; ++i) {
    if (verb == BenchVerb::kPut) {
      lane->keys.push_back(OwnKey(tally->next_key++));
    } else {
      lane->keys.push_back(rng_.Below(std::max<uint64_t>(1, plan_.keys)));
    }
  }
  // A look-up walks a chain: consecutive keys from a random start.
  if (verb == BenchVerb::kLookup) {
    const uint64_t first = lane->keys[0];
    for (uint32_t i = 0; i < plan_.batch; ++i) lane->keys[i] = (first + i) % plan_.keys;
  }
}

client::Status BenchWorker::Submit(size_t lane_index, BenchVerb verb, BenchTally* tally) {
  Lane& lane = lanes_[lane_index];
  if (verb == BenchVerb::kMixed) verb = rng_.Chance(1, 2) ? BenchVerb::kPut : BenchVerb::kGet;
  ChooseKeys(verb, &lane, tally);
  lane.is_put = verb == BenchVerb::kPut;
  names_.resize(lane.keys.size());
  blocks_.resize(lane.keys.size());
  for (size_t i = 0; i < lane.keys.size(); ++i) {
    names_[i] = NameOf(lane.keys[i]);
    blocks_[i].key = names_[i];
    blocks_[i].slot = static_cast<uint32_t>(lane_index * plan_.batch + i);
    if (lane.is_put) {
      plan_.values->Fill(lane.keys[i], {SlotOf(lane_index, i), plan_.value_bytes});
    }
  }
  lane.submitted_us = SteadyClock().now_us();
  switch (verb) {
    case BenchVerb::kPut:
      return client_->SubmitPut(layout_, region_set_, blocks_, {}, &lane.ticket);
    case BenchVerb::kLookup:
      return client_->SubmitLookup(layout_, blocks_, {}, &lane.ticket);
    default:
      return client_->SubmitGet(layout_, region_set_, blocks_, {}, &lane.ticket);
  }
}

size_t BenchWorker::LaneOf(client::Ticket ticket) const {
  size_t lane = 0;
  while (lane < lanes_.size() && lanes_[lane].ticket != ticket) ++lane;
  return lane;
}

void BenchWorker::Account(const client::Completion& done, BenchTally* tally) {
  const size_t index = LaneOf(done.ticket);
  if (index == lanes_.size()) return;
  Lane& lane = lanes_[index];
  tally->latency_us.Add(SteadyClock().now_us() - lane.submitted_us);
  ++tally->requests;
  for (size_t i = 0; i < done.results.size(); ++i) {
    const client::Result& result = done.results[i];
    if (result.code == client::Code::kMiss) {
      ++tally->misses;
    } else if (result.code != client::Code::kOk && result.code != client::Code::kExists) {
      ++tally->failures[static_cast<size_t>(result.code)];
    } else {
      ++tally->pages;
      const bool is_get = !lane.is_put && plan_.verb != BenchVerb::kLookup;
      const bool right =
          !plan_.compare || !is_get ||
          plan_.values->Matches(lane.keys[i], {SlotOf(index, i), result.value_bytes});
      if (!right) ++tally->wrong;
    }
  }
  lane.ticket = 0;
}

client::Status BenchWorker::Prefill() {
  std::vector<client::Completion> done;
  uint64_t next = 0;
  BenchTally tally;
  const auto stopped = [this] { return plan_.stop->load(std::memory_order_relaxed); };
  while ((next < plan_.keys && !stopped()) || client_->in_flight() > 0) {
    for (size_t i = 0; i < lanes_.size() && next < plan_.keys && !stopped(); ++i) {
      if (lanes_[i].ticket != 0) continue;
      tally.next_key = next;
      if (client::Status status = Submit(i, BenchVerb::kPut, &tally); !status.ok()) return status;
      next = tally.next_key;
    }
    done.clear();
    client_->Drain(kDrainMs, &done);
    for (const client::Completion& one : done) {
      for (const client::Result& result : one.results) {
        if (result.code != client::Code::kOk && result.code != client::Code::kExists) {
          return {result.code, absl::StrCat("filling: a put answered ",
                                            client::ToString(result.code), " ", result.note)};
        }
      }
      Account(one, &tally);
    }
    client_->Recycle(&done);
    if (!client_->connected()) return {client::Code::kUnavailable, "the daemon was lost"};
  }
  if (stopped()) return {client::Code::kCancelled, "interrupted before anything was measured"};
  return {};
}

void BenchWorker::Run(BenchTally* tally) {
  const SteadyClock clock;
  // Prefill used the first keys of worker 0.
  tally->next_key = index_ == 0 ? plan_.keys + plan_.batch : 0;
  const uint64_t start_us = clock.now_us();
  const uint64_t until_us = start_us + uint64_t{plan_.seconds} * 1'000'000;
  std::vector<client::Completion> done;
  bool go_on = true;
  while (go_on || client_->in_flight() > 0) {
    go_on = go_on && clock.now_us() < until_us && !plan_.stop->load(std::memory_order_relaxed);
    for (size_t i = 0; go_on && i < lanes_.size(); ++i) {
      if (lanes_[i].ticket != 0) continue;
      const client::Status status = Submit(i, plan_.verb, tally);
      if (status.code == client::Code::kBusy) break;
      if (!status.ok()) {
        tally->error = status.message;
        go_on = false;
      }
    }
    done.clear();
    client_->Drain(kDrainMs, &done);
    for (const client::Completion& one : done) Account(one, tally);
    client_->Recycle(&done);
    if (!client_->connected()) {
      tally->error = "the daemon was lost";
      break;
    }
  }
  tally->seconds = static_cast<double>(clock.now_us() - start_us) / 1e6;
}

uint64_t BenchWorker::Clean(uint64_t count) {
  std::vector<client::Completion> done;
  uint64_t gone = 0;
  for (uint64_t first = 0; first < count && client_->connected(); first += kCleanBatch) {
    const uint64_t last = std::min(count, first + kCleanBatch);
    std::vector<std::string> names;
    for (uint64_t i = first; i < last; ++i) names.push_back(NameOf(OwnKey(i)));
    std::vector<client::Block> blocks(names.size());
    for (size_t i = 0; i < names.size(); ++i) blocks[i].key = names[i];
    client::Ticket ticket = 0;
    if (!client_->SubmitDelete(layout_, blocks, &ticket).ok()) break;
    while (client_->in_flight() > 0) client_->Drain(kDrainMs, &done);
    for (const client::Completion& one : done) {
      if (one.ticket != ticket) continue;  // what was under way when the run ended
      for (const client::Result& result : one.results) {
        const bool none = result.code == client::Code::kOk || result.code == client::Code::kMiss;
        gone += none ? 1 : 0;
      }
    }
    done.clear();
  }
  return count - std::min(count, gone);
}

}  // namespace crumb::cli
