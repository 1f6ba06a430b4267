// CodecPlan: a part's payload layout together with the matrices and means that each tensor of it
// uses, resolved and checked once. Immutable after Make; keeps the rotation set alive; any thread.
#ifndef CRUMB_GPU_CODEC_CODEC_PLAN_H_
#define CRUMB_GPU_CODEC_CODEC_PLAN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "gpu/codec/descriptor.h"
#include "gpu/codec/payload_layout.h"
#include "gpu/codec/query_metric.h"
#include "gpu/codec/rotation_set.h"

namespace crumb {

// [tensor][head of the part]; entries of V are empty.
using QueryMetrics = std::vector<std::vector<QueryMetric>>;

class CodecPlan {
 public:
  // FAILED_PRECONDITION names layer, tensor and remedy.
  static absl::StatusOr<CodecPlan> Make(const PartShape& shape, const CodecDescriptor& descriptor,
                                        std::shared_ptr<const RotationSet> rotations);

  // Spans point into a plan: it moves, but is never copied.
  CodecPlan(CodecPlan&&) = default;
  CodecPlan& operator=(CodecPlan&&) = default;

  const CodecDescriptor& descriptor() const { return descriptor_; }
  const PayloadLayout& layout() const { return layout_; }
  const RotationSet* rotations() const { return rotations_.get(); }

  // R of a head, row-major FP32 as calibrated; empty: none. `tensor` indexes layout().tensors().
  absl::Span<const float> RotationOf(size_t tensor, uint32_t head) const;
  // The static mean of a head of K; empty: zero.
  absl::Span<const float> MeanOf(size_t tensor, uint32_t head) const;

  // The share of the gain correction that crumb encoders give K: the set's, else what is safe where
  // no calibration chose one.
  float Gamma() const;

  // A of every head of K from the set's query moments.
  absl::StatusOr<std::shared_ptr<const QueryMetrics>> MakeMetrics() const;

 private:
  // Matrices or rows of one tensor: one for all heads, or one per global head.
  struct PerHead {
    absl::Span<const float> values;
    uint32_t heads = 0;
    absl::Span<const float> Of(const TensorLayout& tensor, uint32_t head) const;
  };
  struct Data {
    PerHead rotation;
    PerHead mean;
    PerHead moment;
  };

  CodecPlan(PayloadLayout layout, const CodecDescriptor& descriptor,
            std::shared_ptr<const RotationSet> rotations);
  absl::Status Resolve(const TensorLayout& tensor, Data* data);
  absl::Status ResolveRotation(const TensorLayout& tensor, const RotationLayer* layer, Data* data);
  absl::Status ResolveCalibration(const TensorLayout& tensor, const RotationLayer& layer,
                                  Data* data);

  PayloadLayout layout_;
  CodecDescriptor descriptor_;
  std::shared_ptr<const RotationSet> rotations_;
  std::map<uint32_t, std::vector<float>> hadamard_;  // by dim; nodes do not move
  std::vector<Data> data_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CODEC_PLAN_H_
