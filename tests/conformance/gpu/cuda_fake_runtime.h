// What a test can make the fake CUDA runtime say beside its calls. Any thread.
#ifndef CRUMB_TESTS_CONFORMANCE_GPU_CUDA_FAKE_RUNTIME_H_
#define CRUMB_TESTS_CONFORMANCE_GPU_CUDA_FAKE_RUNTIME_H_

namespace crumb::fake_cuda {

// A cudaError_t that asking for devices ends with; 0: there is one.
void SetDeviceCountError(int error);

}  // namespace crumb::fake_cuda

#endif  // CRUMB_TESTS_CONFORMANCE_GPU_CUDA_FAKE_RUNTIME_H_
