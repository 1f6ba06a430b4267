// A program of its own, because its context does not come back: a kernel that faults makes the
// queue refuse work, name the device, and hand back every token.
#include <gmock/gmock.h>

#include "gpu/device/cuda_memory.h"
#include "gpu/device/cuda_queue.h"
#include "tests/conformance/gpu/cuda_trap.h"

namespace crumb {
namespace {

TEST(CudaLostDeviceTest, EveryTokenComesBackAndTheErrorStays) {
  auto made = CudaQueue::Create({.work_max = 8});
  ASSERT_TRUE(made.ok()) << made.status();
  CudaQueue& queue = **made;
  const auto memory = DeviceBuffer::Create(0, 64);
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_TRUE(queue.Submit({.token = 1}));
  StreamDone some[8];
  while (queue.Poll(absl::MakeSpan(some)) == 0) {
  }
  EXPECT_TRUE(some[0].ok);
  ASSERT_TRUE(queue.Submit({.launch = LaunchTrap, .token = 2}));
  size_t accepted = 1;
  // The fault may show in any call from here on.
  const StreamCopy copy{memory->data(), memory->data() + 32, 32};
  for (uint64_t token = 3; token < 7; ++token) {
    const absl::Span<const StreamCopy> copies(&copy, token % 2);  // some with a copy
    accepted += queue.Submit({.copies = copies, .token = token}) ? 1 : 0;
  }
  std::vector<StreamDone> back;
  while (back.size() < accepted) {
    const size_t found = queue.Poll(absl::MakeSpan(some));
    back.insert(back.end(), some, some + found);
  }
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i].token, 2 + i);
    EXPECT_FALSE(back[i].ok) << back[i].token;
  }
  EXPECT_EQ(queue.in_flight(), 0u);
  const std::string message(queue.health().message());
  EXPECT_EQ(queue.health().code(), absl::StatusCode::kInternal) << message;
  EXPECT_THAT(message, ::testing::HasSubstr("CUDA device 0"));
  EXPECT_THAT(message, ::testing::HasSubstr("the process has to end"));
  EXPECT_FALSE(queue.Submit({.token = 9}));
  EXPECT_EQ(queue.Poll(absl::MakeSpan(some)), 0u);
  EXPECT_EQ(std::string(queue.health().message()), message) << "the first error stays";
}

}  // namespace
}  // namespace crumb
