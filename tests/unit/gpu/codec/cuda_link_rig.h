// A worker's paged tensors in device memory, payloads in device and in pinned host memory, and a
// link between them: what tests of links share, with a GPU and over the fake runtime. One thread.
#ifndef CRUMB_TESTS_UNIT_GPU_CODEC_CUDA_LINK_RIG_H_
#define CRUMB_TESTS_UNIT_GPU_CODEC_CUDA_LINK_RIG_H_

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cachesvc/base/check.h"
#include "cachesvc/base/rng.h"
#include "gpu/codec/cuda_link.h"
#include "gpu/device/cuda_memory.h"
#include "tests/unit/gpu/codec/paged_worker.h"

namespace crumb::codec_test {

// Synchronous copies, either way.
void CopyMemory(void* to, const void* from, uint64_t bytes);

std::vector<uint8_t> AnyBytes(uint64_t bytes, uint64_t seed);
// A raw page as it is after a put of `tokens` rows.
std::vector<uint8_t> WithZeros(const PayloadLayout& layout, uint32_t tokens,
                               std::vector<uint8_t> raw);

class CudaLinkRig {
 public:
  struct Options {
    int device = 0;
    uint32_t pages = 3;
    uint32_t tokens_per_slot = 16;
    uint64_t gap = 16;  // not a multiple of 16: the slow way
    std::optional<GpuHandle> event = std::nullopt;
    uint64_t slice_bytes = 0;  // of the pinned payloads
  };
  // `payload_bytes`: of the largest codec.
  CudaLinkRig(const PayloadLayout& raw_layout, uint32_t payload_bytes, const Options& options);

  GpuLink& link() { return *link_; }
  PagedWorker& worker() { return *worker_; }  // the host's copy: Upload and Download
  void Upload();
  void Download();
  uint8_t* device_memory() { return reinterpret_cast<uint8_t*>(memory_.data()); }

  // Payload `i`, guarded on both sides. The first half lies in device memory, the other in pinned
  // memory; there are two of each for every page.
  uint32_t payloads() const { return 4 * options_.pages; }
  uint8_t* payload(uint32_t i);
  std::vector<uint8_t> PayloadBytes(uint32_t i, uint32_t bytes);
  // True: nothing but `bytes` of each payload was written.
  bool GuardsHold(uint32_t bytes);

  GpuJob Job(GpuJobKind kind, const GpuCodec& codec, uint32_t page, uint32_t tokens,
             uint32_t payload);
  void Submit(const GpuJob& job);
  // Flushes and waits for everything; reports by token.
  std::vector<GpuDone> Run();

 private:
  static constexpr uint8_t kGuard = 0x5c;
  const Options options_;
  uint64_t step_ = 0;
  DeviceBuffer memory_, device_payloads_;
  PinnedBuffer pinned_payloads_;
  std::unique_ptr<PagedWorker> worker_;
  std::shared_ptr<GpuLink> link_;
  uint32_t table_ = 0;
};

}  // namespace crumb::codec_test

#endif  // CRUMB_TESTS_UNIT_GPU_CODEC_CUDA_LINK_RIG_H_
