// Bookkeeping of requests in flight. Bounded by requests_max; walks are over that bound.
#include "client/src/request_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "client/src/status_map.h"

namespace crumb::client {
namespace {

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

uint64_t BytesOf(const PlaneRequest& request) {
  if (request.type == WireType::kGet && request.form != PageForm::kRaw) {
    return request.blocks.size() * request.memory->spec().slot_bytes;  // not known yet
  }
  uint64_t sum = 0;
  for (const uint64_t bytes : request.raw_bytes) sum += bytes;
  return sum;
}

bool HasCancelled(const Completion& completion) {
  return std::any_of(completion.results.begin(), completion.results.end(),
                     [](const Result& result) { return result.code == Code::kCancelled; });
}

}  // namespace

RequestTable::RequestTable(const Bounds& bounds) : bounds_(bounds) {
  entries_.reserve(bounds.requests);
  spare_requests_.reserve(bounds.requests);
  spare_completions_.reserve(bounds.requests);
}

bool RequestTable::HasRoomFor(const PlaneRequest& request) const {
  const uint64_t wanted = BytesOf(request);
  return entries_.empty() || (bytes_ <= bounds_.bytes && wanted <= bounds_.bytes - bytes_);
}

std::shared_ptr<PlaneRequest> RequestTable::NewRequest() {
  // One that a plane still holds is left alone.
  while (!spare_requests_.empty()) {
    std::shared_ptr<PlaneRequest> request = std::move(spare_requests_.back());
    spare_requests_.pop_back();
    if (request.use_count() == 1) return request;
  }
  return std::make_shared<PlaneRequest>();
}

void RequestTable::Add(Entry entry) {
  CRUMB_CHECK(!full() && HasRoomFor(*entry.request));
  const uint64_t id = entry.request->id;
  entry.bytes = BytesOf(*entry.request);
  bytes_ += entry.bytes;
  next_give_up_us_ = std::min(next_give_up_us_, entry.give_up_us);
  CRUMB_CHECK(entries_.emplace(id, std::move(entry)).second);
}

void RequestTable::Forget(Map::iterator found) {
  Entry& entry = found->second;
  bytes_ -= entry.bytes;
  if (entry.orphan) --orphans_;
  if (spare_requests_.size() < bounds_.requests) {
    auto request = std::const_pointer_cast<PlaneRequest>(std::move(entry.request));
    request->memory.reset();
    spare_requests_.push_back(std::move(request));
  }
  entries_.erase(found);
}

Completion RequestTable::NewCompletion(uint64_t id, Code code, size_t blocks) {
  Completion completion;
  if (!spare_completions_.empty()) {
    completion = std::move(spare_completions_.back());
    spare_completions_.pop_back();
  }
  completion.ticket = id;
  completion.code = code;
  completion.prefix = 0;
  completion.results.clear();
  completion.results.resize(blocks);
  return completion;
}

void RequestTable::Recycle(std::vector<Completion>* completions) {
  for (Completion& completion : *completions) {
    if (spare_completions_.size() >= bounds_.requests) break;
    spare_completions_.push_back(std::move(completion));
  }
  completions->clear();
}

Completion RequestTable::Ended(uint64_t id, const Entry& entry, Code code) {
  Completion completion = NewCompletion(id, code, entry.request->blocks.size());
  for (Result& result : completion.results) result.code = code;
  return completion;
}

Result RequestTable::Judge(const Entry& entry, size_t block, const PlaneReply& from) {
  const PlaneRequest& request = *entry.request;
  const WireBlockReply& reply = from.blocks[block];
  Result result;
  result.code = CodeOf(reply.result);
  result.tier = static_cast<Tier>(std::min<uint8_t>(static_cast<uint8_t>(reply.tier), 4));
  result.precision =
      static_cast<Precision>(std::min<uint8_t>(static_cast<uint8_t>(reply.precision), 3));
  result.lossy_depth = reply.lossy_depth;
  if (result.code == Code::kNonFinite) result.note = NonFiniteNote(reply);
  if (request.type != WireType::kGet || result.code != Code::kOk) return result;
  result.value_bytes = reply.value_bytes;
  if (from.verified) return result;
  if (!request.MayHold(block, reply.value_bytes)) {
    result.code = Code::kCorrupt;
  } else if (request.verify && !request.memory->gpu() &&
             request.memory->Checksum(request.PlaceOf(block, reply.value_bytes), &scratch_) !=
                 reply.checksum) {
    result.code = Code::kCorrupt;
  }
  return result;
}

void RequestTable::Judge(const Entry& entry, const PlaneReply& reply, Completion* completion) {
  const size_t count = completion->results.size();
  // A lookup that stops at a gap may answer fewer blocks: the rest are misses.
  const bool may_be_short = entry.request->type == WireType::kLookup;
  const bool fits = reply.blocks.size() == count || (may_be_short && reply.blocks.size() < count);
  for (size_t i = 0; i < count; ++i) {
    if (!fits) {
      completion->results[i].code = Code::kCorrupt;
    } else if (i < reply.blocks.size()) {
      completion->results[i] = Judge(entry, i, reply);
      const bool told = i < reply.notes.size() && !reply.notes[i].empty();
      if (told) completion->results[i].note = reply.notes[i];
    }
  }
  CountPrefix(completion);
  if (may_be_short && completion->prefix > 0) {
    completion->raw_tail_tokens =
        static_cast<uint32_t>(reply.blocks[completion->prefix - 1].checksum);
  }
  if (entry.cancelled && HasCancelled(*completion)) completion->code = Code::kCancelled;
}

RequestTable::Answer RequestTable::Finish(const PlaneReply& reply, std::vector<Completion>* out) {
  const auto found = entries_.find(reply.id);
  if (found == entries_.end()) return Answer::kUnknown;
  const Entry& entry = found->second;
  const bool late = entry.orphan;
  if (!late) {
    Completion completion = NewCompletion(reply.id, Code::kOk, entry.request->blocks.size());
    Judge(entry, reply, &completion);
    out->push_back(std::move(completion));
  }
  Forget(found);
  return late ? Answer::kLate : Answer::kInTime;
}

void RequestTable::Expire(uint64_t now_us, std::vector<Completion>* out,
                          std::vector<uint64_t>* expired) {
  if (next_give_up_us() > now_us) return;
  next_give_up_us_ = UINT64_MAX;
  for (auto& [id, entry] : entries_) {
    if (entry.orphan) continue;
    if (entry.give_up_us > now_us) {
      next_give_up_us_ = std::min(next_give_up_us_, entry.give_up_us);
      continue;
    }
    out->push_back(Ended(id, entry, Code::kTimeout));
    expired->push_back(id);
    entry.orphan = true;
    ++orphans_;
  }
}

void RequestTable::Disown(uint64_t id) {
  const auto found = entries_.find(id);
  CRUMB_CHECK(found != entries_.end() && found->second.orphan);
  found->second.disowned = true;
}

bool RequestTable::MarkCancelled(uint64_t id) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.orphan) return false;
  found->second.cancelled = true;
  return true;
}

void RequestTable::FailAll(Code code, std::vector<Completion>* out) {
  for (const auto& [id, entry] : entries_) {
    if (!entry.orphan) out->push_back(Ended(id, entry, code));
  }
  entries_.clear();
  orphans_ = 0;
  bytes_ = 0;
  next_give_up_us_ = UINT64_MAX;
}

bool RequestTable::Owns(uint32_t region_set, uint32_t slot, bool only_orphans) const {
  for (const auto& [id, entry] : entries_) {
    if ((only_orphans && !entry.orphan) || entry.disowned) continue;
    if (entry.request->memory == nullptr || entry.request->region_set != region_set) continue;
    const std::vector<uint32_t>& slots = entry.request->slots;
    if (std::find(slots.begin(), slots.end(), slot) != slots.end()) return true;
  }
  return false;
}

bool RequestTable::OwnsRegionSet(uint32_t region_set) const {
  for (const auto& [id, entry] : entries_) {
    if (entry.disowned || entry.request->memory == nullptr) continue;
    if (entry.request->region_set == region_set) return true;
  }
  return false;
}

uint64_t RequestTable::oldest_us() const {
  uint64_t oldest = UINT64_MAX;
  for (const auto& [id, entry] : entries_) oldest = std::min(oldest, entry.submitted_us);
  return oldest;
}

}  // namespace crumb::client
