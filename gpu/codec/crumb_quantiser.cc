// The scalar encoder and decoder of one `crumb` row: the format's own words, step by step.
#include "gpu/codec/crumb_quantiser.h"

#include <algorithm>
#include <cmath>

#include "cachesvc/base/check.h"
#include "gpu/codec/bf16.h"

namespace crumb {
namespace {

// Adding this to a double of at most 2^51 leaves the nearest integer (ties to even) in its last
// place: rint without a call, so that loops over codes vectorise.
constexpr double kRounder = 0x1.8p52;

constexpr double kScaleMultiples[] = {0.85, 1.0, 1.15, 1.3};
constexpr int kRangeStepsK = 4;  // 1, .9, .8, .7
constexpr int kRangeStepsV = 6;  // 1 ... .5
constexpr double kGainGuard = 0.3;

struct Pair {
  double scale = 1.0;
  double zero = 0.0;
};

struct Stored {
  uint8_t index = 0;
  double value = 0.0;
  bool clamped = false;
};

struct Candidate {
  Stored scale;
  Stored zero;
  double cost = 0.0;
};

Stored StoreScale(double scale) {
  const double index = std::rint(std::log2(scale) * kCrumbScaleSteps + kCrumbScaleBias);
  const double kept = std::min(std::max(index, 0.0), 255.0);
  const auto byte = static_cast<uint8_t>(kept);
  return {byte, double{kCrumbScale[byte]}, kept != index};
}

Stored StoreZero(const CrumbGrid& grid, double zero) {
  const double index = std::rint((zero - double{grid.mid}) / double{grid.step}) + kCrumbZeroBias;
  const double kept = std::min(std::max(index, 0.0), double{kCrumbZeroMask});
  const auto byte = static_cast<uint8_t>(kept);
  return {byte, double{CrumbZero(grid, byte)}, kept != index};
}

double RoundCode(double value, double top) {
  const double low = value < 0.0 ? 0.0 : value;
  const double kept = low > top ? top : low;
  return (kept + kRounder) - kRounder;
}

// Squared error of plain rounding with an unstored pair. Four sums, so that the loop vectorises.
double PlainError(absl::Span<const double> y, const Pair& pair, double top) {
  double sums[4] = {};
  for (size_t i = 0; i < y.size(); i += 4) {
    for (size_t k = 0; k < 4; ++k) {
      const double code = RoundCode(y[i + k] / pair.scale + pair.zero, top);
      const double error = (code - pair.zero) * pair.scale - y[i + k];
      sums[k] += error * error;
    }
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The range to start from: full, or shrunk around its zero where plain rounding then errs less.
Pair FitRange(const CrumbSearch& search, absl::Span<const double> y, double low, double high) {
  const double top = double{search.grid.top};
  // WHY: a constant row has no range; with zero in it the row is one of the levels.
  if (low == high) {
    low = std::min(low, 0.0);
    high = std::max(high, 0.0);
  }
  const double range = high - low;
  const Pair full{range / top, -top * low / range};
  if (search.effort == Effort::kDraft) return full;
  Pair best = full;
  double least = PlainError(y, full, top);
  const int steps = search.is_v ? kRangeStepsV : kRangeStepsK;
  for (int step = 1; step < steps; ++step) {
    const Pair shrunk{full.scale * (1.0 - 0.1 * step), full.zero};
    const double error = PlainError(y, shrunk, top);
    if (error < least) {
      least = error;
      best = shrunk;
    }
  }
  return best;
}

// Codes one after another, last coordinate first, each error pushed into those still to come;
// leaves L^T e in work->residual and returns e^T A e.
double FeedbackCodes(const CrumbSearch& search, const Candidate& candidate, CrumbRowWork* work) {
  const size_t dim = work->row.size();
  const double top = double{search.grid.top};
  const double scale = candidate.scale.value;
  const double zero = candidate.zero.value;
  std::copy(work->row.begin(), work->row.end(), work->target.begin());
  double* target = work->target.data();
  const double* row = search.metric.lower + TriangleSize(dim);
  double cost = 0.0;
  for (size_t i = dim; i-- > 0;) {
    row -= i;
    const double code = RoundCode(target[i] / scale + zero, top);
    const double level = (code - zero) * scale;
    const double error = work->row[i] - level;
    const double residual = target[i] - level;
    work->codes[i] = static_cast<uint8_t>(code);
    work->residual[i] = residual;
    cost += search.metric.diagonal[i] * residual * residual;
    for (size_t j = 0; j < i; ++j) target[j] += row[j] * error;
  }
  return cost;
}

// The same without a metric: nearest levels.
double PlainCodes(const CrumbSearch& search, const Candidate& candidate, CrumbRowWork* work) {
  const double top = double{search.grid.top};
  double cost = 0.0;
  for (size_t i = 0; i < work->row.size(); ++i) {
    const double code = RoundCode(work->row[i] / candidate.scale.value + candidate.zero.value, top);
    work->codes[i] = static_cast<uint8_t>(code);
    work->residual[i] = work->row[i] - (code - candidate.zero.value) * candidate.scale.value;
    cost += work->residual[i] * work->residual[i];
  }
  return cost;
}

bool UsesFeedback(const CrumbSearch& search) {
  return !search.is_v && search.effort != Effort::kDraft && !search.metric.identity();
}

// Leaves the codes of the best candidate in `codes` and its L^T e in work->best_residual.
Candidate SearchCodes(const CrumbSearch& search, const Pair& start, absl::Span<uint8_t> codes,
                      CrumbRowWork* work) {
  const bool feedback = UsesFeedback(search);
  const bool wide = !search.is_v && search.effort == Effort::kBest;
  const Stored scale = StoreScale(start.scale);
  const Stored zero = StoreZero(search.grid, start.zero);
  const double mid = double{search.grid.mid};
  const size_t count = wide ? std::size(kScaleMultiples) : 1;
  Candidate best;
  for (size_t i = 0; i < count; ++i) {
    Candidate candidate{scale, zero, 0.0};
    if (wide) {
      const double multiple = kScaleMultiples[i];
      candidate.scale = StoreScale(multiple * scale.value);
      candidate.zero = StoreZero(search.grid, mid + (zero.value - mid) / multiple);
      candidate.scale.clamped |= scale.clamped;
      candidate.zero.clamped |= zero.clamped;
    }
    candidate.cost =
        feedback ? FeedbackCodes(search, candidate, work) : PlainCodes(search, candidate, work);
    if (i != 0 && !(candidate.cost < best.cost)) continue;
    best = candidate;
    std::copy(work->codes.begin(), work->codes.end(), codes.begin());
    work->best_residual.swap(work->residual);
  }
  return best;
}

struct Gain {
  double factor = 1.0;
  bool guarded = false;
};

// <y,y> / <y^,y>: K in the metric (plain at effort draft), V plain. The candidate's error is known
// as L^T e, and <y^,y> = <y,y> - <e,y>.
Gain GainOf(const CrumbSearch& search, CrumbRowWork* work) {
  const bool metric = UsesFeedback(search);
  const MetricView view = metric ? search.metric : MetricView{};
  absl::Span<const double> y = work->row;
  if (metric) {
    ApplyTransposed(view, work->row, absl::MakeSpan(work->along));
    y = work->along;
  }
  const double full = MetricDot(view, y, y);
  const double kept = full - MetricDot(view, work->best_residual, y);
  if (kept < kGainGuard * full) return {1.0, true};
  return {full / kept, false};
}

// Errors of what the decoder will see.
void MeasureErrors(const CrumbSearch& search, absl::Span<const uint8_t> codes, CrumbRow* result,
                   CrumbRowWork* work) {
  float levels[16];
  CrumbLevels(search.grid, result->s8, result->z8, levels);
  std::vector<double>& error = work->target;
  for (size_t i = 0; i < codes.size(); ++i) error[i] = work->row[i] - double{levels[codes[i]]};
  result->energy = MetricDot({}, work->row, work->row);
  result->plain_error = MetricDot({}, error, error);
  if (search.is_v || search.metric.identity()) {
    result->metric_error = result->plain_error;
    return;
  }
  ApplyTransposed(search.metric, error, absl::MakeSpan(work->residual));
  result->metric_error = MetricDot(search.metric, work->residual, work->residual);
}

}  // namespace

void CrumbRowWork::Reserve(size_t dim) {
  for (std::vector<double>* v : {&row, &along, &target, &residual, &best_residual}) v->resize(dim);
  codes.resize(dim);
}

CrumbRow QuantiseCrumbRow(const CrumbSearch& search, absl::Span<const float> y,
                          absl::Span<uint8_t> codes, CrumbRowWork* work) {
  CRUMB_CHECK(!y.empty() && y.size() % 4 == 0 && codes.size() == y.size());
  work->Reserve(y.size());
  std::copy(y.begin(), y.end(), work->row.begin());
  const auto [low, high] = std::minmax_element(work->row.begin(), work->row.end());
  CrumbRow result;
  if (*low == 0.0 && *high == 0.0) {
    result.z8 = StoreZero(search.grid, 0.0).index;  // code 0 is exactly zero
    std::fill(codes.begin(), codes.end(), uint8_t{0});
    return result;
  }
  const Pair start = FitRange(search, work->row, *low, *high);
  const Candidate best = SearchCodes(search, start, codes, work);
  const Gain gain = GainOf(search, work);
  const double gamma = search.is_v ? 1.0 : search.gamma;
  const Stored scale = StoreScale(best.scale.value * (1.0 + gamma * (gain.factor - 1.0)));
  result.s8 = scale.index;
  result.z8 = best.zero.index;
  result.clamped = best.scale.clamped || best.zero.clamped || scale.clamped || gain.guarded;
  MeasureErrors(search, codes, &result, work);
  return result;
}

void CrumbLevels(const CrumbGrid& grid, uint8_t s8, uint8_t z8, absl::Span<float> levels) {
  const size_t count = size_t{1} << grid.bits;
  CRUMB_CHECK(levels.size() >= count);
  const float scale = kCrumbScale[s8];
  const float zero = CrumbZero(grid, z8);
  for (size_t code = 0; code < count; ++code) {
    levels[code] = RoundToBf16((static_cast<float>(code) - zero) * scale);
  }
}

uint16_t QuantisePageMean(absl::Span<const double> mean, absl::Span<int8_t> p8) {
  CRUMB_CHECK(mean.size() == p8.size());
  double largest = 0.0;
  for (const double value : mean) largest = std::max(largest, std::abs(value));
  const uint16_t sigma = FloatToBf16(DoubleToFloat(largest / 127.0));
  const double step = double{Bf16ToFloat(sigma)};
  for (size_t i = 0; i < mean.size(); ++i) {
    const double p = step == 0.0 ? 0.0 : std::rint(mean[i] / step);
    p8[i] = static_cast<int8_t>(std::min(std::max(p, -127.0), 127.0));
  }
  return sigma;
}

float PageMeanElement(int8_t p8, uint16_t sigma) {
  return RoundToBf16(static_cast<float>(p8) * Bf16ToFloat(sigma));
}

}  // namespace crumb
