// The core's paths. Every loop is over what is in flight, which is bounded.
#include "client/src/client_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "client/src/request_build.h"
#include "client/src/status_map.h"

namespace crumb::client {
namespace {

constexpr uint32_t kRequestsMax = 1024;
constexpr uint32_t kMillisecondsMax = 600'000;
constexpr uint32_t kSpinUsMax = 1000;
// A request unanswered for so long makes the client ask whether the daemon lives.
constexpr uint64_t kAskLifeAfterUs = 250'000;
constexpr uint32_t kGoodbyeOnLossMs = 200;
constexpr int kArmTurns = 16;
constexpr char kLostMessage[] = "the daemon was lost; Reconnect, or Drain until connected";

absl::Status CheckRange(absl::string_view name, uint32_t value, uint32_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " ", value, " is not 1..", max));
}

bool IsRefusal(const Completion& completion) {
  return std::all_of(completion.results.begin(), completion.results.end(),
                     [](const Result& result) { return result.code == Code::kUnavailable; });
}

bool HasTimeout(const Completion& completion) {
  return std::any_of(completion.results.begin(), completion.results.end(),
                     [](const Result& result) { return result.code == Code::kTimeout; });
}

}  // namespace

absl::Status CheckClientOptions(const Options& options) {
  CRUMB_TRY(CheckRange("deadline_ms", options.deadline_ms, kMillisecondsMax));
  CRUMB_TRY(CheckRange("connect_ms", options.connect_ms, kMillisecondsMax));
  CRUMB_TRY(CheckRange("grace_ms", options.grace_ms, kMillisecondsMax));
  CRUMB_TRY(CheckRange("breaker_open_ms", options.breaker_open_ms, kMillisecondsMax));
  CRUMB_TRY(CheckRange("breaker_open_ms_max", options.breaker_open_ms_max, kMillisecondsMax));
  if (options.breaker_open_ms > options.breaker_open_ms_max) {
    return absl::InvalidArgumentError("breaker_open_ms is over breaker_open_ms_max");
  }
  if (options.spin_us > kSpinUsMax) {
    return absl::InvalidArgumentError(absl::StrCat("spin_us is at most ", kSpinUsMax));
  }
  if (options.bounce_bytes == 0 || options.staging_bytes == 0 || options.bytes_in_flight_max == 0) {
    return absl::InvalidArgumentError(
        "bounce_bytes, staging_bytes and bytes_in_flight_max must not be 0");
  }
  return CheckRange("requests_in_flight_max", options.requests_in_flight_max, kRequestsMax);
}

ClientCore::ClientCore(const Options& options, std::string server, Seams seams)
    : options_(options),
      clock_(*seams.clock),
      rng_(seams.seed),
      breaker_({.failures = options.breaker_failures,
                .open_us = uint64_t{options.breaker_open_ms} * 1000,
                .open_us_max = uint64_t{options.breaker_open_ms_max} * 1000},
               &rng_),
      session_({.options = options,
                .server = std::move(server),
                .stopper = nullptr,
                .layouts = {},
                .lent = {},
                .shared = {},
                .gate = nullptr,
                .gpu = seams.gpu,
                .clock = seams.clock},
               std::move(seams.opener), clock_, &rng_),
      table_({.requests = options.requests_in_flight_max, .bytes = options.bytes_in_flight_max}) {}

ClientCore::~ClientCore() {
  if (!session_.open()) return;
  // Goodbye ends what is in flight; its answers must be heard before the plane goes.
  if (session_.control() != nullptr) session_.control()->Goodbye(options_.connect_ms);
  const uint64_t until_us = clock_.now_us() + uint64_t{options_.grace_ms} * 1000;
  std::vector<Completion> dropped;
  while (session_.open() && !table_.empty() && clock_.now_us() < until_us) Drain(10, &dropped);
  session_.Close(0);
}

Status ClientCore::Open() {
  if (session_.open() && !session_.plane()->lost()) return {};
  if (session_.open()) Lose();
  if (session_.Step()) {
    OnOpened();
    return {};
  }
  const absl::Status status = session_.Open();
  if (!status.ok()) return ToStatus(status);
  OnOpened();
  return {};
}

void ClientCore::OnOpened() {
  ++counts_.reconnects;  // the first is taken off again in stats()
  breaker_.OnAnswer();
  waker_.Watch(session_.plane()->wake_fd());
  PrepareSleep();
  waker_.Raise();  // whoever sleeps learns that it may submit again
}

Status ClientCore::Refuse(Code code, std::string message) {
  if (code == Code::kBusy) ++counts_.refused_busy;
  return {code, std::move(message)};
}

absl::Status ClientCore::Build(const Asked& asked, PlaneRequest* out) {
  BuildInput input;
  input.type = asked.type;
  input.layout = session_.FindLayout(asked.layout);
  if (input.layout == nullptr || input.layout->daemon_handle == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout handle ", asked.layout, " is not registered in this session",
                     input.layout == nullptr ? "" : ": ",
                     input.layout == nullptr ? "" : input.layout->info.codec_note));
  }
  if (asked.type == WireType::kPut || asked.type == WireType::kGet) {
    input.lent = session_.FindLent(asked.region_set);
    if (input.lent == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("region set ", asked.region_set, " is not lent"));
    }
    if (input.lent->layout != asked.layout) {
      return absl::InvalidArgumentError(absl::StrCat(
          "region set ", asked.region_set, " was lent for another layout; lend it for this one"));
    }
    if (input.lent->memory->gpu() && asked.options.form != Form::kRaw &&
        session_.PlacedAt(asked.region_set).place == CodecPlace::kWorker) {
      return absl::InvalidArgumentError(
          "form: a region set whose codec runs in the worker moves raw pages; register it with "
          "GpuRegions::place kDaemon for the others");
    }
    if (const std::string why = session_.RefusalOf(asked.region_set); !why.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("region set ", asked.region_set, " is not known to this daemon: ", why));
    }
  }
  input.region_set = asked.region_set;
  input.blocks = asked.blocks;
  input.options = asked.options;
  input.deadline_ms_default = options_.deadline_ms;
  input.grace_ms = options_.grace_ms;
  return BuildRequest(input, out);
}

Status ClientCore::Submit(const Asked& asked, Ticket* ticket) {
  *ticket = 0;
  if (!session_.open()) Revive();
  if (!session_.open()) return Refuse(Code::kUnavailable, kLostMessage);
  if (session_.plane()->lost()) {
    waker_.Raise();  // Drain sees to it; nothing waits here
    return Refuse(Code::kUnavailable, kLostMessage);
  }
  if (table_.full()) {
    return Refuse(Code::kBusy, absl::StrCat(table_.in_flight() + table_.orphans(),
                                            " requests are unanswered (requests_in_flight_max)"));
  }
  std::shared_ptr<PlaneRequest> request = table_.NewRequest();
  if (absl::Status built = Build(asked, request.get()); !built.ok()) return ToStatus(built);
  if (!table_.HasRoomFor(*request)) {
    return Refuse(Code::kBusy,
                  absl::StrCat(table_.bytes(), " bytes are in flight (bytes_in_flight_max)"));
  }
  for (const uint32_t slot : request->slots) {
    if (table_.OrphanOwnsSlot(request->region_set, slot)) {
      return Refuse(Code::kBusy, absl::StrCat("slot ", slot,
                                              " still belongs to a request that timed out and was "
                                              "not answered"));
    }
  }
  return Send(std::move(request), asked.options.stream, ticket);
}

Status ClientCore::Send(std::shared_ptr<PlaneRequest> request, void* stream, Ticket* ticket) {
  const uint64_t now_us = clock_.now_us();
  if (!breaker_.Allow(now_us)) {
    const uint64_t retry_us = std::max(breaker_.retry_us(), now_us);
    return Refuse(Code::kUnavailable, absl::StrCat("the circuit is open: requests got no answer; "
                                                   "the next may go in ",
                                                   (retry_us - now_us) / 1000 + 1, " ms"));
  }
  if (request->memory != nullptr && request->memory->gpu()) {
    const absl::StatusOr<uint64_t> ticket_of_gpu = session_.gate()->Pass(stream);
    if (!ticket_of_gpu.ok()) {
      breaker_.Withdraw();
      return ToStatus(ticket_of_gpu.status());
    }
    request->gpu_ticket = *ticket_of_gpu;
  }
  request->id = next_id_++;
  const uint64_t wait_ms = std::max(request->deadline_ms, request->wait_ms);
  const BlockResult result = session_.plane()->Submit(request);
  if (result != BlockResult::kOk) {
    breaker_.Withdraw();
    if (result == BlockResult::kBusy) {
      return Refuse(Code::kBusy, "no room to send it, or for its values (bounce_bytes); Drain");
    }
    if (result == BlockResult::kInvalid) {
      return Refuse(Code::kInvalid,
                    "its values never fit into bounce_bytes: raise that, ask for "
                    "fewer at once, or share the memory (ShareMemory)");
    }
    waker_.Raise();
    return Refuse(Code::kUnavailable, kLostMessage);
  }
  ++counts_.requests;
  *ticket = request->id;
  if (breaker_.state() == Circuit::kHalfOpen) probe_id_ = request->id;
  table_.Add({.request = std::move(request),
              .submitted_us = now_us,
              .give_up_us = now_us + (wait_ms + options_.grace_ms) * 1000});
  // Whoever sleeps on event_fd must learn of the new deadline and arm again.
  if (!waker_.raised()) waker_.SetTimerBy(NextWakeUs(now_us));
  return {};
}

Status ClientCore::Cancel(Ticket ticket) {
  if (!table_.MarkCancelled(ticket)) return {Code::kMiss, "no such request is in flight"};
  static_cast<void>(session_.plane()->Cancel(ticket, CancelKind::kAnswer));
  return {};
}

Status ClientCore::Unlend(uint32_t region_set) {
  if (session_.FindLent(region_set) == nullptr) {
    return {Code::kInvalid, absl::StrCat("region set ", region_set, " is not lent")};
  }
  if (table_.OwnsRegionSet(region_set)) {
    return {Code::kBusy,
            absl::StrCat("region set ", region_set, " is in use by an unanswered request")};
  }
  session_.Unlend(region_set);
  return {};
}

absl::StatusOr<uint32_t> ClientCore::LendGpu(uint32_t layout, const LentMemory& places,
                                             CodecPlace place) {
  return session_.LendGpu(layout, places, place);
}

void ClientCore::Lose() {
  // WHY: a peer that was only taken for dead might still write lent memory; goodbye ends that.
  session_.Close(kGoodbyeOnLossMs);
  waker_.Watch(session_.helper_fd());
  table_.FailAll(Code::kUnavailable, &ready_);
  ++counts_.losses;
  breaker_.OnFailure(clock_.now_us());
  if (!ready_.empty()) waker_.Raise();
}

// While there is no session: takes over a new one, or sees that one is sought.
void ClientCore::Revive() {
  if (!options_.auto_reconnect) return;
  if (session_.Step()) return OnOpened();
  session_.StartOpen();
}

void ClientCore::WatchLife(uint64_t now_us) {
  if (session_.control() == nullptr || table_.empty() || now_us < next_ask_us_) return;
  if (now_us - std::min(now_us, table_.oldest_us()) < kAskLifeAfterUs) return;
  next_ask_us_ = now_us + kAskLifeAfterUs;
  session_.control()->AskLife();
}

void ClientCore::TakeReply(const PlaneReply& reply) {
  const size_t before = ready_.size();
  switch (table_.Finish(reply, &ready_)) {
    case RequestTable::Answer::kUnknown:
      return;
    case RequestTable::Answer::kLate:
      if (!reply.unheard) breaker_.OnLateAnswer();
      return;
    case RequestTable::Answer::kInTime:
      break;
  }
  Completion& done = ready_[before];
  if (done.code == Code::kCancelled) ++counts_.cancelled;
  if (IsRefusal(done)) return breaker_.OnFailure(clock_.now_us());
  reply.unheard ? TakeUnheard(&done) : breaker_.OnAnswer();
}

// Nobody answered: given up by the plane's clock instead of ours, or by the worker, which says
// nothing about the daemon.
void ClientCore::TakeUnheard(Completion* done) {
  if (HasTimeout(*done)) {
    done->code = Code::kTimeout;
    ++counts_.timeouts;
    breaker_.OnFailure(clock_.now_us());
  } else if (done->ticket == probe_id_) {
    breaker_.Withdraw();
  }
}

void ClientCore::ExpireRequests(uint64_t now_us) {
  expired_.clear();
  table_.Expire(now_us, &ready_, &expired_);
  for (const uint64_t id : expired_) {
    ++counts_.timeouts;
    breaker_.OnFailure(now_us);
    if (session_.plane()->Cancel(id, CancelKind::kAbandon)) table_.Disown(id);
  }
}

void ClientCore::Progress() {
  if (!session_.open()) return Revive();
  replies_.Clear();
  session_.plane()->Poll(&replies_);
  for (const PlaneReply& reply : replies_.all()) TakeReply(reply);
  const uint64_t now_us = clock_.now_us();
  ExpireRequests(now_us);
  WatchLife(now_us);
  const bool dead =
      session_.control() != nullptr && session_.control()->life() == Control::Life::kDead;
  if (session_.plane()->lost() || dead) Lose();
}

uint64_t ClientCore::NextWakeUs(uint64_t now_us) const {
  if (!session_.open()) {
    const uint64_t next_us = session_.next_attempt_us();
    if (!options_.auto_reconnect || next_us == UINT64_MAX) return 0;
    return std::max<uint64_t>(next_us, 1);
  }
  if (table_.empty()) return 0;
  return std::min(
      {table_.next_give_up_us(), now_us + kAskLifeAfterUs, session_.plane()->NextPollUs(now_us)});
}

// Afterwards the waker's fd is readable exactly when there may be something to drain.
void ClientCore::PrepareSleep() {
  // Work that is not ours (UCX's own) may have to be done before the plane can be armed.
  for (int turn = 0; turn < kArmTurns; ++turn) {
    if (!ready_.empty()) break;
    if (!session_.open() || session_.plane()->Arm()) {
      waker_.SetTimer(NextWakeUs(clock_.now_us()));
      waker_.Lower();
      return;
    }
    Progress();
  }
  waker_.Raise();
}

void ClientCore::Spin(uint64_t until_us) {
  while (ready_.empty() && session_.open() && !table_.empty() && clock_.now_us() < until_us) {
    Progress();
  }
}

size_t ClientCore::Drain(uint32_t timeout_ms, std::vector<Completion>* out) {
  Progress();
  if (ready_.empty() && timeout_ms != 0) {
    const uint64_t start_us = clock_.now_us();
    const uint64_t until_us = start_us + uint64_t{timeout_ms} * 1000;
    Spin(std::min(until_us, start_us + options_.spin_us));
    while (ready_.empty()) {
      PrepareSleep();
      const uint64_t now_us = clock_.now_us();
      if (!ready_.empty() || now_us >= until_us) break;
      waker_.Wait(until_us - now_us);
      Progress();
    }
  } else if (ready_.empty()) {
    PrepareSleep();
  }
  const size_t count = ready_.size();
  for (Completion& completion : ready_) out->push_back(std::move(completion));
  ready_.clear();
  counts_.completions += count;
  // Readable until a Drain finds nothing: a worker that drains once per wake-up loses nothing.
  if (count != 0) waker_.Raise();
  return count;
}

ClientStats ClientCore::stats() const {
  ClientStats stats = counts_;
  stats.reconnects -= std::min<uint64_t>(stats.reconnects, 1);
  stats.circuit = breaker_.state();
  stats.circuit_opened = breaker_.opened();
  stats.circuit_refused = breaker_.refused();
  stats.in_flight = in_flight();
  stats.unanswered = table_.orphans();
  stats.bytes_in_flight = table_.bytes();
  return stats;
}

}  // namespace crumb::client
