// Which plane, and everything registered anew.
#include "client/src/link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "client/src/address.h"
#include "client/src/codec_plane.h"
#include "client/src/grpc_plane.h"
#include "client/src/ucx_plane.h"
#include "client/src/uds_plane.h"

namespace crumb::client {
namespace {

absl::StatusOr<NamedPlane> OpenShm(const LinkPlan& plan, Control* control) {
  return OpenUdsPlane({.data_socket = control->hello().data_socket(),
                       .session = control->session(),
                       .bounce_bytes = plan.options.bounce_bytes,
                       .lend_ms = plan.options.deadline_ms,
                       .register_regions = [control](v1::RegisterRegionsRequest request) {
                         return control->RegisterRegions(std::move(request));
                       }});
}

absl::StatusOr<NamedPlane> OpenUcx(const LinkPlan& plan, Control* control) {
  return OpenUcxPlane({.tls = plan.options.ucx_tls, .net_devices = plan.options.ucx_net_devices},
                      control);
}

// WHY in this order: on one host nothing beats a memory copy, and UCX stays out of the worker's
// process, where an engine may have one of its own.
absl::StatusOr<NamedPlane> OpenBest(const LinkPlan& plan, Control* control) {
  if (IsLocal(plan.server) && !control->hello().data_socket().empty()) {
    // Not reachable: another mount or user. The next one may be.
    absl::StatusOr<NamedPlane> shm = OpenShm(plan, control);
    if (shm.ok()) return shm;
  }
  if (!plan.options.auto_ucx) return OpenGrpcPlane(control);
  absl::StatusOr<NamedPlane> ucx = OpenUcx(plan, control);
  if (ucx.ok() || ucx.status().code() == absl::StatusCode::kUnavailable) return ucx;
  return OpenGrpcPlane(control);
}

absl::StatusOr<NamedPlane> OpenPlane(const LinkPlan& plan, Control* control) {
  switch (plan.options.data_plane) {
    case DataPlane::kAuto:
      return OpenBest(plan, control);
    case DataPlane::kShm:
      return OpenShm(plan, control);
    case DataPlane::kUcx:
      return OpenUcx(plan, control);
    case DataPlane::kGrpc:
      return OpenGrpcPlane(control);
  }
  return absl::InvalidArgumentError("data_plane: unknown");
}

absl::Status RestoreLayouts(const LinkPlan& plan, Link* link) {
  link->layouts = plan.layouts;
  for (LayoutEntry& entry : link->layouts) {
    entry.daemon_handle = 0;
    absl::StatusOr<v1::LayoutInfo> info = link->control->RegisterLayout(entry.request);
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
  return absl::OkStatus();
}

// The longest value that slots of this memory take.
uint64_t ValueBytesMax(const LayoutEntry& layout, const LentMemory& memory) {
  if (memory.contiguous()) return memory.spec().slot_bytes;
  uint64_t most = 0;
  for (const PartShape& part : layout.shape->parts()) most = std::max(most, part.raw_bytes);
  return most;
}

}  // namespace

LendOrder OrderFor(const LinkPlan& plan, uint32_t region_set, const LayoutEntry& layout,
                   const Lent& lent) {
  const LentMemory& memory = *lent.memory;
  return {.region_set = region_set,
          .layout_handle = layout.daemon_handle,
          .value_bytes_max = ValueBytesMax(layout, memory),
          .memory = &memory,
          .shared = &plan.shared,
          .gate = memory.gpu() ? plan.gate.get() : nullptr,
          .layout = layout.shape.get(),
          .place = lent.place};
}

absl::Status LendAgain(const LinkPlan& plan, Link* link) {
  for (const auto& [region_set, lent] : plan.lent) {
    const LayoutEntry& layout = link->layouts[lent.layout - 1];
    if (layout.daemon_handle == 0) continue;
    const absl::Status taken = link->plane->Lend(OrderFor(plan, region_set, layout, lent));
    // A daemon that came back without its GPU still serves what lies in host memory.
    const bool only_this = lent.memory->gpu() && !absl::IsUnavailable(taken);
    if (!taken.ok() && !only_this) return taken;
    if (!taken.ok()) link->refused[region_set] = std::string(taken.message());
  }
  return absl::OkStatus();
}

Link& Link::operator=(Link&& other) noexcept {
  plane.reset();
  control = std::move(other.control);
  plane = std::move(other.plane);
  name = std::move(other.name);
  layouts = std::move(other.layouts);
  refused = std::move(other.refused);
  return *this;
}

absl::StatusOr<Link> OpenLink(const LinkPlan& plan) {
  const Options& options = plan.options;
  Link link;
  CRUMB_ASSIGN(link.control, Control::Open({.channel = {.server = plan.server,
                                                        .token_file = options.token_file,
                                                        .tls_ca = options.tls_ca,
                                                        .tls_cert = options.tls_cert,
                                                        .tls_key = options.tls_key},
                                            .client_name = options.client_name,
                                            .stopper = plan.stopper,
                                            .connect_ms = options.connect_ms,
                                            .deadline_ms = options.deadline_ms}));
  CRUMB_ASSIGN(NamedPlane plane, OpenPlane(plan, link.control.get()));
  link.plane = std::move(plane.plane);
  // WHY over a unix socket alone: packed pages lie in memory that both processes map.
  if (plan.gpu != nullptr && absl::StartsWith(plane.name, "shm ")) {
    link.plane = std::make_unique<CodecPlane>(CodecPlaneParts{
        .inner = std::move(link.plane),
        .gpu = plan.gpu,
        .clock = plan.clock,
        .daemon_place = link.control->hello().codec_place() == "worker" ? CodecPlace::kWorker
                                                                        : CodecPlace::kDaemon,
        .staging_bytes = options.staging_bytes,
        .get_codecs = [control = link.control.get()](uint32_t layout) {
          return control->GetCodecs(layout);
        }});
  }
  link.name = std::move(plane.name);
  CRUMB_TRY(RestoreLayouts(plan, &link));
  CRUMB_TRY(LendAgain(plan, &link));
  return link;
}

}  // namespace crumb::client
