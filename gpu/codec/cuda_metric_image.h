// A query metric in the order that crumb encode kernels read it (CrumbMetricBytes). Host code; any
// thread.
#ifndef CRUMB_GPU_CODEC_CUDA_METRIC_IMAGE_H_
#define CRUMB_GPU_CODEC_CUDA_METRIC_IMAGE_H_

#include <cstdint>
#include <vector>

#include "gpu/codec/query_metric.h"

namespace crumb {

// REQUIRES: CudaDim(dim), a metric of that dim that is not empty. L goes to FP16: its elements are
// at most sqrt(dim / kMetricRidge), as A's diagonal is at most its trace.
std::vector<uint8_t> CudaMetricImage(const QueryMetric& metric, uint32_t dim);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CUDA_METRIC_IMAGE_H_
