// GpuLink: one worker's way to the daemon's kernels: a stream of the worker's GPU, tables that
// kernels read, and the work in flight. Jobs of one turn are gathered and launched together, one
// launch for each codec, direction and table of places. Made by the control thread; from then on
// one thread, the shard's; ended where waiting is allowed. Never waits, never allocates after
// Create.
#ifndef CRUMB_GPU_CODEC_GPU_LINK_H_
#define CRUMB_GPU_CODEC_GPU_LINK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/types/span.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "gpu/codec/gpu_codec.h"
#include "gpu/device/stream_queue.h"

namespace crumb {

inline constexpr uint32_t kGpuJobsMax = 1024;      // submitted and not yet polled
inline constexpr uint32_t kGpuPlacesMax = 32'768;  // tensors of all tables of a link
inline constexpr uint32_t kGpuTablesMax = 1024;

enum class GpuJobKind : uint8_t {
  kEncode,  // worker's rows -> payload
  kDecode,  // payload -> worker's rows
  kCopy,    // bytes from `payload` to `to`, any memory that the link's device reaches
};

struct GpuJob {
  GpuJobKind kind = GpuJobKind::kEncode;
  Effort effort = Effort::kNormal;   // kEncode
  const GpuCodec* codec = nullptr;   // kEncode, kDecode; outlives the job
  uint32_t table = 0;                // kEncode, kDecode: of AddPlaces
  uint32_t tokens = 0;               // kEncode, kDecode
  absl::Span<const uint32_t> slots;  // kEncode, kDecode; copied by Submit
  uint8_t* payload = nullptr;        // HBM or registered host memory; 16-byte aligned
  uint8_t* to = nullptr;             // kCopy
  // kDecode: device memory, 16-byte aligned, that the payload is copied to and unpacked from. WHY:
  // a kernel that reads host memory over PCIe gets half of it, the copy engine nearly all.
  uint8_t* stage = nullptr;
  uint64_t bytes = 0;  // kCopy
  uint64_t token = 0;  // comes back from Poll
};

struct GpuDone {
  uint64_t token = 0;
  bool ok = false;      // false: refused or the device is lost; what it wrote means nothing
  EncodeReport report;  // kEncode
};

// What a link is made of.
struct GpuLinkParts {
  std::unique_ptr<StreamQueue> queue;
  // Puts a wait for what the worker's streams did so far on the stream; empty: none is needed.
  // Called once for the jobs of a turn, before the first launch or copy; where it fails, no job of
  // the turn runs.
  std::function<absl::Status(StreamHandle)> wait_for_worker;
  MutableBytes host;            // pinned, kGpuLinkHostBytes
  uint8_t* device = nullptr;    // device memory, kGpuLinkDeviceBytes
  std::shared_ptr<void> owner;  // of both
  int device_number = -1;       // -1: host memory
  // Registered host memory, in slices from here on: copies are cut at their borders. 0: no cuts.
  const uint8_t* slices_from = nullptr;
  uint64_t slice_bytes = 0;
};

class GpuLink {
 public:
  // How much memory GpuLinkParts must bring.
  static uint64_t HostBytes();
  static uint64_t DeviceBytes();
  // INVALID_ARGUMENT: parts are missing or too small.
  static absl::StatusOr<std::unique_ptr<GpuLink>> Create(GpuLinkParts parts);
  ~GpuLink();  // waits for what was submitted

  int device() const;
  // A table for the jobs that name it: the part's tensors that have elements, layers in part order,
  // K then V; copied to the device before any of them runs. RESOURCE_EXHAUSTED: tables or tensors;
  // INVALID_ARGUMENT: no places, an odd address or stride. REQUIRES: `tokens_per_slot` >= 1.
  absl::StatusOr<uint32_t> AddPlaces(absl::Span<const CudaPlace> places, uint32_t tokens_per_slot);
  // No job may name it any more; those in flight end as if it were there.
  void DropPlaces(uint32_t table);

  // False: full, or health() is not OK. Everything accepted comes back from Poll exactly once, in
  // any order. Nothing reaches the GPU before Flush. REQUIRES: the codec is of this device, and
  // encodes for kEncode; slots that hold the tokens; a copy of less than 300 slices.
  bool Submit(const GpuJob& job);
  // Launches what was submitted, as far as there is room in the queue; the rest stays and goes with
  // the next.
  void Flush();
  size_t Poll(absl::Span<GpuDone> done);
  size_t in_flight() const;  // submitted and not yet polled
  const absl::Status& health() const;

 private:
  struct Impl;
  explicit GpuLink(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_GPU_LINK_H_
