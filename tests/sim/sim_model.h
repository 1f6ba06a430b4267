// What the daemon promised, key by key, and the judgement of every answer. The model knows
// intervals (when a request was sent and answered), not the daemon's inside: an answer is wrong
// only if no order of the overlapping requests explains it.
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

struct PutRecord {
  uint64_t value_seed = 0;
  PutShape shape;
  bool durable_asked = false;
  PutState state = PutState::kInFlight;
  Moment sent = 0, answered = kNever;
  bool durable = false;  // the daemon said so
  Expected expected;
  Expected fresh;  // before it is demoted; empty: it is never raw for a while
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

class Model {
 public:
  Model(SimContext* context, const std::vector<SimLayout>* layouts, const ClusterSecret& secret,
        uint32_t keys);

  uint32_t key_count() const { return static_cast<uint32_t>(keys_.size()); }
  const SimLayout& layout(KeyRef key) const { return (*layouts_)[keys_[key.index].layout]; }
  uint32_t part(KeyRef key) const { return keys_[key.index].part; }
  const PartShape& shape(KeyRef key) const { return layout(key).part(part(key)); }
  const Digest& digest(KeyRef key) const { return keys_[key.index].digest; }
  const BlockKey& block_key(KeyRef key) const { return keys_[key.index].block_key; }
  const PutRecord& put(KeyRef key, size_t index) const { return keys_[key.index].puts[index]; }
  // Keys form chains; where a page stands in its chain, and the page before it (false: none).
  uint32_t position(KeyRef key) const { return key.index % kChainLength * kSimPageTokens; }
  static bool Parent(KeyRef key, KeyRef* parent) {
    parent->index = key.index - 1;
    return key.index % kChainLength != 0;
  }
  // False if no key of ours has that name.
  bool Find(const BlockKey& name, KeyRef* key) const;

  Moment Now() { return ++moment_; }

  // A put: the value to lay into memory comes back through `value`.
  size_t StartPut(KeyRef key, const PutShape& shape, bool durable, std::vector<uint8_t>* value);
  // A page that was got, put again as it is, or damaged: then it must be refused.
  enum class Page : uint8_t { kIntact, kDamaged };
  size_t StartPagePut(KeyRef key, size_t source, Page page, bool durable);
  void EndPut(KeyRef key, size_t put, BlockResult result);
  void LosePut(KeyRef key, size_t put);  // no answer will come

  size_t StartRemoval(KeyRef key);
  void EndRemoval(KeyRef key, size_t removal, bool done);

  // `asked`: when the request was sent. `value`: what lies in the slot, in `form`. Returns the put
  // that it came from; anything if the judgement was a failure.
  size_t JudgeHit(KeyRef key, Moment asked, PageForm form, const WireBlockReply& reply,
                  Bytes value);
  void JudgeLookupHit(KeyRef key, Moment asked, const WireBlockReply& reply);
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
  // While false, the log has thrown pages away to make room: durable pages may be gone.
  void set_log_keeps_all(bool keeps) { log_keeps_all_ = keeps; }

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
    uint32_t layout = 0;
    uint32_t part = 0;
    Digest digest;
    BlockKey block_key;
    std::vector<PutRecord> puts;
    std::vector<Removal> removals;
    std::vector<Promise> promises;
    Moment excused = 0;
    Moment last_hit = 0;
  };
  enum class Need : uint8_t { kAny, kDurable };
  Moment WrittenSince(const Key& key, Need need, Moment before) const;
  bool PutMayBeSeen(const Key& key, const PutRecord& put, Moment asked) const;
  // Untouched by removals, crashes and time; damage of the medium aside.
  bool Holds(const Key& key, const Promise& promise, Moment asked) const;
  bool Damaged(const Key& key, const Promise& promise) const {
    return std::max(key.excused, all_excused_) > promise.written;
  }
  std::string Name(KeyRef key) const;
  bool Matches(KeyRef key, const PutRecord& put, PageForm form, const WireBlockReply& reply,
               Bytes value) const;
  bool MatchesOne(KeyRef key, const PutRecord& put, const Expected& expected, PageForm form,
                  const WireBlockReply& reply, Bytes value) const;

  SimContext* const context_;
  const std::vector<SimLayout>* const layouts_;
  std::vector<Key> keys_;
  std::map<BlockKey, uint32_t> by_block_key_;
  Moment moment_ = 0;
  Moment all_excused_ = 0;
  Moment last_crash_ = 0;
  bool log_keeps_all_ = true;
  uint64_t next_value_;
  uint64_t hits_ = 0, misses_ = 0, durable_hits_ = 0, lost_to_damage_ = 0;
};

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_MODEL_H_
