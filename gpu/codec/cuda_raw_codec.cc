// The table of tensors, and launches. Control path but for those.
#include "gpu/codec/cuda_raw_codec.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "gpu/codec/cuda_launch.h"
#include "gpu/codec/cuda_upload.h"
#include "gpu/codec/page_report.h"
#include "gpu/device/cuda_status.h"

namespace crumb {
namespace {

// The longest unit that divides every row.
absl::StatusOr<uint32_t> UnitOf(const PayloadLayout& layout) {
  uint32_t unit = 16;
  for (const TensorLayout& tensor : layout.tensors()) {
    while (tensor.raw_row_bytes % unit != 0) unit = unit == 16 ? 4 : unit / 2;
    if (unit > 1) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "layer ", tensor.layer_id, tensor.is_v ? " V" : " K", " has rows of ", tensor.raw_row_bytes,
        " bytes, an odd number: no GPU kernel moves them; lend host memory"));
  }
  return unit;
}

}  // namespace

std::vector<CudaRawTensor> CudaRawCodec::MakeTable() {
  std::vector<CudaRawTensor> table;
  for (const TensorLayout& tensor : layout_.tensors()) {
    if (tensor.raw_row_bytes == 0) continue;  // V of MLA
    CudaRawTensor out = {};
    out.row_units = tensor.raw_row_bytes / unit_bytes_;
    out.first = tensor.offset / unit_bytes_;
    out.units = tensor.heads * layout_.page_tokens() * out.row_units;
    out.chunk_first = chunks_;
    out.place = static_cast<uint32_t>(table.size());
    out.by_row_units = CudaDividerOf(out.row_units);
    chunks_ += (out.units + kCudaRawChunk - 1) / kCudaRawChunk;
    table.push_back(out);
  }
  return table;
}

absl::StatusOr<std::unique_ptr<CudaRawCodec>> CudaRawCodec::Create(const PartShape& shape,
                                                                   int device) {
  // At most kRawPageBytesMax, so units and chunks are small numbers.
  CRUMB_ASSIGN(PayloadLayout layout, PayloadLayout::Make(shape, CodecDescriptor{}));
  std::unique_ptr<CudaRawCodec> codec(new CudaRawCodec(std::move(layout)));
  CRUMB_ASSIGN(codec->unit_bytes_, UnitOf(codec->layout_));
  codec->device_ = device;
  const std::vector<CudaRawTensor> table = codec->MakeTable();
  codec->tensors_ = static_cast<uint32_t>(table.size());
  CRUMB_ASSIGN(codec->table_,
               UploadCodecTable(device, table.data(), table.size() * sizeof(table[0])));
  int multiprocessors = 0;
  CRUMB_TRY(TakenCudaStatus(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
      "asking for the device's attributes", device));
  codec->multiprocessors_ = static_cast<uint32_t>(std::max(multiprocessors, 1));
  return codec;
}

CudaRawLaunch CudaRawCodec::LaunchOf(const CudaPages& pages, StreamHandle stream) const {
  CRUMB_CHECK(pages.count >= 1 && pages.tokens_per_slot != 0);
  CRUMB_CHECK(uint64_t{pages.count} * chunks_ < uint64_t{1} << 31);
  CudaRawLaunch launch;
  CudaRawMove& move = launch.move;
  move.tensors = reinterpret_cast<const CudaRawTensor*>(table_.data());
  move.tensor_count = tensors_;
  move.chunks = chunks_;
  move.places = pages.places;
  move.pages = pages.pages;
  move.slots = pages.slots;
  move.page_count = pages.count;
  move.page_tokens = layout_.page_tokens();
  // One slot holds more than a page of tokens as well as a page.
  move.tokens_per_slot = std::min(pages.tokens_per_slot, layout_.page_tokens());
  move.by_page_tokens = CudaDividerOf(move.page_tokens);
  move.by_slot_tokens = CudaDividerOf(move.tokens_per_slot);
  launch.unit_bytes = unit_bytes_;
  launch.aligned = pages.aligned;
  launch.multiprocessors = multiprocessors_;
  launch.stream = stream;
  return launch;
}

absl::Status CudaRawCodec::Decode(const CudaPages& pages, Frame /*frame*/,
                                  StreamHandle stream) const {
  return CudaStatus(LaunchRawMove(LaunchOf(pages, stream)), "launching raw decode", device_);
}

absl::Status CudaRawCodec::Encode(const CudaPages& pages, Effort /*effort*/,
                                  StreamHandle stream) const {
  CudaRawLaunch launch = LaunchOf(pages, stream);
  launch.encode = true;
  return CudaStatus(LaunchRawMove(launch), "launching raw encode", device_);
}

absl::Status CudaRawCodec::ResetReports(const CudaPages& pages, StreamHandle stream) const {
  return CudaStatus(LaunchResetReports(pages.reports, pages.count, stream),
                    "resetting page reports", device_);
}

EncodeReport CudaRawCodec::ReportOf(const CudaPageReport& report) const {
  return EncodeReportOf(report, layout_);
}

}  // namespace crumb
