// crumbctl bench --device N: the daemon measured through a worker's GPU memory. See
// bench_device.cc.
#ifndef CRUMB_CLIENT_CLI_BENCH_DEVICE_H_
#define CRUMB_CLIENT_CLI_BENCH_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cachesvc/base/status.h"
#include "gpu/device/gpu_worker.h"

namespace CLI {
class App;
}

namespace crumb::cli {

struct Context;

struct DeviceArgs {
  int device = -1, peer = -1;  // puts come from the first, gets go to the second; -1: the same
  uint32_t layers = 80, heads = 8, dim = 128, page_tokens = 64, block_tokens = 16;
  uint32_t batch = 32, depth = 1, batches = 50, spin_us = 0;
  double rate = 0;  // batches a second; 0: the next as soon as one is done
  std::string codec = "crumb-int4", effort = "normal", rotation, place = "auto";
  bool kernel_load = false;
};

using GpuWorkerOpener = std::function<absl::StatusOr<std::unique_ptr<GpuWorker>>(int device)>;

void BenchDevice(Context* context, const DeviceArgs& args, const GpuWorkerOpener& open);
// Options of `bench` itself, for when no verb is named.
void AddBenchDevice(CLI::App* bench, Context* context);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_BENCH_DEVICE_H_
