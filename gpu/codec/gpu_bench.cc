// What of gpu_bench.h needs no CUDA: words and checks.
#include "gpu/codec/gpu_bench.h"

#include "absl/strings/str_cat.h"

namespace crumb {

const char* ToString(GpuBenchWay way) {
  switch (way) {
    case GpuBenchWay::kEncode:
      return "encode";
    case GpuBenchWay::kDecode:
      return "decode";
    case GpuBenchWay::kDecodeRotated:
      return "rotated";
  }
  return "?";
}

absl::Status CheckGpuBenchCase(const GpuBenchCase& wanted) {
  const auto bad = [](auto... words) { return absl::InvalidArgumentError(absl::StrCat(words...)); };
  if (wanted.page_tokens == 0 || wanted.page_tokens % kGpuBenchSlotTokens != 0) {
    return bad("pages of ", wanted.page_tokens, " tokens: the GPU is measured with multiples of ",
               kGpuBenchSlotTokens);
  }
  if (wanted.dim == 0 || wanted.heads == 0 || wanted.layers == 0) {
    return bad("head dim, heads and layers must not be 0");
  }
  if (wanted.pages.empty()) return bad("no number of pages to measure");
  for (const uint32_t pages : wanted.pages) {
    if (pages >= 1 && pages <= kGpuBenchPagesMax) continue;
    return bad(pages, " pages are not 1 to ", kGpuBenchPagesMax);
  }
  return absl::OkStatus();
}

}  // namespace crumb
