// CudaScope: makes a CUDA device current on this thread, and the one before again. What runs in
// somebody else's process must leave its threads as they were: streams and mappings go by the
// current device. Knows no CUDA type. The thread that made it.
#ifndef CRUMB_GPU_DEVICE_CUDA_SCOPE_H_
#define CRUMB_GPU_DEVICE_CUDA_SCOPE_H_

namespace crumb {

class CudaScope {
 public:
  explicit CudaScope(int device);
  ~CudaScope();
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;
  int error() const { return error_; }  // a cudaError_t

 private:
  int before_ = -1;
  int error_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_CUDA_SCOPE_H_
