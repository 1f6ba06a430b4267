// OSCAR's codec and its baselines as a HeadCodec: rotate, clip, quantise per group, pack; metadata
// interleaved (scale, zero) in BF16 or FP32. Immutable; any thread.
#ifndef CRUMB_GPU_CODEC_AFFINE_HEAD_H_
#define CRUMB_GPU_CODEC_AFFINE_HEAD_H_

#include "gpu/codec/head_codec.h"
#include "gpu/codec/quantise_affine.h"

namespace crumb {

// Stores a group's pair and returns it as a decoder will read it.
Affine StoreAffine(const Affine& affine, MetaForm meta, uint8_t* out);
Affine LoadAffine(MetaForm meta, const uint8_t* in);

struct AffineRowOutcome {
  double error = 0.0;  // squared, against the rotated row
  bool floored = false;
};
// Quantises the rotated row scratch->rows_y[row] into its bytes of a head's block; overwrites
// scratch->rows_x[row].
AffineRowOutcome EncodeAffineRow(const TensorLayout& tensor, const CodecDescriptor& descriptor,
                                 size_t row, CodecScratch* scratch, MutableBytes block);

class AffineHead final : public HeadCodec {
 public:
  void Encode(const CodecPlan& plan, const HeadEncodeJob& job,
              CodecScratch* scratch) const override;
  void Decode(const CodecPlan& plan, const HeadDecodeJob& job,
              CodecScratch* scratch) const override;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_AFFINE_HEAD_H_
