// See registered_slices.h. Pure.
#include "storage/device/registered_slices.h"

#include <algorithm>

#include "storage/device/ring_device.h"

namespace crumb {

std::vector<MutableBytes> CutForRegistering(MutableBytes memory) {
  static_assert(kRegisteredSliceBytesMax % kHugePageBytes == 0);
  std::vector<MutableBytes> slices;
  while (!memory.empty()) {
    const uint64_t past = reinterpret_cast<uintptr_t>(memory.data()) % kHugePageBytes;
    const uint64_t whole = memory.size() / kHugePageBytes * kHugePageBytes;
    uint64_t bytes = std::min(whole, kRegisteredSliceBytesMax);
    if (past != 0) bytes = kHugePageBytes - past;
    if (bytes == 0 || bytes > memory.size()) bytes = memory.size();
    slices.push_back(memory.subspan(0, bytes));
    memory.remove_prefix(bytes);
  }
  return slices;
}

}  // namespace crumb
