// Opening, restoring and closing a session. Every list here is bounded; region sets are numbered
// from the lowest free one, because a daemon keeps a few per session only.
#include "client/src/session.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"

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

Session::Session(LinkPlan plan, LinkOpener opener, const Clock& clock, Rng* rng)
    : plan_(std::move(plan)),
      opener_(std::move(opener)),
      clock_(clock),
      rng_(*rng),
      helper_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

Session::~Session() {
  if (helper_ != nullptr) {
    helper_->plan.stopper->Stop();
    helper_->thread.join();
    if (helper_->result.ok() && helper_->result->control != nullptr) {
      helper_->result->control->Goodbye(plan_.options.connect_ms);
    }
  }
  Close(plan_.options.connect_ms);
  if (helper_fd_ >= 0) ::close(helper_fd_);
}

absl::Status Session::Open() {
  if (open()) return absl::OkStatus();
  if (helping()) {
    return absl::UnavailableError(absl::StrCat(plan_.server, ": connecting again; Drain"));
  }
  const uint64_t now_us = clock_.now_us();
  if (now_us < next_attempt_us_) {
    return absl::UnavailableError(absl::StrCat(plan_.server,
                                               " did not answer; the next attempt is in ",
                                               (next_attempt_us_ - now_us) / 1000 + 1, " ms"));
  }
  LinkPlan plan = plan_;
  plan.stopper = std::make_shared<CallStopper>();
  return Adopt(opener_(plan));
}

void Session::StartOpen() {
  if (open() || helping() || helper_fd_ < 0 || clock_.now_us() < next_attempt_us_) return;
  helper_ = std::make_unique<Helper>();
  helper_->plan = plan_;
  helper_->plan.stopper = std::make_shared<CallStopper>();
  helper_->thread = std::thread([helper = helper_.get(), opener = opener_, fd = helper_fd_] {
    helper->result = opener(helper->plan);
    helper->done.store(true, std::memory_order_release);
    const uint64_t one = 1;
    CRUMB_CHECK(::write(fd, &one, sizeof(one)) == sizeof(one));
  });
}

bool Session::Step() {
  if (!helping() || !helper_->done.load(std::memory_order_acquire)) return false;
  helper_->thread.join();
  uint64_t count = 0;
  CRUMB_CHECK(::read(helper_fd_, &count, sizeof(count)) == sizeof(count));
  const std::unique_ptr<Helper> helper = std::move(helper_);
  if (!Adopt(std::move(helper->result)).ok()) return false;
  for (const auto& [region_set, lent] : helper->plan.lent) {
    if (plan_.lent.count(region_set) == 0) link_.plane->Unlend(region_set);  // meanwhile
  }
  return true;
}

absl::Status Session::Adopt(absl::StatusOr<Link> opened) {
  if (opened.ok()) {
    link_ = *std::move(opened);
    if (!link_.layouts.empty()) plan_.layouts = link_.layouts;
    backoff_us_ = 0;
    next_attempt_us_ = 0;
    return absl::OkStatus();
  }
  backoff_us_ = std::min(kBackoffMaxUs, std::max(kBackoffFirstUs, backoff_us_ * 2));
  // Jitter: many clients of one daemon must not come back in step.
  next_attempt_us_ = clock_.now_us() + backoff_us_ / 2 + rng_.Below(backoff_us_ / 2 + 1);
  return opened.status();
}

void Session::Close(uint32_t goodbye_ms) {
  if (link_.control != nullptr && goodbye_ms != 0) link_.control->Goodbye(goodbye_ms);
  link_ = Link();
}

Layout Session::Keep(LayoutEntry entry) {
  for (LayoutEntry& known : plan_.layouts) {
    if (!SameLayout(known, entry)) continue;
    entry.info.handle = known.info.handle;
    if (entry.request.effort().empty()) entry.request = std::move(known.request);
    known = std::move(entry);
    return known.info;
  }
  entry.info.handle = static_cast<uint32_t>(plan_.layouts.size() + 1);
  plan_.layouts.push_back(std::move(entry));
  return plan_.layouts.back().info;
}

absl::StatusOr<Layout> Session::RegisterLayout(const LayoutSpec& spec) {
  CRUMB_TRY(CheckSpec(spec).status());
  if (!open()) return absl::UnavailableError("the daemon was lost; Reconnect");
  if (plan_.layouts.size() >= kLayoutsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a client keeps at most ", kLayoutsMax, " layouts"));
  }
  v1::RegisterLayoutRequest request = ToRequest(spec);
  CRUMB_ASSIGN(const v1::LayoutInfo info, link_.control->RegisterLayout(request));
  CRUMB_ASSIGN(LayoutEntry entry, MakeEntry(info));
  entry.request = std::move(request);
  return Keep(std::move(entry));
}

absl::StatusOr<std::vector<Layout>> Session::ListLayouts() {
  if (!open()) return absl::UnavailableError("the daemon was lost; Reconnect");
  CRUMB_ASSIGN(const std::vector<v1::LayoutInfo> infos, link_.control->ListLayouts());
  std::vector<Layout> out;
  for (const v1::LayoutInfo& info : infos) {
    if (plan_.layouts.size() >= kLayoutsMax) break;
    CRUMB_ASSIGN(LayoutEntry entry, MakeEntry(info));
    out.push_back(Keep(std::move(entry)));
  }
  return out;
}

const LayoutEntry* Session::FindLayout(uint32_t handle) const {
  return handle == 0 || handle > plan_.layouts.size() ? nullptr : &plan_.layouts[handle - 1];
}

absl::StatusOr<uint32_t> Session::Lend(Lent lent) {
  const LayoutEntry* entry = FindLayout(lent.layout);
  if (entry == nullptr || entry->daemon_handle == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout handle ", lent.layout, " is not registered in this session"));
  }
  if (!open()) return absl::UnavailableError("the daemon was lost; Reconnect");
  uint32_t region_set = 1;
  while (plan_.lent.count(region_set) != 0) ++region_set;
  if (region_set > kRegionSetsMax) {
    return absl::ResourceExhaustedError("too many region sets; Unlend some");
  }
  CRUMB_TRY(link_.plane->Lend(OrderFor(plan_, region_set, *entry, lent)));
  link_.refused.erase(region_set);  // of another set that had the number
  plan_.lent[region_set] = std::move(lent);
  return region_set;
}

absl::StatusOr<uint32_t> Session::LendGpu(uint32_t layout, const LentMemory& places,
                                          CodecPlace place) {
  GpuSide* const side = plan_.gpu;
  CRUMB_CHECK(side != nullptr);
  std::vector<GpuShare> shares;
  absl::Status mappable;
  for (const Region& region : places.spec().regions) {
    const auto* address = reinterpret_cast<const void*>(static_cast<uintptr_t>(region.address));
    absl::StatusOr<GpuShare> shared = side->Share(address, region.bytes);
    if (absl::IsFailedPrecondition(shared.status()) && place != CodecPlace::kDaemon) {
      // Kernels of this process reach it all the same.
      const absl::StatusOr<GpuUuid> device = side->DeviceOf(address);
      if (!device.ok()) return shared.status();
      if (mappable.ok()) mappable = shared.status();
      shared = GpuShare();
      shared->device = *device;
    }
    CRUMB_TRY(shared.status());
    const GpuShare& share = *shared;
    const GpuUuid& device = plan_.gate != nullptr ? plan_.gate->device()
                            : shares.empty()      ? share.device
                                                  : shares[0].device;
    if (share.device != device) {
      return absl::InvalidArgumentError(
          "RegisterGpuRegions: a Client lends memory of one GPU: use a Client for each");
    }
    shares.push_back(share);
  }
  if (plan_.gate == nullptr) {
    CRUMB_ASSIGN(plan_.gate, GpuGate::Open(side, shares[0].device));
  }
  return Lend(Lent{.layout = layout,
                   .memory = LentMemory::OnGpu(places, std::move(shares), mappable),
                   .place = place});
}

std::string Session::RefusalOf(uint32_t region_set) const {
  const auto found = link_.refused.find(region_set);
  return found == link_.refused.end() ? "" : found->second;
}

const Lent* Session::FindLent(uint32_t region_set) const {
  const auto found = plan_.lent.find(region_set);
  return found == plan_.lent.end() ? nullptr : &found->second;
}

void Session::Unlend(uint32_t region_set) {
  if (link_.plane != nullptr) link_.plane->Unlend(region_set);
  plan_.lent.erase(region_set);
  link_.refused.erase(region_set);
}

}  // namespace crumb::client
