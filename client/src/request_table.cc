// Bookkeeping of requests in flight. Bounded by requests_max; walks are over that bound.
#include "client/src/request_table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "client/src/status_map.h"

namespace crumb::client {
namespace {

Completion Ended(uint64_t id, const RequestTable::Entry& entry, Code code) {
  Completion completion{.ticket = id, .code = code, .results = {}, .prefix = 0};
  completion.results.resize(entry.request->blocks.size());
  for (Result& result : completion.results) result.code = code;
  return completion;
}

std::string NonFiniteNote(const WireBlockReply& reply) {
  const PagePlace place = UnpackPlace(reply.checksum);
  return absl::StrCat("NaN or Inf in layer ", place.layer_id, " ", place.is_v ? "V" : "K",
                      ", head ", place.head, ", token ", place.token,
                      "; raw pages take it if the layout says keep_non_finite_raw");
}

void CountPrefix(Completion* completion) {
  for (const Result& result : completion->results) {
    if (result.code != Code::kOk && result.code != Code::kExists) return;
    ++completion->prefix;
  }
}

}  // namespace

void RequestTable::Add(Entry entry) {
  CRUMB_CHECK(!full());
  const uint64_t id = entry.request->id;
  CRUMB_CHECK(entries_.emplace(id, std::move(entry)).second);
}

Result RequestTable::Judge(const Entry& entry, size_t block, const WireBlockReply& reply) {
  const PlaneRequest& request = *entry.request;
  Result result;
  result.code = CodeOf(reply.result);
  result.tier = static_cast<Tier>(std::min<uint8_t>(static_cast<uint8_t>(reply.tier), 4));
  result.precision =
      static_cast<Precision>(std::min<uint8_t>(static_cast<uint8_t>(reply.precision), 3));
  result.lossy_depth = reply.lossy_depth;
  if (result.code == Code::kNonFinite) result.note = NonFiniteNote(reply);
  if (request.type != WireType::kGet || result.code != Code::kOk) return result;
  result.value_bytes = reply.value_bytes;
  const ValuePlace place{.part = request.blocks[block].part,
                         .slots = request.SlotsOf(block),
                         .bytes = reply.value_bytes,
                         .tokens = request.blocks[block].token_count};
  const bool length_fits =
      request.form != PageForm::kRaw || reply.value_bytes == request.raw_bytes[block];
  if (reply.value_bytes == 0 || !length_fits || !request.memory->Fits(place)) {
    result.code = Code::kCorrupt;
  } else if (entry.verify && request.memory->Checksum(place, &scratch_) != reply.checksum) {
    result.code = Code::kCorrupt;
  }
  return result;
}

bool RequestTable::Finish(const PlaneReply& reply, std::vector<Completion>* out) {
  const auto found = entries_.find(reply.id);
  if (found == entries_.end()) return false;
  const Entry& entry = found->second;
  if (entry.orphan) {
    --orphans_;
  } else {
    Completion completion{.ticket = reply.id, .code = Code::kOk, .results = {}, .prefix = 0};
    const size_t count = entry.request->blocks.size();
    completion.results.resize(count);
    // A lookup that stops at a gap may answer fewer blocks: the rest are misses.
    const bool may_be_short = entry.request->type == WireType::kLookup;
    const bool fits = reply.blocks.size() == count || (may_be_short && reply.blocks.size() < count);
    for (size_t i = 0; i < count; ++i) {
      if (!fits) {
        completion.results[i].code = Code::kCorrupt;
      } else if (i < reply.blocks.size()) {
        completion.results[i] = Judge(entry, i, reply.blocks[i]);
        const bool told = i < reply.notes.size() && !reply.notes[i].empty();
        if (told) completion.results[i].note = reply.notes[i];
      }
    }
    CountPrefix(&completion);
    out->push_back(std::move(completion));
  }
  entries_.erase(found);
  return true;
}

void RequestTable::Expire(uint64_t now_us, std::vector<Completion>* out) {
  if (next_give_up_us() > now_us) return;
  for (auto& [id, entry] : entries_) {
    if (entry.orphan || entry.give_up_us > now_us) continue;
    out->push_back(Ended(id, entry, Code::kTimeout));
    entry.orphan = true;
    ++orphans_;
  }
}

void RequestTable::FailAll(Code code, std::vector<Completion>* out) {
  for (const auto& [id, entry] : entries_) {
    if (!entry.orphan) out->push_back(Ended(id, entry, code));
  }
  entries_.clear();
  orphans_ = 0;
}

bool RequestTable::Owns(uint32_t region_set, uint32_t slot, bool only_orphans) const {
  for (const auto& [id, entry] : entries_) {
    if (only_orphans && !entry.orphan) continue;
    if (entry.request->memory == nullptr || entry.request->region_set != region_set) continue;
    const std::vector<uint32_t>& slots = entry.request->slots;
    if (std::find(slots.begin(), slots.end(), slot) != slots.end()) return true;
  }
  return false;
}

bool RequestTable::OwnsRegionSet(uint32_t region_set) const {
  for (const auto& [id, entry] : entries_) {
    if (entry.request->memory != nullptr && entry.request->region_set == region_set) return true;
  }
  return false;
}

uint64_t RequestTable::next_give_up_us() const {
  uint64_t next = std::numeric_limits<uint64_t>::max();
  for (const auto& [id, entry] : entries_) {
    if (!entry.orphan) next = std::min(next, entry.give_up_us);
  }
  return next;
}

uint64_t RequestTable::oldest_us() const {
  uint64_t oldest = std::numeric_limits<uint64_t>::max();
  for (const auto& [id, entry] : entries_) oldest = std::min(oldest, entry.submitted_us);
  return oldest;
}

}  // namespace crumb::client
