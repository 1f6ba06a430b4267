// CUDA IPC without a GPU: allocations that "another process" (this one) maps at another address.
// One thread.
#ifndef CRUMB_TESTS_CONFORMANCE_GPU_CUDA_FAKE_IPC_H_
#define CRUMB_TESTS_CONFORMANCE_GPU_CUDA_FAKE_IPC_H_

#include <cstddef>
#include <cstdint>

namespace crumb::fake_cuda {

enum class MemoryKind : uint8_t { kDevice, kVirtual, kManaged, kHost };

// Memory of the fake device, until the test ends.
std::byte* Allocate(uint64_t bytes, MemoryKind kind);
// The owner ends it: nobody opens it any more, and what is mapped stays.
void EndAllocation(const std::byte* memory);

struct IpcState {
  int open_mappings = 0;   // opened and not closed
  int open_error = 0;      // a cudaError_t that opening memory ends with
  int range_error = 0;     // a CUresult that asking for an allocation ends with
  uint64_t range_cut = 0;  // bytes that the driver finds fewer than there are
};
IpcState& Ipc();

}  // namespace crumb::fake_cuda

#endif  // CRUMB_TESTS_CONFORMANCE_GPU_CUDA_FAKE_IPC_H_
