// Lives and damages of one daemon.
#include "tests/sim/sim_node.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/page_header.h"
#include "storage/segment/log_format.h"
#include "storage/segment/log_head.h"

namespace crumb::sim {
namespace {

constexpr int kStartsMax = 4;
constexpr uint64_t kRecordBlocksMax = 8;

}  // namespace

SimNode::SimNode(SimContext* context, const SimOptions& options, const SwarmPlan& plan,
                 uint32_t number, KeySpace* space)
    : context_(context),
      options_(options),
      number_(number),
      plan_(plan.daemons[number]),
      secret_(plan.secret),
      crash_in_recovery_(plan.faults.crash_in_recovery),
      disk_(plan_.disk_bytes),
      model_(context, space) {
  model_.set_max_lossy_depth(plan_.max_lossy_depth);
}

SimNode::~SimNode() = default;

bool SimNode::Start() {
  for (int attempt = 0; attempt < kStartsMax && !context_->failed(); ++attempt) {
    DaemonPlan plan = plan_;
    if (crash_in_recovery_ && attempt + 1 < kStartsMax) {
      plan.cut_power_after = context_->rng.Below(60);
    }
    context_->trace.Add("start", number_, static_cast<uint64_t>(attempt));
    daemon_ = SimDaemon::Start(context_, &disk_, plan, options_, secret_);
    if (daemon_ == nullptr) continue;
    ++life_;
    ++lives_;
    paused_until_us_ = 0;
    stats_ = daemon_->engine().stats();
    sums_.recovered += stats_.nvme.recovered;
    UpdateKeeps();
    if (SimBlockDevice* device = daemon_->device(); device != nullptr) {
      device->set_on_error([this](const IoRequest& request) { NoteDamage(request); });
      device->set_on_overwrite(
          [this](uint64_t offset, uint32_t bytes) { NoteOverwrite(offset, bytes); });
      device->SetErrors(plan_.device);
    }
    return true;
  }
  return false;
}

void SimNode::End() {
  stats_ = daemon_->engine().stats();
  UpdateKeeps();
  Absorb();
  daemon_.reset();
  flushes_in_flight_ = 0;
  model_.Crashed();
}

void SimNode::Absorb() {
  const SegmentLogStats& nvme = stats_.nvme;
  sums_.nvme_hits += stats_.hits[static_cast<size_t>(Tier::kNvme)];
  sums_.evictions += stats_.evicted_to_nvme + stats_.evicted_dropped;
  sums_.reclaimed += nvme.segments_reclaimed;
  sums_.promoted += stats_.promoted;
  for (const uint64_t demotions : stats_.demotions) sums_.demotions += demotions;
  sums_.corrupt_counted += nvme.checksum_failures + nvme.dropped_checksum + nvme.dropped_torn +
                           nvme.dropped_format + nvme.dropped_stamp + nvme.read_errors +
                           nvme.append_errors + stats_.checksum_failures_nvme;
  given_up_ += nvme.segments_reclaimed + nvme.segments_quarantined;
}

// What durable pages may be gone for. A full index forgets pages too.
void SimNode::UpdateKeeps() {
  const SegmentLogStats& nvme = stats_.nvme;
  if (stats_.index_entries >= plan_.limits.index_entries_max) index_was_full_ = true;
  const uint64_t gone = given_up_ + nvme.segments_reclaimed + nvme.segments_quarantined;
  model_.set_keeps_all(gone == 0 && !index_was_full_);
}

int SimNode::Turn() {
  if (!runs()) return 0;
  const int work = daemon_->Turn(&stats_);
  UpdateKeeps();
  return work;
}

uint64_t SimNode::next_us() const {
  if (daemon_->dead()) return UINT64_MAX;
  const uint64_t timer = daemon_->engine().next_timer_us();
  return timer == UINT64_MAX ? timer : std::max(timer, paused_until_us_);
}

void SimNode::Flush(bool everything) {
  KeySpace& space = model_.space();
  const SimLayout& layout = (*options_.layouts)[context_->rng.Below(options_.layouts->size())];
  FlushRequest request;
  if (!everything) {
    request.has_identity = true;
    request.identity = layout.binding.layout->hash();
  }
  std::vector<std::pair<KeyRef, size_t>> removals;
  for (uint32_t i = 0; i < space.count(); ++i) {
    const KeyRef key{i};
    if (!everything && &space.layout(key) != &layout) continue;
    removals.emplace_back(key, model_.StartRemoval(key));
  }
  context_->trace.Add("flush", number_, everything ? 0 : layout.handle);
  ++flushes_in_flight_;
  daemon_->engine().Flush(
      request, [this, life = life_, removals = std::move(removals)](const absl::Status& status) {
        CRUMB_CHECK(life == life_);
        context_->trace.Add("flushed", number_, static_cast<uint64_t>(status.raw_code()));
        --flushes_in_flight_;
        for (const auto& [key, removal] : removals) model_.EndRemoval(key, removal, status.ok());
      });
}

void SimNode::BeginStop() {
  stop_since_ = model_.Now();
  fresh_dropped_ = daemon_->engine().stats().fresh_dropped;
}

// WHY nothing if a fresh page was dropped: a get that raises its page may have pushed out one that
// was hit before. A page that is in memory alone is no promise, and a fresh one for which no slot
// can be had is forgotten (docs/windows.md), which this counter says.
void SimNode::PromiseHits() {
  const EngineStats stats = daemon_->engine().stats();
  const bool keeps = plan_.admission == NvmeAdmission::kAll && plan_.upkeep.save &&
                     plan_.upkeep.write_bytes_per_day == 0 && stats.fresh_dropped == fresh_dropped_;
  if (daemon_->has_log() && keeps && stats.nvme.times_off == 0 && stats.nvme.append_errors == 0) {
    model_.PromiseHitsSince(stop_since_);
  }
}

// A log whose superblocks are both destroyed is refused, and left as it was: there is no next life
// to look at (docs/storage.md, "Start").
absl::StatusOr<LogHead> SimNode::Head() const {
  std::vector<uint8_t> bytes(kLogHeadBytes);
  disk_.ReadStable(0, absl::MakeSpan(bytes));
  return ParseHead(bytes);
}

// The log's own structures have two copies, and outlive what happens to one of them.
bool SimNode::CopiesAreKnown(uint64_t block, Bytes before) const {
  const absl::StatusOr<LogHead> head = Head();
  if (!head.ok() || head->blank) return false;
  const LogSalt& salt = head->superblock.salt;
  TombstoneBlock tombstones;
  if (ParseTombstones(before, salt, &tombstones) != ParseResult::kOk) return true;
  std::array<uint8_t, kSimBlockBytes> now;
  disk_.ReadStable(block * kSimBlockBytes, absl::MakeSpan(now));
  return ParseTombstones(now, salt, &tombstones) == ParseResult::kOk;
}

void SimNode::Rot() {
  const std::vector<uint64_t>& blocks = disk_.DurableBlocks();
  if (blocks.empty()) return;
  const uint64_t first = blocks[context_->rng.Below(blocks.size())];
  std::array<uint8_t, kSimBlockBytes> block;
  disk_.Read(first * kSimBlockBytes, absl::MakeSpan(block));
  const PageHeader header = LoadHeader(block);
  KeyRef key;
  if (CheckHeaderFields(header) == PageCheck::kOk && StampIsValid(header) &&
      model_.space().Find(header.key, &key)) {
    const uint64_t bit = context_->rng.Below((kPageHeaderBytes + header.payload_bytes) * 8);
    const uint64_t victim = first + bit / 8 / kSimBlockBytes;
    if (!disk_.FlipBit(victim, static_cast<uint32_t>(bit % (8ull * kSimBlockBytes)))) return;
    model_.Excuse(key);
    context_->trace.Add("rot of a page", victim, key.index);
  } else if (context_->rng.Chance(1, 4)) {
    const auto bit = static_cast<uint32_t>(context_->rng.Below(8ull * kSimBlockBytes));
    if (!disk_.FlipBit(first, bit)) return;
    if (!CopiesAreKnown(first, block)) {
      CRUMB_CHECK(disk_.FlipBit(first, bit));
      return;
    }
    model_.ExcuseAll();
    context_->trace.Add("rot", first);
  } else {
    return;
  }
  ++sums_.damaged;
}

bool SimNode::ExcuseHeader(Bytes block) {
  const PageHeader header = LoadHeader(block);
  KeyRef key;
  if (header.magic != kPageMagic || !model_.space().Find(header.key, &key)) return false;
  model_.Excuse(key);
  return true;
}

// The device did not do this request as it should have: the pages in it may be lost.
void SimNode::NoteDamage(const IoRequest& request) {
  ++sums_.damaged;
  context_->trace.Add("device error", static_cast<uint64_t>(request.op), request.offset);
  if (request.op == IoOp::kSync) return model_.ExcuseAll();
  std::vector<uint8_t> data(request.bytes);
  disk_.Read(request.offset, absl::MakeSpan(data));
  if (request.op != IoOp::kRead) std::copy_n(request.data, request.bytes, data.begin());
  bool found = false;
  for (size_t at = 0; at < data.size(); at += kSimBlockBytes) {
    if (ExcuseHeader(Bytes(data).subspan(at))) found = true;
  }
  if (!found) model_.ExcuseAll();
}

// Records that begin in the range or shortly before it lose something; of those that the medium
// holds below what was not synced yet as well.
void SimNode::NoteOverwrite(uint64_t offset, uint32_t bytes) {
  std::array<uint8_t, kSimBlockBytes> block;
  const uint64_t before = std::min(offset, kRecordBlocksMax * kSimBlockBytes);
  for (uint64_t at = offset - before; at < offset + bytes; at += kSimBlockBytes) {
    disk_.Read(at, absl::MakeSpan(block));
    ExcuseHeader(block);
    disk_.ReadStable(at, absl::MakeSpan(block));
    ExcuseHeader(block);
  }
}

void SimNode::CheckCounters() {
  // A write that the device lost in a segment that was never sealed leaves nothing to count.
  if (plan_.device.lies() || model_.lost_to_damage() == 0 || sums_.corrupt_counted > 0) return;
  context_->Fail("pages were lost to damage of the disk, but no counter says so");
}

void SimNode::AddTo(SimResult* result) const {
  result->hits += model_.hits();
  result->misses += model_.misses();
  result->promised_hits += model_.durable_hits();
  result->nvme_hits += sums_.nvme_hits;
  result->evictions += sums_.evictions;
  result->reclaimed += sums_.reclaimed;
  result->recovered += sums_.recovered;
  result->promoted += sums_.promoted;
  result->demotions += sums_.demotions;
  result->damaged += sums_.damaged;
  result->corrupt_counted += sums_.corrupt_counted;
  result->lives += lives_;
}

}  // namespace crumb::sim
