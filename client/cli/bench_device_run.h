// One phase of `bench --device`: batches of puts or gets through one Client, some in flight at a
// time, timed one by one. One thread.
#ifndef CRUMB_CLIENT_CLI_BENCH_DEVICE_RUN_H_
#define CRUMB_CLIENT_CLI_BENCH_DEVICE_RUN_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/cli/bench_device_pages.h"
#include "client/cli/histogram.h"
#include "crumb/client.h"
#include "gpu/device/gpu_worker.h"

namespace crumb::cli {

struct DevicePhase {
  bool put = true;
  client::Client* client = nullptr;
  const client::Layout* layout = nullptr;
  uint32_t region_set = 0;
  const DevicePages* pages = nullptr;  // put: `batch` of them; get: `batch` for each in flight
  void* stream = nullptr;
  std::string key_prefix;
  uint32_t batch = 1, depth = 1;
  uint64_t warm = 0, batches = 0;  // not measured, then measured
  uint64_t stored = 0;             // get: batches that were put
  double rate = 0;                 // batches a second; 0: as fast as they end
  const GpuLoad* load = nullptr;
  std::function<bool()> stopped;
};

struct DeviceTally {
  Histogram latency_us;  // of batches
  double seconds = 0;
  uint64_t batches = 0, pages = 0;
  std::array<uint64_t, 5> tiers{};
  std::array<uint64_t, 4> precisions{};
  std::array<uint64_t, 256> failures{};  // by code
  double kernels_per_second = 0;         // of the load
  std::string note, error;               // the first page's note; why it ended early
};

// Which of the source pages batch `batch` puts as its page `i`: no two batches in a row alike, so
// that a page of another key shows.
uint32_t SourceOf(uint64_t batch, uint32_t i, uint32_t pages);
std::string DeviceKey(const std::string& prefix, uint64_t batch, uint32_t i);

void RunDevicePhase(const DevicePhase& phase, DeviceTally* tally);
// Kernels a second while nothing else is done, over `seconds`.
double LoadAlone(client::Client* client, const GpuLoad& load, double seconds);
// Deletes what `batches` batches put; how many pages may be there still.
uint64_t CleanDevice(const DevicePhase& phase, uint64_t batches);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_BENCH_DEVICE_RUN_H_
