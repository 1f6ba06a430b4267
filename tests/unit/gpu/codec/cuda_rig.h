// What tests of the GPU codec share: a codec of both kinds, pages of it in device memory, and a
// worker's memory that holds raw rows as an engine would: [slot][token][head][dim] per tensor.
#ifndef CRUMB_TESTS_UNIT_GPU_CODEC_CUDA_RIG_H_
#define CRUMB_TESTS_UNIT_GPU_CODEC_CUDA_RIG_H_

#include <memory>
#include <vector>

#include "gpu/codec/cuda_codec.h"
#include "tests/unit/gpu/codec/codec_test_util.h"

namespace crumb::codec_test {

// What a case wants of a kind's codec; the neutral values keep the kind's own.
struct CodecWish {
  uint32_t group = 0;
  MetaForm meta = MetaForm::kNone;
  Packing packing = Packing::kNone;
  float clip = 0.0f;  // more than 0: clips K and V, by sorting
};
CodecDescriptor DescriptorOf(CodecKind kind, const std::shared_ptr<const RotationSet>& set,
                             const CodecWish& wish);

// Bytes that differ; all of `a` where the sizes do.
uint64_t DifferentBytes(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b);

class CudaRig {
 public:
  struct Options {
    uint32_t pages = 3;
    uint32_t tokens_per_slot = 16;
    uint32_t shift = 0;  // bytes that every tensor's memory is moved by; not a multiple of 16: slow
  };
  CudaRig(const PartShape& shape, const CodecDescriptor& descriptor,
          std::shared_ptr<const RotationSet> set, const Options& options);
  ~CudaRig();

  Bench& cpu() { return cpu_; }
  const CudaCodec& gpu() const { return *gpu_; }
  uint32_t pages() const { return options_.pages; }

  // Raw pages to the worker's slots and back; other bytes of the memory must stay as they were.
  void PutRaw(uint32_t page, const std::vector<uint8_t>& raw);
  void PutEveryPage(const std::vector<uint8_t>& raw);
  std::vector<uint8_t> TakeRaw(uint32_t page, uint32_t tokens);
  // Fills the worker's memory with a pattern that `Untouched` looks for outside the pages' rows.
  void Poison();
  bool Untouched(const std::vector<uint32_t>& tokens);

  void Encode(const std::vector<uint32_t>& tokens, Effort effort = Effort::kNormal);
  void Decode(const std::vector<uint32_t>& tokens, Frame frame);
  std::vector<uint8_t> Payload(uint32_t page) const;
  void SetPayload(uint32_t page, const std::vector<uint8_t>& payload);
  CudaPageReport Report(uint32_t page) const;

 private:
  struct TensorMemory {
    uint64_t offset;  // in the worker's memory
    CudaPlace place;
  };
  void MakePlaces();
  void Place(uint32_t page, const std::vector<uint8_t>& raw);
  CudaPages PagesOf(const std::vector<uint32_t>& tokens);
  void Finish(const absl::Status& launched);
  uint64_t RowOffset(size_t tensor, uint32_t page, uint32_t token, uint32_t head) const;

  Options options_;
  PartShape shape_;
  Bench cpu_;
  std::unique_ptr<CudaCodec> gpu_;
  uint32_t slots_per_page_ = 0;
  std::vector<uint32_t> slots_;  // scattered
  std::vector<TensorMemory> tensors_;
  std::vector<uint8_t> memory_;  // host copy of the worker's memory
  DeviceBuffer device_memory_, payloads_, page_list_, slot_list_, places_, reports_;
  uint64_t payload_step_ = 0;
};

}  // namespace crumb::codec_test

#endif  // CRUMB_TESTS_UNIT_GPU_CODEC_CUDA_RIG_H_
