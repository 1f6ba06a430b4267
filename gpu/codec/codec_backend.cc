// Names of backends and what this machine supports. Any thread.
#include "gpu/codec/codec_backend.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gpu/codec/vector_kernels.h"

namespace crumb {
namespace {

constexpr CodecBackend kAll[] = {CodecBackend::kAuto, CodecBackend::kReference, CodecBackend::kAvx2,
                                 CodecBackend::kAvx512};

bool Supported(CodecBackend backend) {
  return backend == CodecBackend::kReference || KernelsOf(backend) != nullptr;
}

}  // namespace

const char* ToString(CodecBackend backend) {
  switch (backend) {
    case CodecBackend::kReference:
      return "reference";
    case CodecBackend::kAvx2:
      return "avx2";
    case CodecBackend::kAvx512:
      return "avx512";
    case CodecBackend::kAuto:
      break;
  }
  return "auto";
}

absl::StatusOr<CodecBackend> ParseCodecBackend(std::string_view text) {
  for (const CodecBackend backend : kAll) {
    if (text == ToString(backend)) return backend;
  }
  return absl::InvalidArgumentError(absl::StrCat("codec backend \"", std::string(text),
                                                 "\": use auto, reference, avx2 or avx512"));
}

std::vector<CodecBackend> SupportedCodecBackends() {
  std::vector<CodecBackend> supported;
  for (const CodecBackend backend : kAll) {
    if (backend != CodecBackend::kAuto && Supported(backend)) supported.push_back(backend);
  }
  return supported;
}

absl::StatusOr<CodecBackend> ResolveCodecBackend(CodecBackend wanted) {
  const std::vector<CodecBackend> supported = SupportedCodecBackends();
  if (wanted == CodecBackend::kAuto) return supported.back();
  if (Supported(wanted)) return wanted;
  const char* needs =
      wanted == CodecBackend::kAvx512 ? "AVX-512 F, BW, DQ, VL and BF16" : "AVX2 and FMA";
  return absl::FailedPreconditionError(absl::StrCat(
      "codec backend ", ToString(wanted), " needs ", needs,
      ", which this processor or its operating system does not offer; use auto, or one of: ",
      absl::StrJoin(supported, ", ", [](std::string* out, CodecBackend backend) {
        out->append(ToString(backend));
      })));
}

}  // namespace crumb
