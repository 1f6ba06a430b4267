// A batch of copies that the driver refuses. Over the fake runtime alone: what a driver refuses in
// a batch and what it only notices on the GPU, where it costs the context, is the driver's choice.
#include <gtest/gtest.h>

#include "gpu/device/cuda_memory.h"
#include "gpu/device/cuda_queue.h"

namespace crumb {
namespace {

TEST(CudaRefusedBatchTest, SpoilsItsOwnWorkAlone) {
  auto made = CudaQueue::Create({.work_max = 4});
  ASSERT_TRUE(made.ok()) << made.status();
  CudaQueue& queue = **made;
  ASSERT_TRUE(queue.batches_copies());
  const auto memory = DeviceBuffer::Create(0, 4096);
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::byte* const device = memory->data();
  const StreamCopy wrong[2] = {{device, device + 1024, 64},
                               {device, device + 2048, uint64_t{1} << 46}};
  const StreamCopy good[2] = {{device, device + 1024, 64}, {device + 64, device + 2048, 64}};
  ASSERT_TRUE(queue.Submit({.copies = wrong, .token = 1}));
  ASSERT_TRUE(queue.Submit({.copies = good, .token = 2}));
  StreamDone done[2];
  size_t found = 0;
  while (found < 2) found += queue.Poll(absl::MakeSpan(done).subspan(found));
  EXPECT_EQ(done[0].token, 1u);
  EXPECT_FALSE(done[0].ok);
  EXPECT_EQ(done[1].token, 2u);
  EXPECT_TRUE(done[1].ok);
  EXPECT_TRUE(queue.health().ok()) << queue.health();
}

}  // namespace
}  // namespace crumb
