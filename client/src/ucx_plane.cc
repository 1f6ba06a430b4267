// The UCX plane. A reply that does not parse means that the two sides no longer agree on the
// stream of bytes: the connection counts as lost. A reply to an unknown request is dropped by the
// caller.
#include "client/src/ucx_plane.h"

#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/net/ucx_transport.h"

namespace crumb::client {
namespace {

constexpr size_t kEventsPerPoll = 64;
constexpr int kPollsMax = 16;
constexpr uint32_t kPeersMax = 4;
constexpr uint32_t kTransfersMax = 16;
constexpr uint32_t kMessagesMax = 2048;

uint32_t ToMicroseconds(uint32_t ms) {
  constexpr uint32_t kMax = 0xffffffffu / 1000;
  return (ms > kMax ? kMax : ms) * 1000;
}

class UcxPlane final : public Plane {
 public:
  UcxPlane(Control* control, std::unique_ptr<UcxTransport> transport, PeerId peer)
      : control_(control), transport_(std::move(transport)), peer_(peer) {}

  ~UcxPlane() override {
    if (!lost_) {
      SendBare(WireType::kGoodbye);
      Pump(nullptr);
    }
    transport_->ClosePeer(peer_);
    for (const auto& [id, regions] : lent_) {
      for (const Region& region : regions) transport_->Unlend(region);
    }
  }

  // The first message of a peer names its session.
  BlockResult SayHello() { return SendBare(WireType::kHello); }

  BlockResult Submit(std::shared_ptr<const PlaneRequest> asked) override {
    if (lost_) return BlockResult::kUnavailable;
    const PlaneRequest& request = *asked;
    const auto count = static_cast<uint32_t>(request.blocks.size());
    message_.assign(RequestBytes(count, request.slots_per_block), '\0');
    const MutableBytes out = Message();
    WireHeader header = HeaderFor(request.type);
    header.flags = request.flags;
    header.block_count = static_cast<uint16_t>(count);
    header.request_id = request.id;
    header.deadline_us =
        ToMicroseconds(request.wait_ms != 0 ? request.wait_ms : request.deadline_ms);
    header.layout_handle = request.layout_handle;
    header.region_set = request.region_set;
    header.slots_per_block = static_cast<uint16_t>(request.slots_per_block);
    header.form = request.form;
    WriteWireHeader(header, out);
    for (uint32_t i = 0; i < count; ++i) {
      WriteWireBlock(i, request.blocks[i], request.SlotsOf(i), out);
    }
    FinishWireMessage(out);
    return Sent(transport_->Send(peer_, out));
  }

  void Poll(std::vector<PlaneReply>* replies) override { Pump(replies); }
  bool Arm() override { return lost_ || transport_->Arm(); }
  int wake_fd() const override { return transport_->wake_fd(); }
  bool lost() const override { return lost_; }
  std::string Describe() const override { return absl::StrCat("ucx ", transport_->Describe()); }

  absl::Status Lend(uint32_t region_set, uint32_t layout_handle,
                    const LentMemory& memory) override {
    v1::RegisterRegionsRequest request;
    request.set_region_set(region_set);
    request.set_layout_handle(layout_handle);
    request.set_slots(memory.spec().slots);
    request.set_slots_per_block(memory.spec().slots_per_block);
    request.set_slot_bytes(memory.spec().slot_bytes);
    for (const TensorPlace& place : memory.spec().tensors) {
      v1::TensorPlace* to = request.add_tensors();
      to->set_region(place.region);
      to->set_offset(place.offset);
      to->set_slot_stride(place.slot_stride);
      to->set_token_stride(place.token_stride);
      to->set_head_stride(place.head_stride);
    }
    std::vector<Region> lent;
    absl::Status status = LendAll(memory, &lent, &request);
    if (status.ok()) status = control_->RegisterRegions(std::move(request));
    if (!status.ok()) {
      for (const Region& region : lent) transport_->Unlend(region);
      return status;
    }
    lent_[region_set] = std::move(lent);
    return absl::OkStatus();
  }

  void Unlend(uint32_t region_set) override {
    const auto found = lent_.find(region_set);
    if (found == lent_.end()) return;
    for (const Region& region : found->second) transport_->Unlend(region);
    lent_.erase(found);
  }

 private:
  MutableBytes Message() { return {reinterpret_cast<uint8_t*>(message_.data()), message_.size()}; }

  WireHeader HeaderFor(WireType type) const {
    WireHeader header;
    header.type = type;
    header.session_id = control_->session();
    return header;
  }

  BlockResult SendBare(WireType type) {
    message_.assign(RequestBytes(0, 0), '\0');
    WriteWireHeader(HeaderFor(type), Message());
    FinishWireMessage(Message());
    return Sent(transport_->Send(peer_, Message()));
  }

  BlockResult Sent(BlockResult result) {
    if (result == BlockResult::kOk || result == BlockResult::kBusy) return result;
    lost_ = true;
    return BlockResult::kUnavailable;
  }

  absl::Status LendAll(const LentMemory& memory, std::vector<Region>* lent,
                       v1::RegisterRegionsRequest* request) {
    for (const Region& range : memory.spec().regions) {
      auto* data = reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(range.address));
      CRUMB_ASSIGN(Region region, transport_->Lend(MutableBytes(data, range.bytes)));
      v1::Region* to = request->add_regions();
      to->set_address(region.address);
      to->set_bytes(region.bytes);
      to->set_rkey(region.rkey);
      lent->push_back(std::move(region));
    }
    return absl::OkStatus();
  }

  // `replies` null: progress only, what arrives is dropped.
  void Pump(std::vector<PlaneReply>* replies) {
    std::array<NetEvent, kEventsPerPoll> events;
    for (int round = 0; round < kPollsMax && !lost_; ++round) {
      const size_t count = transport_->Poll(absl::MakeSpan(events));
      for (size_t i = 0; i < count; ++i) Handle(events[i], replies);
      if (count < events.size()) return;
    }
  }

  void Handle(const NetEvent& event, std::vector<PlaneReply>* replies) {
    if (event.kind == NetEventKind::kPeerDown) lost_ = true;
    if (event.kind != NetEventKind::kMessage || replies == nullptr) return;
    WireReply reply;
    if (ParseReply(event.message, &reply) != WireCheck::kOk) {
      lost_ = true;
      return;
    }
    PlaneReply& out = replies->emplace_back();
    out.id = reply.header.request_id;
    out.blocks.reserve(reply.header.block_count);
    for (uint32_t i = 0; i < reply.header.block_count; ++i) out.blocks.push_back(reply.block(i));
  }

  Control* control_;
  std::unique_ptr<UcxTransport> transport_;
  PeerId peer_;
  std::string message_;                           // reused
  std::map<uint32_t, std::vector<Region>> lent_;  // by region set
  bool lost_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Plane>> OpenUcxPlane(const UcxPlaneOptions& options,
                                                    Control* control) {
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
  auto plane = std::make_unique<UcxPlane>(control, std::move(transport), peer);
  if (plane->SayHello() != BlockResult::kOk) {
    return absl::UnavailableError("UCX: the daemon took no message");
  }
  return plane;
}

}  // namespace crumb::client
