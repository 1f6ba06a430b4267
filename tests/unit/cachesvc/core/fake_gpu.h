// Workers' GPU memory for tests of the engine: the lent memory of the rig's workers is this
// process's own; kernels are SampleCodec over it; a queue holds work back as a busy GPU does.
#ifndef CRUMB_TESTS_UNIT_CACHESVC_CORE_FAKE_GPU_H_
#define CRUMB_TESTS_UNIT_CACHESVC_CORE_FAKE_GPU_H_

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cachesvc/net/gpu_memory.h"
#include "gpu/codec/gpu_link.h"
#include "gpu/codec/host_gpu_codec.h"
#include "gpu/codec/host_link.h"
#include "gpu/device/host_stream_queue.h"
#include "tests/unit/cachesvc/core/fake_codec.h"

namespace crumb::testing {

// SampleCodec's kernels, for pages of K and V of one head.
class SampleGpuCodec final : public GpuCodec {
 public:
  SampleGpuCodec(std::shared_ptr<const PageCodec> codec, const PartShape& shape)
      : codec_(std::move(codec)), shape_(shape), scratch_(codec_->MakeScratch()) {}

  const CodecDescriptor& descriptor() const override { return codec_->descriptor(); }
  int device() const override { return -1; }
  uint32_t payload_bytes() const override { return codec_->payload_bytes(); }
  bool encodes() const override { return true; }

  absl::Status Decode(const CudaPages& pages, Frame frame, StreamHandle) const override {
    for (uint32_t i = 0; i < pages.count; ++i) {
      std::vector<uint8_t> raw(shape_.raw_bytes);
      CRUMB_CHECK(codec_->Decode(PayloadOf(pages.pages[i]), pages.pages[i].tokens, frame,
                                 absl::MakeSpan(raw), scratch_.get()));
      Move(pages, pages.pages[i], raw.data(), true);
    }
    return absl::OkStatus();
  }
  absl::Status Encode(const CudaPages& pages, Effort effort, StreamHandle) const override {
    for (uint32_t i = 0; i < pages.count; ++i) {
      std::vector<uint8_t> raw(shape_.raw_bytes);
      Move(pages, pages.pages[i], raw.data(), false);
      const EncodeReport report = codec_->Encode(raw, pages.pages[i].tokens, effort,
                                                 PayloadOf(pages.pages[i]), scratch_.get());
      pages.reports[i].unfit = report.fits ? 0 : 1;
      pages.reports[i].bad_place = report.result == BlockResult::kNonFinite ? 7 : ~0ull;
    }
    return absl::OkStatus();
  }
  absl::Status ResetReports(const CudaPages& pages, StreamHandle) const override {
    for (uint32_t i = 0; i < pages.count; ++i) {
      pages.reports[i] = {};
      pages.reports[i].bad_place = ~0ull;
    }
    return absl::OkStatus();
  }
  EncodeReport ReportOf(const CudaPageReport& report) const override {
    EncodeReport out;
    out.fits = report.unfit == 0;
    if (report.bad_place == ~0ull) return out;
    out.result = BlockResult::kNonFinite;
    out.bad_layer_id = 3;
    out.bad_is_v = true;
    out.bad_head = 1;
    out.bad_token = 2;
    return out;
  }

 private:
  MutableBytes PayloadOf(const CudaPage& page) const {
    return {reinterpret_cast<uint8_t*>(page.payload), codec_->payload_bytes()};
  }
  void Move(const CudaPages& pages, const CudaPage& page, uint8_t* raw, bool out) const {
    const uint64_t row_bytes = shape_.raw_bytes / 2 / shape_.page_tokens;
    for (uint32_t tensor = 0; tensor < 2; ++tensor) {
      const CudaPlace& place = pages.places[tensor];
      for (uint32_t token = 0; token < page.tokens; ++token) {
        const uint32_t slot = pages.slots[page.slots_first + token / pages.tokens_per_slot];
        auto* row = reinterpret_cast<uint8_t*>(place.address + slot * place.slot_stride +
                                               token % pages.tokens_per_slot * place.token_stride);
        uint8_t* mine = raw + (tensor * shape_.page_tokens + token) * row_bytes;
        out ? std::memcpy(row, mine, row_bytes) : std::memcpy(mine, row, row_bytes);
      }
    }
  }

  std::shared_ptr<const PageCodec> codec_;
  PartShape shape_;
  std::unique_ptr<PageCodec::Scratch> scratch_;
};

// Shared by the queues of a rig: how their GPU behaves.
struct GpuMood {
  bool hold = false;  // nothing comes back
  bool lost = false;  // everything comes back as not whole
};

class MoodyQueue final : public StreamQueue {
 public:
  explicit MoodyQueue(const GpuMood* mood) : mood_(mood), inner_(64) {}
  bool Submit(const StreamWork& work) override { return !mood_->lost && inner_.Submit(work); }
  size_t Poll(absl::Span<StreamDone> done) override {
    if (mood_->hold && !mood_->lost) return 0;
    const size_t count = inner_.Poll(done);
    for (size_t i = 0; i < count; ++i) done[i].ok = done[i].ok && !mood_->lost;
    return count;
  }
  size_t in_flight() const override { return inner_.in_flight(); }
  const absl::Status& health() const override { return mood_->lost ? lost_ : inner_.health(); }

 private:
  const GpuMood* mood_;
  HostStreamQueue inner_;
  absl::Status lost_ = absl::InternalError("GPU 0 is lost: restart the daemon");
};

inline std::shared_ptr<GpuLink> MoodyLink(const GpuMood* mood) {
  auto link = GpuLink::Create(HostLinkParts(std::make_unique<MoodyQueue>(mood)));
  CRUMB_CHECK(link.ok());
  return std::move(link).value();
}

class FakeGpu final : public GpuMemory {
 public:
  GpuMood mood;
  bool on = false;    // sets that are registered from now on lie in GPU memory
  bool gone = false;  // peers went away under their holds
  BlockResult refusal = BlockResult::kOk;
  int held = 0;
  uint64_t moved = 0;
  uint64_t word = 0;  // how far every worker's GPU has come

  void Register(PeerId peer, const RegionSet& set) {
    lent_.erase(peer.value);
    if (!on) return;
    Lent& lent = lent_[peer.value];
    if (lent.link == nullptr) lent.link = MoodyLink(&mood);
    lent.addresses.clear();
    for (const Region& region : set.spec().regions) lent.addresses.push_back(region.address);
  }
  GpuLink* LinkOf(PeerId peer, uint32_t) const override {
    const auto it = lent_.find(peer.value);
    return it == lent_.end() ? nullptr : it->second.link.get();
  }
  std::vector<uint64_t> AddressesOf(PeerId peer, uint32_t) const override {
    return lent_.at(peer.value).addresses;
  }
  bool Reached(PeerId, uint64_t ticket) const override { return word >= ticket; }
  BlockResult HoldGpu(PeerId peer, uint32_t, GpuHold* hold) override {
    if (refusal != BlockResult::kOk) return refusal;
    hold->peer = peer;
    ++held;
    return BlockResult::kOk;
  }
  bool ReleaseGpu(GpuHold* hold, MappedUse, uint64_t bytes) override {
    CRUMB_CHECK(hold->held());
    hold->peer = {};
    --held;
    moved += bytes;
    return !gone;
  }

 private:
  struct Lent {
    std::shared_ptr<GpuLink> link;
    std::vector<uint64_t> addresses;
  };
  std::map<uint64_t, Lent> lent_;
};

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_UNIT_CACHESVC_CORE_FAKE_GPU_H_
