// Range, feedback, gain and errors of groups of crumb rows. Any thread.
#include "gpu/codec/vector_crumb_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "gpu/codec/row_frame.h"

namespace crumb {
namespace {

// Rows beyond these magnitudes go by the scalar code: squares of theirs could leave FP32.
constexpr float kPeakMax = 0x1p40f;
constexpr float kPeakMin = 0x1p-40f;

constexpr double kScaleMultiples[] = {0.85, 1.0, 1.15, 1.3};
constexpr double kGainGuard = 0.3;

// 2^((k + 0.5) / 16): where the stored scale of an octave steps from k to k + 1.
constexpr double kScaleSteps[kCrumbScaleSteps] = {
    0x1.059b0d3158574p+0, 0x1.11301d0125b51p+0, 0x1.1d4873168b9aap+0, 0x1.29e9df51fdee1p+0,
    0x1.371a7373aa9cbp+0, 0x1.44e086061892dp+0, 0x1.5342b569d4f82p+0, 0x1.6247eb03a5585p+0,
    0x1.71f75e8ec5f74p+0, 0x1.82589994cce13p+0, 0x1.93737b0cdc5e5p+0, 0x1.a5503b23e255dp+0,
    0x1.b7f76f2fb5e47p+0, 0x1.cb720dcef9069p+0, 0x1.dfc97337b9b5fp+0, 0x1.f50765b6e4540p+0};

// Steps of kScaleSteps passed at the start of each 32nd of an octave; at most one more follows
// within it.
constexpr int kOctaveParts = 32;
constexpr std::array<uint8_t, kOctaveParts> StepsByPart() {
  std::array<uint8_t, kOctaveParts> table{};
  for (int part = 0; part < kOctaveParts; ++part) {
    for (const double step : kScaleSteps) {
      if (1.0 + part / double{kOctaveParts} > step) ++table[static_cast<size_t>(part)];
    }
  }
  return table;
}
constexpr std::array<uint8_t, kOctaveParts> kStepsByPart = StepsByPart();

struct Stored {
  uint8_t index = 0;
  float value = 0.0f;
  bool clamped = false;
};

// The nearest stored scale on the logarithmic grid, without a logarithm.
Stored StoreScale(double scale) {
  const auto bits = std::bit_cast<uint64_t>(scale);
  const int octave = static_cast<int>(bits >> 52) - 1023;
  const double mantissa =
      std::bit_cast<double>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  int steps = kStepsByPart[(bits >> 47) & (kOctaveParts - 1)];
  if (steps < kCrumbScaleSteps && mantissa > kScaleSteps[steps]) ++steps;
  const int index = octave * kCrumbScaleSteps + steps + kCrumbScaleBias;
  const int kept = std::min(std::max(index, 0), 255);
  const auto byte = static_cast<uint8_t>(kept);
  return {byte, kCrumbScale[byte], kept != index};
}

Stored StoreZero(const CrumbGrid& grid, double zero) {
  const double index = std::rint((zero - double{grid.mid}) / double{grid.step}) + kCrumbZeroBias;
  const double kept = std::min(std::max(index, 0.0), double{kCrumbZeroMask});
  const auto byte = static_cast<uint8_t>(kept);
  return {byte, CrumbZero(grid, byte), kept != index};
}

// Sixteen candidates and what came of them.
struct Group {
  float scale[kGroupRows], zero[kGroupRows];
  float metric_ee[kGroupRows], metric_ye[kGroupRows];
  float plain_ee[kGroupRows], plain_ye[kGroupRows];
  uint8_t s8[kGroupRows], z8[kGroupRows];
  bool clamped[kGroupRows];
};

// `from`'s lane becomes `to`'s.
void CopyLane(const Group& from, uint32_t r, Group* to) {
  to->scale[r] = from.scale[r];
  to->zero[r] = from.zero[r];
  to->metric_ee[r] = from.metric_ee[r];
  to->metric_ye[r] = from.metric_ye[r];
  to->plain_ee[r] = from.plain_ee[r];
  to->plain_ye[r] = from.plain_ye[r];
  to->s8[r] = from.s8[r];
  to->z8[r] = from.z8[r];
  to->clamped[r] = from.clamped[r];
}

// e'Ae after the scale became `ratio` times itself: e turns into y - ratio (y - e).
double ScaledError(double ratio, double yy, double ye, double ee) {
  const double rest = 1.0 - ratio;
  return std::max(0.0, rest * rest * yy + 2.0 * ratio * rest * ye + ratio * ratio * ee);
}

class GroupSearch {
 public:
  GroupSearch(const VectorCrumbSearch& search, CodecScratch* scratch)
      : search_(search),
        kernels_(*search.kernels),
        tensor_(*search.tensor),
        grid_(CrumbGridOf(tensor_.pack.bits)),
        scratch_(scratch),
        work_(scratch->vector),
        metric_(tensor_.is_v ? nullptr : search.metric),
        feedback_(metric_ != nullptr && search.effort != Effort::kDraft) {}

  void Run(const VectorCrumbRows& rows, uint32_t first, PhaseClock* clock) {
    const uint32_t count = std::min(kGroupRows, rows.rows - first);
    const uint16_t* y = rows.y + size_t{first} * tensor_.dim;
    kernels_.group_load({.rows = y,
                         .count = count,
                         .dim = tensor_.dim,
                         .pairs = work_.pairs.data(),
                         .y = work_.y.data()});
    Fit();
    clock->Lap(CodecPhase::kRange);
    Search();
    CrumbRow* results = rows.results + first;
    for (uint32_t r = 0; r < kGroupRows; ++r) Finish(r, r < count ? &results[r] : &spare_);
    if (metric_ != nullptr && !feedback_) MeasureMetric(count, results);
    for (uint32_t r = 0; r < count; ++r) {
      const bool kept = peak_[r] == 0.0f || (peak_[r] >= kPeakMin && peak_[r] <= kPeakMax);
      if (!kept) ScalarRow(y + size_t{r} * tensor_.dim, r, &results[r]);
    }
    clock->Lap(CodecPhase::kQuantise);
    kernels_.group_pack({.codes = work_.codes.data(),
                         .count = count,
                         .dim = tensor_.dim,
                         .bits = tensor_.pack.bits,
                         .work = work_.pack.data(),
                         .out = rows.packed + size_t{first} * tensor_.code_row_bytes,
                         .row_bytes = tensor_.code_row_bytes});
    clock->Lap(CodecPhase::kPack);
  }

 private:
  void Fit() {
    const uint32_t steps = search_.effort == Effort::kDraft ? 1 : tensor_.is_v ? 6 : 4;
    kernels_.crumb_fit({.y = work_.y.data(),
                        .dim = tensor_.dim,
                        .steps = steps,
                        .top = grid_.top,
                        .scale = start_.scale,
                        .zero = start_.zero,
                        .peak = peak_,
                        .energy = energy_});
    for (uint32_t r = 0; r < kGroupRows; ++r) {
      const Stored scale = StoreScale(double{start_.scale[r]});
      const Stored zero = StoreZero(grid_, double{start_.zero[r]});
      start_.scale[r] = scale.value;
      start_.zero[r] = zero.value;
      start_.s8[r] = scale.index;
      start_.z8[r] = zero.index;
      start_.clamped[r] = scale.clamped || zero.clamped;
    }
  }

  // Leaves the chosen candidates in best_ and their codes in work_.codes.
  void Search() {
    if (feedback_) {
      kernels_.crumb_along({.x = work_.y.data(),
                            .lower = metric_->lower.data(),
                            .diagonal = metric_->diagonal.data(),
                            .dim = tensor_.dim,
                            .along = work_.along.data(),
                            .norm = norm_});
    }
    best_ = start_;
    if (tensor_.is_v || search_.effort != Effort::kBest) {
      Codes(&best_);
      return;
    }
    for (size_t k = 0; k < std::size(kScaleMultiples); ++k) {
      Group trial = start_;
      for (uint32_t r = 0; r < kGroupRows; ++r) Stretch(kScaleMultiples[k], r, &trial);
      Codes(&trial);
      uint8_t better[kGroupRows];
      for (uint32_t r = 0; r < kGroupRows; ++r) {
        const bool less = feedback_ ? trial.metric_ee[r] < best_.metric_ee[r]
                                    : trial.plain_ee[r] < best_.plain_ee[r];
        better[r] = k == 0 || less ? 0xff : 0;
        if (better[r] != 0) CopyLane(trial, r, &best_);
      }
      uint8_t* kept = work_.best_codes.data();
      const uint8_t* codes = work_.codes.data();
      for (size_t i = 0; i < size_t{tensor_.dim} * kGroupRows; i += kGroupRows) {
        for (uint32_t r = 0; r < kGroupRows; ++r) {
          const uint32_t bits = (codes[i + r] & better[r]) | (kept[i + r] & ~uint32_t{better[r]});
          kept[i + r] = static_cast<uint8_t>(bits);
        }
      }
    }
    std::swap(work_.codes, work_.best_codes);
  }

  void Stretch(double multiple, uint32_t r, Group* trial) const {
    const double mid = double{grid_.mid};
    const Stored scale = StoreScale(multiple * double{trial->scale[r]});
    const Stored zero = StoreZero(grid_, mid + (double{trial->zero[r]} - mid) / multiple);
    // A row of zeros keeps the zero that its code stands for.
    if (peak_[r] != 0.0f) {
      trial->zero[r] = zero.value;
      trial->z8[r] = zero.index;
    }
    trial->scale[r] = scale.value;
    trial->s8[r] = scale.index;
    trial->clamped[r] = trial->clamped[r] || scale.clamped || zero.clamped;
  }

  void Codes(Group* group) {
    kernels_.crumb_codes({.y = work_.y.data(),
                          .along = feedback_ ? work_.along.data() : nullptr,
                          .lower = feedback_ ? metric_->lower.data() : nullptr,
                          .diagonal = feedback_ ? metric_->diagonal.data() : nullptr,
                          .dim = tensor_.dim,
                          .top = grid_.top,
                          .scale = group->scale,
                          .zero = group->zero,
                          .rest = work_.rest.data(),
                          .codes = work_.codes.data(),
                          .metric_ee = group->metric_ee,
                          .metric_ye = group->metric_ye,
                          .plain_ee = group->plain_ee,
                          .plain_ye = group->plain_ye});
  }

  // The gain, the scale that is stored, and the errors of what a decoder will see.
  void Finish(uint32_t r, CrumbRow* result) {
    *result = CrumbRow{};
    if (peak_[r] == 0.0f) {
      result->z8 = StoreZero(grid_, 0.0).index;  // code 0 is exactly zero
      return;
    }
    const double full = feedback_ ? double{norm_[r]} : double{energy_[r]};
    const double kept = full - double{feedback_ ? best_.metric_ye[r] : best_.plain_ye[r]};
    const bool guarded = kept < kGainGuard * full;
    const double gamma = tensor_.is_v ? 1.0 : search_.gamma;
    const double gain = guarded ? 1.0 : 1.0 + gamma * (full / kept - 1.0);
    const Stored scale = StoreScale(double{best_.scale[r]} * gain);
    result->s8 = scale.index;
    result->z8 = best_.z8[r];
    result->clamped = best_.clamped[r] || scale.clamped || guarded;
    const double ratio = double{scale.value} / double{best_.scale[r]};
    result->plain_error = ScaledError(ratio, double{energy_[r]}, double{best_.plain_ye[r]},
                                      double{best_.plain_ee[r]});
    result->energy = double{energy_[r]};
    result->metric_error = result->plain_error;
    if (feedback_) {
      result->metric_error =
          metric_->unit * ScaledError(ratio, double{norm_[r]}, double{best_.metric_ye[r]},
                                      double{best_.metric_ee[r]});
    }
  }

  // Effort draft has no use for the metric but to report the error in it.
  void MeasureMetric(uint32_t count, CrumbRow* results) {
    float scale[kGroupRows] = {}, zero[kGroupRows] = {};
    for (uint32_t r = 0; r < count; ++r) {
      scale[r] = kCrumbScale[results[r].s8];
      zero[r] = CrumbZero(grid_, results[r].z8);
    }
    for (size_t i = 0; i < size_t{tensor_.dim} * kGroupRows; i += kGroupRows) {
      for (uint32_t r = 0; r < kGroupRows; ++r) {
        const float level = (static_cast<float>(work_.codes[i + r]) - zero[r]) * scale[r];
        work_.rest[i + r] = work_.y[i + r] - level;
      }
    }
    kernels_.crumb_along({.x = work_.rest.data(),
                          .lower = metric_->lower.data(),
                          .diagonal = metric_->diagonal.data(),
                          .dim = tensor_.dim,
                          .along = work_.along.data(),
                          .norm = norm_});
    for (uint32_t r = 0; r < count; ++r) {
      if (peak_[r] != 0.0f) results[r].metric_error = metric_->unit * double{norm_[r]};
    }
  }

  void ScalarRow(const uint16_t* y, uint32_t r, CrumbRow* result) {
    const size_t dim = tensor_.dim;
    const auto row = absl::MakeSpan(scratch_->row_work).first(dim);
    LoadRows({reinterpret_cast<const uint8_t*>(y), 2 * dim}, row);
    CrumbSearch search;
    search.grid = grid_;
    search.is_v = tensor_.is_v;
    search.effort = search_.effort;
    search.gamma = search_.gamma;
    if (metric_ != nullptr) {
      search.metric = ExpandMetric(*search_.reference, absl::MakeSpan(scratch_->metric_lower));
    }
    const auto codes = absl::MakeSpan(scratch_->codes).first(dim);
    *result = QuantiseCrumbRow(search, row, codes, &scratch_->crumb_work);
    for (size_t i = 0; i < dim; ++i) work_.codes[i * kGroupRows + r] = codes[i];
  }

  const VectorCrumbSearch& search_;
  const VectorKernels& kernels_;
  const TensorLayout& tensor_;
  const CrumbGrid grid_;
  CodecScratch* scratch_;
  VectorWork& work_;
  const PackedMetric* metric_;
  const bool feedback_;
  Group start_{};
  Group best_{};
  CrumbRow spare_;
  float peak_[kGroupRows], energy_[kGroupRows], norm_[kGroupRows];
};

}  // namespace

void QuantiseCrumbRows(const VectorCrumbSearch& search, const VectorCrumbRows& rows,
                       CodecScratch* scratch) {
  PhaseClock clock(scratch->phases);
  GroupSearch group(search, scratch);
  for (uint32_t first = 0; first < rows.rows; first += kGroupRows) group.Run(rows, first, &clock);
}

}  // namespace crumb
