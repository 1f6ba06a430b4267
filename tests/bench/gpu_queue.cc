// What a CudaQueue costs its thread and what its copies reach: time of Submit and of an empty Poll,
// from Submit to the token, and GB/s of page-sized and piece-sized copies, by every way that the
// driver has. Prints figures; says nothing of right or wrong. Exit 77 without a GPU.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "gpu/device/cuda_memory.h"
#include "gpu/device/cuda_queue.h"
#include "gpu/device/gpu_probe.h"

namespace crumb {
namespace {

using Clock = std::chrono::steady_clock;

double Micros(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

double At(std::vector<double>& values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

void Drain(CudaQueue& queue) {
  StreamDone some[64];
  while (queue.in_flight() > 0) (void)queue.Poll(absl::MakeSpan(some));
}

// One piece of empty work at a time: what completion costs beyond the work.
void Tickets(CudaQueue& queue) {
  constexpr int kRounds = 20000;
  std::vector<double> submit, whole;
  StreamDone one[1];
  for (int i = 0; i < kRounds; ++i) {
    const auto start = Clock::now();
    (void)queue.Submit({.token = 1});
    const auto submitted = Clock::now();
    while (queue.Poll(absl::MakeSpan(one)) == 0) {
    }
    whole.push_back(Micros(Clock::now() - start));
    submit.push_back(Micros(submitted - start));
  }
  const auto start = Clock::now();
  for (int i = 0; i < kRounds; ++i) (void)queue.Poll(absl::MakeSpan(one));
  const double poll = Micros(Clock::now() - start) / kRounds * 1000;
  std::printf(
      "  Submit of nothing: p50 %.2f us, p99 %.2f us; to its token: p50 %.2f us, p99 %.2f us; ",
      At(submit, 0.5), At(submit, 0.99), At(whole, 0.5), At(whole, 0.99));
  std::printf("Poll of an idle queue: %.1f ns\n", poll);
}

struct Ends {
  const char* name;
  std::byte* dst;
  const std::byte* src;
};

// 64 copies per Submit, four submissions in flight.
void Copies(CudaQueue& queue, const Ends& ends, uint64_t bytes) {
  constexpr uint64_t kCopies = 64, kInFlight = 4;
  const uint64_t rounds = std::max<uint64_t>(16, (uint64_t{4} << 30) / (kCopies * bytes) / 4);
  std::vector<StreamCopy> copies;
  for (uint64_t i = 0; i < kCopies; ++i) {
    // Every other place, so that copies do not join.
    copies.push_back({ends.dst + 2 * i * bytes, ends.src + 2 * i * bytes, bytes});
  }
  std::vector<double> submit;
  StreamDone some[kInFlight];
  auto start = Clock::now();
  for (uint64_t i = 0; i < rounds + 4; ++i) {
    if (i == 4) {
      Drain(queue);  // the first ones warmed up
      submit.clear();
      start = Clock::now();
    }
    while (queue.in_flight() == kInFlight) (void)queue.Poll(absl::MakeSpan(some));
    const auto before = Clock::now();
    (void)queue.Submit({.copies = copies});
    submit.push_back(Micros(Clock::now() - before));
  }
  Drain(queue);
  const double micros = Micros(Clock::now() - start);
  const double gigabytes = static_cast<double>(rounds * kCopies * bytes) / 1e9;
  std::printf("  %-17s %4llu KiB x %llu: %8.1f GB/s, Submit p50 %.2f us a copy\n", ends.name,
              static_cast<unsigned long long>(bytes / 1024),
              static_cast<unsigned long long>(kCopies), gigabytes / micros * 1e6,
              At(submit, 0.5) / static_cast<double>(kCopies));
}

absl::Status Run() {
  constexpr uint64_t kPage = 360 << 10, kPiece = 16 << 10, kSpan = 2 * 64 * kPage;
  CRUMB_ASSIGN(const DeviceBuffer from, DeviceBuffer::Create(0, kSpan));
  CRUMB_ASSIGN(const DeviceBuffer to, DeviceBuffer::Create(0, kSpan));
  CRUMB_ASSIGN(const PinnedBuffer host, PinnedBuffer::Create(0, kSpan));
  for (const bool batched : {true, false}) {
    for (const bool values : {true, false}) {
      CRUMB_ASSIGN(const auto queue,
                   CudaQueue::Create({.batched_copies = batched, .value_tickets = values}));
      std::printf("%s, %s:\n", queue->batches_copies() ? "batched copies" : "single copies",
                  queue->writes_values() ? "written tickets" : "copied tickets");
      Tickets(*queue);
      if (!values) continue;  // copies are the same
      for (const uint64_t bytes : {kPage, kPiece}) {
        Copies(*queue, {"host to device", to.data(), host.data()}, bytes);
        Copies(*queue, {"device to host", host.data(), from.data()}, bytes);
        Copies(*queue, {"device to device", to.data(), from.data()}, bytes);
      }
      CRUMB_TRY(queue->health());
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) {
  if (argc > 1) {
    std::fprintf(stderr, "bench_gpu_queue takes no arguments: %s\n", argv[1]);
    return 2;
  }
  const crumb::GpuProbe probe = crumb::ProbeGpus();
  if (probe.devices.empty()) {
    std::printf("skipped: %s\n", probe.note.c_str());
    return 77;
  }
  std::printf("%s, driver %d, runtime %d\n", probe.devices[0].name.c_str(), probe.driver_version,
              probe.runtime_version);
  const absl::Status status = crumb::Run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
