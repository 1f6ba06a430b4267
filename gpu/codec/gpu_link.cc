// Jobs into batches, and works that are done back into jobs. Sending is in gpu_link_send.cc.
#include "gpu/codec/gpu_link.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu/codec/gpu_link_impl.h"

namespace crumb {

namespace {

bool Even(const CudaPlace& place) {
  return (place.address | place.slot_stride | place.token_stride | place.head_stride) % 2 == 0;
}
bool Aligned(const CudaPlace& place) {
  return (place.address | place.slot_stride | place.token_stride | place.head_stride) % 16 == 0;
}

}  // namespace

bool GpuLink::Impl::Joins(const Batch& batch, const GpuJob& job, uint32_t pieces) const {
  if (batch.sent || batch.kind != job.kind || batch.jobs == kBatchJobs) return false;
  if (batch.pieces + pieces > kPiecesMax) return false;
  if (job.kind == GpuJobKind::kCopy) return true;
  if (batch.codec != job.codec || batch.table != job.table) return false;
  if (job.kind == GpuJobKind::kEncode && batch.effort != job.effort) return false;
  return batch.slots + job.slots.size() <= kBatchSlots;
}

// Where a job goes; null: all batches are in use.
GpuLink::Impl::Batch* GpuLink::Impl::BatchFor(const GpuJob& job, uint32_t pieces) {
  for (uint64_t number = opened; number != sent; --number) {
    Batch& batch = At(number - 1);
    if (Joins(batch, job, pieces)) return &batch;
  }
  if (opened - delivered == kBatches) return nullptr;
  Batch& batch = At(opened++);
  batch = {.kind = job.kind, .effort = job.effort, .codec = job.codec, .table = job.table};
  return &batch;
}

void GpuLink::Impl::Add(const GpuJob& job, Batch* batch) {
  const uint64_t middle = MiddleOf(*batch);
  Entry& entry = EntriesOf(IndexOf(*batch))[batch->jobs++];
  entry = {.token = job.token, .payload = job.payload, .to = job.to, .bytes = job.bytes};
  if (job.kind == GpuJobKind::kCopy) return;
  const bool staged = job.stage != nullptr;
  entry.to = job.stage;
  entry.bytes = staged ? job.codec->payload_bytes() : 0;
  const CudaPage page = {.payload = reinterpret_cast<uint64_t>(staged ? job.stage : job.payload),
                         .tokens = job.tokens,
                         .slots_first = batch->slots};
  std::memcpy(Host(PagesAt(*batch)), &page, sizeof(page));
  const uint64_t slots_at = middle + batch->slots * sizeof(uint32_t);
  std::memcpy(Host(slots_at), job.slots.data(), job.slots.size() * sizeof(uint32_t));
  batch->slots += static_cast<uint32_t>(job.slots.size());
}

// Of one copy: both of its ends may cross borders.
uint32_t GpuLink::Impl::PiecesMost(uint64_t bytes) const {
  if (parts.slice_bytes == 0) return 1;
  const uint64_t borders = bytes / parts.slice_bytes + 1;
  CRUMB_CHECK(2 * borders + 1 <= kPiecesMax);
  return static_cast<uint32_t>(2 * borders + 1);
}

void GpuLink::Impl::Take(const StreamDone& work) {
  const auto number = static_cast<uint32_t>(work.token);
  switch (static_cast<Work>(work.token >> 32)) {
    case Work::kWait:
      return;
    case Work::kTable:
      return tables.Landed(number);
    case Work::kLaunch: {
      Batch& batch = At(number);
      batch.ok = batch.ok && work.ok;
      // Reports follow what was launched.
      if (batch.kind == GpuJobKind::kEncode && batch.launched) return;
      return batch.Finish(batch.launched);
    }
    case Work::kReports:
    case Work::kCopies:
      return At(number).Finish(work.ok);
  }
}

void GpuLink::Impl::DrainQueue() {
  StreamQueue& queue = *parts.queue;
  std::array<StreamDone, kPollWorks> works;
  size_t count = works.size();
  while (count == works.size()) {
    count = queue.Poll(absl::MakeSpan(works));
    for (size_t i = 0; i < count; ++i) Take(works[i]);
  }
  if (queue.health().ok() || queue.in_flight() != 0) return;
  for (; sent != opened; ++sent) At(sent).Finish(false);
}

size_t GpuLink::Impl::Deliver(absl::Span<GpuDone> done) {
  size_t count = 0;
  while (delivered != sent && At(delivered).done) {
    const Batch& batch = At(delivered);
    const Entry* const jobs = EntriesOf(delivered);
    const bool reports = batch.ok && batch.kind == GpuJobKind::kEncode;
    for (; handed < batch.jobs && count < done.size(); ++handed) {
      GpuDone& out = done[count++];
      out = {.token = jobs[handed].token, .ok = batch.ok, .report = {}};
      if (!reports) continue;
      out.report = batch.codec->ReportOf(HostReports(batch)[batch.jobs - 1 - handed]);
    }
    if (handed < batch.jobs) break;
    if (batch.kind != GpuJobKind::kCopy) tables.EndJobs(batch.table, batch.jobs);
    handed = 0;
    ++delivered;
  }
  return count;
}

GpuLink::GpuLink(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GpuLink::~GpuLink() = default;

uint64_t GpuLink::HostBytes() { return Impl::kAreaBytes; }
uint64_t GpuLink::DeviceBytes() { return Impl::kAreaBytes; }

absl::StatusOr<std::unique_ptr<GpuLink>> GpuLink::Create(GpuLinkParts parts) {
  if (parts.queue == nullptr || parts.device == nullptr || parts.host.data() == nullptr) {
    return absl::InvalidArgumentError("a GPU link needs a queue, host memory and device memory");
  }
  if (parts.host.size() < HostBytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a GPU link needs ", HostBytes(), " bytes of host memory, not ", parts.host.size()));
  }
  const auto misaligned = [](const void* at) { return reinterpret_cast<uint64_t>(at) % 16 != 0; };
  if (misaligned(parts.host.data()) || misaligned(parts.device)) {
    return absl::InvalidArgumentError("a GPU link's memory must start at a multiple of 16");
  }
  if (parts.slice_bytes != 0 && parts.slices_from == nullptr) {
    return absl::InvalidArgumentError("a GPU link's slices start nowhere");
  }
  auto impl = std::make_unique<Impl>();
  impl->parts = std::move(parts);
  return std::unique_ptr<GpuLink>(new GpuLink(std::move(impl)));
}

int GpuLink::device() const { return impl_->parts.device_number; }

absl::StatusOr<uint32_t> GpuLink::AddPlaces(absl::Span<const CudaPlace> places,
                                            uint32_t tokens_per_slot) {
  CRUMB_CHECK(tokens_per_slot >= 1);
  CRUMB_TRY(health());
  if (places.empty()) return absl::InvalidArgumentError("a table of no places");
  if (!std::all_of(places.begin(), places.end(), Even)) {
    return absl::InvalidArgumentError(
        "KV tensors of a GPU must start at even addresses and have even strides");
  }
  impl_->DrainQueue();  // tables that were dropped may be free by now
  const auto count = std::min<size_t>(places.size(), kGpuPlacesMax + 1);
  const uint32_t id = impl_->tables.Take(static_cast<uint32_t>(count));
  if (id == PlaceTables::kNone) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no room for ", places.size(), " more KV tensors on one GPU: at most ", kGpuTablesMax,
        " region sets of ", kGpuPlacesMax, " tensors in all; drop some, or connect once more"));
  }
  PlaceTable& table = impl_->tables.at(id);
  table.tokens_per_slot = tokens_per_slot;
  table.aligned = std::all_of(places.begin(), places.end(), Aligned);
  std::memcpy(impl_->Host(Impl::kPlacesAt + table.first * sizeof(CudaPlace)), places.data(),
              places.size() * sizeof(CudaPlace));
  if (impl_->SendTable(id) && table.copy == PlaceTable::Copy::kRefused) {
    impl_->tables.Drop(id);
    return absl::UnavailableError("the GPU refused the copy of a table of KV tensors");
  }
  return id;
}

void GpuLink::DropPlaces(uint32_t table) { impl_->tables.Drop(table); }

bool GpuLink::Submit(const GpuJob& job) {
  Impl& link = *impl_;
  if (!health().ok() || link.in_flight == kGpuJobsMax) return false;
  uint32_t pieces = 0;
  if (job.kind == GpuJobKind::kCopy) {
    CRUMB_CHECK(job.payload != nullptr && job.to != nullptr);
    pieces = link.PiecesMost(job.bytes);
  } else {
    CRUMB_CHECK(job.codec != nullptr && job.codec->device() == device());
    CRUMB_CHECK(job.kind == GpuJobKind::kDecode || job.codec->encodes());
    CRUMB_CHECK(job.payload != nullptr && reinterpret_cast<uint64_t>(job.payload) % 16 == 0);
    CRUMB_CHECK(link.tables.held(job.table));
    CRUMB_CHECK(job.tokens >= 1 && job.slots.size() <= Impl::kBatchSlots);
    if (job.stage != nullptr) {
      CRUMB_CHECK(job.kind == GpuJobKind::kDecode);
      CRUMB_CHECK(reinterpret_cast<uint64_t>(job.stage) % 16 == 0);
      pieces = link.PiecesMost(job.codec->payload_bytes());
    }
    const uint64_t tokens_per_slot = link.tables.at(job.table).tokens_per_slot;
    CRUMB_CHECK(job.slots.size() * tokens_per_slot >= job.tokens);
  }
  Impl::Batch* const batch = link.BatchFor(job, pieces);
  if (batch == nullptr) return false;
  if (job.kind != GpuJobKind::kCopy) link.tables.BeginJob(job.table);
  link.Add(job, batch);
  batch->pieces += pieces;
  ++link.in_flight;
  return true;
}

void GpuLink::Flush() {
  Impl& link = *impl_;
  for (uint32_t id = link.tables.NextWaiting(0); id != PlaceTables::kNone;
       id = link.tables.NextWaiting(id + 1)) {
    if (!link.SendTable(id)) return;
  }
  link.waited = !link.parts.wait_for_worker;
  while (link.sent != link.opened && link.Send(&link.At(link.sent))) ++link.sent;
}

size_t GpuLink::Poll(absl::Span<GpuDone> done) {
  impl_->DrainQueue();
  const size_t count = impl_->Deliver(done);
  impl_->in_flight -= count;
  return count;
}

size_t GpuLink::in_flight() const { return impl_->in_flight; }
const absl::Status& GpuLink::health() const { return impl_->parts.queue->health(); }

}  // namespace crumb
