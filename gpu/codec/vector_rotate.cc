// Centres, looks at the range, multiplies. Any thread.
#include "gpu/codec/vector_rotate.h"

namespace crumb {

const uint16_t* RotateRows(const VectorRotation& job, const uint16_t* x, VectorWork* work) {
  const VectorKernels& kernels = *job.kernels;
  if (job.base != nullptr) {
    kernels.centre(
        {.x = x, .base = job.base, .rows = job.rows, .dim = job.dim, .out = work->centred.data()});
    x = work->centred.data();
    HeadScan scan;
    kernels.scan(x, size_t{job.rows} * job.dim, &scan);
    if (!Comfortable(scan)) return nullptr;
  }
  if (job.rotation == nullptr) return x;
  kernels.multiply({.x = x,
                    .matrix = job.rotation->forward.data(),
                    .rows = job.rows,
                    .dim = job.dim,
                    .base = {nullptr, nullptr},
                    .flags = nullptr,
                    .out = work->rotated.data()});
  return work->rotated.data();
}

}  // namespace crumb
