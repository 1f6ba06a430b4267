// A link and a worker's event, where both processes are this one: over the fake runtime alone, for
// CUDA opens no event of its own process.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>

#include "gpu/codec/cuda_raw_codec.h"
#include "gpu/device/cuda_share.h"
#include "tests/support/codec_sample.h"
#include "tests/unit/gpu/codec/cuda_link_rig.h"

namespace crumb::codec_test {
namespace {

void WaitForFlag(void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }

TEST(CudaLinkEventTest, NothingIsReadBeforeTheWorkerWroteIt) {
  const PartShape shape =
      crumb::testing::MakePart({.layer_ids = {0}, .heads = 2, .k_dim = 64, .v_dim = 64});
  const auto layout = PayloadLayout::Make(shape, CodecDescriptor{});
  ASSERT_TRUE(layout.ok());
  const auto codec = CudaRawCodec::Create(shape, 0);
  ASSERT_TRUE(codec.ok()) << codec.status();
  const auto event = GpuEvent::Create(0);
  ASSERT_TRUE(event.ok());
  CudaLinkRig rig(*layout, layout->payload_bytes(), {.pages = 1, .event = event->handle()});
  const std::vector<uint8_t> raw = AnyBytes(shape.raw_bytes, 3);
  rig.worker().Put(0, raw);

  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, 0, 0), cudaSuccess);
  std::atomic<bool> go = false;
  ASSERT_EQ(cudaLaunchHostFunc(stream, &WaitForFlag, &go), cudaSuccess);
  const auto& written = rig.worker().memory;
  ASSERT_EQ(cudaMemcpyAsync(rig.device_memory(), written.data(), written.size(), cudaMemcpyDefault,
                            stream),
            cudaSuccess);
  ASSERT_TRUE(event->Record(stream).ok());

  rig.Submit(rig.Job(GpuJobKind::kEncode, **codec, 0, 64, 0));
  rig.link().Flush();
  GpuDone done;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(rig.link().Poll({&done, 1}), 0u);
  go = true;
  go.notify_all();
  rig.Run();
  EXPECT_EQ(rig.PayloadBytes(0, layout->payload_bytes()) == raw, true);
  cudaStreamDestroy(stream);
}

TEST(CudaLinkEventTest, AnEventThatDoesNotOpenIsAnError) {
  const auto link = MakeCudaLink({.device = 0, .event = GpuHandle{}});
  EXPECT_FALSE(link.ok());
  EXPECT_NE(link.status().message().find("event"), std::string::npos) << link.status();
}

}  // namespace
}  // namespace crumb::codec_test
