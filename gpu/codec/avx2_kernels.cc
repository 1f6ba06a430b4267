// The vector kernels with AVX2 and FMA. Compiled with flags of its own; includes nothing but plain
// types, intrinsics and templates in unnamed namespaces. Any thread.
#include "gpu/codec/avx2_ops.h"
#include "gpu/codec/vector_affine.h"
#include "gpu/codec/vector_feedback.h"
#include "gpu/codec/vector_fit.h"
#include "gpu/codec/vector_kernels.h"
#include "gpu/codec/vector_metric.h"
#include "gpu/codec/vector_pack.h"
#include "gpu/codec/vector_rows.h"
#include "gpu/codec/vector_unpack.h"

namespace crumb {
namespace {

void Scan(const uint16_t* x, size_t count, HeadScan* out) {
  const __m256i mask = _mm256_set1_epi16(0x7fff);
  const __m256i one = _mm256_set1_epi16(1);
  const __m256i high = Ops::SetI(0xffff0000u);
  __m256i largest = _mm256_setzero_si256();
  __m256i least = _mm256_set1_epi16(-1);  // of magnitude - 1: zero becomes the largest
  __m256 even = Ops::Set(0.0f);
  __m256 odd = Ops::Set(0.0f);
  for (size_t i = 0; i < count; i += 16) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    const __m256i magnitude = _mm256_and_si256(v, mask);
    largest = _mm256_max_epu16(largest, magnitude);
    least = _mm256_min_epu16(least, _mm256_sub_epi16(magnitude, one));
    const __m256 a = Ops::AsFloat(Ops::ShiftLeft<16>(v));
    const __m256 b = Ops::AsFloat(Ops::And(v, high));
    even = Ops::Fma(a, a, even);
    odd = Ops::Fma(b, b, odd);
  }
  uint16_t large[16], small[16];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(large), largest);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(small), least);
  uint16_t smallest = 0xffff;
  out->largest = 0;
  for (uint32_t i = 0; i < 16; ++i) {
    if (large[i] > out->largest) out->largest = large[i];
    if (small[i] < smallest) smallest = small[i];
  }
  out->least = smallest == 0xffff ? 0xffffu : smallest + 1u;
  float sums[8];
  Ops::Store(sums, Ops::Add(even, odd));
  out->energy = 0.0;
  for (uint32_t i = 0; i < 8; ++i) out->energy += static_cast<double>(sums[i]);
}

// kRows rows in FP32 times a panel of 16 columns that starts at `column`.
template <uint32_t kRows>
void MultiplyTile(const MultiplyJob& job, const float* x, uint32_t row, uint32_t column) {
  const float* panel = static_cast<const float*>(job.matrix) + size_t{column} * job.dim;
  __m256 sum[kRows][2];
  for (uint32_t r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = Ops::Set(0.0f);
  for (uint32_t k = 0; k < job.dim; ++k) {
    const __m256 a = Ops::Load(panel + size_t{k} * 16);
    const __m256 b = Ops::Load(panel + size_t{k} * 16 + 8);
    for (uint32_t r = 0; r < kRows; ++r) {
      const __m256 value = Ops::Set(x[size_t{r} * job.dim + k]);
      sum[r][0] = Ops::Fma(value, a, sum[r][0]);
      sum[r][1] = Ops::Fma(value, b, sum[r][1]);
    }
  }
  for (uint32_t r = 0; r < kRows; ++r) {
    const float* base = BaseOf(job, row + r);
    uint16_t* out = job.out + size_t{row + r} * job.dim + column;
    for (uint32_t c = 0; c < 2; ++c) {
      __m256 value = sum[r][c];
      if (base != nullptr) {
        value = Ops::Add(Ops::RoundBf16(value), Ops::Load(base + column + 8 * c));
      }
      Ops::StoreBf16(out + 8 * c, value);
    }
  }
}

constexpr uint32_t kTileRows = 4;
constexpr uint32_t kBlockRows = 16;  // that one pass over the matrix serves

void Multiply(const MultiplyJob& job) {
  alignas(32) float x[kBlockRows * kVectorDimMax];
  for (uint32_t first = 0; first < job.rows; first += kBlockRows) {
    const uint32_t count = job.rows - first < kBlockRows ? job.rows - first : kBlockRows;
    const uint16_t* from = job.x + size_t{first} * job.dim;
    for (uint32_t i = 0; i < count * job.dim; i += 8) Ops::Store(x + i, Ops::LoadBf16(from + i));
    for (uint32_t column = 0; column < job.dim; column += 16) {
      uint32_t r = 0;
      for (; r + kTileRows <= count; r += kTileRows) {
        MultiplyTile<kTileRows>(job, x + size_t{r} * job.dim, first + r, column);
      }
      for (; r < count; ++r) {
        MultiplyTile<1>(job, x + size_t{r} * job.dim, first + r, column);
      }
    }
  }
}

}  // namespace

const VectorKernels kAvx2Kernels = {.bf16_pairs = false,
                                    .peak_bf16 = nullptr,
                                    .peak_fp32 = PeakFp32<Ops, 10>,
                                    .scan = Scan,
                                    .centre = Centre<Ops>,
                                    .column_sums = ColumnSums<Ops>,
                                    .multiply = Multiply,
                                    .add_base = AddBase<Ops>,
                                    .unpack = Unpack<Ops>,
                                    .group_load = GroupLoad<Ops>,
                                    .group_pack = GroupPack,
                                    .affine_range = AffineRange<Ops>,
                                    .affine_codes = AffineCodes<Ops>,
                                    .crumb_fit = CrumbFit<Ops>,
                                    .crumb_codes = CrumbCodes<Ops>,
                                    .crumb_along = CrumbAlong<Ops>};

}  // namespace crumb
