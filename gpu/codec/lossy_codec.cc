// Walks the blocks of a packed page. Any thread.
#include "gpu/codec/lossy_codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cachesvc/base/check.h"
#include "gpu/codec/codec_scratch.h"
#include "gpu/codec/finite_scan.h"
#include "gpu/codec/fp_environment.h"

namespace crumb {

namespace {

constexpr uint32_t kInfinityBits = 0x7f80;
constexpr size_t kScanStep = 32;  // values that a vector scan takes at a time

// Rows that exist of one head in a raw page.
Bytes RowsOf(const TensorLayout& tensor, uint32_t head, uint32_t tokens, Bytes raw) {
  return raw.subspan(tensor.raw_offset + head * tensor.raw_head_bytes,
                     size_t{tokens} * tensor.raw_row_bytes);
}

}  // namespace

LossyCodec::LossyCodec(CodecPlan plan, std::unique_ptr<const HeadCodec> head,
                       const VectorKernels* kernels)
    : plan_(std::move(plan)), head_(std::move(head)), kernels_(kernels) {}

std::unique_ptr<PageCodec::Scratch> LossyCodec::MakeScratch() const {
  auto scratch = std::make_unique<CodecScratch>();
  for (const TensorLayout& tensor : plan_.layout().tensors()) {
    scratch->Reserve(plan_.layout().page_tokens(), tensor.dim);
  }
  return scratch;
}

bool LossyCodec::Scan(Bytes raw, uint32_t tokens, CodecScratch* scratch) const {
  const PayloadLayout& layout = plan_.layout();
  scratch->scans.clear();
  if (kernels_ == nullptr) return !FindNonFinite(layout, RawDtype::kBf16, raw, tokens).has_value();
  uint32_t largest = 0;
  bool whole = true;
  for (const TensorLayout& tensor : layout.tensors()) {
    for (uint32_t head = 0; head < tensor.heads; ++head) {
      HeadScan& scan = scratch->scans.emplace_back();
      if (tensor.dim % kScanStep != 0) {
        whole = false;
        continue;
      }
      const Bytes rows = RowsOf(tensor, head, tokens, raw);
      kernels_->scan(reinterpret_cast<const uint16_t*>(rows.data()), rows.size() / 2, &scan);
      largest = std::max(largest, scan.largest);
    }
  }
  if (largest >= kInfinityBits) return false;
  return whole || !FindNonFinite(layout, RawDtype::kBf16, raw, tokens).has_value();
}

EncodeReport LossyCodec::Encode(Bytes raw, uint32_t tokens, Effort effort, MutableBytes payload,
                                Scratch* scratch) const {
  const PayloadLayout& layout = plan_.layout();
  CRUMB_CHECK(raw.size() == layout.raw_bytes() && payload.size() == layout.payload_bytes());
  CRUMB_CHECK(tokens >= 1 && tokens <= layout.page_tokens() && scratch != nullptr);
  EncodeReport report;
  if (descriptor().lloyd_max) {
    report.result = BlockResult::kInvalid;
    return report;
  }
  const DefaultFpEnvironment environment;
  auto* work = static_cast<CodecScratch*>(scratch);
  PhaseClock clock(work->phases);
  const bool finite = Scan(raw, tokens, work);
  clock.Lap(CodecPhase::kScan);
  if (!finite) {
    const auto place = FindNonFinite(layout, RawDtype::kBf16, raw, tokens);
    CRUMB_CHECK(place.has_value());
    report.result = BlockResult::kNonFinite;
    report.bad_layer_id = place->layer_id;
    report.bad_is_v = place->is_v;
    report.bad_head = place->head;
    report.bad_token = place->token;
    return report;
  }
  work->StartPage();
  std::memset(payload.data(), 0, payload.size());
  size_t block = 0;
  for (size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorLayout& tensor = layout.tensors()[t];
    work->Reserve(tokens, tensor.dim);
    for (uint32_t head = 0; head < tensor.heads; ++head, ++block) {
      HeadEncodeJob job;
      job.rows = RowsOf(tensor, head, tokens, raw);
      if (kernels_ != nullptr) job.scan = work->scans[block];
      job.ref = {t, head, tokens};
      job.effort = effort;
      job.block =
          payload.subspan(tensor.offset + size_t{head} * tensor.head_bytes, tensor.head_bytes);
      job.report = &report;
      head_->Encode(plan_, job, work);
    }
  }
  return report;
}

bool LossyCodec::Decode(Bytes payload, uint32_t tokens, Frame frame, MutableBytes raw,
                        Scratch* scratch) const {
  const PayloadLayout& layout = plan_.layout();
  if (payload.size() != layout.payload_bytes() || raw.size() != layout.raw_bytes()) return false;
  if (tokens < 1 || tokens > layout.page_tokens()) return false;
  CRUMB_CHECK(scratch != nullptr);
  const DefaultFpEnvironment environment;
  auto* work = static_cast<CodecScratch*>(scratch);
  work->StartPage();
  for (size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorLayout& tensor = layout.tensors()[t];
    work->Reserve(tokens, tensor.dim);
    for (uint32_t head = 0; head < tensor.heads; ++head) {
      HeadDecodeJob job;
      job.ref = {t, head, tokens};
      job.frame = frame;
      job.block =
          payload.subspan(tensor.offset + size_t{head} * tensor.head_bytes, tensor.head_bytes);
      const MutableBytes out =
          raw.subspan(tensor.raw_offset + head * tensor.raw_head_bytes, tensor.raw_head_bytes);
      const size_t written = size_t{tokens} * tensor.raw_row_bytes;
      job.rows = out.first(written);
      head_->Decode(plan_, job, work);
      if (written != out.size()) std::memset(out.data() + written, 0, out.size() - written);
    }
  }
  return true;
}

}  // namespace crumb
