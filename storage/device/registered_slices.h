// How memory is cut for BlockDevice::RegisterBuffers. Pure; any thread.
#ifndef CRUMB_STORAGE_DEVICE_REGISTERED_SLICES_H_
#define CRUMB_STORAGE_DEVICE_REGISTERED_SLICES_H_

#include <vector>

#include "cachesvc/base/huge_page.h"
#include "cachesvc/base/types.h"

namespace crumb {

// Slices in order that together are `memory`, none above the kernel's limit. WHY what lies before
// the first and behind the last whole huge page is a slice of its own: the kernel keeps a slice as
// a few long pieces only if all its pages are of one size, else as one piece for each 4 KiB, and
// then every request takes as many.
std::vector<MutableBytes> CutForRegistering(MutableBytes memory);

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_REGISTERED_SLICES_H_
