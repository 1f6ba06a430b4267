// The UCX plane. A reply to an unknown request is dropped by the caller.
#include "client/src/ucx_plane.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/net/ucx_transport.h"
#include "client/src/wire_link.h"

namespace crumb::client {
namespace {

constexpr uint32_t kPeersMax = 4;
constexpr uint32_t kTransfersMax = 16;
constexpr uint32_t kMessagesMax = 2048;

class UcxPlane final : public Plane {
 public:
  UcxPlane(Control* control, std::unique_ptr<UcxTransport> transport, PeerId peer)
      : control_(control),
        transport_(std::move(transport)),
        link_(transport_.get(), peer, control->session()) {}

  ~UcxPlane() override {
    link_.Close();
    for (const auto& [id, regions] : lent_) {
      for (const Region& region : regions) transport_->Unlend(region);
    }
  }

  // The first message of a peer names its session.
  BlockResult SayHello() { return link_.SendBare(WireType::kHello, 0); }

  BlockResult Submit(std::shared_ptr<const PlaneRequest> request) override {
    return link_.Send(*request, request->slots, request->slots_per_block);
  }
  // The daemon may write into lent memory until it answers, whatever it was told.
  bool Cancel(uint64_t id, CancelKind) override {
    static_cast<void>(link_.SendBare(WireType::kCancel, id));  // else the deadline ends it
    return false;
  }
  void Poll(ReplyList* replies) override { link_.Pump(replies); }
  bool Arm() override { return link_.Arm(); }
  int wake_fd() const override { return transport_->wake_fd(); }
  bool lost() const override { return link_.lost(); }

  absl::Status Lend(const LendOrder& order) override {
    if (order.memory->gpu()) return MovesNoGpuMemory("ucx");
    v1::RegisterRegionsRequest request = DescribeSet(order, order.memory->spec());
    std::vector<Region> lent;
    absl::Status status = LendAll(*order.memory, &lent, &request);
    if (status.ok()) status = control_->RegisterRegions(std::move(request));
    if (!status.ok()) {
      for (const Region& region : lent) transport_->Unlend(region);
      return status;
    }
    lent_[order.region_set] = std::move(lent);
    return absl::OkStatus();
  }

  void Unlend(uint32_t region_set) override {
    const auto found = lent_.find(region_set);
    if (found == lent_.end()) return;
    for (const Region& region : found->second) transport_->Unlend(region);
    lent_.erase(found);
  }

 private:
  absl::Status LendAll(const LentMemory& memory, std::vector<Region>* lent,
                       v1::RegisterRegionsRequest* request) {
    for (const Region& range : memory.spec().regions) {
      auto* data = reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(range.address));
      CRUMB_ASSIGN(Region region, transport_->Lend(MutableBytes(data, range.bytes)));
      AddRegion(region, request);
      lent->push_back(std::move(region));
    }
    return absl::OkStatus();
  }

  Control* control_;
  std::unique_ptr<UcxTransport> transport_;
  WireLink link_;
  std::map<uint32_t, std::vector<Region>> lent_;  // by region set
};

}  // namespace

absl::StatusOr<NamedPlane> OpenUcxPlane(const UcxPlaneOptions& options, Control* control) {
  if (!control->hello().ucx()) {
    return absl::FailedPreconditionError("the daemon offers no UCX; use the gRPC data plane");
  }
  UcxOptions ucx;
  ucx.tls = options.tls;
  ucx.net_devices = options.net_devices;
  ucx.peers_max = kPeersMax;
  ucx.transfers_max = kTransfersMax;
  ucx.messages_max = kMessagesMax;
  CRUMB_ASSIGN(std::unique_ptr<UcxTransport> transport, UcxTransport::Create(ucx));
  uint64_t cookie = 0;
  const std::string mine = transport->MakeHello(&cookie);
  CRUMB_ASSIGN(const std::string theirs, control->ExchangeHello(mine));
  CRUMB_ASSIGN(const PeerId peer, transport->Connect(AsBytes(theirs), cookie));
  std::string name = absl::StrCat("ucx ", transport->Describe());
  auto plane = std::make_unique<UcxPlane>(control, std::move(transport), peer);
  if (plane->SayHello() != BlockResult::kOk) {
    return absl::UnavailableError("UCX: the daemon took no message");
  }
  return NamedPlane{.plane = std::move(plane), .name = std::move(name)};
}

}  // namespace crumb::client
