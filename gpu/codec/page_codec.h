// PageCodec: raw pages to packed payloads and back, for one (part, codec descriptor, rotation set).
// The scalar reference is the format; faster backends are measured against it. Immutable after
// Create: Encode and Decode may run on any thread at once, each with its own Scratch.
#ifndef CRUMB_GPU_CODEC_PAGE_CODEC_H_
#define CRUMB_GPU_CODEC_PAGE_CODEC_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "gpu/codec/descriptor.h"
#include "gpu/codec/rotation_set.h"

namespace crumb {

// Original frame, or rotated (without the inverse rotation; crumb: without the base).
enum class Frame : uint8_t { kOriginal = 0, kRotated = 1 };

struct EncodeReport {
  BlockResult result = BlockResult::kOk;  // kOk, kNonFinite (payload untouched)
  bool fits = true;           // false: crumb's row bound was exceeded; step up the ladder
  uint32_t bad_layer_id = 0;  // kNonFinite: where the first NaN or Inf is
  bool bad_is_v = false;
  double error_k = 0, energy_k = 0;  // summed squared error / energy in the rotated frame
  double error_v = 0, energy_v = 0;
  double metric_error_k = 0;  // crumb: summed error in the query metric A
  uint32_t rows_static = 0;   // crumb: rows of K that use the static mean
  uint32_t rows_clamped = 0;  // crumb: scale or zero clamped, or gain guard fired
};

class PageCodec {
 public:
  // Working memory of one thread; made once, reused.
  class Scratch {
   public:
    virtual ~Scratch() = default;
  };

  // FAILED_PRECONDITION: the shape cannot be served by this codec (dtype not bf16, MLA, dim % 4,
  // Hadamard for a dim that is no power of two, missing layer in the set, mismatched dims): the
  // message names layer, tensor and remedy.
  static absl::StatusOr<std::unique_ptr<PageCodec>> Create(
      const PartShape& shape, const CodecDescriptor& descriptor,
      std::shared_ptr<const RotationSet> rotations);
  virtual ~PageCodec() = default;

  virtual const CodecDescriptor& descriptor() const = 0;
  // Fixed for a full page: partial pages keep the size, rows past the count are zero bytes.
  virtual uint32_t payload_bytes() const = 0;
  virtual std::unique_ptr<Scratch> MakeScratch() const = 0;

  // raw: [layer][K|V][head][token][dim] of raw_bytes; payload: payload_bytes, all of it written.
  // REQUIRES: 1 <= tokens <= page_tokens. kRaw accepts any dtype and copies; it reports non-finite
  // values of bf16 and fp16 pages with the result kNonFinite after copying.
  virtual EncodeReport Encode(Bytes raw, uint32_t tokens, Effort effort, MutableBytes payload,
                              Scratch* scratch) const = 0;
  // Writes raw_bytes; rows past `tokens` are zero. False if the payload's length is wrong.
  virtual bool Decode(Bytes payload, uint32_t tokens, Frame frame, MutableBytes raw,
                      Scratch* scratch) const = 0;
};

// The next kind up crumb-int2 -> crumb-k3v2 -> crumb-int4 -> raw (raw for every other kind).
CodecKind StepUp(CodecKind kind);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_PAGE_CODEC_H_
