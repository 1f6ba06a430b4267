// A worker's paged KV tensors in GPU memory, as an engine has them: per layer K and V, in slots of
// block_tokens tokens [slot][token][head][dim], a page's slots anywhere. One allocation. One
// thread.
#ifndef CRUMB_CLIENT_CLI_BENCH_DEVICE_PAGES_H_
#define CRUMB_CLIENT_CLI_BENCH_DEVICE_PAGES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cachesvc/base/types.h"
#include "crumb/client.h"
#include "gpu/device/gpu_worker.h"

namespace crumb::cli {

struct DeviceShape {
  uint32_t layers = 1, heads = 1, dim = 64, page_tokens = 64, block_tokens = 16;

  uint64_t page_bytes() const {
    return uint64_t{layers} * 2 * heads * page_tokens * dim * sizeof(uint16_t);
  }
  uint64_t slot_bytes() const {  // of one tensor
    return uint64_t{block_tokens} * heads * dim * sizeof(uint16_t);
  }
  uint32_t slots_per_page() const { return page_tokens / block_tokens; }
};

class DevicePages {
 public:
  // `worker` outlives the pages.
  static absl::StatusOr<std::unique_ptr<DevicePages>> Make(GpuWorker* worker,
                                                           const DeviceShape& shape,
                                                           uint32_t pages);

  client::Status Lend(client::Client* client, const client::Layout& layout, uint32_t* set,
                      client::CodecPlace place = client::CodecPlace::kAuto) const;
  uint32_t count() const { return pages_; }
  std::span<const uint32_t> SlotsOf(uint32_t page) const;
  // `raw` is [layer][K|V][head][token][dim] of shape.page_bytes().
  absl::Status Write(uint32_t page, Bytes raw);
  absl::Status Read(uint32_t page, MutableBytes raw);
  absl::Status Fill(uint8_t value) { return worker_.Fill(memory_, value, bytes()); }
  std::byte* memory() const { return memory_; }
  uint64_t bytes() const;

 private:
  DevicePages(GpuWorker* worker, const DeviceShape& shape, uint32_t pages);
  std::byte* SlotAt(uint32_t tensor, uint32_t slot) const;

  GpuWorker& worker_;
  const DeviceShape shape_;
  const uint32_t pages_;
  std::byte* memory_ = nullptr;
  std::vector<uint32_t> slots_;   // of page 0, then of page 1
  std::vector<uint8_t> staging_;  // one slot of one tensor
};

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_BENCH_DEVICE_PAGES_H_
