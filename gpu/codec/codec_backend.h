// Which implementation of the packed codecs runs. All read and write one format; the reference is
// the scalar oracle that the others are held against. Pure functions; any thread.
#ifndef CRUMB_GPU_CODEC_CODEC_BACKEND_H_
#define CRUMB_GPU_CODEC_CODEC_BACKEND_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "cachesvc/base/status.h"

namespace crumb {

enum class CodecBackend : uint8_t { kAuto = 0, kReference = 1, kAvx2 = 2, kAvx512 = 3 };

const char* ToString(CodecBackend backend);  // "auto", "reference", "avx2", "avx512"
absl::StatusOr<CodecBackend> ParseCodecBackend(std::string_view text);

// What this processor and its operating system run, slowest first; never empty, never kAuto.
std::vector<CodecBackend> SupportedCodecBackends();
// The backend itself, or the fastest supported one for kAuto. FAILED_PRECONDITION says what the
// processor lacks and what to set instead.
absl::StatusOr<CodecBackend> ResolveCodecBackend(CodecBackend wanted);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CODEC_BACKEND_H_
