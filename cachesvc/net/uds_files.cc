// The daemon's half of lending: files are mapped, regions resolved to addresses of this process,
// and held while something copies. A range is followed only after the common check of all
// transports.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/check.h"
#include "cachesvc/net/frames.h"
#include "cachesvc/net/uds_core.h"

namespace crumb {

void UdsCore::Accept(UdsPeerRecord* peer, const UdsFrame& frame, int fd) {
  const bool twice = std::any_of(peer->files.begin(), peer->files.end(),
                                 [&](uint32_t file) { return files_[file].name == frame.file; });
  if (twice) return Malformed(peer);
  if (frame.kind == UdsFrameKind::kLendGpu) return gpu.Accept(peer, frame, fd);
  const UdsRefusal refusal = MapFile(peer, frame, fd);
  if (refusal != UdsRefusal::kNone) ++uds_stats.files_refused;
  AnswerLend(peer, frame.file, refusal);
}

void UdsCore::AnswerLend(UdsPeerRecord* peer, uint64_t file, UdsRefusal refusal) {
  const UdsFrameBytes answer = MakeUdsFrame(
      {.kind = UdsFrameKind::kLent, .file = file, .value = static_cast<uint64_t>(refusal)});
  // One that lends without end and reads no answers.
  if (QueueFrame(peer, answer.span(), {}) == BlockResult::kBusy) Malformed(peer);
}

UdsRefusal UdsCore::MapFile(UdsPeerRecord* peer, const UdsFrame& frame, int fd) {
  const uint64_t left = options_.mapped_bytes_per_peer_max - peer->mapped_bytes;
  if (peer->files.size() >= options_.files_per_peer_max || frame.value > left) {
    return UdsRefusal::kTooMany;
  }
  if (fd < 0) return UdsRefusal::kNoMapping;  // no descriptor was left to take it
  UdsMapping mapping;
  const UdsRefusal refusal = UdsMap(fd, frame.value, &mapping);
  if (refusal != UdsRefusal::kNone) return refusal;
  (void)NewFile(peer, frame.file, mapping);
  ++uds_stats.files_mapped;
  uds_stats.bytes_mapped += mapping.bytes;
  return UdsRefusal::kNone;
}

uint32_t UdsCore::NewFile(UdsPeerRecord* peer, uint64_t name, const UdsMapping& mapping) {
  if (free_files_.empty()) {
    free_files_.push_back(static_cast<uint32_t>(files_.size()));
    files_.emplace_back();
  }
  const uint32_t index = free_files_.back();
  free_files_.pop_back();
  UdsFile& file = files_[index];
  file = UdsFile{.used = true,
                 .lent = true,
                 .name = name,
                 .generation = file.generation + 1,
                 .holds = 0,
                 .mapping = mapping,
                 .gpu = nullptr};
  peer->files.push_back(index);
  peer->mapped_bytes += mapping.bytes;
  return index;
}

void UdsCore::ForgetFile(UdsPeerRecord* peer, uint64_t name) {
  const auto found = std::find_if(peer->files.begin(), peer->files.end(),
                                  [&](uint32_t file) { return files_[file].name == name; });
  if (found == peer->files.end()) return Malformed(peer);
  const uint32_t file = *found;
  const UdsGpuFile* memory = files_[file].gpu.get();
  if (memory != nullptr && memory->pending) return Malformed(peer);  // it had no answer yet
  for (UdsSet& set : peer->sets) {
    const auto& named = set.gpu_files;
    if (std::find(named.begin(), named.end(), file) != named.end()) set.link = nullptr;
  }
  peer->files.erase(found);
  peer->mapped_bytes -= files_[file].mapping.bytes;
  files_[file].lent = false;
  UnmapIfUnused(file);
}

void UdsCore::ForgetAllFiles(UdsPeerRecord* peer) {
  gpu.DropWaiting(*peer);
  for (const uint32_t file : peer->files) {
    files_[file].lent = false;
    UnmapIfUnused(file);
  }
  peer->files.clear();
  peer->sets.clear();
}

void UdsCore::UnmapIfUnused(uint32_t index) {
  UdsFile& file = files_[index];
  if (file.lent || file.holds > 0) return;
  if (file.gpu != nullptr) {
    if (file.gpu->pending) return;  // until the mapper has answered
    gpu.Unmap(&file);
  } else {
    UnmapElsewhere(file.mapping);
    --uds_stats.files_mapped;
    uds_stats.bytes_mapped -= file.mapping.bytes;
  }
  file.used = false;
  file.mapping = {};
  free_files_.push_back(index);
}

absl::Status UdsCore::Resolve(const UdsPeerRecord& peer, const RegionSet& set, UdsSet* out) const {
  for (const Region& region : set.spec().regions) {
    CRUMB_ASSIGN(const RkeyFrame key, ParseRkey(AsBytes(region.rkey)));
    UdsRkey place;
    if (key.address != region.address || key.bytes != region.bytes ||
        !ParseUdsRkey(key.key, &place)) {
      return absl::InvalidArgumentError("a region's key does not belong to it: lend it again");
    }
    const auto found = std::find_if(peer.files.begin(), peer.files.end(),
                                    [&](uint32_t file) { return files_[file].name == place.file; });
    if (found == peer.files.end() ||
        (files_[*found].gpu != nullptr && files_[*found].gpu->pending)) {
      return absl::InvalidArgumentError("a region's file was not lent by this peer, or taken back");
    }
    const UdsFile& file = files_[*found];
    if (place.offset > file.mapping.bytes || region.bytes > file.mapping.bytes - place.offset) {
      return absl::InvalidArgumentError(
          absl::StrCat("a region of ", region.bytes, " bytes at offset ", place.offset,
                       " passes the end of its file, ", file.mapping.bytes, " bytes"));
    }
    UdsRange range{.named = {.address = region.address, .bytes = region.bytes},
                   .file = *found,
                   .generation = file.generation};
    if (!out->ranges.empty() && out->gpu != (file.gpu != nullptr)) {
      return absl::InvalidArgumentError(
          "a region set mixes host memory and GPU memory: register one set of each");
    }
    out->gpu = file.gpu != nullptr;
    if (out->gpu) {
      range.gpu_address = file.gpu->mapping.address + place.offset;
      out->link = file.gpu->mapping.link.get();
      auto& files = out->gpu_files;
      if (std::find(files.begin(), files.end(), *found) == files.end()) files.push_back(*found);
    } else {
      range.at = file.mapping.base + place.offset;
    }
    out->ranges.push_back(range);
  }
  return absl::OkStatus();
}

absl::Status UdsCore::RegisterRegions(PeerId id, uint32_t region_set, const RegionSet& set) {
  UdsPeerRecord* peer = FindOpen(id);
  if (peer == nullptr) return absl::UnavailableError("the peer is gone");
  UdsSet made;
  made.number = region_set;
  made.named = RangesOf(set);
  const auto known = std::find_if(peer->sets.begin(), peer->sets.end(),
                                  [&](const UdsSet& other) { return other.number == region_set; });
  if (known == peer->sets.end() && peer->sets.size() >= kRegionSetsPerPeerMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("region_set ", region_set, ": a peer may have ", kRegionSetsPerPeerMax));
  }
  if (known != peer->sets.end() && peer->transfers > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("region_set ", region_set, " is in use: wait for its requests to end"));
  }
  CRUMB_TRY(Resolve(*peer, set, &made));
  if (known != peer->sets.end()) {
    *known = std::move(made);
  } else {
    peer->sets.push_back(std::move(made));
  }
  return absl::OkStatus();
}

BlockResult UdsCore::Hold(const Transfer& transfer, MappedUse use, MappedHold* hold) {
  UdsPeerRecord* peer = FindOpen(transfer.peer);
  if (peer == nullptr) return BlockResult::kUnavailable;
  const auto set = std::find_if(peer->sets.begin(), peer->sets.end(), [&](const UdsSet& other) {
    return other.number == transfer.region_set;
  });
  if (set == peer->sets.end() || set->gpu || !SegmentsFit(set->named, transfer)) {
    return BlockResult::kInvalid;
  }
  if (!CanHold(*peer)) return BlockResult::kBusy;
  hold->pieces.clear();
  hold->files.clear();
  hold->steady = true;
  for (const Segment& segment : transfer.segments) {
    const UdsRange& range = set->ranges[segment.region];
    const UdsFile& file = files_[range.file];
    if (!file.lent || file.generation != range.generation) return BlockResult::kInvalid;
    if (use == MappedUse::kWrite && !file.mapping.writable) return BlockResult::kInvalid;
    hold->pieces.push_back({.data = range.at + (segment.address - range.named.address),
                            .local_offset = segment.local_offset,
                            .bytes = segment.bytes});
    if (hold->files.empty() || hold->files.back() != range.file) hold->files.push_back(range.file);
    hold->steady = hold->steady && file.mapping.steady;
  }
  for (const uint32_t file : hold->files) ++files_[file].holds;
  hold->peer = peer->id;
  BeginHold(peer);
  return BlockResult::kOk;
}

bool UdsCore::CanHold(const UdsPeerRecord& peer) const {
  return transfers_ < options_.transfers_max && peer.transfers < options_.transfers_per_peer_max;
}

void UdsCore::BeginHold(UdsPeerRecord* peer) {
  ++peer->transfers;
  ++transfers_;
  ++uds_stats.holds;
}

bool UdsCore::Release(MappedHold* hold, MappedUse use, uint64_t bytes) {
  for (const uint32_t file : hold->files) {
    --files_[file].holds;
    UnmapIfUnused(file);
  }
  return EndHold(std::exchange(hold->peer, {}), use, bytes);
}

bool UdsCore::EndHold(PeerId id, MappedUse use, uint64_t bytes) {
  (use == MappedUse::kRead ? stats_.bytes_pulled : stats_.bytes_pushed) += bytes;
  UdsPeerRecord* peer = Find(id);
  CRUMB_CHECK(peer != nullptr);  // its record stays while a transfer is under way
  --peer->transfers;
  --transfers_;
  --uds_stats.holds;
  const bool open = peer->state == UdsPeerState::kOpen;
  if (!open) ++uds_stats.holds_outlived;
  FinishLeaving(peer);
  return open;
}

}  // namespace crumb
