// Opening, restoring and closing a session. Every list here is bounded; region sets are numbered
// from the lowest free one, because a daemon keeps a few per session only.
#include "client/src/session.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/src/grpc_plane.h"
#include "client/src/ucx_plane.h"

namespace crumb::client {
namespace {

constexpr uint64_t kBackoffFirstUs = 50'000;
constexpr uint64_t kBackoffMaxUs = 1'000'000;
constexpr size_t kLayoutsMax = 4096;
constexpr uint32_t kRegionSetsMax = 4096;

bool SameLayout(const LayoutEntry& a, const LayoutEntry& b) {
  return a.daemon_handle == b.daemon_handle && a.info.hash_hex == b.info.hash_hex;
}

}  // namespace

Session::Session(const Options& options, std::string server, const Clock& clock)
    : options_(options),
      server_(std::move(server)),
      clock_(clock),
      rng_(clock.now_us() ^ static_cast<uint64_t>(::getpid()) << 32) {}

Session::~Session() { Close(options_.connect_ms); }

absl::Status Session::Open() {
  if (open()) return absl::OkStatus();
  const uint64_t now_us = clock_.now_us();
  if (now_us < next_attempt_us_) {
    return absl::UnavailableError(absl::StrCat(server_, " did not answer; the next attempt is in ",
                                               (next_attempt_us_ - now_us) / 1000 + 1, " ms"));
  }
  const absl::Status status = OpenOnce();
  if (status.ok()) {
    backoff_us_ = 0;
    next_attempt_us_ = 0;
    return status;
  }
  plane_.reset();
  control_.reset();
  backoff_us_ = std::min(kBackoffMaxUs, std::max(kBackoffFirstUs, backoff_us_ * 2));
  // Jitter: many clients of one daemon must not come back in step.
  next_attempt_us_ = clock_.now_us() + backoff_us_ / 2 + rng_.Below(backoff_us_ / 2 + 1);
  return status;
}

absl::Status Session::OpenOnce() {
  CRUMB_ASSIGN(control_, Control::Open({.channel = {.server = server_,
                                                    .token_file = options_.token_file,
                                                    .tls_ca = options_.tls_ca,
                                                    .tls_cert = options_.tls_cert,
                                                    .tls_key = options_.tls_key},
                                        .client_name = options_.client_name,
                                        .connect_ms = options_.connect_ms,
                                        .deadline_ms = options_.deadline_ms}));
  CRUMB_TRY(OpenPlane());
  return Restore();
}

absl::Status Session::OpenPlane() {
  if (options_.data_plane == DataPlane::kGrpc) {
    plane_ = OpenGrpcPlane(control_.get());
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Plane>> ucx = OpenUcxPlane(
      {.tls = options_.ucx_tls, .net_devices = options_.ucx_net_devices}, control_.get());
  if (ucx.ok()) {
    plane_ = *std::move(ucx);
    return absl::OkStatus();
  }
  if (options_.data_plane == DataPlane::kUcx ||
      ucx.status().code() == absl::StatusCode::kUnavailable) {
    return ucx.status();
  }
  plane_ = OpenGrpcPlane(control_.get());
  return absl::OkStatus();
}

absl::Status Session::Restore() {
  for (LayoutEntry& entry : layouts_) {
    entry.daemon_handle = 0;
    absl::StatusOr<v1::LayoutInfo> info = control_->RegisterLayout(entry.request);
    if (!info.ok()) {
      if (info.status().code() == absl::StatusCode::kUnavailable) return info.status();
      // Its rotation set may be gone, say: requests that name the layout are refused, others work.
      entry.info.codec_note = std::string(info.status().message());
      continue;
    }
    CRUMB_ASSIGN(LayoutEntry fresh, MakeEntry(*info));
    if (fresh.info.hash_hex != entry.info.hash_hex) continue;
    fresh.request = std::move(entry.request);
    fresh.info.handle = entry.info.handle;
    entry = std::move(fresh);
  }
  for (const auto& [region_set, lent] : lent_) {
    const LayoutEntry& layout = layouts_[lent.layout - 1];
    if (layout.daemon_handle == 0) continue;
    CRUMB_TRY(plane_->Lend(region_set, layout.daemon_handle, *lent.memory));
  }
  return absl::OkStatus();
}

void Session::Close(uint32_t goodbye_ms) {
  if (control_ != nullptr && goodbye_ms != 0) control_->Goodbye(goodbye_ms);
  plane_.reset();
  control_.reset();
}

Layout Session::Keep(LayoutEntry entry) {
  for (LayoutEntry& known : layouts_) {
    if (!SameLayout(known, entry)) continue;
    entry.info.handle = known.info.handle;
    if (entry.request.effort().empty()) entry.request = std::move(known.request);
    known = std::move(entry);
    return known.info;
  }
  entry.info.handle = static_cast<uint32_t>(layouts_.size() + 1);
  layouts_.push_back(std::move(entry));
  return layouts_.back().info;
}

absl::StatusOr<Layout> Session::RegisterLayout(const LayoutSpec& spec) {
  CRUMB_TRY(CheckSpec(spec).status());
  if (!open()) return absl::UnavailableError("the daemon was lost; Reconnect");
  if (layouts_.size() >= kLayoutsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a client keeps at most ", kLayoutsMax, " layouts"));
  }
  v1::RegisterLayoutRequest request = ToRequest(spec);
  CRUMB_ASSIGN(const v1::LayoutInfo info, control_->RegisterLayout(request));
  CRUMB_ASSIGN(LayoutEntry entry, MakeEntry(info));
  entry.request = std::move(request);
  return Keep(std::move(entry));
}

absl::StatusOr<std::vector<Layout>> Session::ListLayouts() {
  if (!open()) return absl::UnavailableError("the daemon was lost; Reconnect");
  CRUMB_ASSIGN(const std::vector<v1::LayoutInfo> infos, control_->ListLayouts());
  std::vector<Layout> out;
  for (const v1::LayoutInfo& info : infos) {
    if (layouts_.size() >= kLayoutsMax) break;
    CRUMB_ASSIGN(LayoutEntry entry, MakeEntry(info));
    out.push_back(Keep(std::move(entry)));
  }
  return out;
}

const LayoutEntry* Session::FindLayout(uint32_t handle) const {
  return handle == 0 || handle > layouts_.size() ? nullptr : &layouts_[handle - 1];
}

absl::StatusOr<uint32_t> Session::Lend(uint32_t layout, std::shared_ptr<const LentMemory> memory) {
  const LayoutEntry* entry = FindLayout(layout);
  if (entry == nullptr || entry->daemon_handle == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout handle ", layout, " is not registered in this session"));
  }
  if (!open()) return absl::UnavailableError("the daemon was lost; Reconnect");
  uint32_t region_set = 1;
  while (lent_.count(region_set) != 0) ++region_set;
  if (region_set > kRegionSetsMax) {
    return absl::ResourceExhaustedError("too many region sets; Unlend some");
  }
  CRUMB_TRY(plane_->Lend(region_set, entry->daemon_handle, *memory));
  lent_[region_set] = {.layout = layout, .memory = std::move(memory)};
  return region_set;
}

const Session::Lent* Session::FindLent(uint32_t region_set) const {
  const auto found = lent_.find(region_set);
  return found == lent_.end() ? nullptr : &found->second;
}

void Session::Unlend(uint32_t region_set) {
  if (plane_ != nullptr) plane_->Unlend(region_set);
  lent_.erase(region_set);
}

}  // namespace crumb::client
