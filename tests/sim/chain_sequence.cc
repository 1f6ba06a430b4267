// The plan of one sequence, its execution, and the rules. See the header.
#include "tests/sim/chain_sequence.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"
#include "tests/sim/chain_daemon.h"
#include "tests/unit/cachesvc/core/fake_codec.h"

namespace crumb::sim {
namespace {

constexpr uint32_t kNobody = 0xffffffff;
constexpr uint64_t kDiskBytes = 6ull << 20;
constexpr uint64_t kRestUs = 30'000'000;
constexpr int kStepsMax = 400'000;
constexpr uint64_t kRetryUs = 1500;  // a timer nearer than that is a retry
constexpr uint64_t kRow = 128 * 2;

struct Node {
  uint32_t parent = kNobody;
  uint32_t start = 0;
  uint32_t tokens = kChainTokens;
  bool position_known = true;
  bool fits = true;
  bool sent = false;  // a put of it was, in some life of the daemon
  Digest digest;
  std::vector<uint8_t> value;  // made when first needed
  uint32_t end() const { return start + tokens; }
};

struct Pending {
  WireType type = WireType::kPut;
  std::vector<uint32_t> nodes;
  uint32_t slot = kNobody;
};

// What an audit saw of a node.
struct Seen {
  bool here = false;
  bool in_memory = false;
  Precision precision = Precision::kRaw;
};

uint64_t SlotBytesOf(Precision precision) {
  if (precision == Precision::kRaw) return kChainSlotBytes;
  return PageSlotBytes(kChainRawBytes / (precision == Precision::kInt4 ? 2 : 4));
}

class Sequence {
 public:
  explicit Sequence(const ChainOptions& options)
      : context_(options.seed, options.echo), rng_(context_.rng.Next()), disk_(kDiskBytes) {
    plan_.plant = options.plant;
    MakePlan();
    MakeTree();
  }
  ~Sequence() { context_.events.CancelAll(this); }
  ChainResult Run();

 private:
  void MakePlan();
  void MakeTree();
  void Start();
  void Reconnect();
  void Act();
  void SendPut(uint32_t node);
  void SendGet(uint32_t node);
  void SendLookup(const std::vector<uint32_t>& nodes);
  void SendDelete(uint32_t node);
  void Crash();
  uint32_t Send(Pending pending, const WireHeader& header, const std::vector<WireBlock>& blocks);
  WireBlock BlockOf(uint32_t node) const;
  const std::vector<uint8_t>& Value(uint32_t node);
  void OnReply(const WireReply& reply);
  void JudgeGet(uint32_t node, const WireBlockReply& reply, Bytes value);
  void JudgePrecision(uint32_t node, Precision precision);
  bool Step();
  bool AtRest();
  void Rest();
  void Audit();
  void AuditMemory(const EngineStats& stats);
  void AuditWindows(const EngineStats& stats);
  bool Forced() const;
  void Absorb();
  void Fail(uint32_t node, const std::string& what) {
    context_.Fail(absl::StrCat("page ", node, " [", nodes_[node].start, ", ", nodes_[node].end(),
                               "), windows ", plan_.windows.sink_tokens, "/",
                               plan_.windows.recent_tokens, ": ", what));
  }

  SimContext context_;
  Rng rng_;
  SimDisk disk_;
  ChainDaemonPlan plan_;
  uint32_t actions_ = 0;
  bool deletes_ = false, dies_ = false, crashes_ = false, parents_named_ = true;
  uint32_t durable_percent_ = 0;
  std::vector<Node> nodes_;
  std::unique_ptr<ChainDaemon> daemon_;
  std::map<uint64_t, Pending> pending_;
  std::vector<uint32_t> free_slots_;
  std::vector<Seen> seen_;
  bool auditing_ = false, forced_before_ = false;
  uint64_t next_request_ = 1;
  ChainResult result_;
};

void Sequence::MakePlan() {
  plan_.windows = {.on = true,
                   .sink_tokens = static_cast<uint32_t>(16 * rng_.Below(3)),
                   .recent_tokens = static_cast<uint32_t>(16 * (1 + rng_.Below(4)))};
  // At least one of the pool's 8 slabs.
  plan_.fresh_percent = static_cast<uint8_t>(rng_.Chance(1, 3) ? 13 + rng_.Below(20) : 60);
  if (rng_.Chance(1, 4)) plan_.idle_us = 3000 + rng_.Below(20'000);
  plan_.tier = rng_.Chance(1, 4);
  if (plan_.tier && rng_.Chance(1, 3)) {
    plan_.device.read_errors_per_10k = static_cast<uint32_t>(rng_.Below(200));
    plan_.device.write_errors_per_10k = static_cast<uint32_t>(rng_.Below(200));
  }
  durable_percent_ = plan_.tier ? static_cast<uint32_t>(rng_.Below(70)) : 0;
  actions_ = static_cast<uint32_t>(15 + rng_.Below(30));
  deletes_ = rng_.Chance(1, 4);
  dies_ = rng_.Chance(1, 8);
  crashes_ = plan_.tier && rng_.Chance(1, 3);
  parents_named_ = rng_.Chance(3, 4);
}

// Mostly long chains, now and then a fork or a new root.
void Sequence::MakeTree() {
  const auto count = static_cast<uint32_t>(6 + rng_.Below(20));
  for (uint32_t i = 0; i < count; ++i) {
    Node node;
    node.digest = DigestOf(AsBytes(absl::StrCat("page ", i)));
    if (i > 0 && !rng_.Chance(1, 12)) {
      uint32_t parent = rng_.Chance(1, 5) ? static_cast<uint32_t>(rng_.Below(i)) : i - 1;
      while (nodes_[parent].tokens < kChainTokens) parent = nodes_[parent].parent;
      if (parent != kNobody) {
        node.parent = parent;
        node.start = nodes_[parent].end();
      }
    }
    if (node.parent != kNobody && rng_.Chance(1, 10)) {
      node.tokens = static_cast<uint32_t>(1 + rng_.Below(kChainTokens - 1));
    }
    node.fits = !rng_.Chance(1, 12);
    if (rng_.Chance(1, 30)) node.position_known = false;
    nodes_.push_back(std::move(node));
  }
  seen_.resize(count);
}

const std::vector<uint8_t>& Sequence::Value(uint32_t index) {
  Node& node = nodes_[index];
  if (!node.value.empty()) return node.value;
  node.value.resize(kChainRawBytes);
  Rng rng(index + 1);
  for (size_t at = 0; at < node.value.size(); at += 8) {
    const uint64_t word = rng.Next() & 0x3f3f3f3f3f3f3f3full;
    std::copy_n(reinterpret_cast<const uint8_t*>(&word), 8, node.value.data() + at);
  }
  for (size_t at = 0; at < node.value.size(); at += kRow) {
    if (at / kRow % kChainTokens >= node.tokens)
      std::fill_n(node.value.begin() + static_cast<ptrdiff_t>(at), kRow, 0);
  }
  if (!node.fits) node.value[0] = testing::kNoFitMark;
  return node.value;
}

void Sequence::Start() {
  daemon_ = ChainDaemon::Start(&context_, &disk_, plan_,
                               [this](const WireReply& reply) { OnReply(reply); });
  pending_.clear();
  free_slots_.clear();
  for (uint32_t slot = 0; slot < kChainLentSlots; ++slot) free_slots_.push_back(slot);
}

bool Sequence::Forced() const {
  const EngineStats stats = daemon_->engine().stats();
  uint64_t forced = stats.demotion_failures + stats.fresh_dropped;
  for (size_t reason = 1; reason < kDemotionReasonCount; ++reason)
    forced += stats.demotions[reason];
  return forced_before_ || forced > 0;
}

void Sequence::Absorb() {
  forced_before_ = Forced();
  const EngineStats stats = daemon_->engine().stats();
  for (const uint64_t count : stats.demotions) result_.demotions += count;
  result_.forced += forced_before_ ? 1 : 0;
}

WireBlock Sequence::BlockOf(uint32_t index) const {
  const Node& node = nodes_[index];
  WireBlock block{.digest = node.digest, .parent = {}};
  block.token_start = node.position_known ? node.start : kTokenStartUnknown;
  block.token_count = static_cast<uint16_t>(node.tokens);
  return block;
}

uint32_t Sequence::Send(Pending pending, const WireHeader& header,
                        const std::vector<WireBlock>& blocks) {
  WireHeader full = header;
  full.type = pending.type;
  full.request_id = next_request_++;
  const uint32_t slot = pending.slot == kNobody ? 0 : pending.slot;
  context_.trace.Add("ask", static_cast<uint64_t>(pending.type), pending.nodes.front());
  pending_[full.request_id] = std::move(pending);
  daemon_->Send(full, blocks, slot);
  return slot;
}

void Sequence::SendPut(uint32_t node) {
  if (free_slots_.empty()) return;
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  const std::vector<uint8_t>& value = Value(node);
  std::copy(value.begin(), value.end(), daemon_->slot(slot).begin());
  WireBlock block = BlockOf(node);
  const bool named = parents_named_ || rng_.Chance(1, 2);
  if (nodes_[node].parent != kNobody && named) block.parent = nodes_[nodes_[node].parent].digest;
  nodes_[node].sent = true;
  WireHeader header;
  if (rng_.Chance(durable_percent_, 100)) header.flags = kWireFlagDurable;
  if (rng_.Chance(1, 30)) header.deadline_us = static_cast<uint32_t>(100 + rng_.Below(5000));
  ++result_.puts;
  Send({.type = WireType::kPut, .nodes = {node}, .slot = slot}, header, {block});
}

void Sequence::SendGet(uint32_t node) {
  if (free_slots_.empty()) return;
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  Send({.type = WireType::kGet, .nodes = {node}, .slot = slot}, {}, {BlockOf(node)});
}

void Sequence::SendLookup(const std::vector<uint32_t>& nodes) {
  std::vector<WireBlock> blocks;
  for (const uint32_t node : nodes) blocks.push_back(BlockOf(node));
  Send({.type = WireType::kLookup, .nodes = nodes, .slot = kNobody}, {}, blocks);
}

void Sequence::SendDelete(uint32_t node) {
  Send({.type = WireType::kDelete, .nodes = {node}, .slot = kNobody}, {}, {BlockOf(node)});
}

void Sequence::Crash() {
  context_.trace.Add("power cut");
  Absorb();
  ++result_.crashes;
  daemon_->CutPower();
  daemon_.reset();
  Start();
}

void Sequence::Reconnect() {
  free_slots_.clear();
  for (uint32_t slot = 0; slot < kChainLentSlots; ++slot) free_slots_.push_back(slot);
  pending_.clear();
  daemon_->Connect();
}

void Sequence::Act() {
  if (!daemon_->connected()) Reconnect();
  const auto any = static_cast<uint32_t>(rng_.Below(nodes_.size()));
  const uint64_t draw = rng_.Below(100);
  if (draw < 65) return SendPut(any);
  if (draw < 80) return SendGet(any);
  if (draw < 86) {
    std::vector<uint32_t> chain;
    for (uint32_t node = any; node != kNobody; node = nodes_[node].parent) chain.push_back(node);
    std::reverse(chain.begin(), chain.end());
    return SendLookup(chain);
  }
  if (draw < 91) {
    if (deletes_) SendDelete(any);
    return;
  }
  if (draw < 96) {
    context_.trace.Add("pin", any);
    daemon_->Pin(nodes_[any].digest, 500 + rng_.Below(5000));
    return;
  }
  if (draw < 98 && dies_) return daemon_->KillWorker();
  if (crashes_ && rng_.Chance(1, 2)) Crash();
}

void Sequence::OnReply(const WireReply& reply) {
  const auto found = pending_.find(reply.header.request_id);
  if (found == pending_.end()) return context_.Fail("an answer to nothing");
  const Pending pending = std::move(found->second);
  pending_.erase(found);
  if (reply.header.block_count != pending.nodes.size()) return context_.Fail("a short answer");
  for (uint32_t i = 0; i < pending.nodes.size(); ++i) {
    const WireBlockReply block = reply.block(i);
    const uint32_t node = pending.nodes[i];
    context_.trace.Add(
        "answer", static_cast<uint64_t>(pending.type), node,
        static_cast<uint64_t>(block.result) << 8 | static_cast<uint64_t>(block.precision));
    const bool hit = block.result == BlockResult::kOk;
    if (hit && pending.type != WireType::kDelete) JudgePrecision(node, block.precision);
    if (hit && pending.type == WireType::kGet) {
      JudgeGet(node, block, daemon_->slot(pending.slot).subspan(0, block.value_bytes));
    }
    if (auditing_ && pending.type == WireType::kLookup) {
      seen_[node] = {
          .here = hit, .in_memory = hit && block.tier == Tier::kDram, .precision = block.precision};
    }
  }
  if (pending.slot != kNobody) free_slots_.push_back(pending.slot);
}

// The value, or its one encoding: whatever was encoded from something else differs from it.
void Sequence::JudgeGet(uint32_t node, const WireBlockReply& reply, Bytes value) {
  ++result_.hits;
  const std::vector<uint8_t>& put = Value(node);
  size_t keep = 1;
  if (reply.precision == Precision::kInt4) keep = 2;
  if (reply.precision == Precision::kInt2 || reply.precision == Precision::kK3V2) keep = 4;
  if (keep == 4 && !nodes_[node].fits)
    return Fail(node, "packed with a codec that does not fit it");
  const bool right =
      keep == 1 ? value == Bytes(put) : value == Bytes(testing::AfterLoss(put, keep));
  if (!right)
    Fail(node, absl::StrCat("a hit that is not what was put, ", ToString(reply.precision)));
  if (Xxh3(value) != reply.checksum) Fail(node, "the checksum is not that of the value");
}

// Whatever happens: sinks are raw, and nothing is packed that may still be the newest.
void Sequence::JudgePrecision(uint32_t index, Precision precision) {
  const Node& node = nodes_[index];
  if (!node.position_known) {
    if (precision != Precision::kInt4) Fail(index, "no position is known, and yet not int4");
    return;
  }
  if (precision == Precision::kRaw) return;
  if (node.start < plan_.windows.sink_tokens) return Fail(index, "a sink that is not raw");
  if (Forced()) return;
  uint32_t newest = node.end();
  std::vector<bool> below(nodes_.size(), false);
  below[index] = true;
  for (uint32_t i = index + 1; i < nodes_.size(); ++i) {  // parents come before children
    below[i] = nodes_[i].parent != kNobody && below[nodes_[i].parent];
    if (below[i] && nodes_[i].sent) newest = std::max(newest, nodes_[i].end());
  }
  if (newest < node.end() + plan_.windows.recent_tokens) {
    Fail(index, absl::StrCat("packed inside its window: the newest end is ", newest));
  }
}

bool Sequence::Step() {
  context_.events.RunDue();
  if (context_.failed()) return false;
  if (daemon_->Turn() > 0) {
    context_.clock.AdvanceTo(context_.clock.now_us() + rng_.Below(3));
    return true;
  }
  const uint64_t next = std::min(context_.events.next_us(), daemon_->engine().next_timer_us());
  if (next == UINT64_MAX) return false;
  context_.clock.AdvanceTo(next);
  return true;
}

bool Sequence::AtRest() {
  if (!pending_.empty() || !daemon_->idle()) return false;
  const uint64_t timer = daemon_->engine().next_timer_us();
  return timer == UINT64_MAX || timer > context_.clock.now_us() + kRetryUs;
}

void Sequence::Rest() {
  const uint64_t end = context_.clock.now_us() + kRestUs;
  for (int step = 0; step < kStepsMax && !context_.failed(); ++step) {
    if (AtRest() && daemon_->Turn() == 0 && AtRest()) return;
    if (!Step() && !AtRest()) break;
    if (context_.clock.now_us() > end) break;
  }
  if (!context_.failed()) context_.Fail("it never comes to rest");
}

void Sequence::Audit() {
  daemon_->StopFaults();
  if (!daemon_->connected()) Reconnect();
  Rest();
  // Client pins end, and what stood still is demoted before anybody looks.
  context_.clock.AdvanceTo(context_.clock.now_us() + 10'000 + plan_.idle_us);
  Rest();
  if (context_.failed()) return;
  std::vector<uint32_t> all(nodes_.size());
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  auditing_ = true;
  SendLookup(all);
  Rest();
  auditing_ = false;
  if (context_.failed()) return;
  const EngineStats stats = daemon_->engine().stats();
  AuditMemory(stats);
  AuditWindows(stats);
}

// Slots, pins and gauges against what look-ups say.
void Sequence::AuditMemory(const EngineStats& stats) {
  uint64_t bytes = 0, here = 0, pages = 0;
  for (const Seen& seen : seen_) {
    here += seen.here ? 1 : 0;
    if (seen.in_memory) bytes += SlotBytesOf(seen.precision);
  }
  for (const uint64_t count : stats.pages) pages += count;
  const auto equal = [this](const char* what, uint64_t is, uint64_t should) {
    if (is != should) context_.Fail(absl::StrCat(what, " is ", is, ", not ", should));
  };
  equal("pool_used_bytes", stats.pool_used_bytes, bytes);
  equal("index_entries", stats.index_entries, here);
  equal("pages by precision", pages, here);
  equal("pinned slots", stats.pool_pinned, 0);
  equal("staging bytes", stats.staging_used_bytes, 0);
  equal("fresh bytes", stats.fresh_used_bytes, stats.fresh_pages * kChainSlotBytes);
  if (stats.fresh_used_bytes > stats.fresh_slab_bytes) context_.Fail("fresh pages in other slabs");
  if (stats.fresh_slab_bytes > stats.fresh_capacity_bytes) context_.Fail("over the fresh share");
}

// Nothing stays raw behind its window where the chain to its newest page is known.
void Sequence::AuditWindows(const EngineStats& stats) {
  const bool strict = parents_named_ && result_.crashes == 0 && stats.demotion_failures == 0;
  if (!strict) return;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    const bool fresh = seen_[i].here && seen_[i].precision == Precision::kRaw &&
                       node.position_known && node.start >= plan_.windows.sink_tokens;
    if (!fresh) continue;
    std::vector<bool> below(nodes_.size(), false);
    below[i] = true;
    for (uint32_t j = i + 1; j < nodes_.size(); ++j) {
      below[j] = nodes_[j].parent != kNobody && below[nodes_[j].parent] && seen_[j].here &&
                 nodes_[j].position_known;
      if (below[j] && nodes_[j].end() >= node.end() + plan_.windows.recent_tokens) {
        return Fail(i,
                    absl::StrCat("raw behind its window: page ", j, " ends at ", nodes_[j].end()));
      }
    }
  }
}

ChainResult Sequence::Run() {
  Start();
  for (uint32_t action = 0; action < actions_ && !context_.failed(); ++action) {
    Act();
    for (uint64_t steps = rng_.Below(rng_.Chance(1, 8) ? 400 : 40); steps > 0; --steps) {
      if (!Step()) break;
    }
  }
  if (!context_.failed()) Audit();
  if (daemon_ != nullptr) Absorb();
  daemon_.reset();
  result_.failure = context_.failure;
  result_.trace_hash = context_.trace.hash();
  return result_;
}

}  // namespace

bool FindChainPlant(const std::string& name, ChainPlant* plant) {
  const std::pair<const char*, ChainPlant> known[] = {{"none", ChainPlant::kNone},
                                                      {"demote_lossy", ChainPlant::kDemoteLossy},
                                                      {"demote_early", ChainPlant::kDemoteEarly},
                                                      {"sink_packed", ChainPlant::kSinkPacked},
                                                      {"never_demote", ChainPlant::kNeverDemote}};
  for (const auto& [text, which] : known) {
    if (name != text) continue;
    *plant = which;
    return true;
  }
  return false;
}

ChainResult RunChainSequence(const ChainOptions& options) { return Sequence(options).Run(); }

}  // namespace crumb::sim
