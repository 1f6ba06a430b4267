// What a GpuLink is inside: batches in a ring, opened by Submit, sent by Flush, handed back by
// Poll, all in one order. What kernels read of a batch is one run of bytes in the link's memory, so
// that it goes to the device in one copy:
//   reports [jobs], pages [jobs], slots
// Pages grow from a fixed middle downwards and slots upwards: both can be written before the number
// of jobs is known. So job j is page jobs - 1 - j. For gpu_link*.cc alone.
#ifndef CRUMB_GPU_CODEC_GPU_LINK_IMPL_H_
#define CRUMB_GPU_CODEC_GPU_LINK_IMPL_H_

#include <array>
#include <cstdint>
#include <vector>

#include "cachesvc/base/check.h"
#include "gpu/codec/gpu_link.h"
#include "gpu/codec/link_places.h"

namespace crumb {

struct GpuLink::Impl {
  static constexpr uint32_t kBatches = 16;
  static constexpr uint32_t kBatchJobs = 256;
  static constexpr uint32_t kBatchSlots = kBatchJobs * 64;
  static constexpr uint32_t kPiecesMax = 1024;  // of the copies of a batch
  static constexpr size_t kPollWorks = 32;

  static constexpr uint64_t kJobBytes = sizeof(CudaPage) + sizeof(CudaPageReport);
  static constexpr uint64_t kMiddle = kBatchJobs * kJobBytes;
  static constexpr uint64_t kBatchBytes = kMiddle + kBatchSlots * sizeof(uint32_t);
  static constexpr uint64_t kPlacesAt = kBatches * kBatchBytes;
  static constexpr uint64_t kAreaBytes = kPlacesAt + kGpuPlacesMax * sizeof(CudaPlace);
  static_assert(kMiddle % alignof(CudaPage) == 0 && kMiddle % 16 == 0);
  static_assert(kBatchBytes % 16 == 0 && kPlacesAt % 16 == 0);
  static_assert(sizeof(CudaPage) % alignof(CudaPageReport) == 0);

  // What a token of the queue stands for: the number of a table or a batch below.
  enum class Work : uint64_t { kWait = 0, kTable = 1, kLaunch = 2, kReports = 3, kCopies = 4 };
  static constexpr uint64_t TokenOf(Work work, uint64_t number) {
    return static_cast<uint64_t>(work) << 32 | number;
  }

  struct Entry {
    uint64_t token = 0;
    uint8_t* payload = nullptr;  // copies, and decodes that are staged
    uint8_t* to = nullptr;       // null: nothing is copied
    uint64_t bytes = 0;
  };

  struct Batch {
    GpuJobKind kind = GpuJobKind::kEncode;
    Effort effort = Effort::kNormal;
    const GpuCodec* codec = nullptr;
    uint32_t table = 0;
    uint32_t jobs = 0;
    uint32_t slots = 0;
    uint32_t pieces = 0;    // at most so many
    bool sent = false;      // the queue has its launch: nothing joins it any more
    bool launched = false;  // the launch was not refused
    bool ok = true;
    bool done = false;

    void Finish(bool whole) {
      ok = ok && whole;
      done = true;
    }
  };

  struct Call {  // what a launch is told
    Impl* link = nullptr;
    Batch* batch = nullptr;
  };

  GpuLinkParts parts;
  PlaceTables tables{kGpuTablesMax, kGpuPlacesMax};
  std::array<Batch, kBatches> ring;
  std::vector<Entry> entries = std::vector<Entry>(size_t{kBatches} * kBatchJobs);
  std::vector<StreamCopy> copies = std::vector<StreamCopy>(kPiecesMax + 1);  // and the lists
  // INVARIANT: delivered <= sent <= opened <= delivered + kBatches.
  uint64_t opened = 0, sent = 0, delivered = 0;
  uint32_t handed = 0;  // jobs of batch `delivered` that Poll has handed back
  size_t in_flight = 0;
  bool waited = false;  // this Flush's works are behind what the worker did

  // WHY: the queue's end waits for copies to and from memory that would be freed before it.
  ~Impl() { parts.queue.reset(); }

  Batch& At(uint64_t number) { return ring[number % kBatches]; }
  Entry* EntriesOf(uint64_t number) { return &entries[number % kBatches * kBatchJobs]; }
  uint64_t IndexOf(const Batch& batch) const { return static_cast<uint64_t>(&batch - ring.data()); }
  uint64_t MiddleOf(const Batch& batch) const { return IndexOf(batch) * kBatchBytes + kMiddle; }
  uint64_t PagesAt(const Batch& batch) const {
    return MiddleOf(batch) - batch.jobs * sizeof(CudaPage);
  }
  uint64_t ReportsAt(const Batch& batch) const {
    return PagesAt(batch) - batch.jobs * sizeof(CudaPageReport);
  }
  uint8_t* Host(uint64_t at) { return parts.host.data() + at; }
  CudaPageReport* HostReports(const Batch& batch) {
    return reinterpret_cast<CudaPageReport*>(Host(ReportsAt(batch)));
  }

  Batch* BatchFor(const GpuJob& job, uint32_t pieces);
  bool Joins(const Batch& batch, const GpuJob& job, uint32_t pieces) const;
  void Add(const GpuJob& job, Batch* batch);
  uint32_t PiecesMost(uint64_t bytes) const;

  absl::Status WaitForWorker(StreamHandle stream);
  CudaPages PagesOf(const Batch& batch);
  bool SendTable(uint32_t id);
  bool Send(Batch* batch);
  bool SendLaunch(Batch* batch);
  bool SendReports(const Batch& batch);
  bool SendCopies(Batch* batch);
  uint64_t SliceLeft(const uint8_t* at) const;
  size_t Cut(const Entry& entry, size_t count);
  size_t CutAll(const Batch& batch, size_t count);

  void Take(const StreamDone& work);
  void DrainQueue();
  size_t Deliver(absl::Span<GpuDone> done);
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_GPU_LINK_IMPL_H_
