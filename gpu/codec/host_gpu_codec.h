// HostGpuCodec: a GpuCodec whose worker, payloads and tables lie in host memory, over the codec of
// the CPU. Launches do the work at once. What everything above a GPU is tested with; payloads are
// the CPU codec's byte for byte. Raw pages move as they are, like those of a GPU: nobody looks for
// NaN in them. One thread at a time: launches share working memory.
#ifndef CRUMB_GPU_CODEC_HOST_GPU_CODEC_H_
#define CRUMB_GPU_CODEC_HOST_GPU_CODEC_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "gpu/codec/gpu_codec.h"
#include "gpu/codec/page_codec.h"
#include "gpu/codec/payload_layout.h"

namespace crumb {

class HostGpuCodec final : public GpuCodec {
 public:
  // FAILED_PRECONDITION: `shape` is not what `codec` was made for.
  static absl::StatusOr<std::unique_ptr<HostGpuCodec>> Make(std::shared_ptr<const PageCodec> codec,
                                                            const PartShape& shape);

  const CodecDescriptor& descriptor() const override { return codec_->descriptor(); }
  int device() const override { return -1; }
  uint32_t payload_bytes() const override { return codec_->payload_bytes(); }
  bool encodes() const override { return !codec_->descriptor().lloyd_max; }

  absl::Status Decode(const CudaPages& pages, Frame frame, StreamHandle stream) const override;
  absl::Status Encode(const CudaPages& pages, Effort effort, StreamHandle stream) const override;
  absl::Status ResetReports(const CudaPages& pages, StreamHandle stream) const override;
  EncodeReport ReportOf(const CudaPageReport& report) const override;

 private:
  HostGpuCodec(std::shared_ptr<const PageCodec> codec, PayloadLayout layout);

  bool raw() const { return codec_->descriptor().kind == CodecKind::kRaw; }
  // Rows of a page between the worker's memory and the canonical raw page at `raw`.
  template <typename MoveRow>
  void ForEachRow(const CudaPages& pages, const CudaPage& page, uint8_t* raw_page,
                  MoveRow move) const;
  void Gather(const CudaPages& pages, const CudaPage& page, uint8_t* raw_page) const;
  void Scatter(const CudaPages& pages, const CudaPage& page, uint8_t* raw_page) const;
  CudaPageReport ReportFrom(const EncodeReport& report, uint32_t tokens) const;

  const std::shared_ptr<const PageCodec> codec_;
  const PayloadLayout layout_;
  const std::unique_ptr<PageCodec::Scratch> scratch_;
  mutable std::vector<uint8_t> page_;  // one raw page
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_HOST_GPU_CODEC_H_
