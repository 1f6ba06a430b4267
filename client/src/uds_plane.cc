// The plane over unix sockets: which region sets are mapped and which bounce.
#include "client/src/uds_plane.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cachesvc/net/uds_transport.h"
#include "client/src/bouncer.h"
#include "client/src/wire_link.h"

namespace crumb::client {
namespace {

uint64_t AddressOf(const SharedRange& range) {
  return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(range.address));
}

class UdsPlane final : public Plane {
 public:
  UdsPlane(const UdsPlaneOptions& options, std::unique_ptr<UdsTransport> transport, PeerId peer)
      : options_(options),
        transport_(std::move(transport)),
        link_(transport_.get(), peer, options.session),
        bouncer_(options.bounce_bytes) {}
  ~UdsPlane() override { link_.Close(); }

  // The first message of a peer names its session.
  BlockResult SayHello() { return link_.SendBare(WireType::kHello, 0); }

  BlockResult Submit(std::shared_ptr<const PlaneRequest> request) override {
    const PlaneRequest& asked = *request;
    const BounceSet* bounce = asked.memory == nullptr ? nullptr : BounceOf(asked.region_set);
    if (bounce == nullptr) return link_.Send(asked, asked.slots, asked.slots_per_block);
    if (link_.lost()) return BlockResult::kUnavailable;
    const uint64_t id = asked.id;
    const BlockResult taken = bouncer_.Take(*bounce, std::move(request));
    if (taken != BlockResult::kOk) return taken;
    const BlockResult sent = link_.Send(asked, bouncer_.SlotsOf(id), 1);
    if (sent != BlockResult::kOk) bouncer_.Give(id, nullptr);
    return sent;
  }

  bool Cancel(uint64_t id, CancelKind kind) override {
    static_cast<void>(link_.SendBare(WireType::kCancel, id));  // else the deadline ends it
    return kind == CancelKind::kAbandon && bouncer_.Abandon(id);
  }

  void Poll(ReplyList* replies) override {
    const size_t before = replies->size();
    link_.Pump(replies);
    for (size_t i = before; i < replies->size(); ++i) {
      PlaneReply& reply = replies->at(i);
      bouncer_.Give(reply.id, &reply);
    }
  }
  bool Arm() override { return link_.Arm(); }
  int wake_fd() const override { return transport_->wake_fd(); }
  bool lost() const override { return link_.lost(); }

  absl::Status Lend(const LendOrder& order) override {
    Set set;
    absl::Status status = order.memory->gpu() ? LendGpu(order, &set)
                          : IsShared(order)   ? LendMapped(order, &set)
                                              : LendBounced(order, &set);
    if (!status.ok()) {
      Return(set);
      return status;
    }
    sets_[order.region_set] = std::move(set);
    return absl::OkStatus();
  }

  void Unlend(uint32_t region_set) override {
    const auto found = sets_.find(region_set);
    if (found == sets_.end()) return;
    Return(found->second);
    sets_.erase(found);
  }

 private:
  struct Set {
    std::vector<Region> regions;
    std::optional<BounceSet> bounce;
  };

  const BounceSet* BounceOf(uint32_t region_set) const {
    const auto found = sets_.find(region_set);
    return found == sets_.end() || !found->second.bounce ? nullptr : &*found->second.bounce;
  }

  void Return(const Set& set) {
    for (const Region& region : set.regions) transport_->Unlend(region);
  }

  static bool IsShared(const LendOrder& order) {
    const std::vector<Region>& ranges = order.memory->spec().regions;
    return std::all_of(ranges.begin(), ranges.end(), [&order](const Region& range) {
      return order.shared->Find(range.address, range.bytes).has_value();
    });
  }

  // The transport offers an allocation once, however many tensors of it are lent.
  absl::Status LendGpu(const LendOrder& order, Set* set) {
    CRUMB_TRY(order.memory->mappable());
    const RegionSetSpec& spec = order.memory->spec();
    v1::RegisterRegionsRequest request = DescribeSet(order, spec);
    for (size_t i = 0; i < spec.regions.size(); ++i) {
      const GpuShare& share = order.memory->gpu_shares()[i];
      CRUMB_ASSIGN(Region region, transport_->LendGpu({.share = EncodeGpuShare(share),
                                                       .word_fd = order.gate->word_fd(),
                                                       .address = spec.regions[i].address,
                                                       .bytes = share.bytes,
                                                       .offset = share.offset}));
      AddRegion(region, &request);
      set->regions.push_back(std::move(region));
    }
    return options_.register_regions(std::move(request));
  }

  absl::Status LendRange(const SharedRange& range, Set* set, v1::RegisterRegionsRequest* request) {
    CRUMB_ASSIGN(Region region, transport_->Lend({.fd = range.fd,
                                                  .offset = range.offset,
                                                  .bytes = range.bytes,
                                                  .address = AddressOf(range)}));
    AddRegion(region, request);
    set->regions.push_back(std::move(region));
    return absl::OkStatus();
  }

  absl::Status LendMapped(const LendOrder& order, Set* set) {
    v1::RegisterRegionsRequest request = DescribeSet(order, order.memory->spec());
    for (const Region& range : order.memory->spec().regions) {
      CRUMB_TRY(LendRange(*order.shared->Find(range.address, range.bytes), set, &request));
    }
    return options_.register_regions(std::move(request));
  }

  absl::Status LendBounced(const LendOrder& order, Set* set) {
    CRUMB_ASSIGN(const BounceSet bounce, bouncer_.SetFor(order.value_bytes_max));
    RegionSetSpec spec;
    spec.slots = static_cast<uint32_t>(bounce.area->bytes() / bounce.slot_bytes);
    spec.slot_bytes = bounce.slot_bytes;
    v1::RegisterRegionsRequest request = DescribeSet(order, spec);
    CRUMB_TRY(LendRange(bounce.area->range(), set, &request));
    set->bounce = bounce;
    return options_.register_regions(std::move(request));
  }

  const UdsPlaneOptions options_;
  std::unique_ptr<UdsTransport> transport_;
  WireLink link_;
  Bouncer bouncer_;
  std::map<uint32_t, Set> sets_;  // by region set
};

}  // namespace

absl::StatusOr<NamedPlane> OpenUdsPlane(const UdsPlaneOptions& options) {
  if (options.data_socket.empty()) {
    return absl::FailedPreconditionError(
        "the daemon announces no data socket; use the ucx or grpc data plane");
  }
  UdsOptions uds;
  uds.peers_max = 1;
  uds.lend_timeout_us = uint64_t{options.lend_ms} * 1000;
  CRUMB_ASSIGN(std::unique_ptr<UdsTransport> transport, UdsTransport::Create(uds));
  CRUMB_ASSIGN(const PeerId peer, transport->Connect(options.data_socket));
  std::string name = absl::StrCat("shm ", transport->Describe());
  auto plane = std::make_unique<UdsPlane>(options, std::move(transport), peer);
  if (plane->SayHello() != BlockResult::kOk) {
    return absl::UnavailableError(
        absl::StrCat(options.data_socket, ": the daemon took no message"));
  }
  return NamedPlane{.plane = std::move(plane), .name = std::move(name)};
}

}  // namespace crumb::client
