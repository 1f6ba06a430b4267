// Requests of a simulated worker and the judgement of their replies.
#include "tests/sim/sim_client.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/page_header.h"

namespace crumb::sim {
namespace {

constexpr uint32_t kBlocksMax = 4;
constexpr uint32_t kAuditsAtOnce = 2;  // fewer than any limit: busy proves nothing
constexpr uint64_t kPageStampOffset = offsetof(PageHeader, segment);

bool IsPut(const WireType type) { return type == WireType::kPut; }

}  // namespace

SimClient::SimClient(SimContext* context, Model* model, const std::vector<SimLayout>* layouts,
                     const SimClientOptions& options)
    : context_(context),
      model_(model),
      layouts_(layouts),
      options_(options),
      rng_(context->rng.Next()) {}

SimClient::~SimClient() { context_->events.CancelAll(static_cast<SimPeer*>(this)); }

void SimClient::Connect(Engine* engine, SimTransport* transport) {
  CRUMB_CHECK(!connected_ && requests_.empty());
  engine_ = engine;
  transport_ = transport;
  memory_ = std::make_unique<LentMemory>(context_, layouts_);
  session_ = SessionId{rng_.Next() | 1};
  peer_ = transport->AddPeer(this, memory_->memory());
  connected_ = true;
  lossy_.clear();
  absl::Status status = engine->OpenSession(session_, kSimTenant);
  if (status.ok()) status = engine->AttachPeer(session_, 0, peer_);
  for (const SimLayout& layout : *layouts_) {
    const LentArea area = LentMemory::PagesOf(layout);
    if (!status.ok()) break;
    status = engine->RegisterRegions(session_, static_cast<uint32_t>(area), layout.handle,
                                     memory_->Spec(area));
  }
  if (status.ok()) {
    status = engine->RegisterRegions(session_, static_cast<uint32_t>(LentArea::kTensors),
                                     layouts_->front().handle, memory_->Spec(LentArea::kTensors));
  }
  context_->trace.Add("connect", options_.number, options_.daemon, peer_.value);
  if (!status.ok()) context_->Fail("connect: " + status.ToString());
}

void SimClient::Die() {
  if (!connected_) return;
  transport_->KillPeer(peer_);
  LoseEverything();
}

void SimClient::OnClosed() {
  if (connected_) LoseEverything();
}

void SimClient::LoseEverything() {
  context_->events.CancelAll(static_cast<SimPeer*>(this));
  connected_ = false;
  abandoned_ = session_;
  for (auto& [id, request] : requests_) Forget(request);
  requests_.clear();
  memory_.reset();  // a late write into it is seen by the sanitizer
  for (uint32_t i = 0; i < model_->key_count(); ++i) model_->Unpinned({i});
}

SessionId SimClient::TakeAbandonedSession() { return std::exchange(abandoned_, SessionId{}); }

// No answer will come.
void SimClient::Forget(Request& request) {
  for (const Block& block : request.blocks) {
    if (IsPut(request.type)) model_->LosePut(block.key, block.put);
  }
}

void SimClient::DoSomething(const Workload& load) {
  if (!connected_ || requests_.size() >= options_.requests_max) return;
  const uint32_t weights[] = {load.put,   load.get,    load.lookup,  load.erase,    load.pin,
                              load.unpin, load.cancel, load.rubbish, load.page_put, load.prefetch};
  uint64_t sum = 0;
  for (uint32_t weight : weights) sum += weight;
  uint64_t draw = rng_.Below(sum);
  size_t choice = 0;
  while (draw >= weights[choice]) draw -= weights[choice++];
  switch (choice) {
    case 0:
      return SendPut(load);
    case 1:
      return SendGet(RandomKey(), static_cast<uint32_t>(1 + rng_.Below(kBlocksMax)),
                     load.wait_percent);
    case 2:
      return SendLookup();
    case 3:
      return SendDelete();
    case 4:
      return Pin(1000 + rng_.Below(200'000));
    case 5:
      return Pin(0);
    case 6:
      return SendCancel();
    case 7:
      return SendRubbish();
    case 8:
      return SendPagePut(load);
    default:
      return SendPrefetch();
  }
}

KeyRef SimClient::RandomKey() {
  // Half of the draws fall on a tenth of the keys.
  const uint32_t count = model_->key_count();
  const uint32_t bound = rng_.Chance(1, 2) ? std::max(1u, count / 10) : count;
  return {static_cast<uint32_t>(rng_.Below(bound))};
}

// Blocks of one request share the layout, and here the part.
KeyRef SimClient::RandomKeyLike(KeyRef key) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    const KeyRef other = RandomKey();
    if (&space().layout(other) == &space().layout(key)) return other;
  }
  return key;
}

void SimClient::Send(Request request, LentArea area, uint32_t layout_handle) {
  const uint32_t slots = request.blocks.front().slot.area == LentArea::kTensors
                             ? kTensorSlotsPerBlock
                             : (request.blocks.front().slot.valid() ? 1 : 0);
  std::vector<uint8_t> message(RequestBytes(static_cast<uint32_t>(request.blocks.size()), slots));
  const absl::Span<uint8_t> out = absl::MakeSpan(message);
  const uint64_t id = next_request_++;
  WriteWireHeader({.type = request.type,
                   .flags = request.flags,
                   .block_count = static_cast<uint16_t>(request.blocks.size()),
                   .request_id = id,
                   .session_id = session_.value,
                   .deadline_us = request.deadline_us,
                   .layout_handle = layout_handle,
                   .region_set = static_cast<uint32_t>(area),
                   .slots_per_block = static_cast<uint16_t>(slots),
                   .form = request.form},
                  out);
  for (uint32_t i = 0; i < request.blocks.size(); ++i) {
    const Block& block = request.blocks[i];
    WireBlock wire{.digest = space().digest(block.key), .parent = {}};
    wire.part = static_cast<uint16_t>(space().part(block.key));
    wire.value_bytes = block.value_bytes;
    if (IsPut(request.type)) {
      const Image& image = model_->put(block.key, block.put).image;
      if (request.form == PageForm::kRaw) {
        wire.token_count = static_cast<uint16_t>(image.shape.tokens);
      }
      wire.token_start =
          image.shape.position_known ? space().position(block.key) : kTokenStartUnknown;
      wire.provenance = image.provenance;
      if (block.has_parent) wire.parent = space().digest(block.parent);
    }
    std::vector<uint32_t> numbers;
    if (slots > 0) numbers = memory_->WireSlots(block.slot);
    WriteWireBlock(i, wire, numbers, out);
  }
  FinishWireMessage(out);
  context_->trace.Add("ask", options_.number << 8 | options_.daemon,
                      static_cast<uint64_t>(request.type), request.blocks.front().key.index);
  request.asked_us = context_->clock.now_us();
  requests_.emplace(id, std::move(request));
  transport_->Inject(peer_, message);
}

void SimClient::ChooseParent(const Workload& load, Block* block) {
  block->has_parent =
      rng_.Chance(load.parent_percent, 100) && KeySpace::Parent(block->key, &block->parent);
}

void SimClient::SendPut(const Workload& load) {
  const KeyRef first = RandomKey();
  const SimLayout& layout = space().layout(first);
  const LentArea area =
      layout.handle == 1 && rng_.Chance(1, 3) ? LentArea::kTensors : LentMemory::PagesOf(layout);
  Request request{.type = WireType::kPut, .asked = model_->Now(), .blocks = {}};
  const bool durable = rng_.Chance(load.durable_percent, 100);
  request.flags = durable ? kWireFlagDurable : uint16_t{0};
  if (rng_.Chance(1, 20)) request.deadline_us = static_cast<uint32_t>(100 + rng_.Below(20'000));
  const uint64_t count = 1 + rng_.Below(kBlocksMax);
  KeyRef key = first;
  for (uint64_t i = 0; i < count; ++i) {
    const LentSlot slot = memory_->Take(area);
    if (!slot.valid()) break;
    const auto tokens =
        static_cast<uint32_t>(rng_.Chance(1, 8) ? 1 + rng_.Below(kSimPageTokens) : kSimPageTokens);
    std::vector<uint8_t> value;
    Image image = space().MakeImage(
        key,
        {.tokens = tokens,
         .position_known = rng_.Chance(4, 5),
         .non_finite =
             layout.binding.layout->identity().dtype == RawDtype::kBf16 && rng_.Chance(1, 40)},
        &value);
    if (rng_.Chance(1, 3)) image.provenance = Provenance::kDecode;
    Block block{.key = key, .slot = slot};
    ChooseParent(load, &block);
    const bool lossy = block.has_parent && lossy_.contains(block.parent.index);
    block.put = model_->StartPut(key, std::move(image), durable, lossy ? 1 : 0);
    memory_->WriteRaw(slot, value);
    request.blocks.push_back(block);
    key = RandomKeyLike(first);
  }
  if (!request.blocks.empty()) Send(std::move(request), area, layout.handle);
}

// Puts a page that was got before, header and all; every third one with a bit flipped.
void SimClient::SendPagePut(const Workload& load) {
  KeptPages& kept = *options_.kept;
  if (kept.empty()) return;
  auto found = kept.begin();
  std::advance(found, static_cast<ptrdiff_t>(rng_.Below(kept.size())));
  KeyRef key{found->first};
  const bool foreign = rng_.Chance(1, 10);  // sent as if it were another key's
  if (foreign) key = RandomKeyLike(key);
  const SimLayout& layout = space().layout(key);
  const LentSlot slot = memory_->Take(LentMemory::PagesOf(layout));
  if (!slot.valid()) return;
  std::vector<uint8_t> page = found->second.bytes;
  const bool damage = rng_.Chance(1, 3);
  if (damage) {
    uint64_t at = rng_.Below(page.size());
    if (at >= kPageStampOffset && at < kPageHeaderBytes) at = 0;  // the stamp is not the worker's
    page[at] = static_cast<uint8_t>(page[at] ^ 1u << rng_.Below(8));
  }
  const bool refused = damage || key.index != found->first;
  memory_->WriteRaw(slot, page);
  Request request{
      .type = WireType::kPut, .form = PageForm::kPage, .asked = model_->Now(), .blocks = {}};
  const bool durable = rng_.Chance(load.durable_percent, 100);
  request.flags = durable ? kWireFlagDurable : uint16_t{0};
  Block block{.key = key, .slot = slot};
  ChooseParent(load, &block);
  block.put = model_->StartPagePut(key, found->second.source, refused, durable);
  block.value_bytes = static_cast<uint32_t>(page.size());
  request.blocks.push_back(block);
  Send(std::move(request), LentMemory::PagesOf(layout), layout.handle);
}

void SimClient::SendGet(KeyRef first, uint32_t blocks, uint32_t wait_percent) {
  const SimLayout& layout = space().layout(first);
  Request request{.type = WireType::kGet, .asked = model_->Now(), .blocks = {}};
  LentArea area = LentMemory::PagesOf(layout);
  const uint64_t draw = rng_.Below(10);
  if (layout.handle == 1 && draw < 4) {
    area = LentArea::kTensors;
  } else if (draw < 6) {
    request.form = draw == 4 ? PageForm::kPacked : PageForm::kPage;
  }
  if (rng_.Chance(wait_percent, 100)) {
    request.flags = kWireFlagWait;
    request.deadline_us = static_cast<uint32_t>(1000 + rng_.Below(100'000));
  }
  KeyRef key = first;
  for (uint32_t i = 0; i < blocks; ++i) {
    const LentSlot slot = memory_->Take(area);
    if (!slot.valid()) break;
    // Rows past a partial page's count are not written: let them be zero, as the value has them.
    if (area == LentArea::kTensors) {
      memory_->WriteRaw(slot, std::vector<uint8_t>(space().shape(key).raw_bytes));
    }
    request.blocks.push_back({.key = key, .slot = slot});
    key = RandomKeyLike(first);
  }
  if (!request.blocks.empty()) Send(std::move(request), area, layout.handle);
}

bool SimClient::Audit(KeyRef key) {
  if (!connected_ || requests_.size() >= kAuditsAtOnce) return false;
  SendGet(key, 1, 0);
  return true;
}

bool SimClient::Census(KeyRef key) {
  if (!connected_ || !requests_.empty()) return false;
  Request request{.type = WireType::kLookup, .asked = model_->Now(), .census = true, .blocks = {}};
  request.blocks.push_back({.key = key, .slot = {}});
  Send(std::move(request), LentArea::kNone, space().layout(key).handle);
  return true;
}

void SimClient::SendLookup() {
  const KeyRef first = RandomKey();
  Request request{.type = WireType::kLookup, .asked = model_->Now(), .blocks = {}};
  if (rng_.Chance(1, 3)) request.flags = kWireFlagStopAtGap;
  const uint64_t count = 1 + rng_.Below(8);
  KeyRef key = first;
  for (uint64_t i = 0; i < count; ++i) {
    request.blocks.push_back({.key = key, .slot = {}});
    key = RandomKeyLike(first);
  }
  Send(std::move(request), LentArea::kNone, space().layout(first).handle);
}

void SimClient::SendPrefetch() {
  const KeyRef first = RandomKey();
  Request request{.type = WireType::kPrefetch, .asked = model_->Now(), .blocks = {}};
  if (rng_.Chance(1, 4)) request.deadline_us = static_cast<uint32_t>(100 + rng_.Below(50'000));
  const uint64_t count = 1 + rng_.Below(kBlocksMax);
  KeyRef key = first;
  for (uint64_t i = 0; i < count; ++i) {
    request.blocks.push_back({.key = key, .slot = {}});
    key = RandomKeyLike(first);
  }
  Send(std::move(request), LentArea::kNone, space().layout(first).handle);
}

void SimClient::SendDelete() {
  const KeyRef first = RandomKey();
  Request request{.type = WireType::kDelete, .asked = model_->Now(), .blocks = {}};
  const uint64_t count = 1 + rng_.Below(2);
  KeyRef key = first;
  for (uint64_t i = 0; i < count; ++i) {
    request.blocks.push_back({.key = key, .slot = {}, .removal = model_->StartRemoval(key)});
    key = RandomKeyLike(first);
  }
  Send(std::move(request), LentArea::kNone, space().layout(first).handle);
}

void SimClient::SendCancel() {
  if (requests_.empty()) return;
  auto target = requests_.begin();
  std::advance(target, static_cast<ptrdiff_t>(rng_.Below(requests_.size())));
  std::vector<uint8_t> message(RequestBytes(0, 0));
  WriteWireHeader(
      {.type = WireType::kCancel, .request_id = target->first, .session_id = session_.value},
      absl::MakeSpan(message));
  FinishWireMessage(absl::MakeSpan(message));
  context_->trace.Add("cancel", options_.number, target->first);
  transport_->Inject(peer_, message);
}

void SimClient::SendRubbish() {
  std::vector<uint8_t> message(1 + rng_.Below(400));
  for (uint8_t& byte : message) byte = static_cast<uint8_t>(rng_.Next());
  context_->trace.Add("rubbish", options_.number, message.size());
  transport_->Inject(peer_, message);
}

void SimClient::Pin(uint64_t ttl_us) {
  const KeyRef key = RandomKey();
  PinRequest request{.layout_handle = space().layout(key).handle,
                     .session = session_,
                     .digests = {space().digest(key)},
                     .ttl_us = ttl_us};
  const Moment asked = model_->Now();
  if (ttl_us == 0) model_->Unpinned(key);
  const BlockResults results = engine_->Pin(request);
  context_->trace.Add("pin", key.index, ttl_us,
                      results.empty() ? 99 : static_cast<uint64_t>(results[0]));
  if (results.size() != 1) {
    context_->Fail("pin: one result per digest was expected");
  } else if (ttl_us > 0 && results[0] == BlockResult::kOk) {
    // Another worker's pin of the same key may be ended by its own unpin: the shorter one counts.
    model_->Pinned(key, asked, context_->clock.now_us() + ttl_us);
  }
}

void SimClient::OnMessage(Bytes message) {
  WireReply reply;
  if (const WireCheck check = ParseReply(message, &reply); check != WireCheck::kOk) {
    context_->Fail(absl::StrCat("a reply does not parse: ", ToString(check)));
    return;
  }
  const auto found = requests_.find(reply.header.request_id);
  if (found == requests_.end()) {
    context_->Fail("a reply to a request that is not in flight (or a second reply)");
    return;
  }
  const Request request = std::move(found->second);
  requests_.erase(found);
  ++answered_;
  if (reply.header.block_count != request.blocks.size() ||
      reply.header.session_id != session_.value) {
    context_->Fail("a reply with another number of blocks or another session");
    return;
  }
  Judge(request, reply);
}

// A get, look-up or prefetch waits for nobody past its deadline but for a transfer under way.
void SimClient::JudgeTime(const Request& request) {
  const bool bounded = request.type == WireType::kGet || request.type == WireType::kLookup ||
                       request.type == WireType::kPrefetch;
  if (!bounded || disturbed_until_us_ >= request.asked_us) return;
  const uint64_t wanted =
      request.deadline_us == 0 ? options_.default_deadline_us : request.deadline_us;
  const uint64_t took = context_->clock.now_us() - request.asked_us;
  if (took <= wanted + options_.patience_us) return;
  context_->Fail(absl::StrCat("an answer took ", took, " us, with a deadline of ", wanted));
}

void SimClient::NoteServed(KeyRef key, const WireBlockReply& answer) {
  const bool lossy = answer.precision != Precision::kRaw;
  if (lossy || answer.lossy_depth > 0) lossy_.insert(key.index);
}

void SimClient::Judge(const Request& request, const WireReply& reply) {
  JudgeTime(request);
  bool gap = false;
  for (uint32_t i = 0; i < request.blocks.size(); ++i) {
    const Block& block = request.blocks[i];
    const WireBlockReply answer = reply.block(i);
    context_->trace.Add(
        "answer", static_cast<uint64_t>(request.type) << 8 | options_.daemon, block.key.index,
        static_cast<uint64_t>(answer.result) << 8 | static_cast<uint64_t>(answer.tier));
    // A look-up that stops at the first gap owes no answer behind it.
    if (!gap) JudgeBlock(request, block, answer);
    gap = gap || ((request.flags & kWireFlagStopAtGap) != 0 && request.type == WireType::kLookup &&
                  answer.result != BlockResult::kOk);
    if (block.slot.valid()) memory_->Give(block.slot);
  }
}

void SimClient::JudgeBlock(const Request& request, const Block& block,
                           const WireBlockReply& answer) {
  const BlockResult result = answer.result;
  switch (request.type) {
    case WireType::kPut:
      model_->EndPut(block.key, block.put, answer);
      if (result == BlockResult::kOk && answer.lossy_depth > 0) lossy_.insert(block.key.index);
      return;
    case WireType::kDelete:
      model_->EndRemoval(block.key, block.removal,
                         result == BlockResult::kOk || result == BlockResult::kMiss);
      return;
    case WireType::kLookup:
      if (result == BlockResult::kOk) {
        model_->JudgeLookupHit(block.key, request.asked, answer, "look-up");
      }
      if (result == BlockResult::kMiss) model_->JudgeMiss(block.key, request.asked, "look-up");
      if (request.census && result != BlockResult::kOk && result != BlockResult::kMiss) {
        context_->Fail("a look-up alone was not answered");
      }
      if (!request.census || result != BlockResult::kOk) return;
      ++found_.all;
      if (answer.tier == Tier::kDram) ++found_.in_memory;
      ++found_.precisions[static_cast<size_t>(answer.precision)];
      return;
    case WireType::kPrefetch:
      if (result == BlockResult::kOk) {
        model_->JudgeLookupHit(block.key, request.asked, answer, "prefetch");
        if (answer.tier != Tier::kDram) context_->Fail("a page was prefetched to elsewhere");
      }
      if (result == BlockResult::kMiss) model_->JudgeMiss(block.key, request.asked, "prefetch");
      if (result == BlockResult::kCorrupt || result == BlockResult::kIo) {
        context_->Fail("a prefetch was answered corrupt or io: both must become a miss");
      }
      return;
    case WireType::kGet:
      return JudgeGet(request, block, answer);
    default:
      CRUMB_CHECK(false);
  }
}

void SimClient::JudgeGet(const Request& request, const Block& block, const WireBlockReply& answer) {
  const BlockResult result = answer.result;
  if (result == BlockResult::kMiss) return model_->JudgeMiss(block.key, request.asked, "get");
  if (result == BlockResult::kCorrupt || result == BlockResult::kIo) {
    return context_->Fail("a get was answered corrupt or io: both must become a miss");
  }
  if (result != BlockResult::kOk) return;
  NoteServed(block.key, answer);
  if (block.slot.area == LentArea::kTensors) {
    model_->JudgeHit(block.key, request.asked, request.form, answer, memory_->ReadRaw(block.slot));
    return;
  }
  const uint64_t room = PageSlotBytes(space().shape(block.key).raw_bytes);
  if (answer.value_bytes == 0 || answer.value_bytes > room) {
    return context_->Fail("a hit of no bytes or more than the slot holds");
  }
  const Bytes value = memory_->ReadBytes(block.slot, answer.value_bytes);
  const size_t put = model_->JudgeHit(block.key, request.asked, request.form, answer, value);
  if (request.form == PageForm::kPage && !context_->failed()) {
    KeptPage& kept = (*options_.kept)[block.key.index];
    kept = {{value.begin(), value.end()}, model_->put(block.key, put)};
    kept.source.depth = answer.lossy_depth;
    kept.source.depth_known = true;
    kept.source.image.provenance = LoadHeader(value).provenance;
  }
}

}  // namespace crumb::sim
