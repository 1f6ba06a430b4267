// Working memory of one thread for every codec: grows to the largest part it met, never shrinks.
// The only class behind PageCodec::Scratch. One thread at a time.
#ifndef CRUMB_GPU_CODEC_CODEC_SCRATCH_H_
#define CRUMB_GPU_CODEC_CODEC_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gpu/codec/crumb_quantiser.h"
#include "gpu/codec/page_codec.h"
#include "gpu/codec/phase_times.h"
#include "gpu/codec/rotate.h"
#include "gpu/codec/vector_work.h"

namespace crumb {

class CodecScratch final : public PageCodec::Scratch {
 public:
  // Called at the start of every page: forgets which matrix is expanded.
  void StartPage() { expanded_from_ = nullptr; }
  void Reserve(size_t rows, size_t dim);
  void MeasureInto(PhaseTimes* times) override { phases = times; }

  // `matrix` expanded for MultiplyRows; kept as long as the same one is asked for. Empty for empty.
  absl::Span<const double> Expanded(absl::Span<const float> matrix, size_t dim,
                                    RotateDirection direction);

  // [rows][dim]
  std::vector<float> rows_x;  // as put, or as they go out
  std::vector<float> rows_y;  // rotated
  std::vector<float> rows_retry;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> codes_retry;
  // [rows]
  std::vector<CrumbRow> crumb_rows;
  std::vector<CrumbRow> crumb_trials;
  std::vector<double> row_errors;
  std::vector<uint32_t> retry;
  // [dim]
  std::vector<float> base_static;
  std::vector<float> base_page;
  std::vector<float> row_work;
  std::vector<double> mean;
  std::vector<int8_t> mean8;
  std::vector<double> multiply_work;
  std::vector<double> metric_lower;  // TriangleSize(dim)
  CrumbRowWork crumb_work;
  // Vector backends.
  VectorWork vector;
  std::vector<HeadScan> scans;  // of a page, in its order
  PhaseTimes* phases = nullptr;

 private:
  std::vector<double> expanded_;
  const float* expanded_from_ = nullptr;
  RotateDirection expanded_direction_ = RotateDirection::kForward;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CODEC_SCRATCH_H_
