// WorkerSet: one region set of GPU memory whose codec runs here: per part the codecs that a page
// may be stored with, and the table of places that kernels read. Immutable once made. Thread: the
// Client's.
#ifndef CRUMB_CLIENT_SRC_WORKER_SET_H_
#define CRUMB_CLIENT_SRC_WORKER_SET_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/data_plane.h"
#include "client/src/layout_codecs.h"
#include "client/src/worker_gpu.h"

namespace crumb::client {

// Slots of one size in the staging area, as the daemon knows them.
struct StagedSlots {
  uint32_t region_set = 0;
  uint64_t slot_bytes = 0;
  std::shared_ptr<const LentMemory> memory;
};

struct WorkerPart {
  uint32_t table = UINT32_MAX;  // none: this worker does not hold the part
  uint32_t page_tokens = 0;
  uint64_t raw_bytes = 0;
  const GpuCodec* raw = nullptr;   // never null
  const GpuCodec* pack = nullptr;  // null: pages are put raw
  std::vector<std::shared_ptr<const GpuCodec>> codecs;

  // Null: no kernel for it.
  const GpuCodec* Find(uint64_t codec_id) const;
};

struct WorkerSet {
  uint64_t identity_prefix = 0;
  uint64_t codec_id = 0;  // of what packs
  Effort effort = Effort::kNormal;
  bool packs_known = false, packs_unknown = false;
  uint64_t payload_bytes_most = 0, raw_bytes_most = 0;  // of any part
  std::vector<WorkerPart> parts;
  StagedSlots packed, raw;  // a page with its header, a raw page

  bool Packs(const WireBlock& block) const;
};

// With codecs and without tables and slots. UNIMPLEMENTED: the GPU has no kernel for what packs, or
// for raw pages; the message says why.
absl::StatusOr<std::shared_ptr<WorkerSet>> MakeWorkerSet(const crumb::Layout& layout,
                                                         const LayoutCodecs& codecs,
                                                         WorkerGpu* gpu);
// Tells the link where the set's rows lie. An error leaves none behind.
absl::Status AddTables(const LentMemory& memory, const crumb::Layout& layout, GpuLink* link,
                       WorkerSet* set);
void DropTables(GpuLink* link, WorkerSet* set);

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_WORKER_SET_H_
