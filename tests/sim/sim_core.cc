// Events, trace and failure of one simulation.
#include "tests/sim/sim_core.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cachesvc/base/hash.h"

namespace crumb::sim {

void EventQueue::After(const void* owner, uint64_t delay_us, std::function<void()> run) {
  events_.emplace(std::pair(clock_.now_us() + delay_us, sequence_++),
                  Event{.owner = owner, .run = std::move(run)});
}

void EventQueue::CancelAll(const void* owner) {
  std::erase_if(events_, [owner](const auto& entry) { return entry.second.owner == owner; });
}

size_t EventQueue::RunDue() {
  size_t count = 0;
  while (!events_.empty() && events_.begin()->first.first <= clock_.now_us()) {
    const std::function<void()> run = std::move(events_.begin()->second.run);
    events_.erase(events_.begin());
    run();
    ++count;
  }
  return count;
}

uint64_t EventQueue::next_us() const {
  return events_.empty() ? UINT64_MAX : events_.begin()->first.first;
}

void Trace::Add(const char* what, uint64_t a, uint64_t b, uint64_t c) {
  const uint64_t numbers[] = {hash_, clock_.now_us(), a, b, c};
  hash_ = Xxh3({reinterpret_cast<const uint8_t*>(what), std::strlen(what)},
               {reinterpret_cast<const uint8_t*>(numbers), sizeof(numbers)});
  ++events_;
  if (echo_ == Echo::kQuiet) return;
  std::printf("%12" PRIu64 " %-18s %" PRIx64 " %" PRIx64 " %" PRIx64 "\n", clock_.now_us(), what, a,
              b, c);
}

void SimContext::Fail(const std::string& what) {
  trace.Add("FAILURE");
  if (failure.empty()) failure = "at " + std::to_string(clock.now_us()) + " us: " + what;
}

uint64_t Latency(Rng& rng, uint64_t low_us, uint64_t high_us) {
  const uint64_t base = low_us + rng.Below(high_us - low_us + 1);
  return rng.Chance(1, 64) ? base + rng.Below(50 * high_us) : base;
}

}  // namespace crumb::sim
