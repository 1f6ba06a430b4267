// Codecs for tests of the engine: small, exact to predict, with switches in the page itself.
//   SampleCodec   "lossy": keeps every fourth byte. A page whose first byte is kNonFiniteMark has a
//                 NaN; one that begins with kNoFitMark does not fit (int2 only).
//   raw           the real raw codec.
#ifndef CRUMB_TESTS_UNIT_CACHESVC_CORE_FAKE_CODEC_H_
#define CRUMB_TESTS_UNIT_CACHESVC_CORE_FAKE_CODEC_H_

#include <cstring>
#include <memory>
#include <vector>

#include "cachesvc/base/check.h"
#include "gpu/codec/page_codec.h"

namespace crumb::testing {

inline constexpr uint8_t kNonFiniteMark = 0xfe;
inline constexpr uint8_t kNoFitMark = 0xfd;

class SampleCodec final : public PageCodec {
 public:
  SampleCodec(const PartShape& shape, CodecKind kind)
      : descriptor_(CodecDescriptor::Default(kind, Sha256{})), raw_bytes_(shape.raw_bytes) {
    keep_ = kind == CodecKind::kCrumbInt4 ? 2 : 4;
  }

  const CodecDescriptor& descriptor() const override { return descriptor_; }
  uint32_t payload_bytes() const override { return static_cast<uint32_t>(raw_bytes_ / keep_); }
  std::unique_ptr<Scratch> MakeScratch() const override { return std::make_unique<Scratch>(); }

  EncodeReport Encode(Bytes raw, uint32_t tokens, Effort, MutableBytes payload,
                      Scratch* scratch) const override {
    CRUMB_CHECK(scratch != nullptr && tokens > 0 && raw.size() == raw_bytes_);
    CRUMB_CHECK(payload.size() == payload_bytes());
    if (raw[0] == kNonFiniteMark) {
      return {.result = BlockResult::kNonFinite,
              .bad_layer_id = 3,
              .bad_is_v = true,
              .bad_head = 1,
              .bad_token = 2};
    }
    for (size_t i = 0; i < payload.size(); ++i) payload[i] = raw[i * keep_];
    return {.fits = raw[0] != kNoFitMark || keep_ != 4, .error_k = 1, .energy_k = 100};
  }

  bool Decode(Bytes payload, uint32_t tokens, Frame, MutableBytes raw,
              Scratch* scratch) const override {
    CRUMB_CHECK(scratch != nullptr && tokens > 0);
    if (payload.size() != payload_bytes() || raw.size() != raw_bytes_) return false;
    for (size_t i = 0; i < raw.size(); ++i) raw[i] = payload[i / keep_];
    return true;
  }

 private:
  CodecDescriptor descriptor_;
  uint64_t raw_bytes_;
  size_t keep_;
};

// What a get of a page put through SampleCodec must bring.
inline std::vector<uint8_t> AfterLoss(const std::vector<uint8_t>& raw, size_t keep) {
  std::vector<uint8_t> out(raw.size());
  for (size_t i = 0; i < raw.size(); ++i) out[i] = raw[i / keep * keep];
  return out;
}

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_UNIT_CACHESVC_CORE_FAKE_CODEC_H_
