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

KeySpace::KeySpace(SimContext* context, const std::vector<SimLayout>* layouts,
                   const ClusterSecret& secret, uint32_t keys)
    : layouts_(layouts), next_value_(context->rng.Next()) {
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

bool KeySpace::Find(const BlockKey& name, KeyRef* key) const {
  const auto found = by_block_key_.find(name);
  if (found == by_block_key_.end()) return false;
  key->index = found->second;
  return true;
}

std::string KeySpace::Name(KeyRef key) const {
  return absl::StrCat("key ", key.index, " (layout ", layout(key).handle, ", part ", part(key),
                      ", ", Hex(block_key(key).bytes), ")");
}

Image KeySpace::MakeImage(KeyRef key, const PutShape& put_shape, std::vector<uint8_t>* value) {
  Image image{.shape = put_shape, .expected = {}, .fresh = {}};
  *value = MakeValue(shape(key), put_shape, next_value_++);
  image.expected = Reference(layout(key), part(key), put_shape, *value);
  const WindowPolicy& windows = layout(key).binding.windows;
  if (windows.on && put_shape.position_known && !image.expected.refused) {
    image.fresh = RawReference(layout(key), part(key), put_shape, *value);
    if (position(key) < windows.sink_tokens)
      image.expected = image.fresh;  // and nothing else, ever
  }
  Note(key, image.expected);
  Note(key, image.fresh);
  return image;
}

void KeySpace::Note(KeyRef key, const Expected& expected) {
  if (expected.raw_bytes == 0) return;
  owners_[expected.raw_hash] = key.index;
  owners_[expected.payload_hash] = key.index;
}

std::string KeySpace::WhoseBytes(KeyRef asked, uint64_t hash) const {
  const auto owner = owners_.find(hash);
  if (owner == owners_.end()) return "bytes of nobody";
  if (owner->second == asked.index) return "bytes that another daemon was given for this key";
  return absl::StrCat("the bytes of ", Name({owner->second}));
}

size_t Model::StartPut(KeyRef ref, Image image, bool durable, uint8_t depth_min) {
  PutRecord put;
  put.image = std::move(image);
  put.durable_asked = durable;
  put.sent = Now();
  put.depth_min = depth_min;
  keys_[ref.index].puts.push_back(std::move(put));
  return keys_[ref.index].puts.size() - 1;
}

size_t Model::StartPagePut(KeyRef ref, const PutRecord& source, bool damaged, bool durable) {
  PutRecord put;
  put.image = source.image;
  put.image.expected.refused = damaged;
  put.durable_asked = durable;
  put.sent = Now();
  put.depth_known = source.depth_known;
  put.depth = source.depth;
  put.depth_min = source.depth_min;
  keys_[ref.index].puts.push_back(std::move(put));
  return keys_[ref.index].puts.size() - 1;
}

void Model::EndPut(KeyRef ref, size_t index, const WireBlockReply& reply) {
  Key& key = keys_[ref.index];
  PutRecord& put = key.puts[index];
  const BlockResult result = reply.result;
  put.answered = Now();
  // kExists is a success whose bytes were not needed; kNotDurable says that the key holds
  // something, maybe these bytes; everything else leaves no trace.
  const bool stored = result == BlockResult::kOk;
  if (put.image.expected.refused && stored) {
    context_->Fail(absl::StrCat(Name(ref), ": a page that must be refused was stored"));
  }
  if (stored) {
    JudgeDepth(ref, put, reply);
    put.depth_known = true;
    put.depth = reply.lossy_depth;
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

// A page computed from lossy pages is lossy, and stays as lossy as it was called.
void Model::JudgeDepth(KeyRef ref, const PutRecord& put, const WireBlockReply& reply) {
  if (reply.lossy_depth < put.depth_min) {
    context_->Fail(absl::StrCat(Name(ref), ": called ", reply.lossy_depth,
                                " lossy pages deep, but was computed from a lossy one"));
  }
  if (put.depth_known && reply.lossy_depth != put.depth) {
    context_->Fail(absl::StrCat(Name(ref), ": called ", reply.lossy_depth,
                                " lossy pages deep, before it was ", put.depth));
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

// Whether a put may have brought a page that is too deep to be found.
bool Model::MayBeDeep(const Key& key) const {
  if (max_lossy_depth_ == 255) return false;
  return std::any_of(key.puts.begin(), key.puts.end(), [this](const PutRecord& put) {
    const bool fine = put.depth_known && put.depth <= max_lossy_depth_;
    return put.state != PutState::kNotStored && !fine;
  });
}

bool Model::Holds(const Key& key, const Promise& promise, Moment asked) const {
  if (MayBeDeep(key)) return false;
  if (promise.answered > asked || promise.until_us <= context_->clock.now_us()) return false;
  // WHY for pins too: a page that is only on disk is pinned there.
  if (!keeps_all_) return false;
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

bool Model::Matches(KeyRef ref, const Image& image, const Answer& answer) const {
  if (MatchesOne(ref, image, image.expected, answer)) return true;
  return !image.expected.refused && MatchesOne(ref, image, image.fresh, answer);
}

bool Model::MatchesOne(KeyRef ref, const Image& image, const Expected& expected,
                       const Answer& answer) const {
  if (expected.refused || expected.raw_bytes == 0) return false;
  if (answer.reply.precision != expected.precision) return false;
  const Bytes value = answer.value;
  // That the reply's checksum is the value's is known here.
  if (answer.form == PageForm::kRaw) {
    return value.size() == expected.raw_bytes && answer.reply.checksum == expected.raw_hash;
  }
  if (answer.form == PageForm::kPacked) {
    return value.size() == expected.payload_bytes && answer.reply.checksum == expected.payload_hash;
  }
  if (CheckPage(value) != PageCheck::kOk) return false;
  const PageHeader header = LoadHeader(value);
  return header.key == space_.block_key(ref) && header.token_count == image.shape.tokens &&
         header.payload_bytes == expected.payload_bytes && header.provenance == image.provenance &&
         header.lossy_depth == answer.reply.lossy_depth &&
         header.identity_prefix == space_.layout(ref).binding.layout->hash().prefix64() &&
         Xxh3(value.subspan(kPageHeaderBytes, header.payload_bytes)) == expected.payload_hash;
}

size_t Model::JudgeHit(KeyRef ref, Moment asked, PageForm form, const WireBlockReply& reply,
                       Bytes value) {
  ++hits_;
  Key& key = keys_[ref.index];
  key.last_hit = asked;
  if (MustHit(ref, asked)) ++durable_hits_;
  const uint64_t hash = Xxh3(value);
  if (hash != reply.checksum) {
    context_->Fail(absl::StrCat(Name(ref), ": the reply's checksum is not that of the slot"));
    return 0;
  }
  if (reply.lossy_depth > max_lossy_depth_) {
    context_->Fail(absl::StrCat(Name(ref), ": a hit ", reply.lossy_depth, " lossy pages deep"));
  }
  const Answer answer{.form = form, .reply = reply, .value = value};
  const PutRecord* found = nullptr;
  for (size_t i = 0; i < key.puts.size(); ++i) {
    if (!Matches(ref, key.puts[i].image, answer)) continue;
    found = &key.puts[i];
    if (!PutMayBeSeen(key, key.puts[i], asked)) continue;
    JudgeDepth(ref, key.puts[i], reply);
    return i;
  }
  const std::string where = absl::StrCat(" from ", ToString(reply.tier), ", form ",
                                         static_cast<int>(form), ", ", value.size(), " bytes");
  context_->Fail(
      found == nullptr
          ? absl::StrCat(Name(ref), ": a hit that nobody put", where, ": ",
                         space_.WhoseBytes(ref, hash))
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

void Model::JudgeLookupHit(KeyRef ref, Moment asked, const WireBlockReply& reply,
                           const char* question) {
  if (reply.lossy_depth > max_lossy_depth_) {
    context_->Fail(absl::StrCat(Name(ref), ": ", question, " finds a page ", reply.lossy_depth,
                                " lossy pages deep"));
  }
  if (MayHit(ref, asked)) return;
  context_->Fail(absl::StrCat(Name(ref), ": ", question, " says ", ToString(reply.tier),
                              " but nothing was stored"));
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
