// main of the tests that run once per backend; exits 77 with the reason where this machine lacks
// one.
#include "tests/unit/gpu/codec/tested_backend.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace crumb::codec_test {
namespace {

CodecBackend tested = CodecBackend::kReference;

constexpr std::string_view kFlag = "--backend=";

// The exit code, or -1: run the tests.
int ParseFlags(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (!flag.starts_with(kFlag)) continue;
    const auto wanted = ParseCodecBackend(flag.substr(kFlag.size()));
    const auto resolved = wanted.ok() ? ResolveCodecBackend(*wanted) : wanted;
    if (!resolved.ok()) {
      std::printf("%s\n", std::string(resolved.status().message()).c_str());
      return wanted.ok() ? 77 : 2;
    }
    tested = *resolved;
  }
  return -1;
}

}  // namespace

CodecBackend TestedBackend() { return tested; }

}  // namespace crumb::codec_test

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  const int code = crumb::codec_test::ParseFlags(argc, argv);
  return code >= 0 ? code : RUN_ALL_TESTS();
}
