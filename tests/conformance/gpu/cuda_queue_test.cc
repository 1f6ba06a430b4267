// CudaQueue on a real GPU: the suite with every way of copying and of writing tickets, then what
// only a GPU can show: completion waits for the work, errors name the device.
#include "gpu/device/cuda_queue.h"

#include <gmock/gmock.h>

#include <semaphore>

#include "tests/conformance/gpu/cuda_target.cuh"

namespace crumb {
namespace {

using ::testing::HasSubstr;

StreamTargetCase Case(const std::string& name, const CudaQueueOptions& options) {
  return {name, [options] { return std::make_unique<CudaTarget>(options); }};
}

INSTANTIATE_TEST_SUITE_P(
    Cuda, StreamQueueConformance,
    ::testing::Values(Case("best", {}), Case("small_calls", {.copies_call = 7}),
                      Case("single_copies", {.batched_copies = false}),
                      Case("copied_tickets", {.value_tickets = false}),
                      Case("oldest_driver", {.batched_copies = false, .value_tickets = false}),
                      Case("low", {.priority = StreamPriority::kLow}),
                      Case("high", {.priority = StreamPriority::kHigh})),
    [](const auto& target) { return target.param.name; });

// Holds the stream until it is opened, without a clock.
struct Gate {
  std::binary_semaphore open{0};
  static absl::Status Close(void* gate, StreamHandle stream) noexcept {
    const auto wait = [](void* held) { static_cast<Gate*>(held)->open.acquire(); };
    return CudaStatus(cudaLaunchHostFunc(stream, wait, gate), "gate", 0);
  }
};

TEST(CudaQueueTest, NothingIsDoneBeforeItIsDone) {
  for (const bool value_tickets : {true, false}) {
    auto made = CudaQueue::Create({.work_max = 4, .value_tickets = value_tickets});
    ASSERT_TRUE(made.ok()) << made.status();
    CudaQueue& queue = **made;
    EXPECT_FALSE(!value_tickets && queue.writes_values());
    Gate gate;
    ASSERT_TRUE(queue.Submit({.token = 1}));
    ASSERT_TRUE(queue.Submit({.launch = Gate::Close, .arg = &gate, .token = 2}));
    ASSERT_TRUE(queue.Submit({.token = 3}));
    StreamDone some[4];
    size_t found = 0;
    while (found == 0) found = queue.Poll(absl::MakeSpan(some));
    EXPECT_EQ(found, 1u);
    EXPECT_EQ(some[0].token, 1u);
    // Often enough that the stream is asked as well.
    for (int i = 0; i < 5000; ++i) ASSERT_EQ(queue.Poll(absl::MakeSpan(some)), 0u);
    EXPECT_EQ(queue.in_flight(), 2u);
    gate.open.release();
    const std::vector<StreamDone> rest = Collect(queue, 2);
    EXPECT_EQ(rest[0].token, 2u);
    EXPECT_EQ(rest[1].token, 3u);
    EXPECT_TRUE(rest[1].ok);
  }
}

TEST(CudaQueueTest, QueuesDoNotWaitForEachOther) {
  auto held = CudaQueue::Create({.priority = StreamPriority::kLow});
  auto free = CudaQueue::Create({.priority = StreamPriority::kHigh});
  ASSERT_TRUE(held.ok() && free.ok());
  Gate gate;
  ASSERT_TRUE((*held)->Submit({.launch = Gate::Close, .arg = &gate, .token = 1}));
  ASSERT_TRUE((*free)->Submit({.token = 2}));
  EXPECT_EQ(Collect(**free, 1)[0].token, 2u);
  EXPECT_EQ((*held)->in_flight(), 1u);
  gate.open.release();
  Collect(**held, 1);
  int low = 0, high = 0;
  ASSERT_EQ(cudaStreamGetPriority((*held)->stream(), &low), cudaSuccess);
  ASSERT_EQ(cudaStreamGetPriority((*free)->stream(), &high), cudaSuccess);
  EXPECT_LT(high, low) << "a smaller number goes first";
}

absl::Status CountLaunch(void* count, StreamHandle) noexcept {
  ++*static_cast<int*>(count);
  return absl::OkStatus();
}

TEST(CudaQueueTest, AWrongCopySpoilsItsOwnWorkAlone) {
  auto made = CudaQueue::Create({.work_max = 4, .batched_copies = false});
  ASSERT_TRUE(made.ok()) << made.status();
  CudaQueue& queue = **made;
  Gate gate;
  ASSERT_TRUE(queue.Submit({.launch = Gate::Close, .arg = &gate, .token = 1}));
  const auto memory = DeviceBuffer::Create(0, 4096);
  const auto host = PinnedBuffer::Create(0, 64);
  ASSERT_TRUE(memory.ok() && host.ok());
  std::byte* const device = memory->data();
  // A good one first: what is under way already may use the caller's memory.
  const StreamCopy wrong[2] = {{device, device + 1024, 64},
                               {device, device + 2048, uint64_t{1} << 46}};
  int launches = 0;
  EXPECT_TRUE(queue.Submit({.copies = wrong, .launch = CountLaunch, .arg = &launches, .token = 2}));
  EXPECT_EQ(launches, 0) << "its copies are not whole";
  EXPECT_TRUE(queue.health().ok()) << queue.health();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "nobody else's";
  const StreamCopy good{host->data(), device, 64};
  const bool goes_on =
      queue.Submit({.copies = {&good, 1}, .launch = CountLaunch, .arg = &launches, .token = 3});
  StreamDone some[4];
  EXPECT_EQ(queue.Poll(absl::MakeSpan(some)), 0u) << "work before it is still on the GPU";
  gate.open.release();  // before any way out of here: the queue waits for it
  ASSERT_TRUE(goes_on);
  EXPECT_EQ(launches, 1);
  const std::vector<StreamDone> done = Collect(queue, 3);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(done[i].token, i + 1);
    EXPECT_EQ(done[i].ok, i != 1) << done[i].token;
  }
  EXPECT_EQ(queue.in_flight(), 0u);
  EXPECT_TRUE(queue.health().ok()) << queue.health();
}

TEST(CudaQueueTest, AWrongDeviceIsNamedWithTheRemedy) {
  for (const int device : {-1, 4096}) {
    const auto queue = CudaQueue::Create({.device = device});
    ASSERT_FALSE(queue.ok());
    EXPECT_EQ(queue.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(queue.status().message()), HasSubstr(std::to_string(device)));
    EXPECT_THAT(std::string(queue.status().message()), HasSubstr("nvidia-smi -L"));
    EXPECT_EQ(DeviceBuffer::Create(device, 8).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(PinnedBuffer::Create(device, 8).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(CudaMemoryTest, TooMuchIsRefusedAndWhatIsThereMoves) {
  const auto too_much = DeviceBuffer::Create(0, uint64_t{1} << 50);
  ASSERT_FALSE(too_much.ok());
  EXPECT_EQ(too_much.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(too_much.status().message()), HasSubstr("1125899906842624"));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the error was reported once";
  auto some = DeviceBuffer::Create(0, 4096);
  ASSERT_TRUE(some.ok()) << some.status();
  std::byte* const memory = some->data();
  const DeviceBuffer moved = *std::move(some);
  EXPECT_EQ(moved.data(), memory);
  EXPECT_EQ(moved.size(), 4096u);
  EXPECT_EQ(moved.device(), 0);
  EXPECT_EQ(some->size(), 0u);
  auto pinned = PinnedBuffer::Create(0, 4096);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_NE(pinned->device_data(), nullptr);
  EXPECT_EQ(pinned->data()[4095], std::byte{0});
}

}  // namespace
}  // namespace crumb
