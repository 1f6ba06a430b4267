// A stream, a ring of tokens, and the word that the GPU writes. The driver's calls are looked up at
// run time: the program starts without a driver, and goes on with an older one.
#include "gpu/device/cuda_queue.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "cachesvc/base/check.h"
#include "gpu/device/cuda_driver.cuh"
#include "gpu/device/cuda_memory.h"
#include "gpu/device/cuda_status.h"

namespace crumb {
namespace {

// The word says nothing of a GPU that failed: after so many empty polls the stream is asked, too.
constexpr uint32_t kEmptyPollsPerQuery = 1024;
constexpr uint64_t kWordBytes = 128;  // the word alone on its lines, then the table's source
constexpr uint64_t kNotWritten = ~uint64_t{0};

CUdeviceptr Address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

}  // namespace

struct CudaQueue::Impl {
  CudaQueueOptions options;
  cudaStream_t stream = nullptr;
  PinnedBuffer pinned;  // the word, then 0, 1, 2, ... for the table
  DeviceBuffer table;   // 0, 1, 2, ...: what tickets are copied from where values cannot be written
  PFN_cuStreamWriteValue64_v11070 write_value = nullptr;
  PFN_cuMemcpyBatchAsync_v13000 batch = nullptr;
  std::vector<CUdeviceptr> dsts, srcs;  // one call's copies
  std::vector<size_t> sizes;

  std::vector<StreamDone> ring;
  // INVARIANT: polled <= done <= submitted <= polled + ring.size().
  uint64_t submitted = 0, done = 0, polled = 0;
  uint32_t empty_polls = 0;
  absl::Status health;

  explicit Impl(const CudaQueueOptions& wanted)
      : options(wanted),
        dsts(wanted.copies_call),
        srcs(wanted.copies_call),
        sizes(wanted.copies_call),
        ring(wanted.work_max) {}

  ~Impl() {
    if (stream == nullptr) return;
    // The GPU may still write to pages and to the word: wait once, at the very end.
    if (cudaSetDevice(options.device) == cudaSuccess) (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
  }

  absl::Status Start();
  absl::Status MakeStream();
  cudaError_t FillTable();
  cudaError_t TryTicket();

  // Twice as many values as can be in flight, so that a value says how many are done.
  uint64_t table_size() const { return 2 * uint64_t{options.work_max}; }
  uint64_t* word() const { return reinterpret_cast<uint64_t*>(pinned.data()); }
  uint64_t ReadWord() const {
    // Acquire: what the work wrote to host memory is read after its ticket.
    return std::atomic_ref<uint64_t>(*word()).load(std::memory_order_acquire);
  }

  uint64_t Completed() const {
    if (write_value != nullptr) return ReadWord();
    const uint64_t size = table_size();
    return done + (ReadWord() + size - done % size) % size;
  }

  cudaError_t EnqueueCopies(absl::Span<const StreamCopy> copies);
  cudaError_t EnqueueCall(size_t count);
  cudaError_t EnqueueTicket(uint64_t number);
  bool Launch(const StreamWork& work);
  void Fail(cudaError_t error, const char* what) {
    (void)cudaGetLastError();
    if (health.ok()) health = CudaStatus(error, what, options.device);
  }
  void CheckAlive(const char* what);
  void AskStream();
};

absl::Status CudaQueue::Impl::MakeStream() {
  const int device = options.device;
  CRUMB_TRY(CheckCudaDevice(device));
  CRUMB_TRY(CudaStatus(cudaSetDevice(device), "cannot be used", device));
  int least = 0;
  int greatest = 0;  // a smaller number is a higher priority
  CRUMB_TRY(CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities", device));
  int priority = least;
  if (options.priority == StreamPriority::kNormal) priority = (least + greatest) / 2;
  if (options.priority == StreamPriority::kHigh) priority = greatest;
  return CudaStatus(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
                    "no stream", device);
}

absl::Status CudaQueue::Impl::Start() {
  CRUMB_TRY(MakeStream());
  const int device = options.device;
  const uint64_t table_bytes = table_size() * sizeof(uint64_t);
  CRUMB_ASSIGN(pinned, PinnedBuffer::Create(device, kWordBytes + table_bytes));
  CRUMB_ASSIGN(table, DeviceBuffer::Create(device, table_bytes));
  if (options.batched_copies) {
    batch = DriverCall<PFN_cuMemcpyBatchAsync_v13000>("cuMemcpyBatchAsync", 13000);
  }
  if (options.value_tickets) {
    write_value = DriverCall<PFN_cuStreamWriteValue64_v11070>("cuStreamWriteValue64", 12000);
  }
  cudaError_t error = FillTable();
  if (error != cudaSuccess && batch != nullptr) {
    (void)cudaGetLastError();
    batch = nullptr;
    error = FillTable();
  }
  CRUMB_TRY(CudaStatus(error, "copies do not work", device));
  error = TryTicket();
  if (error != cudaSuccess && write_value != nullptr) {
    (void)cudaGetLastError();
    write_value = nullptr;
    error = TryTicket();
  }
  return CudaStatus(error, "tickets do not work", device);
}

// Two copies, so that a batch is one.
cudaError_t CudaQueue::Impl::FillTable() {
  uint64_t* const values = word() + kWordBytes / sizeof(uint64_t);
  for (uint64_t i = 0; i < table_size(); ++i) values[i] = i;
  const uint64_t half = table.size() / 2;
  const StreamCopy copies[2] = {
      {table.data(), values, half},
      {table.data() + half, reinterpret_cast<std::byte*>(values) + half, half}};
  const cudaError_t error = EnqueueCopies(copies);
  return error != cudaSuccess ? error : cudaStreamSynchronize(stream);
}

// Ticket 0: nothing is done yet.
cudaError_t CudaQueue::Impl::TryTicket() {
  *word() = kNotWritten;
  cudaError_t error = EnqueueTicket(0);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error == cudaSuccess && ReadWord() != 0) error = cudaErrorUnknown;
  return error;
}

cudaError_t CudaQueue::Impl::EnqueueCopies(absl::Span<const StreamCopy> copies) {
  size_t count = 0;
  for (const StreamCopy& copy : copies) {
    if (copy.bytes == 0) continue;
    dsts[count] = Address(copy.dst);
    srcs[count] = Address(copy.src);
    sizes[count] = copy.bytes;
    if (++count < sizes.size()) continue;
    if (const cudaError_t error = EnqueueCall(count); error != cudaSuccess) return error;
    count = 0;
  }
  return count == 0 ? cudaSuccess : EnqueueCall(count);
}

// The first `count` of dsts, srcs and sizes.
cudaError_t CudaQueue::Impl::EnqueueCall(size_t count) {
  if (count > 1 && batch != nullptr) {
    CUmemcpyAttributes attributes = {};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    // Copy engines leave the multiprocessors to the worker and to the codec.
    attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
    size_t first = 0;  // the attributes hold from copy 0 on
    const CUresult result =
        batch(dsts.data(), srcs.data(), sizes.data(), count, &attributes, &first, 1, stream);
    return static_cast<cudaError_t>(result);
  }
  for (size_t i = 0; i < count; ++i) {
    const cudaError_t error =
        cudaMemcpyAsync(reinterpret_cast<void*>(dsts[i]), reinterpret_cast<const void*>(srcs[i]),
                        sizes[i], cudaMemcpyDefault, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t CudaQueue::Impl::EnqueueTicket(uint64_t number) {
  if (write_value != nullptr) {
    // The default flag: what the stream wrote before is visible first.
    return static_cast<cudaError_t>(
        write_value(stream, Address(pinned.device_data()), number, CU_STREAM_WRITE_VALUE_DEFAULT));
  }
  const std::byte* const value = table.data() + number % table_size() * sizeof(uint64_t);
  return cudaMemcpyAsync(word(), value, sizeof(uint64_t), cudaMemcpyDeviceToHost, stream);
}

// False: this work is not whole.
bool CudaQueue::Impl::Launch(const StreamWork& work) {
  (void)cudaGetLastError();  // what others left behind is not this launch's
  const bool ok = work.launch(work.arg, stream).ok();
  const cudaError_t error = cudaGetLastError();  // of a launch that its caller did not check
  if (ok && error == cudaSuccess) return true;
  CheckAlive("a launch failed");
  return false;
}

// After a refusal: bad parameters spoil one work, a lost device everything.
void CudaQueue::Impl::CheckAlive(const char* what) {
  const cudaError_t state = cudaStreamQuery(stream);
  (void)cudaGetLastError();  // the refusal's too: no launch may take it for its own
  if (state != cudaSuccess && state != cudaErrorNotReady) Fail(state, what);
}

void CudaQueue::Impl::AskStream() {
  const cudaError_t state = cudaStreamQuery(stream);
  (void)cudaGetLastError();  // "not ready" is no error to find later
  if (state == cudaErrorNotReady) return;
  done = Completed();
  CRUMB_CHECK(done <= submitted);
  if (state != cudaSuccess) Fail(state, "work in flight was lost");
  // An idle stream that wrote no ticket had none enqueued; that queue has failed already.
  if (done < submitted && health.ok()) Fail(cudaErrorUnknown, "a ticket was lost");
  for (; done < submitted; ++done) ring[done % ring.size()].ok = false;
}

CudaQueue::CudaQueue(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CudaQueue::~CudaQueue() = default;

absl::StatusOr<std::unique_ptr<CudaQueue>> CudaQueue::Create(const CudaQueueOptions& options) {
  CRUMB_CHECK(options.work_max >= 1);
  CRUMB_CHECK(options.copies_call >= 1);
  auto impl = std::make_unique<Impl>(options);
  CRUMB_TRY(impl->Start());
  return std::unique_ptr<CudaQueue>(new CudaQueue(std::move(impl)));
}

bool CudaQueue::Submit(const StreamWork& work) {
  Impl& queue = *impl_;
  if (!queue.health.ok() || in_flight() == queue.ring.size()) return false;
  if (const cudaError_t error = cudaSetDevice(queue.options.device); error != cudaSuccess) {
    queue.Fail(error, "cannot be used any more");
    return false;
  }
  StreamDone& entry = queue.ring[queue.submitted++ % queue.ring.size()];
  entry = {.token = work.token, .ok = true};
  // From here on the token comes back: copies may be under way that use the caller's memory.
  cudaError_t error = queue.EnqueueCopies(work.copies);
  if (error != cudaSuccess) {
    entry.ok = false;
    queue.CheckAlive("a copy was refused");
  } else if (work.launch != nullptr) {
    entry.ok = queue.Launch(work);
  }
  if (queue.health.ok()) {
    error = queue.EnqueueTicket(queue.submitted);
    if (error != cudaSuccess) queue.Fail(error, "a ticket was refused");
  }
  return true;
}

size_t CudaQueue::Poll(absl::Span<StreamDone> done) {
  Impl& queue = *impl_;
  if (queue.done < queue.submitted) {
    const uint64_t completed = queue.Completed();
    CRUMB_CHECK(completed >= queue.done && completed <= queue.submitted);
    const bool news = completed > queue.done;
    queue.done = completed;
    queue.empty_polls = news ? 0 : queue.empty_polls + 1;
    if (!news && (!queue.health.ok() || queue.empty_polls >= kEmptyPollsPerQuery)) {
      queue.empty_polls = 0;
      queue.AskStream();
    }
  }
  size_t count = 0;
  while (count < done.size() && queue.polled < queue.done) {
    done[count++] = queue.ring[queue.polled++ % queue.ring.size()];
  }
  return count;
}

size_t CudaQueue::in_flight() const {
  return static_cast<size_t>(impl_->submitted - impl_->polled);
}
const absl::Status& CudaQueue::health() const { return impl_->health; }
bool CudaQueue::batches_copies() const { return impl_->batch != nullptr; }
bool CudaQueue::writes_values() const { return impl_->write_value != nullptr; }
StreamHandle CudaQueue::stream() const { return impl_->stream; }

}  // namespace crumb
