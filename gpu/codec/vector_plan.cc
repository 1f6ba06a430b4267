// Packs matrices for the vector kernels. Control path; any thread.
#include "gpu/codec/vector_plan.h"

#include <algorithm>
#include <bit>

#include "cachesvc/base/check.h"
#include "gpu/codec/bf16.h"

namespace crumb {
namespace {

// BF16 bits of kComfortMax and kComfortMin.
constexpr uint32_t kLargestBits = (127 + 40) << 7;
constexpr uint32_t kLeastBits = (127 - 90) << 7;

// Columns per panel: BF16 pairs in panels of 64 and a last one of 32; FP32 in panels of 16.
constexpr size_t kPairPanel = 64;
constexpr size_t kFloatPanel = 16;

}  // namespace

bool Comfortable(const HeadScan& scan) {
  return scan.largest == 0 || (scan.largest <= kLargestBits && scan.least >= kLeastBits);
}

LineVector<uint32_t> PackMatrix(const VectorKernels& kernels, absl::Span<const float> matrix,
                                size_t dim, RotateDirection direction) {
  CRUMB_CHECK(matrix.size() == dim * dim && dim % kVectorDimStep == 0);
  const auto bits = [&](size_t row, size_t column) {
    const bool forward = direction == RotateDirection::kForward;
    return FloatToBf16(matrix[forward ? row * dim + column : column * dim + row]);
  };
  LineVector<uint32_t> packed;
  packed.Grow(kernels.bf16_pairs ? dim * dim / 2 : dim * dim);
  const size_t panel = kernels.bf16_pairs ? kPairPanel : kFloatPanel;
  uint32_t* out = packed.data();
  for (size_t first = 0; first < dim; first += panel) {
    const size_t width = std::min(panel, dim - first);
    for (size_t k = 0; k < dim; k += kernels.bf16_pairs ? 2 : 1) {
      for (size_t c = first; c < first + width; ++c) {
        *out++ = kernels.bf16_pairs ? uint32_t{bits(k, c)} | uint32_t{bits(k + 1, c)} << 16
                                    : std::bit_cast<uint32_t>(Bf16ToFloat(bits(k, c)));
      }
    }
  }
  return packed;
}

PackedMetric PackMetric(const QueryMetric& metric) {
  const size_t dim = metric.diagonal.size();
  CRUMB_CHECK(dim % kMetricPanel == 0 && metric.lower.size() == TriangleSize(dim));
  PackedMetric packed;
  packed.unit = *std::max_element(metric.diagonal.begin(), metric.diagonal.end());
  packed.diagonal.Grow(dim);
  for (size_t i = 0; i < dim; ++i) {
    packed.diagonal[i] = static_cast<float>(metric.diagonal[i] / packed.unit);
  }
  packed.lower.Grow(dim * (dim + kMetricPanel) / 2);
  float* out = packed.lower.data();
  for (size_t first = 0; first < dim; first += kMetricPanel) {
    for (size_t k = first; k < dim; ++k) {
      for (size_t i = first; i < first + kMetricPanel; ++i) {
        *out++ = i < k ? metric.lower[TriangleSize(k) + i] : 0.0f;
      }
    }
  }
  return packed;
}

bool VectorPlan::Takes(const TensorLayout& tensor) {
  return tensor.dim % kVectorDimStep == 0 && tensor.dim <= kVectorDimMax &&
         tensor.pack.packing == Packing::kPlanar;
}

VectorPlan VectorPlan::Make(const VectorKernels& kernels, const CodecPlan& plan,
                            const QueryMetrics* metrics, PackedForms* known) {
  VectorPlan out(kernels);
  const std::vector<TensorLayout>& tensors = plan.layout().tensors();
  out.heads_.resize(tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    out.heads_[t].resize(tensors[t].heads);
    if (!Takes(tensors[t])) continue;
    const size_t dim = tensors[t].dim;
    for (uint32_t h = 0; h < tensors[t].heads; ++h) {
      Head& head = out.heads_[t][h];
      const absl::Span<const float> matrix = plan.RotationOf(t, h);
      if (!matrix.empty()) {
        std::shared_ptr<const PackedRotation>& rotation = known->rotations[matrix.data()];
        if (rotation == nullptr) {
          rotation = std::make_shared<const PackedRotation>(
              PackedRotation{PackMatrix(kernels, matrix, dim, RotateDirection::kForward),
                             PackMatrix(kernels, matrix, dim, RotateDirection::kInverse)});
        }
        head.rotation = rotation;
      }
      const QueryMetric* metric = metrics != nullptr ? &(*metrics)[t][h] : nullptr;
      if (metric == nullptr || metric->empty()) continue;
      std::shared_ptr<const PackedMetric>& packed = known->metrics[metric];
      if (packed == nullptr) packed = std::make_shared<const PackedMetric>(PackMetric(*metric));
      head.metric = packed;
    }
  }
  return out;
}

}  // namespace crumb
