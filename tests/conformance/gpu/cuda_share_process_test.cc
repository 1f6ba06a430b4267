// GPU memory between two processes, on a GPU: this program starts itself as the worker that lends.
// The worker is killed while its memory is mapped, 20 times: nothing may fail in the process that
// mapped it, and its GPU memory must come back.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "gpu/device/cuda_memory.h"
#include "gpu/device/cuda_share.h"

namespace crumb {
namespace {

constexpr uint64_t kBytes = 64ull << 20, kOffset = 1 << 20, kLent = 8 << 20;
constexpr char kFill[] = "CRUMB_SHARE_WORKER_FILL";  // environment of a worker

// What a worker says once its memory is filled and an event recorded behind that.
struct Offer {
  std::array<uint8_t, kGpuShareBytes> share;
  GpuHandle event;
};

// The worker: `fill` in all of its memory, then the offer to descriptor 3; then it answers bytes of
// descriptor 4: its memory's first lent byte.
int RunWorker(int fill) {
  auto memory = DeviceBuffer::Create(0, kBytes);
  auto event = GpuEvent::Create(0);
  if (!memory.ok() || !event.ok()) return 1;
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 2;
  const auto share = ShareGpuMemory(memory->data() + kOffset, kLent);
  if (!share.ok()) return 3;
  const Offer offer = {EncodeGpuShare(*share), event->handle()};
  if (cudaMemsetAsync(memory->data(), fill, kBytes, stream) != cudaSuccess) return 4;
  if (!event->Record(stream).ok()) return 5;
  if (write(3, &offer, sizeof(offer)) != sizeof(offer)) return 6;
  for (char byte = 0; read(4, &byte, 1) == 1;) {
    if (cudaMemcpy(&byte, memory->data() + kOffset, 1, cudaMemcpyDeviceToHost) != cudaSuccess) {
      return 7;
    }
    if (write(3, &byte, 1) != 1) return 8;
  }
  return 0;
}

class Worker {
 public:
  explicit Worker(int fill) {
    int from[2], to[2];
    if (pipe(from) != 0 || pipe(to) != 0) return;
    const std::string number = std::to_string(fill);
    child_ = fork();
    if (child_ == 0) {
      setenv(kFill, number.c_str(), 1);
      (void)dup2(from[1], 3), (void)dup2(to[0], 4);
      execl("/proc/self/exe", "cuda_share_process_test", "--gtest_also_run_disabled_tests",
            "--gtest_filter=CudaShareWorker.DISABLED_Lends", nullptr);
      _exit(99);
    }
    close(from[1]), close(to[0]);
    from_ = from[0], to_ = to[1];
  }
  ~Worker() {
    Kill();
    close(from_), close(to_);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  template <typename T>
  bool Read(T* out) {
    pollfd wait = {.fd = from_, .events = POLLIN, .revents = 0};
    return poll(&wait, 1, 30'000) == 1 && read(from_, out, sizeof(T)) == sizeof(T);
  }
  bool Ask(uint8_t* byte) { return write(to_, byte, 1) == 1 && Read(byte); }
  void Kill() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }

 private:
  pid_t child_ = 0;
  int from_ = -1, to_ = -1;
};

class CudaShareProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }

  // The worker's memory here, once what it wrote is there.
  void Take(Worker* worker, GpuImports::Range* range) {
    Offer offer;
    ASSERT_TRUE(worker->Read(&offer));
    const auto share = ParseGpuShare(offer.share);
    ASSERT_TRUE(share.ok()) << share.status();
    const auto mapped = imports_.Map(*share);
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    ASSERT_EQ(mapped->bytes, kLent);
    const auto event = GpuEvent::Open(offer.event, mapped->device);
    ASSERT_TRUE(event.ok()) << event.status();
    ASSERT_TRUE(event->Wait(stream_).ok());
    *range = *mapped;
  }
  std::vector<uint8_t> Copy(const GpuImports::Range& range) {
    std::vector<uint8_t> bytes(range.bytes);
    EXPECT_EQ(cudaMemcpyAsync(bytes.data(), range.data, bytes.size(), cudaMemcpyDefault, stream_),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return bytes;
  }

  cudaStream_t stream_ = nullptr;
  GpuImports imports_{8};
};

TEST(CudaShareWorker, DISABLED_Lends) {
  const char* fill = std::getenv(kFill);
  ASSERT_NE(fill, nullptr) << "the tests below start this one, in a process of its own";
  EXPECT_EQ(RunWorker(std::stoi(fill)), 0);
}

TEST_F(CudaShareProcessTest, MemoryIsReadBehindTheWorkersEventAndWritten) {
  Worker worker(37);
  GpuImports::Range range;
  ASSERT_NO_FATAL_FAILURE(Take(&worker, &range));
  EXPECT_EQ(Copy(range), std::vector<uint8_t>(kLent, 37));
  ASSERT_EQ(cudaMemsetAsync(range.data, 41, range.bytes, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  uint8_t seen = 0;
  ASSERT_TRUE(worker.Ask(&seen));
  EXPECT_EQ(seen, 41);
  imports_.Release(range);
}

TEST_F(CudaShareProcessTest, AWorkerThatIsKilledHarmsNobody) {
  size_t before = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  for (int turn = 0; turn < 20; ++turn) {
    Worker worker(turn);
    GpuImports::Range range;
    ASSERT_NO_FATAL_FAILURE(Take(&worker, &range));
    EXPECT_EQ(Copy(range).back(), turn);
    for (int i = 0; i < 64; ++i) {
      ASSERT_EQ(cudaMemsetAsync(range.data, i, range.bytes, stream_), cudaSuccess);
      if (i == 8) worker.Kill();
    }
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(Copy(range), std::vector<uint8_t>(kLent, 63));
    imports_.Release(range);
  }
  EXPECT_EQ(imports_.mapped(), 0u);
  size_t after = 0;
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_LT(before - std::min(before, after), kBytes) << "mappings hold memory";
}

TEST_F(CudaShareProcessTest, MemoryOfCudasPoolsIsRefused) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMallocAsync(&memory, kBytes, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(ShareGpuMemory(memory, kBytes).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(cudaFreeAsync(memory, stream_), cudaSuccess);
}

}  // namespace
}  // namespace crumb
