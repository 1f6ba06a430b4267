// The stream queue of a machine without a GPU against the suite.
#include "gpu/device/host_stream_queue.h"

#include "tests/conformance/gpu/stream_queue_suite.h"

namespace crumb {
namespace {

class HostTarget final : public StreamTarget {
 public:
  absl::StatusOr<std::unique_ptr<StreamQueue>> Make(uint32_t work_max) override {
    return std::make_unique<HostStreamQueue>(work_max);
  }
  uint8_t* DeviceMemory(size_t bytes) override { return HostMemory(bytes); }
  uint8_t* HostMemory(size_t bytes) override {
    memory_.push_back(std::vector<uint8_t>(bytes, 0));
    return memory_.back().data();
  }
  absl::Status Fill(StreamHandle stream, absl::Span<uint8_t> memory, uint8_t value) override {
    if (stream != nullptr) return absl::InternalError("the host has no stream");
    std::memset(memory.data(), value, memory.size());
    return absl::OkStatus();
  }

 private:
  std::vector<std::vector<uint8_t>> memory_;
};

INSTANTIATE_TEST_SUITE_P(Host, StreamQueueConformance,
                         ::testing::Values(StreamTargetCase{
                             "host", [] { return std::make_unique<HostTarget>(); }}),
                         [](const auto& target) { return target.param.name; });

}  // namespace
}  // namespace crumb
