// Time per phase of a codec's work, for benchmarks. A scratch carries a null pointer otherwise, and
// then nothing reads a clock. One thread at a time.
#ifndef CRUMB_GPU_CODEC_PHASE_TIMES_H_
#define CRUMB_GPU_CODEC_PHASE_TIMES_H_

#include <array>
#include <chrono>
#include <cstdint>

namespace crumb {

enum class CodecPhase : uint8_t {
  kScan,      // NaN, Inf, magnitudes
  kRotate,    // centring and x R
  kRange,     // threshold, range, scale and zero
  kQuantise,  // codes; crumb: feedback and gain
  kPack,
  kUnpack,
  kUnrotate  // y R^T and the base
};
inline constexpr int kCodecPhases = 7;
inline constexpr std::array<const char*, kCodecPhases> kCodecPhaseNames = {
    "scan", "rotate", "range", "quantise", "pack", "unpack", "unrotate"};

struct PhaseTimes {
  std::array<uint64_t, kCodecPhases> ns{};
};

// Laps of one head's work.
class PhaseClock {
 public:
  explicit PhaseClock(PhaseTimes* times) : times_(times) {
    if (times_ != nullptr) last_ = Now();
  }
  // The time since the last lap goes to `phase`.
  void Lap(CodecPhase phase) {
    if (times_ == nullptr) return;
    const uint64_t now = Now();
    times_->ns[static_cast<size_t>(phase)] += now - last_;
    last_ = now;
  }
  // The time since the last lap was counted by somebody else.
  void Skip() {
    if (times_ != nullptr) last_ = Now();
  }

 private:
  static uint64_t Now() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
  }

  PhaseTimes* times_;
  uint64_t last_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_PHASE_TIMES_H_
