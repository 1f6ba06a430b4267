// See the header.
#include "tests/unit/gpu/codec/cuda_link_rig.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

namespace crumb::codec_test {
namespace {

constexpr uint64_t kGuardBytes = 64;

template <typename T>
T Value(absl::StatusOr<T> made) {
  EXPECT_TRUE(made.ok()) << made.status();
  CRUMB_CHECK(made.ok());
  return std::move(*made);
}

}  // namespace

// WHY both: a copy from pageable memory may return before it arrived, and streams do not wait.
void CopyMemory(void* to, const void* from, uint64_t bytes) {
  CRUMB_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDefault) == cudaSuccess);
  CRUMB_CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

std::vector<uint8_t> AnyBytes(uint64_t bytes, uint64_t seed) {
  std::vector<uint8_t> out(bytes);
  Rng rng(seed);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(rng.Below(256));
  return out;
}

std::vector<uint8_t> WithZeros(const PayloadLayout& layout, uint32_t tokens,
                               std::vector<uint8_t> raw) {
  for (const TensorLayout& tensor : layout.tensors()) {
    for (uint32_t head = 0; head < tensor.heads; ++head) {
      uint8_t* const at = raw.data() + tensor.raw_offset + head * tensor.raw_head_bytes;
      const uint64_t kept = uint64_t{tokens} * tensor.raw_row_bytes;
      std::memset(at + kept, 0, tensor.raw_head_bytes - kept);
    }
  }
  return raw;
}

CudaLinkRig::CudaLinkRig(const PayloadLayout& raw_layout, uint32_t payload_bytes,
                         const Options& options)
    : options_(options), step_((payload_bytes + 15) / 16 * 16 + kGuardBytes) {
  PagedWorker::Options paged = {
      .pages = options.pages, .tokens_per_slot = options.tokens_per_slot, .gap = options.gap};
  const uint64_t bytes = PagedWorker(raw_layout, paged).memory.size();
  memory_ = Value(DeviceBuffer::Create(options.device, bytes));
  paged.address = reinterpret_cast<uint64_t>(memory_.data());
  worker_ = std::make_unique<PagedWorker>(raw_layout, paged);
  const uint64_t half = payloads() / 2 * step_ + kGuardBytes;
  device_payloads_ = Value(DeviceBuffer::Create(options.device, half));
  pinned_payloads_ = Value(PinnedBuffer::Create(options.device, half));
  const std::vector<uint8_t> guard(half, kGuard);
  CopyMemory(device_payloads_.data(), guard.data(), half);
  std::memset(pinned_payloads_.data(), kGuard, half);
  CudaLinkOptions link = {.device = options.device, .event = options.event};
  link.slice_bytes = options.slice_bytes;
  if (options.slice_bytes != 0) {
    link.slices_from = reinterpret_cast<uint8_t*>(pinned_payloads_.data());
  }
  link_ = Value(MakeCudaLink(link));
  EXPECT_EQ(link_->device(), options.device);
  table_ = Value(link_->AddPlaces(worker_->places(), options.tokens_per_slot));
  Upload();
}

void CudaLinkRig::Upload() {
  CopyMemory(memory_.data(), worker_->memory.data(), worker_->memory.size());
}
void CudaLinkRig::Download() {
  CopyMemory(worker_->memory.data(), memory_.data(), worker_->memory.size());
}

uint8_t* CudaLinkRig::payload(uint32_t i) {
  const uint32_t half = payloads() / 2;
  std::byte* const base = i < half ? device_payloads_.data() : pinned_payloads_.data();
  return reinterpret_cast<uint8_t*>(base + kGuardBytes + i % half * step_);
}

std::vector<uint8_t> CudaLinkRig::PayloadBytes(uint32_t i, uint32_t bytes) {
  std::vector<uint8_t> out(bytes);
  CopyMemory(out.data(), payload(i), bytes);
  return out;
}

bool CudaLinkRig::GuardsHold(uint32_t bytes) {
  const uint64_t rest = step_ - bytes;
  for (uint32_t i = 0; i < payloads(); ++i) {
    std::vector<uint8_t> guard(rest);
    CopyMemory(guard.data(), payload(i) + bytes, rest);
    if (std::count(guard.begin(), guard.end(), kGuard) != static_cast<int64_t>(rest)) return false;
    CopyMemory(guard.data(), payload(i) - kGuardBytes, kGuardBytes);
    if (std::count(guard.begin(), guard.begin() + kGuardBytes, kGuard) != kGuardBytes) return false;
  }
  return true;
}

GpuJob CudaLinkRig::Job(GpuJobKind kind, const GpuCodec& codec, uint32_t page, uint32_t tokens,
                        uint32_t payload_index) {
  GpuJob job;
  job.kind = kind;
  job.codec = &codec;
  job.table = table_;
  job.tokens = tokens;
  job.slots = worker_->slots(page);
  job.payload = payload(payload_index);
  job.token = payload_index;
  return job;
}

void CudaLinkRig::Submit(const GpuJob& job) { CRUMB_CHECK(link_->Submit(job)); }

// WHY a bound: a work that is lost must end the test. Polls are loads, so this is seconds.
std::vector<GpuDone> CudaLinkRig::Run() {
  link_->Flush();
  std::vector<GpuDone> all(payloads() + 1);
  GpuDone done;
  for (uint64_t i = 0; i < 4'000'000'000 && link_->in_flight() != 0; ++i) {
    if (link_->Poll({&done, 1}) == 0) continue;
    EXPECT_TRUE(done.ok) << done.token;
    all.at(done.token) = done;
  }
  EXPECT_EQ(link_->in_flight(), 0u);
  return all;
}

}  // namespace crumb::codec_test
