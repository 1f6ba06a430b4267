// Order of a metric's sections. Any thread.
#include "gpu/codec/cuda_metric_image.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <cstring>

#include "cachesvc/base/check.h"
#include "gpu/codec/cuda_crumb_params.h"

namespace crumb {
namespace {

// L with its unit diagonal.
float LowerAt(const QueryMetric& metric, size_t i, size_t j) {
  if (i == j) return 1.0f;
  return i < j ? 0.0f : metric.lower[TriangleSize(i) + j];
}

uint16_t HalfBits(float value) {
  const __half half = __float2half_rn(value);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof(bits));
  return bits;
}

// L[16 k ..][16 b ..] as mma.m16n8k16 takes its second operand, for columns 0-7 and 8-15: lane
// 4 n + c holds rows 2 c, 2 c + 1, 2 c + 8 and 2 c + 9 of column n.
void AppendOperand(const QueryMetric& metric, size_t k, size_t b, uint16_t* out) {
  for (size_t lane = 0; lane < 32; ++lane) {
    for (size_t i = 0; i < 8; ++i) {
      const size_t row = 2 * (lane % 4) + i % 2 + 8 * (i / 2 % 2);
      const size_t column = lane / 4 + 8 * (i / 4);
      out[8 * lane + i] =
          HalfBits(LowerAt(metric, kCrumbBlock * k + row, kCrumbBlock * b + column));
    }
  }
}

}  // namespace

std::vector<uint8_t> CudaMetricImage(const QueryMetric& metric, uint32_t dim) {
  CRUMB_CHECK(metric.diagonal.size() == dim && metric.lower.size() == TriangleSize(dim));
  std::vector<uint8_t> image(CrumbMetricBytes(dim), 0);
  auto* operands = reinterpret_cast<uint16_t*>(image.data());
  auto* triangles = reinterpret_cast<float*>(image.data() + CrumbLowerBytes(dim));
  float* diagonal = triangles + CrumbTriangleBytes(dim) / sizeof(float);
  const double unit = *std::max_element(metric.diagonal.begin(), metric.diagonal.end());
  for (size_t k = 0; k < dim / kCrumbBlock; ++k) {
    for (size_t b = 0; b <= k; ++b) {
      const uint32_t at =
          CrumbOperand(dim / kCrumbBlock, static_cast<uint32_t>(k), static_cast<uint32_t>(b));
      AppendOperand(metric, k, b, operands + at / sizeof(uint16_t));
    }
    for (uint32_t i = 1; i < kCrumbBlock; ++i) {
      for (uint32_t j = 0; j < i; ++j) {
        triangles[k * kCrumbTriangleFloats + CrumbTriangleRow(i) + j] =
            LowerAt(metric, kCrumbBlock * k + i, kCrumbBlock * k + j);
      }
    }
  }
  for (size_t i = 0; i < dim; ++i) diagonal[i] = static_cast<float>(metric.diagonal[i] / unit);
  return image;
}

}  // namespace crumb
