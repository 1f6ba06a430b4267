// What the fake CUDA runtime has of memory beside cudaMalloc: the driver's virtual memory,
// registered host memory and what is free. Says what was called, and fails where it is told to.
// One thread.
#ifndef CRUMB_TESTS_CONFORMANCE_GPU_CUDA_FAKE_MEMORY_H_
#define CRUMB_TESTS_CONFORMANCE_GPU_CUDA_FAKE_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

namespace crumb::fake_cuda {

struct MemoryState {
  uint64_t free_bytes = uint64_t{139} << 30;
  uint64_t total_bytes = uint64_t{140} << 30;
  std::string fail_call;  // the name of a call that ends with `fail_error` ...
  int fail_skip = 0;      // ... after so many that work; once
  int fail_error = 0;     // a cudaError_t, or the CUresult of that number
  uint64_t step_bytes = uint64_t{2} << 20;
  bool virtual_memory = true;
  bool exports_fd = true;
  int peer_access = 1;             // whether device 1 may reach device 0
  std::vector<int> reach;          // devices that were let reach memory of device 0
  bool same_addresses = true;      // of registered memory, for the device and the host
  std::vector<std::string> calls;  // that made or ended something, in order
  int live = 0;  // allocations, ranges of addresses, mappings and registrations that did not end
};

MemoryState& Memory();

// Calls of the driver are found again, or not any more.
void ProvideVmmCall(const char* name);
void HideVmmCall(const char* name);

}  // namespace crumb::fake_cuda

#endif  // CRUMB_TESTS_CONFORMANCE_GPU_CUDA_FAKE_MEMORY_H_
