// What the vector backends need beside a CodecPlan: rotations and metrics packed for the kernels,
// made once per matrix and shared by the heads and codecs that use it. Immutable after Make; any
// thread.
#ifndef CRUMB_GPU_CODEC_VECTOR_PLAN_H_
#define CRUMB_GPU_CODEC_VECTOR_PLAN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "gpu/codec/codec_plan.h"
#include "gpu/codec/line_vector.h"
#include "gpu/codec/query_metric.h"
#include "gpu/codec/rotate.h"
#include "gpu/codec/vector_kernels.h"

namespace crumb {

// R rounded to BF16, for x R and for x R^T, as the kernels' multiply reads it.
struct PackedRotation {
  LineVector<uint32_t> forward;
  LineVector<uint32_t> inverse;
};

// L in panels of columns, D over its largest value.
struct PackedMetric {
  LineVector<float> lower;
  LineVector<float> diagonal;
  double unit = 1.0;  // the largest D
};

// `matrix` is row-major FP32 [dim][dim]. REQUIRES: dim is a multiple of kVectorDimStep.
LineVector<uint32_t> PackMatrix(const VectorKernels& kernels, absl::Span<const float> matrix,
                                size_t dim, RotateDirection direction);
PackedMetric PackMetric(const QueryMetric& metric);

// Packed forms by the address of what they were made from. Lives while the codecs of one set are
// made.
struct PackedForms {
  std::map<const float*, std::shared_ptr<const PackedRotation>> rotations;
  std::map<const QueryMetric*, std::shared_ptr<const PackedMetric>> metrics;
};

class VectorPlan {
 public:
  struct Head {
    std::shared_ptr<const PackedRotation> rotation;  // null: none
    std::shared_ptr<const PackedMetric> metric;      // null: A = I
  };

  // `metrics` may be null.
  static VectorPlan Make(const VectorKernels& kernels, const CodecPlan& plan,
                         const QueryMetrics* metrics, PackedForms* known);

  const VectorKernels& kernels() const { return *kernels_; }
  // Whether the kernels take blocks of this form; the reference does the others.
  static bool Takes(const TensorLayout& tensor);
  const Head& head(size_t tensor, uint32_t head) const { return heads_[tensor][head]; }

 private:
  explicit VectorPlan(const VectorKernels& kernels) : kernels_(&kernels) {}

  const VectorKernels* kernels_;
  std::vector<std::vector<Head>> heads_;
};

// Values that FP32 sums and BF16 products hold without overflow, and without a loss to denormals;
// pages beyond them are the reference's.
bool Comfortable(const HeadScan& scan);
inline constexpr float kComfortMax = 0x1p40f;
inline constexpr float kComfortMin = 0x1p-90f;

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_PLAN_H_
