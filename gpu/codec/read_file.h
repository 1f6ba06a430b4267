// Reads a whole file of bounded size. Control path, blocking; any thread.
#ifndef CRUMB_GPU_CODEC_READ_FILE_H_
#define CRUMB_GPU_CODEC_READ_FILE_H_

#include <cstdint>
#include <string>

#include "cachesvc/base/status.h"

namespace crumb {

// NOT_FOUND or INVALID_ARGUMENT name the path: missing, not a regular file, longer than
// `bytes_max`, changed while it was read.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, uint64_t bytes_max);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_READ_FILE_H_
