// crumbd and its workers on a GPU, as processes: what daemon_suite.cc has, and what takes CUDA: the
// order of streams, memory that goes away or cannot be lent, the documented example.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "gpu/device/cuda_busy.h"
#include "gpu/device/cuda_memory.h"
#include "tests/gpu/daemon_suite.h"

namespace crumb {
namespace {

using client::Code;
using ::testing::HasSubstr;

using CudaDaemonTest = DaemonSuite;

// Work on a stream takes longer than a request does, and nobody waits for it here.
TEST_F(CudaDaemonTest, PutsAndGetsAreBehindTheirStream) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kSample), kSample, 3));
  const auto sink = DeviceBuffer::Create(0, sizeof(float));
  ASSERT_OK(sink.status());
  auto* const nowhere = reinterpret_cast<float*>(sink->data());
  cudaStream_t streams[2] = {};
  for (cudaStream_t& stream : streams) {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  }
  std::byte* const base = rig_->pages()->memory();
  const uint64_t bytes = rig_->pages()->bytes();
  constexpr uint64_t kSteps = 1 << 25;  // tens of milliseconds
  for (int turn = 0; turn < 6; ++turn) {
    cudaStream_t const stream = streams[turn % 2];
    rig_->stream = stream;
    const std::vector<std::string> key = {absl::StrCat("turn/", turn)};
    // Each stream alone orders what is on it: what the last turn left must have ended.
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(cudaMemset(base, 0, bytes), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_OK(LaunchBusy(8, kSteps, nowhere, stream));
    ASSERT_EQ(cudaMemsetAsync(base, 0x3c + turn % 3, bytes, stream), cudaSuccess);
    ASSERT_EQ(CountOf(rig_->Put(key, 0), Code::kOk), 1u) << Tail();

    ASSERT_OK(LaunchBusy(8, kSteps, nowhere, stream));
    ASSERT_EQ(cudaMemsetAsync(base, 0, bytes, stream), cudaSuccess);
    ASSERT_EQ(CountOf(rig_->Get(key, 2), Code::kOk), 1u) << Tail();
    const std::vector<uint8_t> page = rig_->Page(2);
    ASSERT_FALSE(page.empty());
    const auto fill = static_cast<uint8_t>(0x3c + turn % 3);
    EXPECT_EQ(page[1], fill) << "of turn " << turn << ": the put or the get came too early";
    EXPECT_EQ(page[page.size() - 1], fill);
  }
  rig_.reset();
  for (cudaStream_t const stream : streams) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// Two requests on two streams before the daemon comes to either: one event has to cover both.
TEST_F(CudaDaemonTest, ARequestOnAnotherStreamDoesNotHideTheFirst) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kSample), kSample, 3));
  const auto sink = DeviceBuffer::Create(0, sizeof(float));
  ASSERT_OK(sink.status());
  cudaStream_t slow = nullptr, quick = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&slow, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&quick, cudaStreamNonBlocking), cudaSuccess);
  std::byte* const base = rig_->pages()->memory();
  const uint64_t bytes = rig_->pages()->bytes();
  for (int turn = 0; turn < 4; ++turn) {
    ASSERT_EQ(cudaMemset(base, 0, bytes), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_OK(LaunchBusy(8, 1 << 25, reinterpret_cast<float*>(sink->data()), slow));
    ASSERT_EQ(cudaMemsetAsync(base, 0x3d, bytes, slow), cudaSuccess);
    client::Ticket first = 0, second = 0;
    const std::vector<std::string> key = {absl::StrCat("slow/", turn)};
    rig_->stream = slow;
    ASSERT_TRUE(rig_->Submit(true, key, 0, &first).ok());
    rig_->stream = quick;
    ASSERT_TRUE(rig_->Submit(true, {absl::StrCat("quick/", turn)}, 1, &second).ok());
    ASSERT_EQ(CountOf(rig_->Wait(first).results, Code::kOk), 1u) << Tail();
    ASSERT_EQ(CountOf(rig_->Wait(second).results, Code::kOk), 1u) << Tail();
    ASSERT_EQ(CountOf(rig_->Get(key, 2), Code::kOk), 1u) << Tail();
    EXPECT_EQ(rig_->Page(2)[1], 0x3d) << "the slow stream's put was not waited for";
  }
  rig_.reset();
  EXPECT_EQ(cudaStreamDestroy(slow), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(quick), cudaSuccess);
}

TEST_F(CudaDaemonTest, MemoryThatIsFreedTooEarlyHarmsNobodyElse) {
  const cli::DeviceShape large = SizeOfSuite().large;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kSample), kSample, 2));
  ASSERT_OK(rig_->pages()->Fill(0x3c));
  ASSERT_EQ(CountOf(rig_->Put({"mine"}, 0), Code::kOk), 1u) << Tail();
  for (int turn = 0; turn < 10; ++turn) {
    auto rash = GpuRig::Open(daemon_->server(), SpecFor("int4", large), large, 1);
    ASSERT_OK(rash.status());
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, 8 * large.page_bytes()), cudaSuccess);
    ASSERT_EQ(cudaMemset(memory, 0x3c, 8 * large.page_bytes()), cudaSuccess);
    client::GpuRegions regions;
    regions.base = memory;
    regions.bytes = 8 * large.page_bytes();
    regions.slot_bytes = large.page_bytes();
    client::Client* const client = (*rash)->client();
    uint32_t set = 0;
    const client::Status lent = client->RegisterGpuRegions((*rash)->layout(), regions, &set);
    ASSERT_TRUE(lent.ok()) << lent.message << Tail();
    const std::vector<std::string> keys = Keys(absl::StrCat("rash/", turn), 8);
    std::vector<client::Block> blocks(8);
    for (uint32_t i = 0; i < 8; ++i) {
      blocks[i].key = keys[i];
      blocks[i].slot = i;
    }
    client::Ticket ticket = 0;
    ASSERT_TRUE(client->SubmitPut((*rash)->layout(), set, blocks, {}, &ticket).ok());
    ASSERT_EQ(cudaFree(memory), cudaSuccess);
    (*rash)->Wait(ticket);  // whatever it says: the memory was not there
    rash->reset();
    ASSERT_EQ(CountOf(rig_->Get({"mine"}, 1), Code::kOk), 1u) << "turn " << turn << Tail();
    EXPECT_EQ(rig_->Page(1)[1], 0x3c);
  }
}

// Only where there are two GPUs: a stream of the other one has no order with this one's memory.
TEST_F(CudaDaemonTest, AStreamOfAnotherGpuIsRefusedAndNothingIsSent) {
  int devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  if (devices < 2) GTEST_SKIP() << "one GPU";
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kSample), kSample, 1));
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  rig_->stream = stream;
  client::Ticket ticket = 0;
  const client::Status refused = rig_->Submit(true, {"key"}, 0, &ticket);
  EXPECT_EQ(refused.code, Code::kInvalid);
  EXPECT_THAT(refused.message, HasSubstr("a stream of the GPU whose memory"));
  EXPECT_EQ(rig_->client()->in_flight(), 0u);
  // The default stream is that of the memory's GPU, whichever device is current.
  rig_->stream = nullptr;
  EXPECT_EQ(CountOf(rig_->Put({"key"}, 0), Code::kOk), 1u) << Tail();
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST_F(CudaDaemonTest, MemoryOfCudasPoolsIsRefusedWithTheRemedy) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Open(SpecFor("int4", kSample), kSample, 1));
  void* memory = nullptr;
  ASSERT_EQ(cudaMallocAsync(&memory, 1 << 20, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  client::GpuRegions regions;
  regions.base = memory;
  regions.bytes = 1 << 20;
  regions.slot_bytes = kSample.page_bytes();
  uint32_t set = 0;
  const client::Status status = rig_->client()->RegisterGpuRegions(rig_->layout(), regions, &set);
  EXPECT_EQ(status.code, Code::kInvalid);
  EXPECT_THAT(status.message, HasSubstr("expandable_segments:False"));
  EXPECT_EQ(cudaFreeAsync(memory, nullptr), cudaSuccess);
}

TEST_F(CudaDaemonTest, TheDocumentedExampleRuns) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::string program = ProgramBeside("GPU_PAGES", "gpu_pages");
  EXPECT_EQ(std::system(absl::StrCat(program, " ", daemon_->server()).c_str()), 0) << Tail();
}

}  // namespace
}  // namespace crumb
