// The inner loops of the vector backends: one table of functions per instruction set, on plain
// memory. Stages of a head's encoder work on groups of 16 rows laid across lanes: [dim][16] FP32.
// WHY plain types only: the files behind the tables are compiled with flags of their own, and
// nothing inline that they share with other files may be emitted from them. Pure functions; any
// thread; default floating-point environment.
#ifndef CRUMB_GPU_CODEC_VECTOR_KERNELS_H_
#define CRUMB_GPU_CODEC_VECTOR_KERNELS_H_

#include <stddef.h>
#include <stdint.h>

namespace crumb {

enum class CodecBackend : uint8_t;

inline constexpr uint32_t kGroupRows = 16;
// Head dims the kernels take: multiples of this, up to kVectorDimMax.
inline constexpr uint32_t kVectorDimStep = 32;
inline constexpr uint32_t kVectorDimMax = 1024;
// Columns of L that one panel of the feedback holds.
inline constexpr uint32_t kMetricPanel = 8;

// Magnitudes of BF16 values as 15-bit integers.
struct HeadScan {
  uint32_t largest = 0;
  uint32_t least = 0xffff;  // of those that are not zero; 0xffff: all are
  double energy = 0.0;      // sum of squares
};

struct CentreJob {
  const uint16_t* x;  // [rows][dim] BF16
  const float* base;  // [dim]
  uint32_t rows, dim;
  uint16_t* out;  // bf16(x - base)
};

struct MultiplyJob {
  const uint16_t* x;   // [rows][dim] BF16
  const void* matrix;  // packed for this backend
  uint32_t rows, dim;
  // bf16(bf16(x M) + base) where a base is given: base[flags[2 row] >> 7], or base[0] without
  // flags.
  const float* base[2];
  const uint8_t* flags;
  uint16_t* out;
};

struct UnpackJob {
  const uint8_t* codes;  // planar rows
  uint32_t row_bytes, rows, dim, bits;
  uint32_t groups;  // scales per row; more than one: of a multiple of 8 elements, not 3 bits
  const float *scale, *zero;  // [rows][groups]
  uint16_t* out;              // bf16((code - zero) scale)
};

// Sixteen rows (fewer: the rest are zero) across lanes.
struct GroupLoadJob {
  const uint16_t* rows;  // [count][dim] BF16
  uint32_t count, dim;
  uint32_t* pairs;  // [dim / 2][16] neighbours as put
  float* y;         // [dim][16]
};
struct GroupPackJob {
  const uint8_t* codes;  // [dim][16]
  uint32_t count, dim, bits;
  uint8_t* work;  // [dim][16]
  uint8_t* out;   // planar rows
  uint32_t row_bytes;
};

enum class ClipKind : uint8_t { kNone, kSort, kBisect };
struct AffineJob {
  const float* y;         // [dim][16]
  const uint32_t* pairs;  // the same as BF16
  uint32_t dim, groups;
  ClipKind clip;
  uint32_t rank;     // of the clipping magnitude, ascending
  float top;         // largest code
  bool wide;         // metadata is FP32, not BF16
  float* threshold;  // [16]
  // [groups][16]: high - low after the clip; the pair of the codes; that of a decoder; the latter
  // as two BF16, scale first.
  float *range, *scale, *zero, *stored_scale, *stored_zero;
  uint32_t* meta;
  uint8_t* codes;  // [dim][16]
  float* error;    // [16] squared, of what the decoder will see
};

struct CrumbFitJob {
  const float* y;
  uint32_t dim;
  uint32_t steps;  // ranges tried
  float top;
  float *scale, *zero;  // [16] not yet stored
  float* peak;          // [16] largest magnitude
  float* energy;        // [16] sum of squares
};
struct CrumbCodesJob {
  const float* y;
  const float* along;     // [dim][16] L^T y; null without a metric
  const float* lower;     // panels of L; null without a metric
  const float* diagonal;  // [dim] D over its largest
  uint32_t dim;
  float top;
  const float* scale;  // [16] stored
  const float* zero;
  float* rest;     // [dim][16] (y - level) / scale
  uint8_t* codes;  // [dim][16]
  // [16] each: e'Ae, y'Ae, e'e, y'e (in units of the largest D).
  float *metric_ee, *metric_ye, *plain_ee, *plain_ye;
};
struct CrumbAlongJob {
  const float* x;  // [dim][16]
  const float* lower;
  const float* diagonal;
  uint32_t dim;
  float* along;  // [dim][16] L^T x
  float* norm;   // [16] sum of D (L^T x)^2
};

struct VectorKernels {
  bool bf16_pairs;  // packed matrices are pairs of BF16 rather than FP32
  // Multiply-adds from registers, and their number; null: the backend has no such product.
  uint64_t (*peak_bf16)(uint64_t rounds);
  uint64_t (*peak_fp32)(uint64_t rounds);
  void (*scan)(const uint16_t* x, size_t count, HeadScan* out);
  void (*centre)(const CentreJob& job);
  // sums[i] += double(x[row][i] - base[i]), in order of rows; base may be null.
  void (*column_sums)(const CentreJob& job, double* sums);
  void (*multiply)(const MultiplyJob& job);
  void (*add_base)(const MultiplyJob& job);  // without the product
  void (*unpack)(const UnpackJob& job);
  void (*group_load)(const GroupLoadJob& job);
  void (*group_pack)(const GroupPackJob& job);
  void (*affine_range)(const AffineJob& job);
  void (*affine_codes)(const AffineJob& job);
  void (*crumb_fit)(const CrumbFitJob& job);
  void (*crumb_codes)(const CrumbCodesJob& job);
  void (*crumb_along)(const CrumbAlongJob& job);
};

extern const VectorKernels kAvx512Kernels;
extern const VectorKernels kAvx2Kernels;

// Null: the reference, kAuto, or what this machine does not run.
const VectorKernels* KernelsOf(CodecBackend backend);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_KERNELS_H_
