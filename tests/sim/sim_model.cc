// Judgement of answers. See sim_model.h for the idea.
#include "tests/sim/sim_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/page_header.h"

namespace crumb::sim {

Model::Model(SimContext* context, const std::vector<SimLayout>* layouts,
             const ClusterSecret& secret, uint32_t keys)
    : context_(context), layouts_(layouts), next_value_(context->rng.Next()) {
  for (uint32_t i = 0; i < keys; ++i) {
    Key key;
    const bool first = i % kChainLength == 0;
    key.layout =
        first ? static_cast<uint32_t>(context->rng.Below(layouts->size())) : keys_.back().layout;
    const SimLayout& layout = (*layouts)[key.layout];
    key.part = first
                   ? static_cast<uint32_t>(context->rng.Below(layout.binding.layout->part_count()))
                   : keys_.back().part;
    key.digest = DigestOf(AsBytes(absl::StrCat("key ", i)));
    const KeyDeriver deriver(secret, kSimTenant, layout.binding.layout->hash());
    key.block_key = deriver.Derive(key.digest, key.part);
    by_block_key_[key.block_key] = i;
    keys_.push_back(std::move(key));
  }
}

bool Model::Find(const BlockKey& name, KeyRef* key) const {
  const auto found = by_block_key_.find(name);
  if (found == by_block_key_.end()) return false;
  key->index = found->second;
  return true;
}

std::string Model::Name(KeyRef key) const {
  return absl::StrCat("key ", key.index, " (layout ", layout(key).handle, ", part ", part(key),
                      ", ", Hex(block_key(key).bytes), ")");
}

size_t Model::StartPut(KeyRef ref, const PutShape& put_shape, bool durable,
                       std::vector<uint8_t>* value) {
  Key& key = keys_[ref.index];
  PutRecord put;
  put.value_seed = next_value_++;
  put.shape = put_shape;
  put.durable_asked = durable;
  put.sent = Now();
  *value = MakeValue(shape(ref), put_shape, put.value_seed);
  put.expected = Reference(layout(ref), part(ref), put_shape, *value);
  const WindowPolicy& windows = layout(ref).binding.windows;
  if (windows.on && put_shape.position_known && !put.expected.refused) {
    put.fresh = RawReference(layout(ref), part(ref), put_shape, *value);
    if (position(ref) < windows.sink_tokens) put.expected = put.fresh;  // and nothing else, ever
  }
  key.puts.push_back(std::move(put));
  return key.puts.size() - 1;
}

size_t Model::StartPagePut(KeyRef ref, size_t source, Page page, bool durable) {
  Key& key = keys_[ref.index];
  PutRecord put;
  put.shape = key.puts[source].shape;
  put.expected = key.puts[source].expected;
  put.fresh = key.puts[source].fresh;
  put.expected.refused = page == Page::kDamaged;
  put.durable_asked = durable;
  put.sent = Now();
  key.puts.push_back(std::move(put));
  return key.puts.size() - 1;
}

void Model::EndPut(KeyRef ref, size_t index, BlockResult result) {
  Key& key = keys_[ref.index];
  PutRecord& put = key.puts[index];
  put.answered = Now();
  // kExists is a success whose bytes were not needed; kNotDurable says that the key holds
  // something, maybe these bytes; everything else leaves no trace.
  const bool stored = result == BlockResult::kOk;
  if (put.expected.refused && stored) {
    context_->Fail(absl::StrCat(Name(ref), ": a page that must be refused was stored"));
  }
  put.state = stored                               ? PutState::kStored
              : result == BlockResult::kNotDurable ? PutState::kUnknown
                                                   : PutState::kNotStored;
  const bool durable =
      put.durable_asked && (result == BlockResult::kOk || result == BlockResult::kExists);
  put.durable = durable && stored;
  if (durable) {
    const Moment written = stored ? put.sent : WrittenSince(key, Need::kDurable, put.sent);
    key.promises.push_back({.sent = put.sent,
                            .written = written,
                            .answered = put.answered,
                            .answered_us = context_->clock.now_us(),
                            .survives_crash = true});
  }
}

// What exists was written by an earlier put: from when on damage of the medium may have hit it.
// The writer of a key that began last began after all others had ended, so what lies there is not
// older than its question. 0: nobody knows which put it was.
Moment Model::WrittenSince(const Key& key, Need need, Moment before) const {
  Moment since = 0;
  for (const PutRecord& put : key.puts) {
    const bool kept = put.durable || (need == Need::kAny && put.answered > last_crash_);
    const bool stored = put.state == PutState::kStored && kept;
    if (stored && put.answered < before) since = std::max(since, put.sent);
  }
  return since;
}

void Model::LosePut(KeyRef ref, size_t index) {
  PutRecord& put = keys_[ref.index].puts[index];
  if (put.state == PutState::kInFlight) put.state = PutState::kUnknown;
}

size_t Model::StartRemoval(KeyRef ref) {
  keys_[ref.index].removals.push_back({.sent = Now()});
  return keys_[ref.index].removals.size() - 1;
}

void Model::EndRemoval(KeyRef ref, size_t removal, bool done) {
  Removal& entry = keys_[ref.index].removals[removal];
  entry.done = done;
  entry.answered = Now();
}

// A put's bytes may be delivered unless it is known that they are not there: the put failed, or a
// removal or a put that was stored, and began after this put had ended, was over before the
// question was asked.
bool Model::PutMayBeSeen(const Key& key, const PutRecord& put, Moment asked) const {
  if (put.state == PutState::kNotStored) return false;
  for (const Removal& removal : key.removals) {
    if (removal.done && removal.sent > put.answered && removal.answered < asked) return false;
  }
  // A later put that was stored took its place; a crash may undo that if it was not durable.
  for (const PutRecord& later : key.puts) {
    const bool replaced =
        later.state == PutState::kStored && later.sent > put.answered && later.answered < asked;
    const bool undone = (last_crash_ > later.answered && !later.durable) ||
                        std::max(key.excused, all_excused_) > later.sent;
    if (replaced && !undone) return false;
  }
  return true;
}

bool Model::Holds(const Key& key, const Promise& promise, Moment asked) const {
  if (promise.answered > asked || promise.until_us <= context_->clock.now_us()) return false;
  // WHY for pins too: a page that is only on disk is pinned there.
  if (!log_keeps_all_) return false;
  return std::none_of(key.removals.begin(), key.removals.end(),
                      [&](const Removal& removal) { return removal.answered > promise.sent; });
}

bool Model::MustHit(KeyRef ref, Moment asked) const {
  const Key& key = keys_[ref.index];
  return std::any_of(key.promises.begin(), key.promises.end(), [&](const Promise& promise) {
    return Holds(key, promise, asked) && !Damaged(key, promise);
  });
}

bool Model::MayHit(KeyRef ref, Moment asked) const {
  const Key& key = keys_[ref.index];
  return std::any_of(key.puts.begin(), key.puts.end(),
                     [&](const PutRecord& put) { return PutMayBeSeen(key, put, asked); });
}

bool Model::Matches(KeyRef ref, const PutRecord& put, PageForm form, const WireBlockReply& reply,
                    Bytes value) const {
  if (MatchesOne(ref, put, put.expected, form, reply, value)) return true;
  return !put.fresh.raw.empty() && !put.expected.refused &&
         MatchesOne(ref, put, put.fresh, form, reply, value);
}

bool Model::MatchesOne(KeyRef ref, const PutRecord& put, const Expected& expected, PageForm form,
                       const WireBlockReply& reply, Bytes value) const {
  if (expected.refused || reply.precision != expected.precision) return false;
  switch (form) {
    case PageForm::kRaw:
      return value == Bytes(expected.raw);
    case PageForm::kPacked:
      return value == Bytes(expected.payload);
    case PageForm::kPage:
      break;
  }
  if (CheckPage(value) != PageCheck::kOk) return false;
  const PageHeader header = LoadHeader(value);
  return header.key == block_key(ref) && header.token_count == put.shape.tokens &&
         header.payload_bytes == expected.payload.size() &&
         header.identity_prefix == layout(ref).binding.layout->hash().prefix64() &&
         value.subspan(kPageHeaderBytes, header.payload_bytes) == Bytes(expected.payload);
}

size_t Model::JudgeHit(KeyRef ref, Moment asked, PageForm form, const WireBlockReply& reply,
                       Bytes value) {
  ++hits_;
  Key& key = keys_[ref.index];
  key.last_hit = asked;
  if (MustHit(ref, asked)) ++durable_hits_;
  if (Xxh3(value) != reply.checksum) {
    context_->Fail(absl::StrCat(Name(ref), ": the reply's checksum is not that of the slot"));
    return 0;
  }
  const PutRecord* found = nullptr;
  for (size_t i = 0; i < key.puts.size(); ++i) {
    if (!Matches(ref, key.puts[i], form, reply, value)) continue;
    found = &key.puts[i];
    if (PutMayBeSeen(key, key.puts[i], asked)) return i;
  }
  const std::string where = absl::StrCat(" from ", ToString(reply.tier), ", form ",
                                         static_cast<int>(form), ", ", value.size(), " bytes");
  context_->Fail(
      found == nullptr
          ? absl::StrCat(Name(ref), ": a hit that nobody put", where)
          : absl::StrCat(Name(ref), ": a hit of bytes that were ",
                         found->state == PutState::kNotStored ? "refused" : "removed or replaced",
                         " before", where));
  return 0;
}

void Model::PromiseHitsSince(Moment since) {
  for (Key& key : keys_) {
    if (key.last_hit < since) continue;
    key.promises.push_back({.sent = since,
                            .written = 0,
                            .answered = Now(),
                            .answered_us = context_->clock.now_us(),
                            .survives_crash = true});
  }
}

void Model::JudgeLookupHit(KeyRef ref, Moment asked, const WireBlockReply& reply) {
  if (MayHit(ref, asked)) return;
  context_->Fail(
      absl::StrCat(Name(ref), ": look-up says ", ToString(reply.tier), " but nothing was stored"));
}

void Model::JudgeMiss(KeyRef ref, Moment asked, const char* question) {
  ++misses_;
  const Key& key = keys_[ref.index];
  bool damaged = false;
  for (const Promise& promise : key.promises) {
    if (!Holds(key, promise, asked)) continue;
    if (Damaged(key, promise)) {
      damaged = true;
      continue;
    }
    context_->Fail(absl::StrCat(Name(ref), ": ", question, " misses a page that was promised (",
                                promise.survives_crash ? "durable" : "pinned", " at ",
                                promise.answered_us, " us)"));
    return;
  }
  if (damaged) ++lost_to_damage_;
}

void Model::Pinned(KeyRef ref, Moment asked, uint64_t until_us) {
  // WHY not from the pin on: a page that lies on disk alone is pinned there, rotten or not.
  keys_[ref.index].promises.push_back({.sent = asked,
                                       .written = WrittenSince(keys_[ref.index], Need::kAny, asked),
                                       .answered = Now(),
                                       .answered_us = context_->clock.now_us(),
                                       .until_us = until_us,
                                       .survives_crash = false});
}

void Model::Unpinned(KeyRef ref) {
  std::erase_if(keys_[ref.index].promises,
                [](const Promise& promise) { return !promise.survives_crash; });
}

void Model::Crashed() {
  const Moment now = Now();
  last_crash_ = now;
  for (Key& key : keys_) {
    std::erase_if(key.promises, [](const Promise& promise) { return !promise.survives_crash; });
    for (PutRecord& put : key.puts) {
      if (put.state == PutState::kInFlight) put.state = PutState::kUnknown;
      // Whatever it was, it is over.
      put.answered = std::min(put.answered, now);
    }
    for (Removal& removal : key.removals) removal.answered = std::min(removal.answered, now);
  }
}

void Model::Excuse(KeyRef key) { keys_[key.index].excused = Now(); }
void Model::ExcuseAll() { all_excused_ = Now(); }

}  // namespace crumb::sim
