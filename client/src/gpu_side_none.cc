// The build without CUDA: names the remedy.
#include "client/src/gpu_side.h"

namespace crumb::client {
namespace {

class NoGpuSide final : public GpuSide {
 public:
  absl::StatusOr<GpuShare> Share(const void*, uint64_t) override { return NoCuda(); }
  absl::StatusOr<std::unique_ptr<GpuMark>> MakeMark(const GpuUuid&) override { return NoCuda(); }

 private:
  static absl::Status NoCuda() {
    return absl::UnimplementedError(
        "GPU memory: this client library was built without CUDA: configure with -DCRUMB_CUDA=ON on "
        "a machine that has nvcc 13.0 or newer, or lend host memory (LendTensors, LendPages)");
  }
};

}  // namespace

std::unique_ptr<GpuSide> MakeGpuSide() { return std::make_unique<NoGpuSide>(); }

}  // namespace crumb::client
