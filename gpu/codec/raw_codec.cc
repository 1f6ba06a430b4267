// Copies pages. Any thread.
#include "gpu/codec/raw_codec.h"

#include <cstring>
#include <utility>

#include "cachesvc/base/check.h"
#include "gpu/codec/codec_scratch.h"
#include "gpu/codec/finite_scan.h"

namespace crumb {

RawCodec::RawCodec(CodecPlan plan, RawDtype dtype) : plan_(std::move(plan)), dtype_(dtype) {}

std::unique_ptr<PageCodec::Scratch> RawCodec::MakeScratch() const {
  return std::make_unique<CodecScratch>();
}

void RawCodec::CopyRows(Bytes from, uint32_t tokens, MutableBytes to) const {
  const bool in_place = from.data() == to.data();  // it lies where it stays already
  if (tokens == plan_.layout().page_tokens()) {
    if (in_place) return;
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  for (const TensorLayout& tensor : plan_.layout().tensors()) {
    const size_t kept = size_t{tokens} * tensor.raw_row_bytes;
    for (uint32_t head = 0; head < tensor.heads; ++head) {
      const size_t offset = tensor.raw_offset + head * tensor.raw_head_bytes;
      if (!in_place) std::memcpy(to.data() + offset, from.data() + offset, kept);
      std::memset(to.data() + offset + kept, 0, tensor.raw_head_bytes - kept);
    }
  }
}

EncodeReport RawCodec::Encode(Bytes raw, uint32_t tokens, Effort /*effort*/, MutableBytes payload,
                              Scratch* /*scratch*/) const {
  const PayloadLayout& layout = plan_.layout();
  CRUMB_CHECK(raw.size() == layout.raw_bytes() && payload.size() == layout.payload_bytes());
  CRUMB_CHECK(tokens >= 1 && tokens <= layout.page_tokens());
  CopyRows(raw, tokens, payload);
  EncodeReport report;
  if (const auto place = FindNonFinite(layout, dtype_, payload, tokens)) {
    report.result = BlockResult::kNonFinite;
    report.bad_layer_id = place->layer_id;
    report.bad_is_v = place->is_v;
    report.bad_head = place->head;
    report.bad_token = place->token;
  }
  return report;
}

bool RawCodec::Decode(Bytes payload, uint32_t tokens, Frame /*frame*/, MutableBytes raw,
                      Scratch* /*scratch*/) const {
  const PayloadLayout& layout = plan_.layout();
  if (payload.size() != layout.payload_bytes() || raw.size() != layout.raw_bytes()) return false;
  if (tokens < 1 || tokens > layout.page_tokens()) return false;
  CopyRows(payload, tokens, raw);
  return true;
}

}  // namespace crumb
