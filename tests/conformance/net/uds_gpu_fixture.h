// A data socket whose peers lend GPU memory that does not exist: shares, frames, clients and raw
// peers. See uds_fixture.h; one thread but for LendGpu's.
#ifndef CRUMB_TESTS_CONFORMANCE_NET_UDS_GPU_FIXTURE_H_
#define CRUMB_TESTS_CONFORMANCE_NET_UDS_GPU_FIXTURE_H_

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gpu/device/gpu_share.h"
#include "tests/conformance/net/fake_gpu_mapper.h"
#include "tests/conformance/net/uds_fixture.h"

namespace crumb {

inline constexpr uint64_t kAllocation = 1 << 20;

inline std::array<uint8_t, kUdsGpuShareBytes> Share(uint8_t handle, uint8_t device = 1) {
  GpuShare share;
  share.handle.fill(handle);
  share.device.fill(device);
  share.allocation_bytes = share.bytes = kAllocation;
  return EncodeGpuShare(share);
}

inline GpuRange Range(uint8_t handle, uint64_t offset = 0, uint64_t bytes = kAllocation) {
  GpuRange range{.share = Share(handle), .address = 0, .bytes = bytes, .offset = offset};
  range.address = (uint64_t{handle} << 32) + offset;
  return range;
}

inline std::vector<uint8_t> LendPacket(uint64_t file, uint8_t handle, uint8_t device = 1) {
  const auto share = Share(handle, device);
  const auto frame = MakeUdsFrame({.kind = UdsFrameKind::kLendGpu, .file = file, .share = share});
  return {frame.span().begin(), frame.span().end()};
}

class UdsGpuTest : public UdsTest {
 protected:
  void StartGpu(const UdsOptions& options = {}) {
    auto made = UdsTransport::Create(options);
    ASSERT_TRUE(made.ok()) << made.status();
    server_ = *std::move(made);
    server_->SetGpuMapper(&mapper_);
    ASSERT_TRUE(server_->Listen(path()).ok());
  }
  ~UdsGpuTest() override {
    server_.reset();
    EXPECT_EQ(mapper_.mapped(), 0u);
  }

  absl::StatusOr<Region> LendGpu(Client* client, const GpuRange& range) {
    absl::StatusOr<Region> region = absl::UnknownError("not run");
    std::atomic<bool> done{false};
    std::thread lender([&] {
      region = client->transport->LendGpu(range);
      done.store(true);
    });
    while (!done.load()) Step();
    lender.join();
    return region;
  }
  // Connected, with one allocation lent and registered under kSet.
  Client ConnectGpu(uint8_t handle = 1) {
    Client client = ConnectOnly();
    const auto region = LendGpu(&client, Range(handle));
    EXPECT_TRUE(region.ok()) << region.status();
    if (!region.ok()) return client;
    client.region = *region;
    const absl::Status registered = Register(client, *region);
    EXPECT_TRUE(registered.ok()) << registered;
    return client;
  }
  // A raw peer that has said its first word, and its id here.
  std::unique_ptr<UdsRawPeer> Raw(PeerId* id) {
    auto peer = std::make_unique<UdsRawPeer>(path());
    const PeerId before = server_->newest_peer();
    EXPECT_TRUE(peer->Say("hello"));
    EXPECT_TRUE(Until([&] { return server_->newest_peer() != before; }));
    *id = server_->newest_peer();
    EXPECT_TRUE(Until([&] { return !messages_[id->value].empty(); }));
    return peer;
  }
  UdsFrame Answer(UdsRawPeer* peer) {
    std::vector<uint8_t> packet;
    UdsFrame frame;
    EXPECT_TRUE(Until([&] { return peer->Receive(&packet); }));
    EXPECT_TRUE(ParseUdsFrame(packet, &frame));
    EXPECT_EQ(frame.kind, UdsFrameKind::kLent);
    frame.message = {};
    return frame;
  }
  UdsRefusal Refusal(UdsRawPeer* peer) { return static_cast<UdsRefusal>(Answer(peer).value); }
  // A set of several regions, each a page of it.
  absl::Status RegisterAll(const Client& client, uint32_t number, std::vector<Region> regions) {
    Identity identity;
    identity.model = "m";
    identity.revision = "r";
    identity.page_tokens = 1;
    AttentionGroup group;
    group.kv_heads = 1;
    group.k_dim = group.v_dim = 8;
    for (uint32_t i = 0; i * 2 < regions.size(); ++i) group.layer_ids.push_back(i);
    identity.groups = {group};
    RegionSetSpec spec;
    spec.slots = 4;
    for (uint32_t i = 0; i < regions.size(); ++i) {
      spec.tensors.push_back(
          {.region = i, .slot_stride = 16, .token_stride = 16, .head_stride = 16});
    }
    spec.regions = std::move(regions);
    CRUMB_ASSIGN(const Layout layout, Layout::Make(identity));
    CRUMB_ASSIGN(const RegionSet set, RegionSet::Make(spec, layout));
    return server_->RegisterRegions(client.peer, number, set);
  }
  bool PeersGone() {
    return Until([&] { return server_->stats().peers + server_->stats().peers_closing == 0; });
  }

  FakeGpuMapper mapper_;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_CONFORMANCE_NET_UDS_GPU_FIXTURE_H_
