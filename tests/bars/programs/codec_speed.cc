// Speed of one backend on one core, in GB/s of raw BF16: pages of 64 tokens x 8 heads x 128 with
// published rotations and a calibration. Medians of five rounds in processor time, so that a
// neighbour on the core does not count.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "cachesvc/base/check.h"
#include "gpu/codec/page_codec.h"
#include "tests/support/codec_cases.h"

namespace crumb {
namespace {

constexpr int kRounds = 5;
constexpr double kSecondsPerFigure = 0.15;

struct Figure {
  const char* name;
  CodecKind kind;
  Effort effort;
  bool decode;
  double bar_avx512;
  double bar_avx2;  // 0: reported, not promised
};
constexpr Figure kFigures[] = {
    {"decode crumb-int2", CodecKind::kCrumbInt2, Effort::kNormal, true, 1.0, 0.35},
    {"decode oscar-int2", CodecKind::kOscarInt2, Effort::kNormal, true, 1.0, 0.35},
    {"encode oscar-int2", CodecKind::kOscarInt2, Effort::kNormal, false, 1.0, 0.35},
    {"encode crumb-int2 normal", CodecKind::kCrumbInt2, Effort::kNormal, false, 0.35, 0.0},
    {"encode crumb-int2 best", CodecKind::kCrumbInt2, Effort::kBest, false, 0.12, 0.0},
};

double ProcessorSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// GB/s of raw bytes.
double Measure(const Figure& figure, const testing::CodecCase& page, CodecBackend backend) {
  const auto codec = PageCodec::Create(
      page.part, CodecDescriptor::Default(figure.kind, page.set->hash()), page.set, backend);
  CRUMB_CHECK(codec.ok());
  const auto scratch = (*codec)->MakeScratch();
  std::vector<uint8_t> payload((*codec)->payload_bytes()), back(page.raw.size());
  const auto encode = [&] {
    const EncodeReport report = (*codec)->Encode(page.raw, page.tokens, figure.effort,
                                                 absl::MakeSpan(payload), scratch.get());
    CRUMB_CHECK(report.result == BlockResult::kOk && report.fits);
  };
  encode();
  const double start = ProcessorSeconds();
  double seconds = 0.0;
  int calls = 0;
  for (; seconds < kSecondsPerFigure; ++calls, seconds = ProcessorSeconds() - start) {
    if (figure.decode) {
      CRUMB_CHECK((*codec)->Decode(payload, page.tokens, Frame::kOriginal, absl::MakeSpan(back),
                                   scratch.get()));
    } else {
      encode();
    }
  }
  return static_cast<double>(page.raw.size()) * calls / seconds / 1e9;
}

int Run(const char* name) {
  const auto wanted = ParseCodecBackend(name);
  const auto backend = wanted.ok() ? ResolveCodecBackend(*wanted) : wanted;
  if (!backend.ok()) {
    std::printf("%s\n", std::string(backend.status().message()).c_str());
    return wanted.ok() ? 77 : 2;
  }
  const testing::CodecCase page = testing::MadeUpCase(128, 8);
  std::vector<double> rates[std::size(kFigures)];
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < std::size(kFigures); ++i) {
      rates[i].push_back(Measure(kFigures[i], page, *backend));
    }
  }
  bool holds = true;
  std::string line;
  for (size_t i = 0; i < std::size(kFigures); ++i) {
    const Figure& figure = kFigures[i];
    std::sort(rates[i].begin(), rates[i].end());
    const double median = rates[i][kRounds / 2];
    const double bar = *backend == CodecBackend::kAvx512 ? figure.bar_avx512 : figure.bar_avx2;
    holds &= median >= bar;
    std::printf("%-26s median %.3f GB/s, %.3f to %.3f%s\n", figure.name, median, rates[i].front(),
                rates[i].back(), median >= bar ? "" : ": UNDER THE BAR");
    char text[96];
    std::snprintf(text, sizeof(text), bar > 0.0 ? "%s%s %.2f (bar %.2f)" : "%s%s %.3f",
                  i == 0 ? "" : ", ", figure.name, median, bar);
    line += text;
  }
  std::printf("%s, GB/s: %s\n", ToString(*backend), line.c_str());
  return holds ? 0 : 1;
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) { return crumb::Run(argc > 1 ? argv[1] : "auto"); }
