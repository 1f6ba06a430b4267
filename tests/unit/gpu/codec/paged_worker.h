// A worker's paged KV tensors in host memory: pages scattered over slots, gaps between heads,
// tokens and slots, and a pattern that shows what was written besides. One thread.
#ifndef CRUMB_TESTS_UNIT_GPU_CODEC_PAGED_WORKER_H_
#define CRUMB_TESTS_UNIT_GPU_CODEC_PAGED_WORKER_H_

#include <algorithm>
#include <cstring>
#include <vector>

#include "gpu/codec/cuda_params.h"
#include "gpu/codec/payload_layout.h"

namespace crumb::codec_test {

class PagedWorker {
 public:
  static constexpr uint8_t kPoison = 0xa5;
  struct Options {
    uint32_t pages = 3;
    uint32_t tokens_per_slot = 16;
    uint64_t gap = 6;      // bytes behind a row; keep it even
    uint64_t address = 0;  // that places count from; 0: of `memory`
  };

  PagedWorker(const PayloadLayout& layout, const Options& options)
      : layout_(layout), options_(options) {
    slots_per_page_ =
        (layout.page_tokens() + options.tokens_per_slot - 1) / options.tokens_per_slot;
    const uint32_t used = slots_per_page_ * options.pages;
    for (uint32_t i = 0; i < used; ++i)
      slots_.push_back(2 * (used - i));  // every second, backwards
    uint64_t end = 64;
    for (const TensorLayout& tensor : layout.tensors()) {
      if (tensor.raw_row_bytes == 0) continue;
      tensors_.push_back(tensor);
      CudaPlace place = {end, 0, 0, tensor.raw_row_bytes + options.gap};
      place.token_stride = tensor.heads * place.head_stride + options.gap;
      place.slot_stride = options.tokens_per_slot * place.token_stride + options.gap;
      end += (2 * used + 2) * place.slot_stride;
      offsets_.push_back(place);
    }
    memory.assign(end + 64, kPoison);
  }

  // As a GPU sees them where `address` is what it calls the memory.
  std::vector<CudaPlace> places() const {
    const uint64_t base =
        options_.address != 0 ? options_.address : reinterpret_cast<uint64_t>(memory.data());
    std::vector<CudaPlace> out = offsets_;
    for (CudaPlace& place : out) place.address += base;
    return out;
  }
  absl::Span<const uint32_t> slots(uint32_t page) const {
    return absl::MakeConstSpan(slots_).subspan(page * slots_per_page_, slots_per_page_);
  }

  void Put(uint32_t page, const std::vector<uint8_t>& raw) {
    ForEachRow(page, layout_.page_tokens(), [&](uint64_t here, uint64_t there, uint32_t bytes) {
      std::memcpy(memory.data() + there, raw.data() + here, bytes);
    });
  }
  std::vector<uint8_t> Take(uint32_t page, uint32_t tokens) const {
    std::vector<uint8_t> raw(layout_.raw_bytes(), 0);
    ForEachRow(page, tokens, [&](uint64_t here, uint64_t there, uint32_t bytes) {
      std::memcpy(raw.data() + here, memory.data() + there, bytes);
    });
    return raw;
  }
  void Poison() { std::fill(memory.begin(), memory.end(), kPoison); }
  // Outside of the first rows of each page.
  bool Untouched(const std::vector<uint32_t>& tokens) const {
    std::vector<uint8_t> rest = memory;
    for (uint32_t page = 0; page < tokens.size(); ++page) {
      ForEachRow(page, tokens[page], [&](uint64_t, uint64_t there, uint32_t bytes) {
        std::memset(rest.data() + there, kPoison, bytes);
      });
    }
    return std::all_of(rest.begin(), rest.end(), [](uint8_t byte) { return byte == kPoison; });
  }

  std::vector<uint8_t> memory;

 private:
  template <typename Row>
  void ForEachRow(uint32_t page, uint32_t tokens, Row row) const {
    for (size_t t = 0; t < offsets_.size(); ++t) {
      const TensorLayout& tensor = tensors_[t];
      for (uint32_t i = 0; i < tensor.heads * tokens; ++i) {
        const uint32_t head = i % tensor.heads, token = i / tensor.heads;
        const uint64_t slot = slots(page)[token / options_.tokens_per_slot];
        row(tensor.raw_offset + head * tensor.raw_head_bytes +
                uint64_t{token} * tensor.raw_row_bytes,
            offsets_[t].address + slot * offsets_[t].slot_stride +
                token % options_.tokens_per_slot * offsets_[t].token_stride +
                head * offsets_[t].head_stride,
            tensor.raw_row_bytes);
      }
    }
  }

  const PayloadLayout layout_;
  const Options options_;
  uint32_t slots_per_page_ = 0;
  std::vector<uint32_t> slots_;
  std::vector<TensorLayout> tensors_;  // that have elements
  std::vector<CudaPlace> offsets_;     // theirs; addresses within `memory`
};

}  // namespace crumb::codec_test

#endif  // CRUMB_TESTS_UNIT_GPU_CODEC_PAGED_WORKER_H_
