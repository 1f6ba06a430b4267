// Rows are moved one by one: this is for tests and simulators, and nothing here is fast.
#include "gpu/codec/host_gpu_codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "gpu/codec/page_report.h"

namespace crumb {

HostGpuCodec::HostGpuCodec(std::shared_ptr<const PageCodec> codec, PayloadLayout layout)
    : codec_(std::move(codec)),
      layout_(std::move(layout)),
      scratch_(codec_->MakeScratch()),
      page_(layout_.raw_bytes()) {}

absl::StatusOr<std::unique_ptr<HostGpuCodec>> HostGpuCodec::Make(
    std::shared_ptr<const PageCodec> codec, const PartShape& shape) {
  CRUMB_ASSIGN(PayloadLayout layout, PayloadLayout::Make(shape, codec->descriptor()));
  if (layout.payload_bytes() != codec->payload_bytes()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the codec packs pages of ", codec->payload_bytes(), " bytes, the part has ",
                     layout.payload_bytes(), ": they were not made for each other"));
  }
  return std::unique_ptr<HostGpuCodec>(new HostGpuCodec(std::move(codec), std::move(layout)));
}

template <typename MoveRow>
void HostGpuCodec::ForEachRow(const CudaPages& pages, const CudaPage& page, uint8_t* raw_page,
                              MoveRow move) const {
  const CudaPlace* next = pages.places;
  for (const TensorLayout& tensor : layout_.tensors()) {
    if (tensor.raw_row_bytes == 0) continue;  // has no place
    const CudaPlace& place = *next++;
    const uint32_t rows = tensor.heads * page.tokens;
    for (uint32_t row = 0; row < rows; ++row) {
      const uint32_t head = row / page.tokens;
      const uint32_t token = row % page.tokens;
      const uint64_t slot = pages.slots[page.slots_first + token / pages.tokens_per_slot];
      const uint64_t address = place.address + slot * place.slot_stride +
                               token % pages.tokens_per_slot * place.token_stride +
                               head * place.head_stride;
      move(raw_page + tensor.raw_offset + head * tensor.raw_head_bytes +
               uint64_t{token} * tensor.raw_row_bytes,
           reinterpret_cast<uint8_t*>(address), tensor.raw_row_bytes);
    }
  }
}

// Rows from page.tokens on are zero.
void HostGpuCodec::Gather(const CudaPages& pages, const CudaPage& page, uint8_t* raw_page) const {
  std::memset(raw_page, 0, layout_.raw_bytes());
  ForEachRow(pages, page, raw_page, [](uint8_t* here, const uint8_t* there, uint32_t bytes) {
    std::memcpy(here, there, bytes);
  });
}

void HostGpuCodec::Scatter(const CudaPages& pages, const CudaPage& page, uint8_t* raw_page) const {
  ForEachRow(pages, page, raw_page, [](const uint8_t* here, uint8_t* there, uint32_t bytes) {
    std::memcpy(there, here, bytes);
  });
}

absl::Status HostGpuCodec::Decode(const CudaPages& pages, Frame frame,
                                  StreamHandle /*stream*/) const {
  CRUMB_CHECK(pages.tokens_per_slot != 0);
  for (uint32_t i = 0; i < pages.count; ++i) {
    const CudaPage& page = pages.pages[i];
    auto* const payload = reinterpret_cast<uint8_t*>(page.payload);
    if (raw()) {
      Scatter(pages, page, payload);
      continue;
    }
    if (!codec_->Decode({payload, payload_bytes()}, page.tokens, frame, absl::MakeSpan(page_),
                        scratch_.get())) {
      return absl::InvalidArgumentError(
          absl::StrCat("a page of ", page.tokens, " tokens cannot be decoded"));
    }
    Scatter(pages, page, page_.data());
  }
  return absl::OkStatus();
}

absl::Status HostGpuCodec::Encode(const CudaPages& pages, Effort effort,
                                  StreamHandle /*stream*/) const {
  CRUMB_CHECK(encodes() && pages.tokens_per_slot != 0);
  for (uint32_t i = 0; i < pages.count; ++i) {
    const CudaPage& page = pages.pages[i];
    CRUMB_CHECK(page.tokens >= 1 && page.tokens <= layout_.page_tokens());
    auto* const payload = reinterpret_cast<uint8_t*>(page.payload);
    if (raw()) {
      Gather(pages, page, payload);
      continue;
    }
    Gather(pages, page, page_.data());
    pages.reports[i] = ReportFrom(
        codec_->Encode(page_, page.tokens, effort, {payload, payload_bytes()}, scratch_.get()),
        page.tokens);
  }
  return absl::OkStatus();
}

absl::Status HostGpuCodec::ResetReports(const CudaPages& pages, StreamHandle /*stream*/) const {
  CudaPageReport fresh = {};
  fresh.bad_place = ~0ull;
  std::fill_n(pages.reports, pages.count, fresh);
  return absl::OkStatus();
}

CudaPageReport HostGpuCodec::ReportFrom(const EncodeReport& report, uint32_t tokens) const {
  CudaPageReport out = {};
  out.bad_place = ~0ull;
  for (size_t t = 0; t < layout_.tensors().size(); ++t) {
    const TensorLayout& tensor = layout_.tensors()[t];
    out.rows[tensor.is_v ? 1 : 0] += tensor.heads * tokens;
    if (report.result != BlockResult::kNonFinite) continue;
    if (tensor.layer_id != report.bad_layer_id || tensor.is_v != report.bad_is_v) continue;
    out.bad_place = uint64_t{t} << 40 | uint64_t{report.bad_head} << 20 | report.bad_token;
  }
  out.unfit = report.fits ? 0 : 1;
  out.rows_static = report.rows_static;
  out.error[0] = static_cast<float>(report.error_k);
  out.error[1] = static_cast<float>(report.error_v);
  out.energy[0] = static_cast<float>(report.energy_k);
  out.energy[1] = static_cast<float>(report.energy_v);
  return out;
}

EncodeReport HostGpuCodec::ReportOf(const CudaPageReport& report) const {
  return EncodeReportOf(report, layout_);
}

}  // namespace crumb
