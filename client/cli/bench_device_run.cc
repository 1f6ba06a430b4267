// The loop: submit what is due, drain, account.
#include "client/cli/bench_device_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/clock.h"

namespace crumb::cli {
namespace {

constexpr uint32_t kDrainMs = 100;
constexpr uint32_t kFirstToken = 1u << 20;

class PhaseRun {
 public:
  PhaseRun(const DevicePhase& phase, DeviceTally* tally)
      : phase_(phase), tally_(*tally), lanes_(phase.depth), blocks_(phase.batch) {
    names_.resize(phase.batch);
  }

  // Batches [first, first + count), all drained afterwards. False: it ended early.
  bool Run(uint64_t first, uint64_t count, bool measured) {
    measured_ = measured;
    const uint64_t start_us = clock_.now_us();
    const uint64_t kernels = phase_.load == nullptr ? 0 : phase_.load->kernels();
    uint64_t next = 0;
    while ((go_on_ && next < count) || phase_.client->in_flight() > 0) {
      if (phase_.stopped()) go_on_ = false;
      const uint64_t due_us = start_us + DueAfter(next);
      const bool due = clock_.now_us() >= due_us;
      if (go_on_ && next < count && due && SubmitOne(first + next)) ++next;
      Drain(go_on_ && next < count && HasLane() ? Until(start_us + DueAfter(next)) : kDrainMs);
    }
    if (!measured) return go_on_;
    tally_.seconds = static_cast<double>(clock_.now_us() - start_us) / 1e6;
    if (phase_.load != nullptr && tally_.seconds > 0) {
      tally_.kernels_per_second =
          static_cast<double>(phase_.load->kernels() - kernels) / tally_.seconds;
    }
    return go_on_;
  }

 private:
  struct Lane {
    client::Ticket ticket = 0;
    uint64_t submitted_us = 0;
  };

  uint64_t DueAfter(uint64_t batch) const {
    if (phase_.rate <= 0) return 0;
    return static_cast<uint64_t>(static_cast<double>(batch) * 1e6 / phase_.rate);
  }
  // Milliseconds to sleep before that time; the rest of one is polled.
  uint32_t Until(uint64_t time_us) const {
    const uint64_t now_us = clock_.now_us();
    return time_us <= now_us + 1000 ? 0 : static_cast<uint32_t>((time_us - now_us) / 1000 - 1);
  }
  // A batch is a stretch of one sequence, far from its beginning: without a position no page is
  // packed to two bits.
  void Chain(uint32_t i) {
    blocks_[i].token_start = kFirstToken + i * phase_.layout->page_tokens;
    if (i > 0) blocks_[i].parent = names_[i - 1];
  }
  bool HasLane() const {
    return std::any_of(lanes_.begin(), lanes_.end(),
                       [](const Lane& lane) { return lane.ticket == 0; });
  }
  void Fail(const std::string& message) {
    if (tally_.error.empty()) tally_.error = message;
    go_on_ = false;
  }

  bool SubmitOne(uint64_t batch) {
    const auto lane =
        std::find_if(lanes_.begin(), lanes_.end(), [](const Lane& one) { return one.ticket == 0; });
    if (lane == lanes_.end()) return false;
    const auto number = static_cast<uint32_t>(lane - lanes_.begin());
    const uint64_t of = phase_.put ? batch : batch % phase_.stored;
    for (uint32_t i = 0; i < phase_.batch; ++i) {
      names_[i] = DeviceKey(phase_.key_prefix, of, i);
      blocks_[i].key = names_[i];
      if (phase_.put) Chain(i);
      blocks_[i].slots = phase_.pages->SlotsOf(phase_.put ? SourceOf(of, i, phase_.batch)
                                                          : number * phase_.batch + i);
    }
    client::RequestOptions options;
    options.stream = phase_.stream;
    lane->submitted_us = clock_.now_us();
    const client::Status status = phase_.put
                                      ? phase_.client->SubmitPut(*phase_.layout, phase_.region_set,
                                                                 blocks_, options, &lane->ticket)
                                      : phase_.client->SubmitGet(*phase_.layout, phase_.region_set,
                                                                 blocks_, options, &lane->ticket);
    if (!status.ok() && status.code != client::Code::kBusy) Fail(status.message);
    return status.ok();
  }

  void Drain(uint32_t timeout_ms) {
    phase_.client->Drain(timeout_ms, &done_);
    const uint64_t now_us = clock_.now_us();
    for (const client::Completion& one : done_) Account(one, now_us);
    phase_.client->Recycle(&done_);
    if (!phase_.client->connected()) Fail("the daemon was lost");
  }

  void Account(const client::Completion& done, uint64_t now_us) {
    const auto lane = std::find_if(lanes_.begin(), lanes_.end(),
                                   [&done](const Lane& one) { return one.ticket == done.ticket; });
    if (lane == lanes_.end()) return;
    lane->ticket = 0;
    // What could not be stored or got before measuring is an error all the same.
    for (const client::Result& result : done.results) AccountPage(result);
    if (!measured_) return;
    tally_.latency_us.Add(now_us - lane->submitted_us);
    ++tally_.batches;
  }

  void AccountPage(const client::Result& result) {
    const bool ok = result.code == client::Code::kOk;
    if (!ok) ++tally_.failures[static_cast<size_t>(result.code)];
    if (!ok && tally_.note.empty()) tally_.note = result.note;
    if (!ok || !measured_) return;
    ++tally_.pages;
    ++tally_.tiers[std::min<size_t>(static_cast<size_t>(result.tier), 4)];
    ++tally_.precisions[std::min<size_t>(static_cast<size_t>(result.precision), 3)];
  }

  const DevicePhase& phase_;
  DeviceTally& tally_;
  const SteadyClock clock_;
  std::vector<Lane> lanes_;
  std::vector<client::Block> blocks_;
  std::vector<std::string> names_;
  std::vector<client::Completion> done_;
  bool measured_ = false;
  bool go_on_ = true;
};

}  // namespace

uint32_t SourceOf(uint64_t batch, uint32_t i, uint32_t pages) {
  return static_cast<uint32_t>((batch + i) % pages);
}

std::string DeviceKey(const std::string& prefix, uint64_t batch, uint32_t i) {
  return absl::StrCat(prefix, "/", batch, "/", i);
}

void RunDevicePhase(const DevicePhase& phase, DeviceTally* tally) {
  PhaseRun run(phase, tally);
  if (run.Run(0, phase.warm, false)) run.Run(phase.warm, phase.batches, true);
}

double LoadAlone(client::Client* client, const GpuLoad& load, double seconds) {
  const SteadyClock clock;
  const uint64_t start_us = clock.now_us(), kernels = load.kernels();
  const uint64_t until_us = start_us + static_cast<uint64_t>(seconds * 1e6);
  std::vector<client::Completion> none;
  while (clock.now_us() < until_us) client->Drain(kDrainMs, &none);
  return static_cast<double>(load.kernels() - kernels) * 1e6 /
         static_cast<double>(clock.now_us() - start_us);
}

uint64_t CleanDevice(const DevicePhase& phase, uint64_t batches) {
  std::vector<client::Completion> done;
  std::vector<std::string> names(phase.batch);
  std::vector<client::Block> blocks(phase.batch);
  uint64_t gone = 0;
  for (uint64_t batch = 0; batch < batches && phase.client->connected(); ++batch) {
    for (uint32_t i = 0; i < phase.batch; ++i) {
      names[i] = DeviceKey(phase.key_prefix, batch, i);
      blocks[i].key = names[i];
    }
    client::Ticket ticket = 0;
    if (!phase.client->SubmitDelete(*phase.layout, blocks, &ticket).ok()) break;
    while (phase.client->in_flight() > 0) phase.client->Drain(kDrainMs, &done);
    for (const client::Completion& one : done) {
      for (const client::Result& result : one.results) {
        gone += result.code == client::Code::kOk || result.code == client::Code::kMiss ? 1 : 0;
      }
    }
    done.clear();
  }
  return batches * phase.batch - std::min(batches * phase.batch, gone);
}

}  // namespace crumb::cli
