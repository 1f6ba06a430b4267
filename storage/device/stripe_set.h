// Opens the members of a striped set as one device: all are found, locked and looked at before one
// is changed; new ones are labelled; labels, not the order of the paths, say which member is which.
// Start-up thread; blocking. PROMISE: a set that is refused is left exactly as it was.
#ifndef CRUMB_STORAGE_DEVICE_STRIPE_SET_H_
#define CRUMB_STORAGE_DEVICE_STRIPE_SET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cachesvc/base/status.h"
#include "storage/device/file_device.h"
#include "storage/device/stripe_label.h"

namespace crumb {

struct StripeSetOptions {
  std::vector<std::string> paths;  // kStripeMembersMin to kStripeMembersMax
  uint64_t bytes = 0;              // hard cap over all members, labels included
  // Of each member, without path and bytes. `accept` is asked about what the set holds, and tells
  // a log of its own from other data that is no member.
  FileDeviceOptions each;
  uint32_t unit_bytes = kStripeUnitBytes;  // of a new set; an old one keeps its own
  uint64_t format_seed = 0;                // identity of a new set; 0: the kernel's random source
};

// What `bytes` over `members` give to what is stored in the set.
uint64_t StripeDataBytes(uint64_t bytes, size_t members);

// FAILED_PRECONDITION: no set, or not the whole of one; else as OpenFileDevice. The message names
// the member and the remedy. `bytes_before` is where the first gap of a cut set begins.
absl::StatusOr<FileDevice> OpenStripeSet(const StripeSetOptions& options);

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_STRIPE_SET_H_
