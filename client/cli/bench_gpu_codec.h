// crumbctl bench codec --device N: every codec on a GPU. See bench_gpu_codec.cc.
#ifndef CRUMB_CLIENT_CLI_BENCH_GPU_CODEC_H_
#define CRUMB_CLIENT_CLI_BENCH_GPU_CODEC_H_

#include "client/cli/bench_codec.h"

namespace crumb::cli {

// REQUIRES: args.device >= 0.
void BenchGpuCodec(Context* context, const CodecArgs& args);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_BENCH_GPU_CODEC_H_
