// A Client's core whose codec runs in the worker, over a daemon that is a map: it keeps what is put
// and gives it in whatever form is asked for, by the reference codec. For GPUs of the host (streams
// that can be held back) and real ones. One thread.
#ifndef CRUMB_TESTS_UNIT_CLIENT_CODEC_RIG_H_
#define CRUMB_TESTS_UNIT_CLIENT_CODEC_RIG_H_

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cachesvc/base/page_header.h"
#include "client/src/codec_plane.h"
#include "gpu/codec/page_codec.h"
#include "tests/unit/client/fake_plane.h"

namespace crumb::client {

struct StoredPage {
  uint64_t codec_id = 0;
  uint32_t tokens = 0;
  std::vector<uint8_t> payload;
};

// The daemon of one test; outlives its planes.
struct Store {
  explicit Store(const PartShape& part, const CodecDescriptor& packed)
      : shape(part),
        codec(*PageCodec::Create(part, packed, nullptr, CodecBackend::kReference)),
        raw(*PageCodec::Create(part, CodecDescriptor::Default(CodecKind::kRaw, {}), nullptr,
                               CodecBackend::kReference)) {}

  PartShape shape;
  std::unique_ptr<PageCodec> codec, raw;
  std::map<Digest, StoredPage> pages;
  std::vector<PageForm> asked;  // of every request, in order
  std::vector<PlaneReply> replies;
  uint64_t last_id = 0;
  uint16_t codec_tag_said = 0;  // by the last packed put
  bool hold = false;            // answers nothing yet
  bool wants_raw = false;       // packed puts are kMismatch
  bool damage = false;          // of pages on their way out
  uint64_t unknown_codec = 0;   // pages say that they are of this one
  bool lost = false;
  std::vector<std::pair<uint64_t, CancelKind>> cancels;
  std::map<uint32_t, uint64_t> lent;  // bytes of a slot, by region set
  std::vector<bool> lent_gpu;
};

class StorePlane final : public Plane {
 public:
  explicit StorePlane(Store* store) : s_(*store), fd_(::eventfd(0, EFD_NONBLOCK)) {}
  ~StorePlane() override { ::close(fd_); }

  BlockResult Submit(std::shared_ptr<const PlaneRequest> request) override {
    EXPECT_EQ(s_.lent.count(request->region_set), 1u);
    s_.asked.push_back(request->form);
    s_.last_id = request->id;
    PlaneReply& reply = s_.replies.emplace_back();
    reply.id = request->id;
    for (size_t i = 0; i < request->blocks.size(); ++i) {
      reply.blocks.push_back(request->type == WireType::kPut ? Put(*request, i) : Get(*request, i));
    }
    return BlockResult::kOk;
  }
  bool Cancel(uint64_t id, CancelKind kind) override {
    s_.cancels.emplace_back(id, kind);
    return false;
  }
  void Poll(ReplyList* replies) override {
    if (s_.hold) return;
    for (const PlaneReply& reply : s_.replies) replies->Next(reply.id).blocks = reply.blocks;
    s_.replies.clear();
  }
  bool Arm() override { return s_.hold || s_.replies.empty(); }
  int wake_fd() const override { return fd_; }
  absl::Status Lend(const LendOrder& order) override {
    s_.lent[order.region_set] = order.memory->spec().slot_bytes;
    s_.lent_gpu.push_back(order.memory->gpu());
    return absl::OkStatus();
  }
  void Unlend(uint32_t region_set) override { s_.lent.erase(region_set); }
  bool lost() const override { return s_.lost; }

 private:
  uint32_t TokensOf(const WireBlock& block) const {
    return block.token_count == 0 ? s_.shape.page_tokens : block.token_count;
  }
  MutableBytes View(const PlaneRequest& request, size_t i, uint64_t bytes) {
    return request.memory->View(request.PlaceOf(i, bytes));
  }
  WireBlockReply Put(const PlaneRequest& request, size_t i) {
    const WireBlock& block = request.blocks[i];
    WireBlockReply reply;
    const bool packed = request.form == PageForm::kPacked;
    if (packed) s_.codec_tag_said = block.codec_tag;
    reply.result = packed && s_.wants_raw ? BlockResult::kMismatch : BlockResult::kOk;
    if (reply.result != BlockResult::kOk) return reply;
    const PageCodec& codec = packed ? *s_.codec : *s_.raw;
    EXPECT_EQ(block.value_bytes, packed ? codec.payload_bytes() : 0u);
    const MutableBytes value = View(request, i, codec.payload_bytes());
    s_.pages[block.digest] = {
        codec.descriptor().id(), TokensOf(block), {value.begin(), value.end()}};
    reply.precision = PrecisionOf(codec.descriptor().kind);
    return reply;
  }
  WireBlockReply Get(const PlaneRequest& request, size_t i) {
    const WireBlock& block = request.blocks[i];
    WireBlockReply reply;
    const auto found = s_.pages.find(block.digest);
    if (found == s_.pages.end()) return reply;
    const StoredPage& page = found->second;
    reply.result = BlockResult::kOk;
    reply.tier = crumb::Tier::kDram;
    const bool packed = page.codec_id != s_.raw->descriptor().id();
    reply.precision = packed ? PrecisionOf(s_.codec->descriptor().kind) : crumb::Precision::kRaw;
    const bool whole = request.form == PageForm::kPage;
    reply.value_bytes =
        static_cast<uint32_t>(whole ? kPageHeaderBytes + page.payload.size() : s_.shape.raw_bytes);
    if (whole && reply.value_bytes > block.value_bytes) {
      reply.result = BlockResult::kInvalid;
      return reply;
    }
    const MutableBytes out = View(request, i, reply.value_bytes);
    whole ? WritePage(page, out) : WriteRaw(page, packed, out);
    reply.checksum = Xxh3(out);
    if (s_.damage) out[out.size() - 1] ^= 1;
    return reply;
  }
  void WritePage(const StoredPage& page, MutableBytes out) const {
    PageHeader header;
    header.precision = PrecisionOf(s_.codec->descriptor().kind);
    header.identity_prefix = identity_prefix;
    header.codec_id = s_.unknown_codec != 0 ? s_.unknown_codec : page.codec_id;
    header.token_count = static_cast<uint16_t>(page.tokens);
    header.payload_bytes = static_cast<uint32_t>(page.payload.size());
    header.raw_bytes = static_cast<uint32_t>(s_.shape.raw_bytes);
    SealHeader(header, page.payload);
    StoreHeader(header, out);
    std::memcpy(out.data() + kPageHeaderBytes, page.payload.data(), page.payload.size());
  }
  void WriteRaw(const StoredPage& page, bool packed, MutableBytes out) const {
    if (!packed) {
      std::memcpy(out.data(), page.payload.data(), page.payload.size());
      return;
    }
    const auto scratch = s_.codec->MakeScratch();
    EXPECT_TRUE(s_.codec->Decode(page.payload, page.tokens, Frame::kOriginal, out, scratch.get()));
  }

 public:
  uint64_t identity_prefix = 0;

 private:
  Store& s_;
  int fd_;
};

inline constexpr uint32_t kRigTokens = 16;

inline LayoutEntry MakeRigLayout() {
  LayoutSpec spec;
  spec.model = "m";
  spec.revision = "r";
  spec.rope_kind = "none";
  spec.page_tokens = kRigTokens;
  LayerGroup& group = spec.groups.emplace_back();
  group.kv_heads = 2;
  group.k_dim = group.v_dim = 64;
  group.layer_ids = {0, 1};
  return EntryOf(spec);
}

// `gpu` lends memory; `memory`: slots of raw pages there.
class CodecRig {
 public:
  CodecRig(GpuSide* gpu, Options options, CodecPlace daemon_place)
      : layout(MakeRigLayout()),
        packed(CodecDescriptor::Default(CodecKind::kInt4, {})),
        store(layout.shape->parts()[0], packed),
        daemon_place_(daemon_place),
        gpu_(gpu) {
    codecs.put = packed;
    codecs.readers = {CodecDescriptor::Default(CodecKind::kRaw, {}), packed};
    codecs.packs_known = codecs.packs_unknown = true;
    options.auto_reconnect = false;
    core = std::make_unique<ClientCore>(
        options, "unix:/test",
        ClientCore::Seams{.clock = &clock,
                          .opener = [this](const LinkPlan& plan) { return Open(plan); },
                          .gpu = gpu,
                          .seed = 1});
    EXPECT_TRUE(core->OpenWaker().ok());
    EXPECT_TRUE(core->Open().ok());
  }
  ~CodecRig() {
    store.lost = true;  // a clock that stands still waits for no goodbye
    core.reset();
  }
  absl::StatusOr<Link> Open(const LinkPlan& plan) {
    Link link;
    auto inner = std::make_unique<StorePlane>(&store);
    inner->identity_prefix = layout.shape->hash().prefix64();
    link.plane = std::make_unique<CodecPlane>(
        CodecPlaneParts{.inner = std::move(inner),
                        .gpu = gpu_,
                        .clock = &clock,
                        .daemon_place = daemon_place_,
                        .staging_bytes = plan.options.staging_bytes,
                        .get_codecs = [this](uint32_t) -> absl::StatusOr<LayoutCodecs> {
                          if (!codecs_status.ok()) return codecs_status;
                          return codecs;
                        }});
    link.name = "shm test";
    link.layouts.push_back(layout);
    CRUMB_TRY(LendAgain(plan, &link));
    return link;
  }

  uint64_t raw_bytes() const { return store.shape.raw_bytes; }
  uint32_t Lend(void* memory, uint32_t slots, CodecPlace place = CodecPlace::kAuto) {
    const auto places = LentMemory::Make(
        LentMemory::Pages{.base = memory, .bytes = slots * raw_bytes(), .slot_bytes = raw_bytes()},
        *layout.shape);
    EXPECT_TRUE(places.ok()) << places.status();
    const auto set = core->LendGpu(1, **places, place);
    EXPECT_TRUE(set.ok()) << set.status();
    return set.ok() ? *set : 0;
  }
  // Blocks of slots from `slot` on, with keys of their own.
  std::vector<Block> Blocks(const std::vector<std::string>& keys, uint32_t slot) {
    std::vector<Block> out(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      out[i].key = keys_.emplace_back(keys[i]);  // blocks name their keys
      out[i].slot = slot + static_cast<uint32_t>(i);
    }
    return out;
  }
  Ticket Start(WireType type, uint32_t set, const std::vector<Block>& blocks,
               const RequestOptions& options = {}) {
    Ticket ticket = 0;
    const Status status = core->Submit({type, 1, set, &blocks, options}, &ticket);
    EXPECT_TRUE(status.ok()) << status.message;
    return ticket;
  }
  // What is done by now, after as many turns as anything here takes.
  std::vector<Completion> Done() {
    std::vector<Completion> out;
    for (int turn = 0; turn < kTurns; ++turn) {
      clock.Advance(step_us);
      core->Drain(0, &out);
    }
    return out;
  }
  Completion Do(WireType type, uint32_t set, const std::vector<Block>& blocks,
                const RequestOptions& options = {}) {
    Start(type, set, blocks, options);
    const std::vector<Completion> done = Done();
    EXPECT_EQ(done.size(), 1u);
    return done.empty() ? Completion{} : done[0];
  }
  // What a page looks like once it was packed and unpacked.
  std::vector<uint8_t> ThroughCodec(Bytes raw, uint32_t tokens) const {
    const auto scratch = store.codec->MakeScratch();
    std::vector<uint8_t> payload(store.codec->payload_bytes());
    std::vector<uint8_t> out(raw.size());
    store.codec->Encode(raw, tokens, Effort::kNormal, absl::MakeSpan(payload), scratch.get());
    EXPECT_TRUE(
        store.codec->Decode(payload, tokens, Frame::kOriginal, absl::MakeSpan(out), scratch.get()));
    return out;
  }

  static constexpr int kTurns = 64;
  uint64_t step_us = 0;  // a turn takes
  TestClock clock;
  LayoutEntry layout;
  CodecDescriptor packed;
  Store store;
  LayoutCodecs codecs;
  absl::Status codecs_status;
  std::unique_ptr<ClientCore> core;

 private:
  std::deque<std::string> keys_;
  const CodecPlace daemon_place_;
  GpuSide* const gpu_;
};

// BF16 values around zero.
inline void FillPage(MutableBytes page, uint64_t seed) {
  Rng rng(seed);
  for (size_t i = 0; i + 1 < page.size(); i += 2) {
    page[i] = static_cast<uint8_t>(rng.Below(256));
    page[i + 1] = static_cast<uint8_t>((rng.Below(2) != 0 ? 0x80 : 0) + 0x3e + rng.Below(2));
  }
}

}  // namespace crumb::client

#endif  // CRUMB_TESTS_UNIT_CLIENT_CODEC_RIG_H_
