// From a batch to works of the queue. The shard's thread; nothing here waits or allocates.
#include <algorithm>

#include "gpu/codec/gpu_link_impl.h"

namespace crumb {

namespace {

// Runs only behind a copy that was enqueued.
absl::Status NoteCopied(void* table, StreamHandle) noexcept {
  static_cast<PlaceTable*>(table)->copy = PlaceTable::Copy::kEnqueued;
  return absl::OkStatus();
}

}  // namespace

absl::Status GpuLink::Impl::WaitForWorker(StreamHandle stream) {
  if (waited) return absl::OkStatus();
  if (parts.wait_for_worker) CRUMB_TRY(parts.wait_for_worker(stream));
  waited = true;
  return absl::OkStatus();
}

CudaPages GpuLink::Impl::PagesOf(const Batch& batch) {
  const PlaceTable& table = tables.at(batch.table);
  uint8_t* const device = parts.device;
  CudaPages pages;
  pages.places = reinterpret_cast<const CudaPlace*>(device + kPlacesAt) + table.first;
  pages.pages = reinterpret_cast<const CudaPage*>(device + PagesAt(batch));
  pages.slots = reinterpret_cast<const uint32_t*>(device + MiddleOf(batch));
  if (batch.kind == GpuJobKind::kEncode) {
    pages.reports = reinterpret_cast<CudaPageReport*>(device + ReportsAt(batch));
  }
  pages.count = batch.jobs;
  pages.tokens_per_slot = table.tokens_per_slot;
  pages.aligned = table.aligned;
  return pages;
}

// False: the queue is full, or lost its device.
bool GpuLink::Impl::SendTable(uint32_t id) {
  PlaceTable& table = tables.at(id);
  const uint64_t at = kPlacesAt + table.first * sizeof(CudaPlace);
  const StreamCopy copy = {parts.device + at, Host(at), table.count * sizeof(CudaPlace)};
  const StreamWork work = {.copies = {&copy, 1},
                           .launch = &NoteCopied,
                           .arg = &table,
                           .token = TokenOf(Work::kTable, id)};
  if (!parts.queue->Submit(work)) return false;
  if (table.copy == PlaceTable::Copy::kWaiting) table.copy = PlaceTable::Copy::kRefused;
  tables.Sent(id);
  return true;
}

bool GpuLink::Impl::SendLaunch(Batch* batch) {
  const bool encode = batch->kind == GpuJobKind::kEncode;
  CudaPageReport fresh = {};
  fresh.bad_place = ~0ull;
  if (encode) std::fill_n(HostReports(*batch), batch->jobs, fresh);
  const uint64_t from = encode ? ReportsAt(*batch) : PagesAt(*batch);
  const uint64_t to = MiddleOf(*batch) + batch->slots * sizeof(uint32_t);
  copies[0] = {parts.device + from, Host(from), to - from};
  // What is staged needs no wait for the worker: it leaves our memory for our memory.
  const size_t count = batch->pieces == 0 ? 1 : CutAll(*batch, 1);
  Call call = {this, batch};
  const StreamLaunch launch = [](void* arg, StreamHandle stream) noexcept {
    const Call& what = *static_cast<const Call*>(arg);
    CRUMB_TRY(what.link->WaitForWorker(stream));
    const CudaPages pages = what.link->PagesOf(*what.batch);
    const GpuCodec& codec = *what.batch->codec;
    absl::Status status = what.batch->kind == GpuJobKind::kEncode
                              ? codec.Encode(pages, what.batch->effort, stream)
                              : codec.Decode(pages, Frame::kOriginal, stream);
    what.batch->launched = status.ok();
    return status;
  };
  const StreamWork work = {.copies = absl::MakeConstSpan(copies).first(count),
                           .launch = launch,
                           .arg = &call,
                           .token = TokenOf(Work::kLaunch, IndexOf(*batch))};
  if (!parts.queue->Submit(work)) return false;
  batch->sent = true;
  return true;
}

bool GpuLink::Impl::SendReports(const Batch& batch) {
  const uint64_t at = ReportsAt(batch);
  const StreamCopy copy = {Host(at), parts.device + at, batch.jobs * sizeof(CudaPageReport)};
  return parts.queue->Submit(
      {.copies = {&copy, 1}, .token = TokenOf(Work::kReports, IndexOf(batch))});
}

// Bytes from `at` to the end of its slice.
uint64_t GpuLink::Impl::SliceLeft(const uint8_t* at) const {
  if (parts.slice_bytes == 0) return ~uint64_t{0};
  const auto here = reinterpret_cast<uint64_t>(at);
  const auto from = reinterpret_cast<uint64_t>(parts.slices_from);
  if (here < from) return ~uint64_t{0};
  return parts.slice_bytes - (here - from) % parts.slice_bytes;
}

// Appends to `copies`; how many there are then.
size_t GpuLink::Impl::Cut(const Entry& entry, size_t count) {
  for (uint64_t at = 0; at < entry.bytes && entry.to != nullptr; ++count) {
    const uint8_t* const src = entry.payload + at;
    uint8_t* const dst = entry.to + at;
    const uint64_t bytes = std::min({entry.bytes - at, SliceLeft(src), SliceLeft(dst)});
    CRUMB_CHECK(count < copies.size());
    copies[count] = {dst, src, bytes};
    at += bytes;
  }
  return count;
}

size_t GpuLink::Impl::CutAll(const Batch& batch, size_t count) {
  const Entry* const jobs = EntriesOf(IndexOf(batch));
  for (uint32_t i = 0; i < batch.jobs; ++i) count = Cut(jobs[i], count);
  return count;
}

// WHY a wait of its own: a work's copies come before its launch, and may write to worker's memory.
bool GpuLink::Impl::SendCopies(Batch* batch) {
  if (!waited) {
    const StreamLaunch wait = [](void* link, StreamHandle stream) noexcept {
      return static_cast<Impl*>(link)->WaitForWorker(stream);
    };
    if (!parts.queue->Submit({.launch = wait, .arg = this, .token = TokenOf(Work::kWait, 0)})) {
      return false;
    }
    if (!waited) {
      batch->Finish(false);
      return true;
    }
  }
  const size_t count = CutAll(*batch, 0);
  if (!parts.queue->Submit({.copies = absl::MakeConstSpan(copies).first(count),
                            .token = TokenOf(Work::kCopies, IndexOf(*batch))})) {
    return false;
  }
  batch->sent = true;
  return true;
}

// False: not all of it is with the queue; the next Flush goes on there.
bool GpuLink::Impl::Send(Batch* batch) {
  if (batch->kind == GpuJobKind::kCopy) return SendCopies(batch);
  if (tables.at(batch->table).copy == PlaceTable::Copy::kRefused) {
    batch->Finish(false);
    return true;
  }
  if (!batch->sent && !SendLaunch(batch)) return false;
  if (batch->kind != GpuJobKind::kEncode || !batch->launched) return true;
  return SendReports(*batch);
}

}  // namespace crumb
