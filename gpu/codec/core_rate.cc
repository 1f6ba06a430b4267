// Times the kernels' bare products. Any thread.
#include "gpu/codec/core_rate.h"

#include <ctime>

#include "gpu/codec/vector_kernels.h"

namespace crumb {
namespace {

constexpr uint64_t kRounds = 20'000;  // some tens of microseconds

double RateOf(uint64_t (*work)(uint64_t rounds), double seconds) {
  if (work == nullptr) return 0.0;
  work(kRounds);
  const uint64_t start = ThreadTimeNs();
  uint64_t done = 0;
  uint64_t spent = 0;
  do {
    done += work(kRounds);
    spent = ThreadTimeNs() - start;
  } while (static_cast<double>(spent) < seconds * 1e9);
  return static_cast<double>(done) / (static_cast<double>(spent) / 1e9);
}

}  // namespace

uint64_t ThreadTimeNs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

CoreRates MeasureCore(CodecBackend backend, double seconds) {
  const VectorKernels* kernels = KernelsOf(backend);
  if (kernels == nullptr) return {};
  return {RateOf(kernels->peak_bf16, seconds), RateOf(kernels->peak_fp32, seconds)};
}

}  // namespace crumb
