// What `crumbctl bench --device N` prints: text, or a document. Pure; any thread.
#ifndef CRUMB_CLIENT_CLI_BENCH_DEVICE_REPORT_H_
#define CRUMB_CLIENT_CLI_BENCH_DEVICE_REPORT_H_

#include <string>

#include "client/cli/bench_device.h"
#include "client/cli/bench_device_check.h"
#include "client/cli/bench_device_run.h"

namespace crumb::cli {

struct DevicePhaseReport {
  std::string gpu;
  int device = 0;
  DeviceTally tally;
  double kernels_alone = 0;        // a second; 0: there was no load
  double kernel_us = 0;            // of the load, alone
  double daemon_cpu_seconds = -1;  // of measured batches and those before; -1: not known
};

struct DeviceReport {
  DeviceArgs args;
  DeviceShape shape;
  std::string data_plane, codec, codec_note;
  uint64_t payload_bytes = 0;
  uint64_t warm = 0;
  DevicePhaseReport put, get;
  DeviceCheckTally check;
};

// Share of its kernels that the worker lost; negative: none, within what runs differ by.
double LossOf(const DevicePhaseReport& phase);
std::string DeviceReportText(const DeviceReport& report);
std::string DeviceReportJson(const DeviceReport& report);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_BENCH_DEVICE_REPORT_H_
