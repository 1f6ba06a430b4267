// main of tests labelled gpu: without a GPU nothing is run, and the exit says so (77: skipped).
#include <gmock/gmock.h>

#include <cstdio>

#include "gpu/device/gpu_probe.h"

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const crumb::GpuProbe probe = crumb::ProbeGpus();
  if (probe.devices.empty() && !testing::GTEST_FLAG(list_tests)) {
    std::printf("skipped: %s\n", probe.note.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
