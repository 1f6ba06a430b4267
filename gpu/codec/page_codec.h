// PageCodec: raw pages to packed payloads and back, for one (part, codec descriptor, rotation set).
// The scalar reference is the format; faster backends are measured against it (docs/codec.md).
// Immutable after Create: Encode and Decode may run on any thread at once, each with its own
// Scratch. PROMISE: one backend makes the same bytes of the same page and effort, whenever and
// wherever it lies.
#ifndef CRUMB_GPU_CODEC_PAGE_CODEC_H_
#define CRUMB_GPU_CODEC_PAGE_CODEC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "gpu/codec/codec_backend.h"
#include "gpu/codec/descriptor.h"
#include "gpu/codec/rotation_set.h"

namespace crumb {

struct PhaseTimes;  // phase_times.h

// Original frame, or rotated (without the inverse rotation; crumb: without the base).
enum class Frame : uint8_t { kOriginal = 0, kRotated = 1 };

struct EncodeReport {
  // kOk; kNonFinite (lossy codecs: payload untouched); kInvalid (the descriptor is for reading
  // only: Lloyd-Max; payload untouched).
  BlockResult result = BlockResult::kOk;
  // False: some row came out worse than kRowErrorMax, or did not fit into BF16 once rotated. The
  // payload is whole and finite, but the page belongs one step up the ladder.
  bool fits = true;
  // kNonFinite: where the first NaN or Inf is. `bad_head` counts from the part's first head.
  uint32_t bad_layer_id = 0;
  bool bad_is_v = false;
  uint32_t bad_head = 0;
  uint32_t bad_token = 0;
  // Summed squared error in the rotated frame, and energy of the rows as put (the rotation is
  // orthogonal, so energies of both frames are equal). Zero for kRaw.
  double error_k = 0, energy_k = 0;
  double error_v = 0, energy_v = 0;
  double metric_error_k = 0;  // crumb: summed error of K in the query metric A
  uint32_t rows_static = 0;   // crumb: rows of K that use the static mean alone
  uint32_t rows_clamped = 0;  // crumb: scale or zero clamped, or gain guard fired
};

// A crumb row whose scale or zero was clamped or whose gain guard fired, and an affine row whose
// range was below the published floor, fits only if its squared error stays below this share of its
// energy.
inline constexpr double kRowErrorMax = 0.35;

class PageCodec {
 public:
  // Working memory of one thread; made once, reused. It grows to what a codec needs, so a scratch
  // from any codec serves every other.
  class Scratch {
   public:
    virtual ~Scratch() = default;
    // Adds the time of every phase from now on; null: no clock is read. Working memory of codecs
    // without phases takes no times.
    virtual void MeasureInto(PhaseTimes* /*times*/) {}
  };

  // FAILED_PRECONDITION: the shape cannot be served by this codec (dtype not bf16, MLA, dim % 4,
  // Hadamard for a dim that is no power of two, missing layer in the set, mismatched dims): the
  // message names layer, tensor and remedy. Also for a backend that this machine does not run.
  static absl::StatusOr<std::unique_ptr<PageCodec>> Create(
      const PartShape& shape, const CodecDescriptor& descriptor,
      std::shared_ptr<const RotationSet> rotations, CodecBackend backend = CodecBackend::kAuto);
  // One codec per descriptor, for the same part and set; the crumb ones share their calibration.
  static absl::StatusOr<std::vector<std::shared_ptr<const PageCodec>>> CreateAll(
      const PartShape& shape, absl::Span<const CodecDescriptor> descriptors,
      std::shared_ptr<const RotationSet> rotations, CodecBackend backend = CodecBackend::kAuto);
  virtual ~PageCodec() = default;

  virtual const CodecDescriptor& descriptor() const = 0;
  // Fixed for a full page: partial pages keep the size, rows past the count are zero bytes.
  virtual uint32_t payload_bytes() const = 0;
  virtual std::unique_ptr<Scratch> MakeScratch() const = 0;

  // raw: [layer][K|V][head][token][dim] of raw_bytes; payload: payload_bytes, all of it written.
  // REQUIRES: 1 <= tokens <= page_tokens; raw and payload have the sizes named. kRaw accepts any
  // dtype and copies, or keeps what lies in `payload` already (raw may be payload); it reports
  // non-finite values of bf16 and fp16 pages with the result kNonFinite after copying. The caller's
  // rounding mode and FTZ/DAZ do not matter.
  virtual EncodeReport Encode(Bytes raw, uint32_t tokens, Effort effort, MutableBytes payload,
                              Scratch* scratch) const = 0;
  // Writes raw_bytes; rows past `tokens` are zero. False, and nothing written, if a length or the
  // token count is wrong. Any payload of the right length decodes without a fault.
  virtual bool Decode(Bytes payload, uint32_t tokens, Frame frame, MutableBytes raw,
                      Scratch* scratch) const = 0;
};

// The next kind up crumb-int2 -> crumb-k3v2 -> crumb-int4 -> raw (raw for every other kind).
CodecKind StepUp(CodecKind kind);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_PAGE_CODEC_H_
