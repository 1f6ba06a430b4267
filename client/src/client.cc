// The public face of ClientCore: real clock, real daemon, messages into Status.
#include "crumb/client.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cachesvc/base/clock.h"
#include "client/src/address.h"
#include "client/src/client_core.h"
#include "client/src/request_build.h"
#include "client/src/status_map.h"

namespace crumb::client {
namespace {

Status Refused(Code code, std::string message) { return {code, std::move(message)}; }

}  // namespace

struct Client::Impl {
  Impl(const Options& options, std::string server)
      : core(options, std::move(server),
             {.clock = &clock,
              .opener = OpenLink,
              .gpu = gpu.get(),
              .seed = clock.now_us() ^ static_cast<uint64_t>(::getpid()) << 32}) {}

  Status Lend(uint32_t layout, absl::StatusOr<std::shared_ptr<const LentMemory>> memory,
              uint32_t* region_set) {
    if (!memory.ok()) return ToStatus(memory.status());
    absl::StatusOr<uint32_t> set = core.session().Lend(layout, *std::move(memory));
    if (!set.ok()) return ToStatus(set.status());
    *region_set = *set;
    return {};
  }

  SteadyClock clock;
  const std::unique_ptr<GpuSide> gpu = MakeGpuSide();
  ClientCore core;
};

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

Status Client::Connect(const Options& options, std::unique_ptr<Client>* out) {
  if (absl::Status status = CheckClientOptions(options); !status.ok()) return ToStatus(status);
  absl::StatusOr<std::string> server =
      ResolveServer(options.server, ServerPlaces::FromEnvironment());
  if (!server.ok()) return ToStatus(server.status());
  auto impl = std::make_unique<Impl>(options, *std::move(server));
  if (absl::Status status = impl->core.OpenWaker(); !status.ok()) return ToStatus(status);
  if (Status status = impl->core.Open(); !status.ok()) return status;
  out->reset(new Client(std::move(impl)));
  return {};
}

bool Client::connected() const { return impl_->core.session().open(); }
Status Client::Reconnect() { return impl_->core.Open(); }

Status Client::RegisterLayout(const LayoutSpec& spec, Layout* out) {
  absl::StatusOr<Layout> layout = impl_->core.session().RegisterLayout(spec);
  if (!layout.ok()) return ToStatus(layout.status());
  *out = *std::move(layout);
  return {};
}

Status Client::ListLayouts(std::vector<Layout>* out) {
  absl::StatusOr<std::vector<Layout>> layouts = impl_->core.session().ListLayouts();
  if (!layouts.ok()) return ToStatus(layouts.status());
  *out = *std::move(layouts);
  return {};
}

Status Client::ShareMemory(const SharedRange& range) {
  return ToStatus(impl_->core.session().Share(range));
}

Status Client::LendPages(const Layout& layout, void* base, uint64_t bytes, uint64_t slot_bytes,
                         uint32_t* region_set) {
  const LayoutEntry* entry = impl_->core.session().FindLayout(layout.handle);
  if (entry == nullptr) return Refused(Code::kInvalid, "LendPages: the layout is not registered");
  const LentMemory::Pages pages{.base = base, .bytes = bytes, .slot_bytes = slot_bytes};
  return impl_->Lend(layout.handle, LentMemory::Make(pages, *entry->shape), region_set);
}

Status Client::LendTensors(const Layout& layout, const std::vector<TensorMemory>& tensors,
                           uint32_t slots, uint32_t tokens_per_slot, uint32_t* region_set) {
  const LayoutEntry* entry = impl_->core.session().FindLayout(layout.handle);
  if (entry == nullptr) return Refused(Code::kInvalid, "LendTensors: the layout is not registered");
  const LentMemory::Tensors lent{
      .tensors = tensors, .slots = slots, .tokens_per_slot = tokens_per_slot};
  return impl_->Lend(layout.handle, LentMemory::Make(lent, *entry->shape), region_set);
}

Status Client::RegisterGpuRegions(const Layout& layout, const GpuRegions& regions,
                                  uint32_t* region_set) {
  const LayoutEntry* entry = impl_->core.session().FindLayout(layout.handle);
  if (entry == nullptr) {
    return Refused(Code::kInvalid, "RegisterGpuRegions: the layout is not registered");
  }
  constexpr absl::string_view kCall = "RegisterGpuRegions";
  const bool pages = regions.tensors.empty();
  const auto places =
      pages ? LentMemory::Make(LentMemory::Pages{.base = regions.base,
                                                 .bytes = regions.bytes,
                                                 .slot_bytes = regions.slot_bytes,
                                                 .call = kCall},
                               *entry->shape)
            : LentMemory::Make(LentMemory::Tensors{.tensors = regions.tensors,
                                                   .slots = regions.slots,
                                                   .tokens_per_slot = regions.tokens_per_slot,
                                                   .head_group_first = regions.head_group_first,
                                                   .head_group_count = regions.head_group_count,
                                                   .call = kCall},
                               *entry->shape);
  if (!places.ok()) return ToStatus(places.status());
  const absl::StatusOr<uint32_t> set = impl_->core.LendGpu(layout.handle, **places, regions.place);
  // Memory that cannot be shared is a wrong argument here, not a page of another layout.
  if (absl::IsFailedPrecondition(set.status())) {
    return Refused(Code::kInvalid, std::string(set.status().message()));
  }
  if (!set.ok()) return ToStatus(set.status());
  *region_set = *set;
  return {};
}

Status Client::DescribeGpuRegions(uint32_t region_set, GpuRegionsInfo* out) const {
  const Session& session = impl_->core.session();
  const Lent* lent = session.FindLent(region_set);
  if (lent == nullptr || !lent->memory->gpu()) {
    return Refused(Code::kInvalid, "DescribeGpuRegions: no region set of GPU memory");
  }
  if (!session.open()) return Refused(Code::kUnavailable, "the daemon was lost; Reconnect");
  CodecPlaced placed = session.PlacedAt(region_set);
  *out = {.place = placed.place, .note = std::move(placed.note)};
  return {};
}

Status Client::Unlend(uint32_t region_set) { return impl_->core.Unlend(region_set); }

bool Client::SlotIsOwned(uint32_t region_set, uint32_t slot) const {
  return impl_->core.table().OwnsSlot(region_set, slot);
}

Status Client::SubmitPut(const Layout& layout, uint32_t region_set,
                         const std::vector<Block>& blocks, const RequestOptions& options,
                         Ticket* ticket) {
  return impl_->core.Submit({WireType::kPut, layout.handle, region_set, &blocks, options}, ticket);
}

Status Client::SubmitGet(const Layout& layout, uint32_t region_set,
                         const std::vector<Block>& blocks, const RequestOptions& options,
                         Ticket* ticket) {
  return impl_->core.Submit({WireType::kGet, layout.handle, region_set, &blocks, options}, ticket);
}

Status Client::SubmitLookup(const Layout& layout, const std::vector<Block>& blocks,
                            const RequestOptions& options, Ticket* ticket) {
  return impl_->core.Submit({WireType::kLookup, layout.handle, 0, &blocks, options}, ticket);
}

Status Client::SubmitDelete(const Layout& layout, const std::vector<Block>& blocks,
                            Ticket* ticket) {
  return impl_->core.Submit({WireType::kDelete, layout.handle, 0, &blocks, {}}, ticket);
}

Status Client::SubmitPrefetch(const Layout& layout, const std::vector<Block>& blocks,
                              const RequestOptions& options, Ticket* ticket) {
  return impl_->core.Submit({WireType::kPrefetch, layout.handle, 0, &blocks, options}, ticket);
}

Status Client::Cancel(Ticket ticket) { return impl_->core.Cancel(ticket); }

size_t Client::Drain(uint32_t timeout_ms, std::vector<Completion>* out) {
  return impl_->core.Drain(timeout_ms, out);
}

void Client::Recycle(std::vector<Completion>* completions) { impl_->core.Recycle(completions); }
int Client::event_fd() const { return impl_->core.event_fd(); }
size_t Client::in_flight() const { return impl_->core.in_flight(); }
ClientStats Client::stats() const { return impl_->core.stats(); }

std::string Client::data_plane() const {
  return connected() ? impl_->core.session().plane_name() : "none (not connected)";
}

Status Client::Pin(const Layout& layout, const std::vector<Block>& blocks, uint32_t ttl_ms,
                   std::vector<Result>* out) {
  const LayoutEntry* entry = impl_->core.session().FindLayout(layout.handle);
  if (!impl_->core.session().open())
    return Refused(Code::kUnavailable, "the daemon was lost; Reconnect");
  if (entry == nullptr || entry->daemon_handle == 0) {
    return Refused(Code::kInvalid, "Pin: the layout is not registered");
  }
  v1::PinRequest request;
  request.set_layout_handle(entry->daemon_handle);
  request.set_ttl_ms(ttl_ms);
  for (size_t i = 0; i < blocks.size(); ++i) {
    absl::StatusOr<Digest> digest = DigestKey(blocks[i].key, i);
    if (!digest.ok()) return ToStatus(digest.status());
    v1::BlockName* name = request.add_blocks();
    name->set_digest(digest->bytes.data(), digest->bytes.size());
    name->set_part(blocks[i].part);
  }
  absl::StatusOr<v1::PinReply> reply = impl_->core.session().control()->Pin(std::move(request));
  if (!reply.ok()) return ToStatus(reply.status());
  out->assign(blocks.size(), Result());
  const auto count = std::min<size_t>(blocks.size(), static_cast<size_t>(reply->results_size()));
  for (size_t i = 0; i < count; ++i) {
    const int number = reply->results(static_cast<int>(i));
    (*out)[i].code =
        number >= 0 && number < kBlockResultCount ? static_cast<Code>(number) : Code::kInvalid;
  }
  return {};
}

Status Client::Flush(const Layout& layout) {
  Session& session = impl_->core.session();
  if (!session.open()) return Refused(Code::kUnavailable, "the daemon was lost; Reconnect");
  const LayoutEntry* entry = session.FindLayout(layout.handle);
  if (entry == nullptr) return Refused(Code::kInvalid, "Flush: the layout is not registered");
  v1::FlushRequest request;
  request.set_layout_hash(absl::HexStringToBytes(entry->info.hash_hex));
  return ToStatus(session.control()->Flush(std::move(request)));
}

}  // namespace crumb::client
