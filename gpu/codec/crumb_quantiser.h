// The quantiser of codec `crumb`: one rotated row to codes, S8 and Z8, and back. Encoders search in
// double; what they store is what the decoder reads, so codes are made with the stored scale and
// zero. Pure functions on the caller's memory; any thread.
#ifndef CRUMB_GPU_CODEC_CRUMB_QUANTISER_H_
#define CRUMB_GPU_CODEC_CRUMB_QUANTISER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gpu/codec/crumb_tables.h"
#include "gpu/codec/descriptor.h"
#include "gpu/codec/query_metric.h"

namespace crumb {

// How a row is searched. K at effort best: four starting ranges, error feedback, four scales
// around the best. V: six ranges, no feedback, full gain.
struct CrumbSearch {
  CrumbGrid grid;
  bool is_v = false;
  Effort effort = Effort::kNormal;
  double gamma = 0.5;  // K: share of the gain correction that is applied
  MetricView metric;   // K only
};

struct CrumbRow {
  uint8_t s8 = 0;
  uint8_t z8 = 0;             // bit 7 clear: the caller chooses the base
  bool clamped = false;       // scale or zero clamped, or the gain guard fired
  double energy = 0.0;        // sum of y^2
  double plain_error = 0.0;   // sum of (y - y^)^2
  double metric_error = 0.0;  // (y - y^)^T A (y - y^); the plain error for V
};

// Working memory of one row.
class CrumbRowWork {
 public:
  void Reserve(size_t dim);

  std::vector<double> row;       // y
  std::vector<double> along;     // L^T y
  std::vector<double> target;    // u
  std::vector<double> residual;  // L^T e of the candidate
  std::vector<double> best_residual;
  std::vector<uint8_t> codes;
};

// `y` is a BF16-exact finite row; `codes` receives y.size() codes.
CrumbRow QuantiseCrumbRow(const CrumbSearch& search, absl::Span<const float> y,
                          absl::Span<uint8_t> codes, CrumbRowWork* work);

// The decoder's y^ = bf16((code - z) s) for every code: `levels` holds 2^bits values.
void CrumbLevels(const CrumbGrid& grid, uint8_t s8, uint8_t z8, absl::Span<float> levels);

// The page mean: `p8` and the BF16 scale from the mean of the rows' distance to the static mean.
uint16_t QuantisePageMean(absl::Span<const double> mean, absl::Span<int8_t> p8);
// bf16(p sigma), the decoder's step.
float PageMeanElement(int8_t p8, uint16_t sigma);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CRUMB_QUANTISER_H_
