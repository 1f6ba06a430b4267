// What one daemon promised, key by key, and the judgement of every answer of it. The model knows
// intervals (when a request was sent and answered), not the daemon's inside: an answer is wrong
// only if no order of the overlapping requests explains it. All daemons of a simulation share one
// KeySpace: who holds what differs, what a key may hold does not.
#ifndef CRUMB_TESTS_SIM_SIM_MODEL_H_
#define CRUMB_TESTS_SIM_SIM_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cachesvc/base/keys.h"
#include "cachesvc/base/wire.h"
#include "tests/sim/sim_core.h"
#include "tests/sim/sim_layouts.h"

namespace crumb::sim {

// Logical time of the model: every question and answer has its own.
using Moment = uint64_t;
inline constexpr Moment kNever = UINT64_MAX;

inline constexpr uint32_t kChainLength = 12;

struct KeyRef {
  uint32_t index = 0;
  friend bool operator==(const KeyRef&, const KeyRef&) = default;
};

enum class PutState : uint8_t { kInFlight, kStored, kNotStored, kUnknown };

// What was put, whoever it was given to.
struct Image {
  PutShape shape;
  Provenance provenance = Provenance::kPrefill;
  Expected expected;
  Expected fresh;  // before it is demoted; raw_bytes 0: it is never raw for a while
};

struct PutRecord {
  Image image;
  bool durable_asked = false;
  PutState state = PutState::kInFlight;
  Moment sent = 0, answered = kNever;
  bool durable = false;              // the daemon said so
  bool depth_known = false;          // and how lossy the page's context is
  uint8_t depth = 0, depth_min = 0;  // depth_min: what the worker that put it had been served
};

// Pages of a key are gone from some moment in here on: delete, flush.
struct Removal {
  Moment sent = 0, answered = kNever;
  bool done = false;  // the daemon said so
};

// From `answered` on the key must be found until something removes it.
struct Promise {
  Moment sent = 0, written = 0, answered = 0;
  uint64_t answered_us = 0;        // for people
  uint64_t until_us = UINT64_MAX;  // pins end
  bool survives_crash = false;     // pins do not
};

// The keys of a simulation, and every value that was ever put anywhere.
class KeySpace {
 public:
  KeySpace(SimContext* context, const std::vector<SimLayout>* layouts, const ClusterSecret& secret,
           uint32_t keys);

  uint32_t count() const { return static_cast<uint32_t>(keys_.size()); }
  const SimLayout& layout(KeyRef key) const { return (*layouts_)[keys_[key.index].layout]; }
  uint32_t part(KeyRef key) const { return keys_[key.index].part; }
  const PartShape& shape(KeyRef key) const { return layout(key).part(part(key)); }
  const Digest& digest(KeyRef key) const { return keys_[key.index].digest; }
  const BlockKey& block_key(KeyRef key) const { return keys_[key.index].block_key; }
  // Keys form chains; where a page stands in its chain, and the page before it (false: none).
  uint32_t position(KeyRef key) const { return key.index % kChainLength * kSimPageTokens; }
  static bool Parent(KeyRef key, KeyRef* parent) {
    parent->index = key.index - 1;
    return key.index % kChainLength != 0;
  }
  // False if no key of ours has that name.
  bool Find(const BlockKey& name, KeyRef* key) const;
  std::string Name(KeyRef key) const;

  // A new value of `key`, unlike any other.
  Image MakeImage(KeyRef key, const PutShape& shape, std::vector<uint8_t>* value);
  // For the words of a failure: whose bytes those are, if anybody's.
  std::string WhoseBytes(KeyRef asked, uint64_t hash) const;

 private:
  struct Key {
    uint32_t layout = 0;
    uint32_t part = 0;
    Digest digest;
    BlockKey block_key;
  };
  void Note(KeyRef key, const Expected& expected);

  const std::vector<SimLayout>* const layouts_;
  std::vector<Key> keys_;
  std::map<BlockKey, uint32_t> by_block_key_;
  std::map<uint64_t, uint32_t> owners_;  // of payloads and raw pages, by hash
  uint64_t next_value_;
};

class Model {
 public:
  Model(SimContext* context, KeySpace* space) : context_(context), space_(*space) {
    keys_.resize(space->count());
  }

  KeySpace& space() const { return space_; }
  uint32_t key_count() const { return space_.count(); }
  const PutRecord& put(KeyRef key, size_t index) const { return keys_[key.index].puts[index]; }

  Moment Now() { return ++moment_; }

  // A put of an image under its key. `depth_min`: as deep as that it must be called lossy.
  size_t StartPut(KeyRef key, Image image, bool durable, uint8_t depth_min = 0);
  // Of a page that was got somewhere, as it is, or damaged: then it must be refused.
  size_t StartPagePut(KeyRef key, const PutRecord& source, bool damaged, bool durable);
  void EndPut(KeyRef key, size_t put, const WireBlockReply& reply);
  void LosePut(KeyRef key, size_t put);  // no answer will come

  size_t StartRemoval(KeyRef key);
  void EndRemoval(KeyRef key, size_t removal, bool done);

  // `asked`: when the request was sent. `value`: what lies in the slot, in `form`. Returns the put
  // that it came from; anything if the judgement was a failure.
  size_t JudgeHit(KeyRef key, Moment asked, PageForm form, const WireBlockReply& reply,
                  Bytes value);
  void JudgeLookupHit(KeyRef key, Moment asked, const WireBlockReply& reply, const char* question);
  void JudgeMiss(KeyRef key, Moment asked, const char* question);

  void Pinned(KeyRef key, Moment asked, uint64_t until_us);
  void Unpinned(KeyRef key);
  // The daemon is about to stop in good order: what was hit since then will be there again.
  void PromiseHitsSince(Moment since);
  // The daemon lost its memory. What was in flight has no answer.
  void Crashed();
  // The medium was damaged there: the page may be lost (never wrong).
  void Excuse(KeyRef key);
  void ExcuseAll();
  // While false, pages were thrown away to make room on disk or in the index: durable ones too.
  void set_keeps_all(bool keeps) { keeps_all_ = keeps; }
  // Pages with a deeper chain of lossy pages behind them are misses.
  void set_max_lossy_depth(uint8_t depth) { max_lossy_depth_ = depth; }

  // True if the key must be found now.
  bool MustHit(KeyRef key, Moment asked) const;
  // True if some answer to a get could be a hit.
  bool MayHit(KeyRef key, Moment asked) const;
  uint64_t hits() const { return hits_; }
  uint64_t misses() const { return misses_; }
  // Misses that only damage of the medium explains.
  uint64_t lost_to_damage() const { return lost_to_damage_; }
  uint64_t durable_hits() const { return durable_hits_; }

 private:
  struct Key {
    std::vector<PutRecord> puts;
    std::vector<Removal> removals;
    std::vector<Promise> promises;
    Moment excused = 0;
    Moment last_hit = 0;
  };
  enum class Need : uint8_t { kAny, kDurable };
  Moment WrittenSince(const Key& key, Need need, Moment before) const;
  bool PutMayBeSeen(const Key& key, const PutRecord& put, Moment asked) const;
  bool MayBeDeep(const Key& key) const;
  // Untouched by removals, crashes and time; damage of the medium aside.
  bool Holds(const Key& key, const Promise& promise, Moment asked) const;
  bool Damaged(const Key& key, const Promise& promise) const {
    return std::max(key.excused, all_excused_) > promise.written;
  }
  std::string Name(KeyRef key) const { return space_.Name(key); }
  struct Answer {
    PageForm form = PageForm::kRaw;
    const WireBlockReply& reply;
    Bytes value;
  };
  bool Matches(KeyRef key, const Image& image, const Answer& answer) const;
  bool MatchesOne(KeyRef key, const Image& image, const Expected& expected,
                  const Answer& answer) const;
  void JudgeDepth(KeyRef key, const PutRecord& put, const WireBlockReply& reply);

  SimContext* const context_;
  KeySpace& space_;
  std::vector<Key> keys_;
  Moment moment_ = 0;
  Moment all_excused_ = 0;
  Moment last_crash_ = 0;
  bool keeps_all_ = true;
  uint8_t max_lossy_depth_ = 255;
  uint64_t hits_ = 0, misses_ = 0, durable_hits_ = 0, lost_to_damage_ = 0;
};

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_MODEL_H_
