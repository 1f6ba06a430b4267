// What a test can make the fake CUDA runtime say beside its calls. Any thread.
#ifndef CRUMB_TESTS_CONFORMANCE_GPU_CUDA_FAKE_RUNTIME_H_
#define CRUMB_TESTS_CONFORMANCE_GPU_CUDA_FAKE_RUNTIME_H_

namespace crumb::fake_cuda {

// A call of the driver that cudaGetDriverEntryPointByVersion finds from now on.
void AddDriverCall(const char* name, void* function);

// Puts a step on a stream: `run` of `arg`, in order, on the stream's thread. A cudaError_t.
int AddToStream(void* stream, void (*run)(void* arg), void* arg);

// How many devices there are; 1 from the start.
void SetDeviceCount(int count);

// A cudaError_t that asking for devices ends with; 0: none.
void SetDeviceCountError(int error);

}  // namespace crumb::fake_cuda

#endif  // CRUMB_TESTS_CONFORMANCE_GPU_CUDA_FAKE_RUNTIME_H_
