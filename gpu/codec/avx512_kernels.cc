// The vector kernels with AVX-512 and its BF16 products. Compiled with flags of its own; includes
// nothing but plain types, intrinsics and templates in unnamed namespaces. Any thread.
#include "gpu/codec/avx512_ops.h"
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

__m512bh AsPairs(__m512i v) { return reinterpret_cast<__m512bh>(v); }

void Scan(const uint16_t* x, size_t count, HeadScan* out) {
  const __m512i mask = _mm512_set1_epi16(0x7fff);
  const __m512i one = _mm512_set1_epi16(1);
  __m512i largest = _mm512_setzero_si512();
  __m512i least = _mm512_set1_epi16(-1);  // of magnitude - 1: zero becomes the largest
  __m512 energy[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (size_t i = 0; i < count; i += 32) {
    const __m512i v = _mm512_loadu_si512(x + i);
    const __m512i magnitude = _mm512_and_si512(v, mask);
    largest = _mm512_max_epu16(largest, magnitude);
    least = _mm512_min_epu16(least, _mm512_sub_epi16(magnitude, one));
    energy[i / 32 % 2] = _mm512_dpbf16_ps(energy[i / 32 % 2], AsPairs(v), AsPairs(v));
  }
  uint16_t large[32], small[32];
  _mm512_storeu_si512(large, largest);
  _mm512_storeu_si512(small, least);
  uint16_t smallest = 0xffff;
  out->largest = 0;
  for (uint32_t i = 0; i < 32; ++i) {
    if (large[i] > out->largest) out->largest = large[i];
    if (small[i] < smallest) smallest = small[i];
  }
  out->least = smallest == 0xffff ? 0xffffu : smallest + 1u;
  float sums[16];
  _mm512_storeu_ps(sums, _mm512_add_ps(energy[0], energy[1]));
  out->energy = 0.0;
  for (uint32_t i = 0; i < 16; ++i) out->energy += static_cast<double>(sums[i]);
}

constexpr uint32_t kChains = 16;  // independent sums, enough to hide the latency of a product

uint64_t PeakBf16(uint64_t rounds) {
  const __m512bh one = AsPairs(_mm512_set1_epi32(0x3f803f80));
  __m512 sum[kChains];
  for (uint32_t k = 0; k < kChains; ++k) sum[k] = _mm512_setzero_ps();
  for (uint64_t round = 0; round < rounds; ++round) {
    for (uint32_t k = 0; k < kChains; ++k) sum[k] = _mm512_dpbf16_ps(sum[k], one, one);
    asm volatile("" : : "v"(sum[0]));
  }
  for (uint32_t k = 0; k < kChains; ++k) asm volatile("" : : "v"(sum[k]));
  return rounds * kChains * 32;
}

// bf16(sum), and bf16(that + base) where there is a base.
void StoreSum(__m512 sum, const float* base, uint16_t* out) {
  if (base != nullptr) sum = Ops::Add(Ops::RoundBf16(sum), Ops::Load(base));
  Ops::StoreBf16(out, sum);
}

// kRows rows times a panel of 16 kWide columns that starts at `column`.
template <uint32_t kRows, uint32_t kWide>
void MultiplyTile(const MultiplyJob& job, uint32_t row, uint32_t column) {
  const uint32_t pairs = job.dim / 2;
  const auto* panel = static_cast<const uint32_t*>(job.matrix) + size_t{column} * pairs;
  const uint16_t* x = job.x + size_t{row} * job.dim;
  __m512 sum[kRows][kWide];
  for (uint32_t r = 0; r < kRows; ++r) {
    for (uint32_t c = 0; c < kWide; ++c) sum[r][c] = _mm512_setzero_ps();
  }
  for (uint32_t p = 0; p < pairs; ++p) {
    __m512bh m[kWide];
    for (uint32_t c = 0; c < kWide; ++c) {
      m[c] = AsPairs(_mm512_loadu_si512(panel + (size_t{p} * kWide + c) * 16));
    }
    for (uint32_t r = 0; r < kRows; ++r) {
      int pair;
      memcpy(&pair, x + size_t{r} * job.dim + 2 * p, sizeof(pair));
      const __m512bh value = AsPairs(_mm512_set1_epi32(pair));
      for (uint32_t c = 0; c < kWide; ++c) sum[r][c] = _mm512_dpbf16_ps(sum[r][c], value, m[c]);
    }
  }
  for (uint32_t r = 0; r < kRows; ++r) {
    const float* base = BaseOf(job, row + r);
    uint16_t* out = job.out + size_t{row + r} * job.dim + column;
    for (uint32_t c = 0; c < kWide; ++c) {
      StoreSum(sum[r][c], base != nullptr ? base + column + 16 * c : nullptr, out + 16 * c);
    }
  }
}

template <uint32_t kWide>
void MultiplyPanel(const MultiplyJob& job, uint32_t column) {
  uint32_t row = 0;
  for (; row + 4 <= job.rows; row += 4) MultiplyTile<4, kWide>(job, row, column);
  for (; row < job.rows; ++row) MultiplyTile<1, kWide>(job, row, column);
}

// Panels of 64 columns, then of 32.
void Multiply(const MultiplyJob& job) {
  uint32_t column = 0;
  for (; column + 64 <= job.dim; column += 64) MultiplyPanel<4>(job, column);
  if (column < job.dim) MultiplyPanel<2>(job, column);
}

}  // namespace

const VectorKernels kAvx512Kernels = {.bf16_pairs = true,
                                      .peak_bf16 = PeakBf16,
                                      .peak_fp32 = PeakFp32<Ops, kChains>,
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
