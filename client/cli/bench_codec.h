// crumbctl bench codec: one core, every codec. See bench_codec.cc.
#ifndef CRUMB_CLIENT_CLI_BENCH_CODEC_H_
#define CRUMB_CLIENT_CLI_BENCH_CODEC_H_

namespace CLI {
class App;
}

namespace crumb::cli {

struct Context;
void AddBenchCodec(CLI::App* bench, Context* context);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_BENCH_CODEC_H_
