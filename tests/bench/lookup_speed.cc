// Longest-prefix look-ups as a shard serves them: message in, keys derived, index probed, answers
// written and sent, through the engine and the loopback transport on one thread. Prints keys/s, and
// what the parts would cost alone. Usage: bench_lookup_speed KEYS [BATCH [SECONDS]]
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cachesvc/base/check.h"
#include "cachesvc/base/rng.h"
#include "cachesvc/base/wire.h"
#include "cachesvc/core/engine.h"
#include "cachesvc/net/loopback_transport.h"
#include "gpu/device/host_queue.h"

namespace crumb {
namespace {

constexpr uint32_t kLayout = 1;
constexpr uint64_t kSession = 1;
constexpr uint32_t kMessages = 4096;  // different ones, so that no cache knows them

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Digest DigestNumber(uint64_t number) {
  Digest digest;
  Rng rng(number);
  for (size_t i = 0; i < digest.bytes.size(); i += 8) {
    const uint64_t word = rng.Next();
    std::memcpy(digest.bytes.data() + i, &word, sizeof(word));
  }
  return digest;
}

Layout OneHead() {
  Identity identity;
  identity.model = "bench";
  identity.revision = "1";
  identity.weights_dtype = "bf16";
  identity.page_tokens = 16;
  identity.groups.push_back({.kind = AttentionKind::kGqa,
                             .kv_heads = 1,
                             .k_dim = 128,
                             .v_dim = 128,
                             .window = 0,
                             .layer_ids = {0}});
  auto made = Layout::Make(identity);
  CRUMB_CHECK(made.ok());
  return *std::move(made);
}

struct Answers {
  uint64_t messages = 0, found = 0;
  static void On(void* arg, Bytes message) {
    auto* const self = static_cast<Answers*>(arg);
    WireReply reply;
    CRUMB_CHECK(ParseReply(message, &reply) == WireCheck::kOk);
    ++self->messages;
    for (uint32_t i = 0; i < reply.header.block_count; ++i) {
      self->found += reply.block(i).result == BlockResult::kOk;
    }
  }
};

class Bench {
 public:
  Bench(uint32_t keys, uint32_t batch) : keys_(keys), batch_(batch) {
    auto pool = PagePool::Create({.bytes = 16 << 20, .staging_bytes = 4 << 20});
    CRUMB_CHECK(pool.ok());
    pool_ = *std::move(pool);
    EngineOptions options;
    options.limits.index_entries_max = keys;
    options.clock = &clock_;
    options.pool = pool_.get();
    options.queue = &queue_;
    auto engine = Engine::Create(options);
    CRUMB_CHECK(engine.ok());
    engine_ = *std::move(engine);
    layout_ = std::make_shared<const Layout>(OneHead());
    Fill(options.secret);
    engine_->AddTransport(transport_.get());
    CRUMB_CHECK(engine_->BindLayout(kLayout, Binding()).ok());
    CRUMB_CHECK(engine_->OpenSession({kSession}, "").ok());
    peer_ = transport_->AddPeer(&Answers::On, &answers_);
    CRUMB_CHECK(engine_->AttachPeer({kSession}, 0, peer_).ok());
    for (uint32_t i = 0; i < kMessages; ++i) messages_.push_back(Message(i));
  }

  // Keys per second of this thread.
  double Run(double seconds) {
    answers_ = {};
    const double begin = Now();
    double took = 0;
    uint64_t sent = 0;
    while (took < seconds) {
      for (uint32_t i = 0; i < 64; ++i, ++sent) {
        const auto& message = messages_[sent % kMessages];
        CRUMB_CHECK(transport_->Inject(peer_, message) == BlockResult::kOk);
        engine_->Poll();
        engine_->RunReady();
      }
      took = Now() - begin;
    }
    engine_->Poll();
    CRUMB_CHECK(answers_.messages + 1 >= sent && answers_.found >= (sent - 1) * batch_);
    return static_cast<double>(sent * batch_) / took;
  }
  EngineStats stats() const { return engine_->stats(); }

 private:
  LayoutBinding Binding() const {
    LayoutBinding binding;
    binding.layout = layout_;
    auto raw = PageCodec::Create(layout_->parts()[0],
                                 CodecDescriptor::Default(CodecKind::kRaw, Sha256{}), nullptr);
    CRUMB_CHECK(raw.ok());
    binding.ladder.push_back({*std::move(raw)});
    binding.readers.emplace_back();
    return binding;
  }

  // Pages on disk as a recovery reports them: the index is full, and no memory is needed for them.
  void Fill(const ClusterSecret& secret) {
    const KeyDeriver deriver(secret, "", layout_->hash());
    const uint64_t codec = CodecDescriptor::Default(CodecKind::kRaw, Sha256{}).id();
    for (uint32_t i = 0; i < keys_; ++i) {
      RecoveredRecord record;
      record.header.key = deriver.Derive(DigestNumber(i), 0);
      record.header.codec_id = codec;
      record.header.identity_prefix = layout_->hash().prefix64();
      record.header.tenant_prefix = TenantPrefix("");
      record.header.token_count = 16;
      record.header.raw_bytes = record.header.payload_bytes = 8192;
      record.location = {.segment = i >> 14,
                         .generation = 1,
                         .offset_blocks = (i & 0x3fff) * 3,
                         .record_bytes = 12288};
      engine_->recovery_sink()->OnRecords({record});
    }
    CRUMB_CHECK(engine_->stats().index_entries == keys_);
  }

  std::vector<uint8_t> Message(uint64_t number) const {
    WireHeader header;
    header.type = WireType::kLookup;
    header.request_id = number + 1;
    header.session_id = kSession;
    header.layout_handle = kLayout;
    header.flags = kWireFlagStopAtGap;
    header.block_count = static_cast<uint16_t>(batch_);
    std::vector<uint8_t> message(RequestBytes(batch_, 0));
    WriteWireHeader(header, absl::MakeSpan(message));
    Rng rng(~number);
    for (uint32_t i = 0; i < batch_; ++i) {
      WireBlock block;
      block.digest = DigestNumber(rng.Below(keys_));
      WriteWireBlock(i, block, {}, absl::MakeSpan(message));
    }
    FinishWireMessage(absl::MakeSpan(message));
    return message;
  }

  const uint32_t keys_, batch_;
  SteadyClock clock_;
  HostQueue queue_{{.threads = 1}};
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<LoopbackTransport> transport_ = LoopbackTransport::Create(256);
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const Layout> layout_;
  PeerId peer_;
  Answers answers_;
  std::vector<std::vector<uint8_t>> messages_;
};

int Main(int argc, char** argv) {
  const auto number = [&](int at, uint32_t otherwise) {
    return argc > at ? static_cast<uint32_t>(std::strtoul(argv[at], nullptr, 10)) : otherwise;
  };
  const uint32_t keys = number(1, 1'000'000), batch = number(2, 128), seconds = number(3, 1);
  if (keys < 1000 || keys > 20'000'000 || batch == 0 || batch > kBlocksPerRequestMax) {
    std::fprintf(stderr, "usage: bench_lookup_speed KEYS (1000..20000000) [BATCH (1..256)] [S]\n");
    return 2;
  }
  Bench bench(keys, batch);
  bench.Run(0.2);
  std::array<double, 5> rates;
  for (double& rate : rates) rate = bench.Run(static_cast<double>(seconds));
  std::sort(rates.begin(), rates.end());
  const EngineStats stats = bench.stats();
  std::printf(
      "%u keys, batch %u: %.0f keys/s (median of 5, %.0f to %.0f), %.1f ns a key, index %.1f bytes "
      "a page\n",
      keys, batch, rates[2], rates.front(), rates.back(), 1e9 / rates[2],
      static_cast<double>(stats.index_bytes) / static_cast<double>(stats.index_entries));
  return 0;
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) { return crumb::Main(argc, argv); }
