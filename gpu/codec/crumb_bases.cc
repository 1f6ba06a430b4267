// Bases and retries of `crumb` heads. Any thread.
#include "gpu/codec/crumb_bases.h"

#include <algorithm>
#include <cstring>

#include "gpu/codec/bf16.h"
#include "gpu/codec/crumb_quantiser.h"

namespace crumb {
namespace {

// Effort normal tries the static mean for rows that err more than this times the page's median.
constexpr double kRetryOverMedian = 2.0;

}  // namespace

void LoadCrumbBases(const TensorLayout& tensor, absl::Span<const float> mean, Bytes side,
                    CodecScratch* scratch) {
  for (size_t i = 0; i < tensor.dim; ++i) {
    scratch->base_static[i] = mean.empty() ? 0.0f : mean[i];
  }
  if (side.empty()) return;
  uint16_t sigma;
  std::memcpy(&sigma, side.data() + tensor.dim, sizeof(sigma));
  for (size_t i = 0; i < tensor.dim; ++i) {
    const float p = PageMeanElement(static_cast<int8_t>(side[i]), sigma);
    scratch->base_page[i] = DoubleToFloat(double{scratch->base_static[i] + p});
  }
}

size_t ChooseRetries(Effort effort, size_t rows, CodecScratch* scratch) {
  if (effort == Effort::kDraft) return 0;
  double bound = -1.0;  // every row
  if (effort == Effort::kNormal) {
    const auto errors = absl::MakeSpan(scratch->row_errors).first(rows);
    for (size_t row = 0; row < rows; ++row) {
      errors[row] = scratch->crumb_rows[row].metric_error;
    }
    const auto median = errors.begin() + static_cast<ptrdiff_t>(rows / 2);
    std::nth_element(errors.begin(), median, errors.end());
    bound = kRetryOverMedian * *median;
  }
  size_t count = 0;
  for (size_t row = 0; row < rows; ++row) {
    if (scratch->crumb_rows[row].metric_error > bound) {
      scratch->retry[count++] = static_cast<uint32_t>(row);
    }
  }
  return count;
}

}  // namespace crumb
