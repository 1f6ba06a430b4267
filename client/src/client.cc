// Client: submissions into the table and the plane, progress in Drain, loss and return. Everything
// runs on the caller's thread.
#include "crumb/client.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/clock.h"
#include "client/src/address.h"
#include "client/src/request_build.h"
#include "client/src/request_table.h"
#include "client/src/session.h"
#include "client/src/status_map.h"
#include "client/src/waker.h"

namespace crumb::client {
namespace {

constexpr uint32_t kRequestsMax = 1024;
constexpr uint32_t kMillisecondsMax = 600'000;
// A request unanswered for so long makes the client ask whether the daemon lives.
constexpr uint64_t kAskLifeAfterUs = 250'000;
constexpr uint32_t kGoodbyeOnLossMs = 200;
constexpr int kArmTurns = 16;

absl::Status CheckRange(absl::string_view name, uint32_t value, uint32_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " ", value, " is not 1..", max));
}

absl::Status CheckClientOptions(const Options& options) {
  CRUMB_TRY(CheckRange("deadline_ms", options.deadline_ms, kMillisecondsMax));
  CRUMB_TRY(CheckRange("connect_ms", options.connect_ms, kMillisecondsMax));
  CRUMB_TRY(CheckRange("grace_ms", options.grace_ms, kMillisecondsMax));
  return CheckRange("requests_in_flight_max", options.requests_in_flight_max, kRequestsMax);
}

Status Refused(Code code, std::string message) { return {code, std::move(message)}; }

}  // namespace

struct Client::Impl {
  Impl(const Options& given, std::string server)
      : options(given),
        session(given, std::move(server), clock),
        table(given.requests_in_flight_max) {}

  struct Asked {
    WireType type = WireType::kGet;
    uint32_t layout = 0;
    uint32_t region_set = 0;
    const std::vector<Block>* blocks = nullptr;
    RequestOptions options;
  };

  Status Submit(const Asked& asked, Ticket* ticket);
  absl::StatusOr<std::shared_ptr<PlaneRequest>> Build(const Asked& asked);
  Status Open();
  void Progress();
  void WatchLife(uint64_t now_us);
  void Lose();
  void PrepareSleep();
  uint64_t NextWakeUs(uint64_t now_us) const;

  Options options;
  SteadyClock clock;
  Waker waker;
  Session session;
  RequestTable table;
  std::vector<Completion> ready;
  std::vector<PlaneReply> replies;  // reused
  uint64_t next_id = 1;
  uint64_t next_ask_us = 0;
};

Status Client::Impl::Open() {
  const absl::Status status = session.Open();
  if (!status.ok()) return ToStatus(status);
  waker.Watch(session.plane()->wake_fd());
  PrepareSleep();
  return {};
}

absl::StatusOr<std::shared_ptr<PlaneRequest>> Client::Impl::Build(const Asked& asked) {
  BuildInput input;
  input.type = asked.type;
  input.layout = session.FindLayout(asked.layout);
  if (input.layout == nullptr || input.layout->daemon_handle == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout handle ", asked.layout, " is not registered in this session",
                     input.layout == nullptr ? "" : ": ",
                     input.layout == nullptr ? "" : input.layout->info.codec_note));
  }
  if (asked.type == WireType::kPut || asked.type == WireType::kGet) {
    input.lent = session.FindLent(asked.region_set);
    if (input.lent == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("region set ", asked.region_set, " is not lent"));
    }
    if (input.lent->layout != asked.layout) {
      return absl::InvalidArgumentError(absl::StrCat(
          "region set ", asked.region_set, " was lent for another layout; lend it for this one"));
    }
  }
  input.region_set = asked.region_set;
  input.blocks = asked.blocks;
  input.options = asked.options;
  input.deadline_ms_default = options.deadline_ms;
  input.grace_ms = options.grace_ms;
  return BuildRequest(input);
}

Status Client::Impl::Submit(const Asked& asked, Ticket* ticket) {
  *ticket = 0;
  if (session.open() && session.plane()->lost()) Lose();
  if (!session.open()) return Refused(Code::kUnavailable, "the daemon was lost; Reconnect");
  if (table.full()) {
    return Refused(Code::kBusy, absl::StrCat(table.in_flight() + table.orphans(),
                                             " requests are unanswered (requests_in_flight_max)"));
  }
  absl::StatusOr<std::shared_ptr<PlaneRequest>> built = Build(asked);
  if (!built.ok()) return ToStatus(built.status());
  std::shared_ptr<PlaneRequest> request = *std::move(built);
  for (uint32_t slot : request->slots) {
    if (table.OrphanOwnsSlot(request->region_set, slot)) {
      return Refused(Code::kBusy, absl::StrCat("slot ", slot,
                                               " still belongs to a request that "
                                               "timed out and was not answered"));
    }
  }
  request->id = next_id++;
  const uint64_t now_us = clock.now_us();
  const uint64_t bound_ms = std::max(request->deadline_ms, request->wait_ms) + options.grace_ms;
  const BlockResult result = session.plane()->Submit(request);
  if (result != BlockResult::kOk) {
    if (session.plane()->lost()) Lose();
    return Refused(CodeOf(result), result == BlockResult::kBusy
                                       ? "the send queue is full; Drain first"
                                       : "the daemon was lost; Reconnect");
  }
  *ticket = request->id;
  table.Add({.request = std::move(request),
             .verify = asked.options.verify,
             .submitted_us = now_us,
             .give_up_us = now_us + bound_ms * 1000});
  // Whoever sleeps on event_fd must learn of the new deadline and arm again.
  waker.SetTimer(NextWakeUs(now_us));
  return {};
}

void Client::Impl::Lose() {
  // WHY: a peer that was only taken for dead might still write lent memory; goodbye ends that.
  session.Close(kGoodbyeOnLossMs);
  waker.Watch(-1);
  table.FailAll(Code::kUnavailable, &ready);
  waker.SetTimer(0);
  if (!ready.empty()) waker.Raise();
}

void Client::Impl::WatchLife(uint64_t now_us) {
  if (table.empty() || now_us < next_ask_us) return;
  if (now_us - std::min(now_us, table.oldest_us()) < kAskLifeAfterUs) return;
  next_ask_us = now_us + kAskLifeAfterUs;
  session.control()->AskLife();
}

void Client::Impl::Progress() {
  if (!session.open()) return;
  replies.clear();
  session.plane()->Poll(&replies);
  for (const PlaneReply& reply : replies) table.Finish(reply, &ready);
  const uint64_t now_us = clock.now_us();
  table.Expire(now_us, &ready);
  WatchLife(now_us);
  if (session.plane()->lost() || session.control()->life() == Control::Life::kDead) Lose();
}

uint64_t Client::Impl::NextWakeUs(uint64_t now_us) const {
  if (table.empty() || !session.open()) return 0;
  return std::min(table.next_give_up_us(), now_us + kAskLifeAfterUs);
}

// Afterwards the waker's fd is readable exactly when there may be something to drain.
void Client::Impl::PrepareSleep() {
  // Work that is not ours (UCX's own) may have to be done before the plane can be armed.
  for (int turn = 0; turn < kArmTurns; ++turn) {
    if (!ready.empty()) break;
    if (!session.open() || session.plane()->Arm()) {
      waker.SetTimer(NextWakeUs(clock.now_us()));
      waker.Lower();
      return;
    }
    Progress();
  }
  waker.Raise();
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Client::~Client() {
  if (!impl_->session.open()) return;
  // Goodbye ends what is in flight; its answers must be heard before the plane goes.
  impl_->session.control()->Goodbye(impl_->options.connect_ms);
  const uint64_t until_us = impl_->clock.now_us() + uint64_t{impl_->options.grace_ms} * 1000;
  while (impl_->session.open() && !impl_->table.empty() && impl_->clock.now_us() < until_us) {
    std::vector<Completion> dropped;
    Drain(10, &dropped);
  }
  impl_->session.Close(0);
}

Status Client::Connect(const Options& options, std::unique_ptr<Client>* out) {
  if (absl::Status status = CheckClientOptions(options); !status.ok()) return ToStatus(status);
  absl::StatusOr<std::string> server =
      ResolveServer(options.server, ServerPlaces::FromEnvironment());
  if (!server.ok()) return ToStatus(server.status());
  auto impl = std::make_unique<Impl>(options, *std::move(server));
  if (absl::Status status = impl->waker.Open(); !status.ok()) return ToStatus(status);
  if (Status status = impl->Open(); !status.ok()) return status;
  out->reset(new Client(std::move(impl)));
  return {};
}

bool Client::connected() const { return impl_->session.open(); }

Status Client::Reconnect() {
  if (impl_->session.open() && !impl_->session.plane()->lost()) return {};
  if (impl_->session.open()) impl_->Lose();
  return impl_->Open();
}

Status Client::RegisterLayout(const LayoutSpec& spec, Layout* out) {
  absl::StatusOr<Layout> layout = impl_->session.RegisterLayout(spec);
  if (!layout.ok()) return ToStatus(layout.status());
  *out = *std::move(layout);
  return {};
}

Status Client::ListLayouts(std::vector<Layout>* out) {
  absl::StatusOr<std::vector<Layout>> layouts = impl_->session.ListLayouts();
  if (!layouts.ok()) return ToStatus(layouts.status());
  *out = *std::move(layouts);
  return {};
}

Status Client::LendPages(const Layout& layout, void* base, uint64_t bytes, uint64_t slot_bytes,
                         uint32_t* region_set) {
  const LayoutEntry* entry = impl_->session.FindLayout(layout.handle);
  if (entry == nullptr) return Refused(Code::kInvalid, "LendPages: the layout is not registered");
  auto memory = LentMemory::Make(
      LentMemory::Pages{.base = base, .bytes = bytes, .slot_bytes = slot_bytes}, *entry->shape);
  if (!memory.ok()) return ToStatus(memory.status());
  absl::StatusOr<uint32_t> set = impl_->session.Lend(layout.handle, *std::move(memory));
  if (!set.ok()) return ToStatus(set.status());
  *region_set = *set;
  return {};
}

Status Client::LendTensors(const Layout& layout, const std::vector<TensorMemory>& tensors,
                           uint32_t slots, uint32_t tokens_per_slot, uint32_t* region_set) {
  const LayoutEntry* entry = impl_->session.FindLayout(layout.handle);
  if (entry == nullptr) return Refused(Code::kInvalid, "LendTensors: the layout is not registered");
  auto memory = LentMemory::Make(
      LentMemory::Tensors{.tensors = tensors, .slots = slots, .tokens_per_slot = tokens_per_slot},
      *entry->shape);
  if (!memory.ok()) return ToStatus(memory.status());
  absl::StatusOr<uint32_t> set = impl_->session.Lend(layout.handle, *std::move(memory));
  if (!set.ok()) return ToStatus(set.status());
  *region_set = *set;
  return {};
}

Status Client::Unlend(uint32_t region_set) {
  if (impl_->session.FindLent(region_set) == nullptr) {
    return Refused(Code::kInvalid, absl::StrCat("region set ", region_set, " is not lent"));
  }
  if (impl_->table.OwnsRegionSet(region_set)) {
    return Refused(Code::kBusy,
                   absl::StrCat("region set ", region_set, " is in use by an unanswered request"));
  }
  impl_->session.Unlend(region_set);
  return {};
}

bool Client::SlotIsOwned(uint32_t region_set, uint32_t slot) const {
  return impl_->table.OwnsSlot(region_set, slot);
}

Status Client::SubmitPut(const Layout& layout, uint32_t region_set,
                         const std::vector<Block>& blocks, const RequestOptions& options,
                         Ticket* ticket) {
  return impl_->Submit({WireType::kPut, layout.handle, region_set, &blocks, options}, ticket);
}

Status Client::SubmitGet(const Layout& layout, uint32_t region_set,
                         const std::vector<Block>& blocks, const RequestOptions& options,
                         Ticket* ticket) {
  return impl_->Submit({WireType::kGet, layout.handle, region_set, &blocks, options}, ticket);
}

Status Client::SubmitLookup(const Layout& layout, const std::vector<Block>& blocks,
                            const RequestOptions& options, Ticket* ticket) {
  return impl_->Submit({WireType::kLookup, layout.handle, 0, &blocks, options}, ticket);
}

Status Client::SubmitDelete(const Layout& layout, const std::vector<Block>& blocks,
                            Ticket* ticket) {
  return impl_->Submit({WireType::kDelete, layout.handle, 0, &blocks, {}}, ticket);
}

size_t Client::Drain(uint32_t timeout_ms, std::vector<Completion>* out) {
  const uint64_t until_us = impl_->clock.now_us() + uint64_t{timeout_ms} * 1000;
  impl_->Progress();
  while (impl_->ready.empty()) {
    impl_->PrepareSleep();
    const uint64_t now_us = impl_->clock.now_us();
    if (!impl_->ready.empty() || now_us >= until_us) break;
    impl_->waker.Wait(until_us - now_us);
    impl_->Progress();
  }
  const size_t count = impl_->ready.size();
  for (Completion& completion : impl_->ready) out->push_back(std::move(completion));
  impl_->ready.clear();
  // Readable until a Drain finds nothing: a worker that drains once per wake-up loses nothing.
  if (count != 0) impl_->waker.Raise();
  return count;
}

int Client::event_fd() const { return impl_->waker.fd(); }
size_t Client::in_flight() const { return impl_->table.in_flight() + impl_->ready.size(); }

std::string Client::data_plane() const {
  return impl_->session.open() ? impl_->session.plane()->Describe() : "none (not connected)";
}

Status Client::Pin(const Layout& layout, const std::vector<Block>& blocks, uint32_t ttl_ms,
                   std::vector<Result>* out) {
  const LayoutEntry* entry = impl_->session.FindLayout(layout.handle);
  if (!impl_->session.open()) return Refused(Code::kUnavailable, "the daemon was lost; Reconnect");
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
  absl::StatusOr<v1::PinReply> reply = impl_->session.control()->Pin(std::move(request));
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

}  // namespace crumb::client
