// Raw memory is an engine's: [layer][K|V][slot][token][head][dim], slots of 16 tokens, shuffled;
// values are about normal. Rotations are reflections, with a mean and a query moment for each head,
// as calibrated sets have.
#include "gpu/codec/cuda_bench_job.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/rng.h"
#include "gpu/codec/bf16.h"
#include "gpu/device/cuda_status.h"

namespace crumb {
namespace {

constexpr uint64_t kSpareBytes = 64 << 20;  // the driver's own, and rounding
constexpr uint64_t kValuesMade = 4 << 20;   // then copied over and over

double Normal(Rng* rng) {
  double sum = -6.0;
  for (int i = 0; i < 12; ++i) sum += static_cast<double>(rng->Below(1u << 24)) / (1u << 24);
  return sum;
}

// The reflection of a random vector: orthogonal, and no element of it is special.
std::vector<float> Reflection(uint32_t dim, Rng* rng) {
  std::vector<double> v(dim);
  double norm = 0.0;
  for (double& value : v) {
    value = Normal(rng);
    norm += value * value;
  }
  std::vector<float> matrix;
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) {
      matrix.push_back(static_cast<float>((i == j) - 2.0 * v[i] * v[j] / norm));
    }
  }
  return matrix;
}

absl::StatusOr<std::shared_ptr<const RotationSet>> MakeSet(const GpuBenchCase& wanted) {
  RotationSet::Contents contents;
  contents.model = "bench";
  contents.revision = "1";
  contents.gamma = 0.5f;
  const uint32_t dim = wanted.dim;
  Rng rng(1);
  for (uint32_t id = 0; id < wanted.layers; ++id) {
    RotationLayer layer;
    layer.layer_id = id;
    layer.k = {1, dim, Reflection(dim, &rng)};
    layer.v = {1, dim, Reflection(dim, &rng)};
    layer.kv_heads = wanted.heads;
    layer.k_dim = dim;
    for (uint32_t i = 0; i < wanted.heads * dim; ++i) {
      layer.k_mean.push_back(static_cast<float>(Normal(&rng)));
    }
    // Queries that look in some directions more than in others.
    for (uint32_t head = 0; head < wanted.heads; ++head) {
      for (uint32_t i = 0; i < dim; ++i) {
        for (uint32_t j = 0; j < dim; ++j) {
          const double own = i == j ? 1.0 + (i * 7 + head) % 11 : 0.0;
          layer.query_moment.push_back(static_cast<float>(own + 8.0 / (1.0 + i + j)));
        }
      }
    }
    contents.layers.push_back(std::move(layer));
  }
  return RotationSet::Make(std::move(contents));
}

absl::StatusOr<Layout> MakeLayout(const GpuBenchCase& wanted) {
  Identity identity;
  identity.model = "bench";
  identity.revision = "1";
  identity.weights_dtype = "bf16";
  identity.page_tokens = wanted.page_tokens;
  AttentionGroup& group = identity.groups.emplace_back();
  group.kv_heads = wanted.heads;
  group.k_dim = group.v_dim = wanted.dim;
  for (uint32_t id = 0; id < wanted.layers; ++id) group.layer_ids.push_back(id);
  return Layout::Make(std::move(identity));
}

template <typename T>
absl::StatusOr<DeviceBuffer> Upload(int device, const std::vector<T>& table) {
  const uint64_t bytes = table.size() * sizeof(T);
  CRUMB_ASSIGN(DeviceBuffer buffer, DeviceBuffer::Create(device, bytes));
  CRUMB_TRY(CudaStatus(cudaMemcpy(buffer.data(), table.data(), bytes, cudaMemcpyHostToDevice),
                       "filling a table", device));
  return buffer;
}

}  // namespace

absl::StatusOr<CudaBenchJob> CudaBenchJob::Make(int device, const GpuBenchCase& wanted,
                                                uint32_t pages) {
  CudaBenchJob job;
  CRUMB_ASSIGN(const Layout layout, MakeLayout(wanted));
  CRUMB_ASSIGN(const auto set, MakeSet(wanted));
  const PartShape& shape = layout.parts()[0];
  CRUMB_ASSIGN(
      job.codec_,
      CudaCodec::Create(shape, CodecDescriptor::Default(wanted.kind, set->hash()), set, device));
  job.pages_ = pages;
  job.raw_page_bytes_ = shape.raw_bytes;
  const uint64_t slots = uint64_t{pages} * wanted.page_tokens / kGpuBenchSlotTokens;
  CRUMB_TRY(job.CheckMemory(
      device, pages * (sizeof(CudaPage) + sizeof(CudaPageReport)) + slots * sizeof(uint32_t)));
  CRUMB_ASSIGN(job.raw_, DeviceBuffer::Create(device, job.raw_page_bytes_ * pages));
  CRUMB_ASSIGN(job.payloads_,
               DeviceBuffer::Create(device, job.codec_->layout().payload_bytes() * pages));
  CRUMB_ASSIGN(job.reports_, DeviceBuffer::Create(device, sizeof(CudaPageReport) * pages));
  // What a decoder reads where nothing encodes: any codes are valid.
  CRUMB_TRY(CudaStatus(cudaMemset(job.payloads_.data(), 0x5a, job.payloads_.size()),
                       "filling packed pages", device));
  CRUMB_TRY(job.FillRaw());
  CRUMB_TRY(job.FillTables(wanted));
  // WHY: copies may still be under way, and streams that do not block do not wait for them.
  CRUMB_TRY(CudaStatus(cudaDeviceSynchronize(), "filling pages", device));
  return job;
}

absl::Status CudaBenchJob::CheckMemory(int device, uint64_t table_bytes) const {
  size_t free_bytes = 0, all = 0;
  CRUMB_TRY(CudaStatus(cudaMemGetInfo(&free_bytes, &all), "asking for free memory", device));
  const uint64_t page = raw_page_bytes_ + codec_->layout().payload_bytes();
  const uint64_t needed = page * pages_ + table_bytes + kSpareBytes;
  if (needed <= free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "CUDA device ", device, ": ", pages_, " pages need ", needed >> 20, " MiB, ",
      free_bytes >> 20,
      " MiB are free; measure fewer pages, layers or heads (nvidia-smi shows who holds the rest)"));
}

// A stretch of values, copied behind itself until all is full.
absl::Status CudaBenchJob::FillRaw() {
  const int device = raw_.device();
  Rng rng(7);
  std::vector<uint16_t> values(std::min<uint64_t>(kValuesMade, raw_.size() / 2));
  for (uint16_t& value : values) value = FloatToBf16(static_cast<float>(Normal(&rng)));
  uint64_t full = 2 * values.size();
  CRUMB_TRY(CudaStatus(cudaMemcpy(raw_.data(), values.data(), full, cudaMemcpyHostToDevice),
                       "filling raw pages", device));
  while (full < raw_.size()) {
    const uint64_t bytes = std::min(full, raw_.size() - full);
    CRUMB_TRY(
        CudaStatus(cudaMemcpy(raw_.data() + full, raw_.data(), bytes, cudaMemcpyDeviceToDevice),
                   "filling raw pages", device));
    full += bytes;
  }
  return absl::OkStatus();
}

absl::Status CudaBenchJob::FillTables(const GpuBenchCase& wanted) {
  const int device = raw_.device();
  const uint64_t slots = uint64_t{pages_} * wanted.page_tokens / kGpuBenchSlotTokens;
  const uint64_t row = 2 * uint64_t{wanted.dim}, token = row * wanted.heads;
  const uint64_t slot = kGpuBenchSlotTokens * token;
  std::vector<CudaPlace> places;
  for (uint64_t tensor = 0; tensor < 2 * uint64_t{wanted.layers}; ++tensor) {
    const uint64_t start = reinterpret_cast<uint64_t>(raw_.data()) + tensor * slots * slot;
    places.push_back({start, slot, token, row});
  }
  Rng rng(8);
  std::vector<uint32_t> order(slots);
  for (uint32_t i = 0; i < slots; ++i) order[i] = i;
  for (uint64_t i = slots - 1; i > 0; --i) std::swap(order[i], order[rng.Below(i + 1)]);
  const uint64_t step = codec_->layout().payload_bytes();
  std::vector<CudaPage> pages;
  for (uint32_t i = 0; i < pages_; ++i) {
    const uint64_t first_slot = uint64_t{i} * wanted.page_tokens / kGpuBenchSlotTokens;
    pages.push_back({reinterpret_cast<uint64_t>(payloads_.data()) + i * step, wanted.page_tokens,
                     static_cast<uint32_t>(first_slot)});
  }
  CRUMB_ASSIGN(places_, Upload(device, places));
  CRUMB_ASSIGN(slots_, Upload(device, order));
  CRUMB_ASSIGN(page_table_, Upload(device, pages));
  return absl::OkStatus();
}

CudaPages CudaBenchJob::Pages(uint32_t count) const {
  CudaPages pages;
  pages.places = reinterpret_cast<const CudaPlace*>(places_.data());
  pages.pages = reinterpret_cast<const CudaPage*>(page_table_.data());
  pages.slots = reinterpret_cast<const uint32_t*>(slots_.data());
  pages.reports = reinterpret_cast<CudaPageReport*>(reports_.data());
  pages.count = count;
  pages.tokens_per_slot = kGpuBenchSlotTokens;
  pages.aligned = true;
  return pages;
}

absl::Status CudaBenchJob::CheckReports() const {
  std::vector<CudaPageReport> reports(pages_);
  CRUMB_TRY(CudaStatus(
      cudaMemcpy(reports.data(), reports_.data(), reports_.size(), cudaMemcpyDeviceToHost),
      "reading page reports", reports_.device()));
  for (uint32_t page = 0; page < pages_; ++page) {
    if (reports[page].bad_place != ~0ull) {
      return absl::InternalError(
          absl::StrCat("page ", page, " was refused as not finite, and is finite"));
    }
  }
  return absl::OkStatus();
}

}  // namespace crumb
