// GpuCodec: one part's pages packed out of a worker's memory on a GPU and unpacked into it, many
// pages in one launch: what a GpuLink drives. CudaCodec packs with kernels, CudaRawCodec moves rows
// as they are, HostGpuCodec does either with the reference codec in host memory, so that everything
// above runs without a GPU. Immutable once made; launches from one thread per stream, never
// waiting.
#ifndef CRUMB_GPU_CODEC_GPU_CODEC_H_
#define CRUMB_GPU_CODEC_GPU_CODEC_H_

#include <cstdint>

#include "cachesvc/base/status.h"
#include "gpu/codec/cuda_params.h"
#include "gpu/codec/page_codec.h"
#include "gpu/device/stream_queue.h"

namespace crumb {

// Pages of one launch, and where their rows lie in the worker's memory. All of it device-visible.
struct CudaPages {
  const CudaPlace* places = nullptr;  // [tensor that has elements], layers in part order, K then V
  const CudaPage* pages = nullptr;
  const uint32_t* slots = nullptr;
  CudaPageReport* reports = nullptr;  // [page], reset by ResetReports; encode only
  uint32_t count = 0;
  uint32_t tokens_per_slot = 0;
  bool aligned = false;  // every address and stride of `places` is a multiple of 16
};

class GpuCodec {
 public:
  virtual ~GpuCodec() = default;

  virtual const CodecDescriptor& descriptor() const = 0;
  virtual int device() const = 0;  // whose streams its launches may go to; -1: host memory
  virtual uint32_t payload_bytes() const = 0;
  virtual bool encodes() const = 0;  // else only Decode

  // Puts the launches on `stream`. Rows from a page's `tokens` on are neither read nor written,
  // but for raw payloads, whose rows from there on become zero.
  // REQUIRES: pages.count >= 1; payloads 16-byte aligned, of payload_bytes(); slots and places
  // checked against the worker's regions; all of it unchanged until the stream has passed; the
  // codec's device current on this thread. An error names the device's.
  virtual absl::Status Decode(const CudaPages& pages, Frame frame, StreamHandle stream) const = 0;
  // REQUIRES: encodes(). All of each payload is written, unless its report names a bad place.
  virtual absl::Status Encode(const CudaPages& pages, Effort effort, StreamHandle stream) const = 0;
  virtual absl::Status ResetReports(const CudaPages& pages, StreamHandle stream) const = 0;
  // What a report, copied to the host after its stream has passed, says.
  virtual EncodeReport ReportOf(const CudaPageReport& report) const = 0;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_GPU_CODEC_H_
