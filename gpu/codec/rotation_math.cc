// Matrices that need no calibration, and the measure of orthogonality (rotation_set.h).
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "cachesvc/base/check.h"
#include "gpu/codec/rotation_set.h"

namespace crumb {

double OrthogonalityError(absl::Span<const float> matrix, uint32_t dim) {
  CRUMB_CHECK(dim > 0 && matrix.size() == size_t{dim} * dim);
  for (const float value : matrix) {
    if (!std::isfinite(value)) return std::numeric_limits<double>::infinity();
  }
  double worst = 0.0;
  for (uint32_t i = 0; i < dim; ++i) {
    const float* a = matrix.data() + size_t{i} * dim;
    for (uint32_t j = 0; j <= i; ++j) {
      const float* b = matrix.data() + size_t{j} * dim;
      double sum = i == j ? -1.0 : 0.0;
      for (uint32_t c = 0; c < dim; ++c) sum += static_cast<double>(a[c]) * b[c];
      worst = std::max(worst, std::abs(sum));
    }
  }
  return worst;
}

std::vector<float> HadamardMatrix(uint32_t dim) {
  CRUMB_CHECK(std::has_single_bit(dim));
  const auto unit = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
  std::vector<float> matrix(size_t{dim} * dim);
  for (uint32_t i = 0; i < dim; ++i) {
    for (uint32_t j = 0; j < dim; ++j) {
      matrix[size_t{i} * dim + j] = std::popcount(i & j) % 2 == 0 ? unit : -unit;
    }
  }
  return matrix;
}

std::vector<uint32_t> BitReversal(uint32_t dim) {
  CRUMB_CHECK(std::has_single_bit(dim));
  std::vector<uint32_t> reversed(dim, 0);
  for (uint32_t i = 0; i < dim; ++i) {
    for (uint32_t bit = 1, mirror = dim >> 1; mirror != 0; bit <<= 1, mirror >>= 1) {
      if ((i & bit) != 0) reversed[i] |= mirror;
    }
  }
  return reversed;
}

std::vector<uint32_t> BitReversalPermutation(uint32_t dim) {
  std::vector<uint32_t> permutation = BitReversal(dim);
  for (uint32_t& index : permutation) index = dim - 1 - index;
  return permutation;
}

}  // namespace crumb
