// See the header. Synchronous on purpose: a test looks at memory after every step.
#include "tests/unit/gpu/codec/cuda_rig.h"

#include <cuda_runtime_api.h>

#include <numeric>

namespace crumb::codec_test {
namespace {

constexpr uint8_t kPoison = 0xa5;
constexpr int kDevice = 0;

DeviceBuffer Buffer(uint64_t bytes) {
  auto buffer = DeviceBuffer::Create(kDevice, bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  CRUMB_CHECK(buffer.ok());
  return std::move(*buffer);
}

void Check(cudaError_t error) {
  EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  CRUMB_CHECK(error == cudaSuccess);
}

}  // namespace

CodecDescriptor DescriptorOf(CodecKind kind, const std::shared_ptr<const RotationSet>& set,
                             const CodecWish& wish) {
  CodecDescriptor descriptor = DefaultOf(kind, set);
  if (wish.group != 0) descriptor.group = wish.group;
  if (wish.meta != MetaForm::kNone) descriptor.meta = wish.meta;
  if (wish.packing != Packing::kNone) descriptor.packing = wish.packing;
  if (wish.clip > 0.0f) {
    descriptor.clip_k = descriptor.clip_v = wish.clip;
    descriptor.clip_method = ClipMethod::kSort;
  }
  return descriptor;
}

uint64_t DifferentBytes(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  if (a.size() != b.size()) return a.size();
  uint64_t different = 0;
  for (size_t i = 0; i < a.size(); ++i) different += a[i] != b[i] ? 1 : 0;
  return different;
}

// The codec that the GPU's is measured against.
CodecBackend TestedBackend() { return CodecBackend::kReference; }

CudaRig::CudaRig(const PartShape& shape, const CodecDescriptor& descriptor,
                 std::shared_ptr<const RotationSet> set, const Options& options)
    : options_(options), shape_(shape), cpu_(shape, descriptor, set) {
  auto made = CudaCodec::Create(shape, descriptor, std::move(set), kDevice);
  EXPECT_TRUE(made.ok()) << made.status();
  CRUMB_CHECK(made.ok());
  gpu_ = std::move(*made);
  slots_per_page_ = (shape.page_tokens + options.tokens_per_slot - 1) / options.tokens_per_slot;
  const uint32_t used = slots_per_page_ * options.pages;
  // Every second slot, backwards.
  for (uint32_t i = 0; i < used; ++i) slots_.push_back(2 * (used - i));
  MakePlaces();
  payload_step_ = (gpu_->layout().payload_bytes() + 15) / 16 * 16;
  payloads_ = Buffer(payload_step_ * options.pages);
  page_list_ = Buffer(sizeof(CudaPage) * options.pages);
  slot_list_ = Buffer(4 * slots_.size());
  places_ = Buffer(sizeof(CudaPlace) * tensors_.size());
  reports_ = Buffer(sizeof(CudaPageReport) * options.pages);
  Check(cudaMemcpy(slot_list_.data(), slots_.data(), 4 * slots_.size(), cudaMemcpyHostToDevice));
  Poison();
}

CudaRig::~CudaRig() = default;

void CudaRig::MakePlaces() {
  uint64_t end = 256 + options_.shift;
  const uint64_t slots = 2 * slots_.size() + 2;
  for (const TensorLayout& tensor : gpu_->layout().tensors()) {
    TensorMemory memory = {end, {}};
    memory.place.head_stride = 2 * tensor.dim;
    memory.place.token_stride = uint64_t{tensor.heads} * memory.place.head_stride;
    memory.place.slot_stride = options_.tokens_per_slot * memory.place.token_stride;
    end += slots * memory.place.slot_stride;
    tensors_.push_back(memory);
  }
  memory_.assign(end + 256, 0);
  device_memory_ = Buffer(memory_.size());
  for (TensorMemory& memory : tensors_) {
    memory.place.address = reinterpret_cast<uint64_t>(device_memory_.data()) + memory.offset;
  }
}

uint64_t CudaRig::RowOffset(size_t tensor, uint32_t page, uint32_t token, uint32_t head) const {
  const TensorMemory& memory = tensors_[tensor];
  const uint32_t slot = slots_[page * slots_per_page_ + token / options_.tokens_per_slot];
  return memory.offset + slot * memory.place.slot_stride +
         token % options_.tokens_per_slot * memory.place.token_stride +
         head * memory.place.head_stride;
}

void CudaRig::Place(uint32_t page, const std::vector<uint8_t>& raw) {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const TensorLayout& tensor = gpu_->layout().tensors()[t];
    for (uint32_t head = 0; head < tensor.heads; ++head) {
      for (uint32_t token = 0; token < shape_.page_tokens; ++token) {
        std::memcpy(memory_.data() + RowOffset(t, page, token, head),
                    raw.data() + tensor.raw_offset + head * tensor.raw_head_bytes +
                        token * tensor.raw_row_bytes,
                    tensor.raw_row_bytes);
      }
    }
  }
}

void CudaRig::PutRaw(uint32_t page, const std::vector<uint8_t>& raw) {
  Place(page, raw);
  Check(cudaMemcpy(device_memory_.data(), memory_.data(), memory_.size(), cudaMemcpyHostToDevice));
}

void CudaRig::PutEveryPage(const std::vector<uint8_t>& raw) {
  for (uint32_t page = 0; page < pages(); ++page) Place(page, raw);
  Check(cudaMemcpy(device_memory_.data(), memory_.data(), memory_.size(), cudaMemcpyHostToDevice));
}

std::vector<uint8_t> CudaRig::TakeRaw(uint32_t page, uint32_t tokens) {
  Check(cudaMemcpy(memory_.data(), device_memory_.data(), memory_.size(), cudaMemcpyDeviceToHost));
  std::vector<uint8_t> raw(shape_.raw_bytes, 0);
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const TensorLayout& tensor = gpu_->layout().tensors()[t];
    for (uint32_t head = 0; head < tensor.heads; ++head) {
      for (uint32_t token = 0; token < tokens; ++token) {
        std::memcpy(raw.data() + tensor.raw_offset + head * tensor.raw_head_bytes +
                        token * tensor.raw_row_bytes,
                    memory_.data() + RowOffset(t, page, token, head), tensor.raw_row_bytes);
      }
    }
  }
  return raw;
}

void CudaRig::Poison() {
  std::fill(memory_.begin(), memory_.end(), kPoison);
  Check(cudaMemset(device_memory_.data(), kPoison, memory_.size()));
}

bool CudaRig::Untouched(const std::vector<uint32_t>& tokens) {
  Check(cudaMemcpy(memory_.data(), device_memory_.data(), memory_.size(), cudaMemcpyDeviceToHost));
  std::vector<uint8_t> rest = memory_;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const TensorLayout& tensor = gpu_->layout().tensors()[t];
    for (uint32_t page = 0; page < pages(); ++page) {
      for (uint32_t i = 0; i < tensor.heads * tokens[page]; ++i) {
        std::memset(rest.data() + RowOffset(t, page, i / tensor.heads, i % tensor.heads), kPoison,
                    tensor.raw_row_bytes);
      }
    }
  }
  return std::all_of(rest.begin(), rest.end(), [](uint8_t byte) { return byte == kPoison; });
}

CudaPages CudaRig::PagesOf(const std::vector<uint32_t>& tokens) {
  std::vector<CudaPage> list;
  for (uint32_t page = 0; page < pages(); ++page) {
    list.push_back({reinterpret_cast<uint64_t>(payloads_.data()) + page * payload_step_,
                    tokens[page], page * slots_per_page_});
  }
  std::vector<CudaPlace> places;
  for (const TensorMemory& memory : tensors_) places.push_back(memory.place);
  Check(cudaMemcpy(page_list_.data(), list.data(), sizeof(CudaPage) * list.size(),
                   cudaMemcpyHostToDevice));
  Check(cudaMemcpy(places_.data(), places.data(), sizeof(CudaPlace) * places.size(),
                   cudaMemcpyHostToDevice));
  CudaPages out;
  out.places = reinterpret_cast<const CudaPlace*>(places_.data());
  out.pages = reinterpret_cast<const CudaPage*>(page_list_.data());
  out.slots = reinterpret_cast<const uint32_t*>(slot_list_.data());
  out.reports = reinterpret_cast<CudaPageReport*>(reports_.data());
  out.count = pages();
  out.tokens_per_slot = options_.tokens_per_slot;
  out.aligned = options_.shift % 16 == 0;
  return out;
}

void CudaRig::Finish(const absl::Status& launched) {
  ASSERT_TRUE(launched.ok()) << launched;
  Check(cudaDeviceSynchronize());
}

void CudaRig::Encode(const std::vector<uint32_t>& tokens, Effort effort) {
  const CudaPages pages = PagesOf(tokens);
  Check(cudaMemset(payloads_.data(), kPoison, payloads_.size()));
  Finish(gpu_->ResetReports(pages, nullptr));
  Finish(gpu_->Encode(pages, effort, nullptr));
}

void CudaRig::Decode(const std::vector<uint32_t>& tokens, Frame frame) {
  Finish(gpu_->Decode(PagesOf(tokens), frame, nullptr));
}

std::vector<uint8_t> CudaRig::Payload(uint32_t page) const {
  std::vector<uint8_t> out(gpu_->layout().payload_bytes());
  Check(cudaMemcpy(out.data(), payloads_.data() + page * payload_step_, out.size(),
                   cudaMemcpyDeviceToHost));
  return out;
}

void CudaRig::SetPayload(uint32_t page, const std::vector<uint8_t>& payload) {
  Check(cudaMemcpy(payloads_.data() + page * payload_step_, payload.data(), payload.size(),
                   cudaMemcpyHostToDevice));
}

CudaPageReport CudaRig::Report(uint32_t page) const {
  CudaPageReport out = {};
  Check(
      cudaMemcpy(&out, reports_.data() + page * sizeof(out), sizeof(out), cudaMemcpyDeviceToHost));
  return out;
}

}  // namespace crumb::codec_test
