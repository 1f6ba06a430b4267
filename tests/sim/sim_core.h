// The ground of the simulator: simulated time, an ordered list of events, a trace with a hash, and
// the first broken promise. One thread, one seed; nothing here looks at the machine's clock, at
// addresses or at hash-table order, so equal seeds give equal traces.
#ifndef CRUMB_TESTS_SIM_SIM_CORE_H_
#define CRUMB_TESTS_SIM_SIM_CORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/rng.h"

namespace crumb::sim {

class SimClock final : public Clock {
 public:
  uint64_t now_us() const override { return now_us_; }
  void AdvanceTo(uint64_t time_us) {
    if (time_us > now_us_) now_us_ = time_us;
  }

 private:
  uint64_t now_us_ = 1'000'000;  // not zero, so that "0 = none" mistakes show
};

// What happens later. Events of one moment run in the order in which they were made.
class EventQueue {
 public:
  explicit EventQueue(const SimClock& clock) : clock_(clock) {}

  // `owner` names whose event it is: CancelAll(owner) forgets them when the owner dies.
  void After(const void* owner, uint64_t delay_us, std::function<void()> run);
  void CancelAll(const void* owner);
  // Runs everything that is due now, also what becomes due by it. Returns how many.
  size_t RunDue();
  // UINT64_MAX if there is nothing.
  uint64_t next_us() const;

 private:
  struct Event {
    const void* owner;
    std::function<void()> run;
  };
  const SimClock& clock_;
  uint64_t sequence_ = 0;
  std::map<std::pair<uint64_t, uint64_t>, Event> events_;  // by (time, sequence)
};

enum class Echo : uint8_t { kQuiet, kPrint };

// Everything observable that happened, as a running hash; printed line by line on request.
class Trace {
 public:
  Trace(const SimClock& clock, Echo echo) : clock_(clock), echo_(echo) {}
  // `what` is a literal; the numbers must not be addresses.
  void Add(const char* what, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0);
  uint64_t hash() const { return hash_; }
  uint64_t events() const { return events_; }

 private:
  const SimClock& clock_;
  const Echo echo_;
  uint64_t hash_ = 0;
  uint64_t events_ = 0;
};

// One simulation's shared state. Outlives every daemon and client in it.
struct SimContext {
  SimContext(uint64_t seed, Echo echo) : events(clock), trace(clock, echo), rng(seed) {}

  // Records the first broken promise; the run ends at the next step.
  void Fail(const std::string& what);
  // What simulated seams give as their wake_fd: nobody sleeps on it, the plan wakes the loop. -1
  // would mean that they must be polled, and then simulated time could not pass.
  static constexpr int kNoSleepFd = 0;
  bool failed() const { return !failure.empty(); }

  SimClock clock;
  EventQueue events;
  Trace trace;
  Rng rng;  // of the plan; every component has its own, seeded from it
  std::string failure;
};

// Mostly short, sometimes long: a latency between `low` and `high`, with a tail of 50 x high.
uint64_t Latency(Rng& rng, uint64_t low_us, uint64_t high_us);

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_CORE_H_
