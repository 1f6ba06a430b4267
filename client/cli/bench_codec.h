// crumbctl bench codec: every codec on one core, or on a GPU. See bench_codec.cc and
// bench_gpu_codec.cc.
#ifndef CRUMB_CLIENT_CLI_BENCH_CODEC_H_
#define CRUMB_CLIENT_CLI_BENCH_CODEC_H_

#include <cstdint>
#include <string>

#include "gpu/codec/descriptor.h"

namespace CLI {
class App;
}

namespace crumb::cli {

struct Context;

struct CodecArgs {
  uint32_t dim = 128, tokens = 64, heads = 8, layers = 1;
  std::string effort = "normal", only, backend = "auto";
  double seconds = 0.5;
  int device = -1;  // -1: the CPU's codec; what follows is the GPU's
  uint32_t pages = 4096;
  std::string frame = "original";
};

inline constexpr CodecKind kBenchKinds[] = {
    CodecKind::kRaw,       CodecKind::kCrumbInt2, CodecKind::kCrumbK3V2,
    CodecKind::kCrumbInt4, CodecKind::kOscarInt2, CodecKind::kHadamardInt2,
    CodecKind::kNaiveInt2, CodecKind::kInt4,      CodecKind::kHadamardInt4};

void AddBenchCodec(CLI::App* bench, Context* context);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_BENCH_CODEC_H_
