// The probe answers on every machine: devices, or a note that says why there are none.
#include "gpu/device/gpu_probe.h"

#include <gtest/gtest.h>

namespace crumb {
namespace {

TEST(GpuProbe, SaysWhyThereIsNoDevice) {
  const GpuProbe probe = ProbeGpus();
  EXPECT_EQ(probe.devices.empty(), !probe.note.empty()) << probe.note;
  if (!probe.built_with_cuda) {
    EXPECT_EQ(probe.runtime_version, 0);
    EXPECT_NE(probe.note.find("CRUMB_CUDA"), std::string::npos);
  }
  for (const GpuInfo& device : probe.devices) {
    EXPECT_FALSE(device.name.empty());
    EXPECT_GT(device.memory_bytes, 0u);
  }
}

}  // namespace
}  // namespace crumb
