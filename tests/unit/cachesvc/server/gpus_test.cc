// Gpus: in a build without CUDA an error with a remedy, else every call against the first GPU.
#include "cachesvc/server/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "gpu/pool/arena.h"
#include "gpu/pool/cuda_registered.h"
#include "gpu/pool/hbm_size.h"
#include "tests/support/codec_sample.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;

TEST(GpusTest, ABuildWithoutCudaSaysSo) {
  if (ProbeGpus().built_with_cuda) GTEST_SKIP() << "built with CUDA";
  const auto gpus = OpenGpus(1);
  EXPECT_EQ(gpus.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(gpus.status().message()), HasSubstr("-DCRUMB_CUDA=ON"));
}

TEST(GpusTest, EveryCallReachesTheGpu) {
  if (!ProbeGpus().built_with_cuda) GTEST_SKIP() << "built without CUDA";
  const auto opened = OpenGpus(4);
  ASSERT_TRUE(opened.ok()) << opened.status();
  Gpus& gpus = **opened;
  ASSERT_FALSE(gpus.devices().empty());
  EXPECT_FALSE(gpus.devices()[0].name.empty());
  const auto memory = gpus.AskMemory(0);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_GT(memory->free_bytes, 0u);
  EXPECT_LE(memory->free_bytes, memory->total_bytes);

  const auto arena = gpus.MakeArena({.device = 0, .bytes = 4 * kHbmStepBytes});
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(arena->memory.size(), 4 * kHbmStepBytes);
  const auto host = Arena::Map(1 << 20, HugePages::kNo);
  ASSERT_TRUE(host.ok());
  const auto registered = gpus.RegisterHost(0, host->bytes());
  ASSERT_TRUE(registered.ok()) << registered.status();
  EXPECT_EQ(registered->memory.data(), host->bytes().data());

  const PartShape shape = testing::MakePart({.layer_ids = {0}, .k_dim = 64, .v_dim = 64});
  const CodecDescriptor crumb = CodecDescriptor::Default(CodecKind::kCrumbInt4, {});
  const auto codecs = gpus.MakeCodecs({.device = 0, .shape = &shape, .descriptors = {&crumb, 1}});
  ASSERT_EQ(codecs.size(), 2u);
  for (const GpuCodecMade& made : codecs) EXPECT_NE(made.codec, nullptr) << made.status;

  // Nothing that was lent: an allocation of zeros.
  EXPECT_FALSE(gpus.Map(GpuShare{}).ok());

  const auto link = gpus.MakeLink(
      {.device = 0, .slices_from = registered->memory.data(), .slice_bytes = kRegisterSliceBytes});
  ASSERT_TRUE(link.ok()) << link.status();
  for (size_t i = 0; i < 4096; ++i) registered->memory[i] = static_cast<uint8_t>(i * 3);
  const auto copy = [&](uint8_t* from, uint8_t* to) {
    GpuJob job;
    job.kind = GpuJobKind::kCopy;
    job.payload = from;
    job.to = to;
    job.bytes = 4096;
    ASSERT_TRUE((*link)->Submit(job));
    (*link)->Flush();
    GpuDone done;
    while ((*link)->Poll({&done, 1}) == 0) ASSERT_TRUE((*link)->health().ok());
    EXPECT_TRUE(done.ok);
  };
  copy(registered->memory.data(), arena->memory.data());
  copy(arena->memory.data(), registered->memory.data() + 8192);
  EXPECT_EQ(std::memcmp(registered->memory.data(), registered->memory.data() + 8192, 4096), 0);
}

}  // namespace
}  // namespace crumb
