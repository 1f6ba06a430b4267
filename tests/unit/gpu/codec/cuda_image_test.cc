// The orders in which kernels read rotations and metrics, element by element. Needs no GPU.
#include "gpu/codec/cuda_image.h"

#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cachesvc/base/rng.h"
#include "gpu/codec/bf16.h"
#include "gpu/codec/cuda_crumb_params.h"
#include "gpu/codec/cuda_metric_image.h"

namespace crumb {
namespace {

float HalfToFloat(uint16_t bits) {
  __half_raw raw = {};
  raw.x = bits;
  return __half2float(__half(raw));
}

// A positive definite moment, factored.
QueryMetric MetricOf(uint32_t dim) {
  Rng rng(dim);
  std::vector<float> moment(size_t{dim} * dim);
  for (uint32_t i = 0; i < dim; ++i) {
    for (uint32_t j = 0; j < dim; ++j) {
      moment[size_t{i} * dim + j] = 1.0f / static_cast<float>(1 + (i > j ? i - j : j - i));
    }
    moment[size_t{i} * dim + i] = 1.0f + static_cast<float>(rng.Below(100)) / 10.0f;
  }
  auto metric = MakeQueryMetric(moment, {}, dim);
  EXPECT_TRUE(metric.ok()) << metric.status();
  return *std::move(metric);
}

// mma.m16n8k16: lane 4 n + c of eight columns holds rows 2 c, 2 c + 1, 2 c + 8, 2 c + 9 of column
// n.
TEST(CudaImageTest, AnOperandImageHoldsEveryElementWhereItsLaneReadsIt) {
  for (const uint32_t dim : {64u, 128u, 256u}) {
    for (const uint32_t bits : {2u, 3u, 4u}) {
      const PackForm form{dim, bits, Packing::kPlanar};
      std::vector<float> rotation(size_t{dim} * dim);
      // Neighbours differ, and BF16 keeps them.
      for (size_t i = 0; i < rotation.size(); ++i) {
        rotation[i] = static_cast<float>(i / dim % 128) + 0.5f * static_cast<float>(i % 2);
      }
      const auto image = CudaOperandImage(form, rotation);
      ASSERT_EQ(image.size(), rotation.size());
      const uint32_t planes = bits == 4 ? 2 : 4, run = dim / planes / 4;
      std::set<uint32_t> columns;
      for (uint32_t n = 0; n < dim; ++n) {
        // The element of the row that a lane's accumulator of column n is: runs of a plane.
        const uint32_t c = n % 8 / 2, at = 2 * (n / 8) + n % 2;
        const uint32_t column = at / run * (dim / planes) + c * run + at % run;
        columns.insert(column);
        for (uint32_t k = 0; k < dim; ++k) {
          const uint32_t lane = n % 8 * 4 + k % 8 / 2;
          const uint32_t word = k % 32 / 16 * 2 + k % 16 / 8;
          const size_t index =
              ((size_t{n / 8} * (dim / 32) + k / 32) * 32 + lane) * 8 + 2 * word + k % 2;
          ASSERT_EQ(image[index], FloatToBf16(rotation[size_t{k} * dim + column]))
              << dim << " " << bits << " " << n << " " << k;
        }
      }
      EXPECT_EQ(columns.size(), dim) << "every column once";
    }
  }
}

TEST(CudaImageTest, AMetricImageHoldsLAndD) {
  for (const uint32_t dim : {64u, 128u, 256u}) {
    const QueryMetric metric = MetricOf(dim);
    const auto image = CudaMetricImage(metric, dim);
    ASSERT_EQ(image.size(), CrumbMetricBytes(dim));
    const auto at = [&](uint32_t i, uint32_t j) {  // L
      return i == j ? 1.0f : i < j ? 0.0f : metric.lower[TriangleSize(i) + j];
    };
    const auto* operands = reinterpret_cast<const uint16_t*>(image.data());
    const auto* triangles = reinterpret_cast<const float*>(image.data() + CrumbLowerBytes(dim));
    const float* diagonal = triangles + CrumbTriangleBytes(dim) / 4;
    double unit = 0.0;
    for (const double d : metric.diagonal) unit = std::max(unit, d);
    for (uint32_t i = 0; i < dim; ++i) {
      EXPECT_FLOAT_EQ(diagonal[i], static_cast<float>(metric.diagonal[i] / unit));
      for (uint32_t j = 0; j <= i; ++j) {
        const uint32_t k = i % 16, n = j % 16;
        const uint32_t lane = n % 8 * 4 + k % 8 / 2;
        const size_t index =
            CrumbOperand(dim / 16, i / 16, j / 16) / 2 + lane * 8 + n / 8 * 4 + k / 8 * 2 + k % 2;
        ASSERT_NEAR(HalfToFloat(operands[index]), at(i, j), 1e-3f * (1.0f + std::abs(at(i, j))))
            << dim << " " << i << " " << j;
        if (i / 16 != j / 16 || i == j) continue;
        ASSERT_EQ(triangles[i / 16 * kCrumbTriangleFloats + CrumbTriangleRow(k) + n], at(i, j));
      }
    }
  }
}

}  // namespace
}  // namespace crumb
