// Offers, answers and holds of GPU memory. An offer is a file from the start, pending: its name is
// taken and its bytes count, and it outlives its peer until the mapper has answered.
#include "cachesvc/net/uds_gpu.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "cachesvc/base/check.h"
#include "cachesvc/net/uds_core.h"

namespace crumb {
namespace {
constexpr size_t kAnswersPerTurn = 16;
}  // namespace

UdsRefusal UdsGpu::WhyNot(const UdsPeerRecord& peer, const UdsFrame& frame) const {
  if (mapper_ == nullptr) return UdsRefusal::kNoGpu;
  const uint64_t left = options_.mapped_bytes_per_peer_max - peer.mapped_bytes;
  const auto pending = std::count_if(offers_.begin(), offers_.end(),
                                     [&](const Offer& offer) { return offer.peer == peer.id; });
  if (peer.files.size() >= options_.files_per_peer_max || frame.value > left ||
      static_cast<uint64_t>(pending) >= options_.gpu_offers_per_peer_max ||
      offers_.size() >= options_.gpu_offers_max) {
    return UdsRefusal::kTooMany;
  }
  UdsGpuShare share;
  CRUMB_CHECK(ParseUdsGpuShare(frame.share, &share));  // the frame's parser saw to it
  const auto same = [&](const auto& other) { return other.device == share.device; };
  if (peer.gpu != nullptr) return same(*peer.gpu) ? UdsRefusal::kNone : UdsRefusal::kOtherGpu;
  for (const Offer& other : offers_) {  // the first of them may yet be mapped
    const bool its = other.peer == peer.id;
    if (its && !same(*core_->file(other.file).gpu)) return UdsRefusal::kOtherGpu;
  }
  return UdsRefusal::kNone;
}

// A word outlives its lender's interest: it must not go away under a load.
UdsRefusal UdsGpu::MapWord(int fd, UdsMapping* word) {
  if (fd < 0) return UdsRefusal::kNone;
  const UdsRefusal refusal = UdsMap(fd, sizeof(uint64_t), word);
  if (refusal == UdsRefusal::kNone && word->steady) return refusal;
  DropWord(word);
  return UdsRefusal::kNoWord;
}

void UdsGpu::DropWord(UdsMapping* word) {
  if (word->base != nullptr) UdsUnmap(*word);
  *word = {};
}

void UdsGpu::Accept(UdsPeerRecord* peer, const UdsFrame& frame, int fd) {
  UdsRefusal refusal = WhyNot(*peer, frame);
  UdsMapping word;
  if (refusal == UdsRefusal::kNone && peer->gpu == nullptr) refusal = MapWord(fd, &word);
  if (refusal != UdsRefusal::kNone) {
    ++core_->uds_stats.gpu_refused;
    return core_->AnswerLend(peer, frame.file, refusal);
  }
  UdsGpuShare share;
  (void)ParseUdsGpuShare(frame.share, &share);
  Offer made;
  made.peer = peer->id;
  made.file = core_->NewFile(peer, frame.file, {.base = nullptr, .bytes = share.bytes});
  made.offer.token = ++last_token_;
  std::memcpy(made.offer.share.data(), frame.share.data(), made.offer.share.size());
  UdsFile& file = core_->file(made.file);
  file.gpu = std::make_unique<UdsGpuFile>();
  file.gpu->device = share.device;
  file.gpu->word = word;
  offers_.push_back(std::move(made));
  GiveWaiting();
}

bool UdsGpu::OfPeerGiven(PeerId peer) const {
  return std::any_of(offers_.begin(), offers_.end(),
                     [&](const Offer& offer) { return offer.given && offer.peer == peer; });
}

// Hands on what may go now. WHY one of a peer at a time: they share a link, which the first makes.
void UdsGpu::GiveWaiting() {
  for (size_t i = 0; i < offers_.size();) {
    Offer& offer = offers_[i];
    const UdsPeerRecord* peer = core_->FindOpen(offer.peer);
    if (offer.given || peer == nullptr || OfPeerGiven(offer.peer)) {
      ++i;
      continue;
    }
    if (peer->gpu != nullptr) offer.offer.link = peer->gpu->link;
    if (mapper_->Map(offer.offer)) {
      offer.offer.link.reset();  // its peer has it, too
      offer.given = true;
      ++i;
      continue;
    }
    offer.offer.link.reset();
    // The next answer makes room; without one under way there would be none.
    const bool room =
        std::any_of(offers_.begin(), offers_.end(), [](const Offer& other) { return other.given; });
    if (room) return;
    const Offer refused = std::move(offer);
    offers_.erase(offers_.begin() + static_cast<ptrdiff_t>(i));
    Refuse(refused, UdsRefusal::kTooMany);
    i = 0;  // its peer may have gone, with others
  }
}

void UdsGpu::TakeAnswers() {
  if (offers_.empty() && retired_.empty()) return;  // as in nearly every turn
  for (std::shared_ptr<GpuLink>& link : retired_) {
    mapper_->Unmap({.address = 0, .bytes = 0, .id = 0, .link = std::move(link)});
  }
  retired_.clear();
  std::array<GpuAnswer, kAnswersPerTurn> answers;
  const size_t count = mapper_->Poll(absl::MakeSpan(answers));
  for (size_t i = 0; i < count; ++i) End(std::move(answers[i]));
  if (count > 0) GiveWaiting();
}

void UdsGpu::End(GpuAnswer answer) {
  const auto found = std::find_if(offers_.begin(), offers_.end(), [&](const Offer& offer) {
    return offer.given && offer.offer.token == answer.token;
  });
  CRUMB_CHECK(found != offers_.end());  // one answer for each offer
  const Offer offer = std::move(*found);
  offers_.erase(found);
  GpuMapping& mapping = answer.mapping;
  const bool mapped = answer.refusal == UdsRefusal::kNone;
  CRUMB_CHECK(mapped == (mapping.id != 0) && mapped == (mapping.link != nullptr));
  if (!mapped) return Refuse(offer, answer.refusal);
  UdsFile& file = core_->file(offer.file);
  CRUMB_CHECK(mapping.bytes >= file.mapping.bytes);
  file.gpu->pending = false;
  file.gpu->mapping = std::move(mapping);
  ++core_->uds_stats.gpu_mapped;
  core_->uds_stats.gpu_bytes_mapped += file.mapping.bytes;
  UdsPeerRecord* peer = core_->FindOpen(offer.peer);
  if (peer == nullptr) return core_->UnmapIfUnused(offer.file);  // it went meanwhile
  if (peer->gpu == nullptr) {
    peer->gpu =
        std::make_unique<UdsGpuPeer>(UdsGpuPeer{.device = file.gpu->device,
                                                .word = std::exchange(file.gpu->word, UdsMapping{}),
                                                .link = {}});
    peer->gpu->link = file.gpu->mapping.link;
    ++core_->uds_stats.gpu_links;
  }
  CRUMB_CHECK(peer->gpu->link == file.gpu->mapping.link);
  core_->AnswerLend(peer, file.name, UdsRefusal::kNone);
}

void UdsGpu::Refuse(const Offer& offer, UdsRefusal refusal) {
  ++core_->uds_stats.gpu_refused;
  UdsFile& file = core_->file(offer.file);
  const uint64_t name = file.name;
  file.gpu->pending = false;
  UdsPeerRecord* peer = core_->FindOpen(offer.peer);
  if (peer == nullptr) return core_->UnmapIfUnused(offer.file);
  std::erase(peer->files, offer.file);
  peer->mapped_bytes -= file.mapping.bytes;
  file.lent = false;
  core_->UnmapIfUnused(offer.file);
  core_->AnswerLend(peer, name, refusal);
}

void UdsGpu::DropWaiting(const UdsPeerRecord& peer) {
  std::erase_if(offers_, [&](const Offer& offer) {
    if (offer.peer != peer.id || offer.given) return false;
    core_->file(offer.file).gpu->pending = false;
    return true;
  });
}

void UdsGpu::Unmap(UdsFile* file) {
  const std::unique_ptr<UdsGpuFile> gpu = std::move(file->gpu);
  DropWord(&gpu->word);
  if (gpu->mapping.id == 0) return;  // never was
  --core_->uds_stats.gpu_mapped;
  core_->uds_stats.gpu_bytes_mapped -= file->mapping.bytes;
  mapper_->Unmap(std::move(gpu->mapping));
}

// WHY later: whoever polls its kPeerDown may still have work of the link to forget.
void UdsGpu::Retire(UdsPeerRecord* peer) {
  if (peer->gpu == nullptr) return;
  DropWord(&peer->gpu->word);
  retired_.push_back(std::move(peer->gpu->link));
  peer->gpu.reset();
  --core_->uds_stats.gpu_links;
}

const UdsSet* UdsGpu::SetOf(PeerId id, uint32_t region_set) const {
  const UdsPeerRecord* peer = core_->FindOpen(id);
  if (peer == nullptr) return nullptr;
  for (const UdsSet& set : peer->sets) {
    if (set.number == region_set) return set.link == nullptr ? nullptr : &set;
  }
  return nullptr;
}

GpuLink* UdsGpu::LinkOf(PeerId peer, uint32_t region_set) const {
  const UdsSet* set = SetOf(peer, region_set);
  return set == nullptr ? nullptr : set->link;
}

std::vector<uint64_t> UdsGpu::AddressesOf(PeerId peer, uint32_t region_set) const {
  const UdsSet* set = SetOf(peer, region_set);
  CRUMB_CHECK(set != nullptr);
  std::vector<uint64_t> out;
  out.reserve(set->ranges.size());
  for (const UdsRange& range : set->ranges) out.push_back(range.gpu_address);
  return out;
}

bool UdsGpu::Reached(PeerId id, uint64_t ticket) const {
  const UdsPeerRecord* peer = core_->FindOpen(id);
  if (peer == nullptr || peer->gpu == nullptr || peer->gpu->word.base == nullptr) return false;
  // Acquire: what the worker's GPU wrote before it is there for whoever starts now.
  const auto* word = reinterpret_cast<const uint64_t*>(peer->gpu->word.base);
  return __atomic_load_n(word, __ATOMIC_ACQUIRE) >= ticket;
}

BlockResult UdsGpu::Hold(PeerId id, uint32_t region_set, GpuHold* hold) {
  UdsPeerRecord* peer = core_->FindOpen(id);
  if (peer == nullptr) return BlockResult::kUnavailable;
  const UdsSet* set = SetOf(id, region_set);
  if (set == nullptr) return BlockResult::kInvalid;
  if (!core_->CanHold(*peer)) return BlockResult::kBusy;
  hold->files = set->gpu_files;
  for (const uint32_t file : hold->files) ++core_->file(file).holds;
  hold->peer = id;
  core_->BeginHold(peer);
  return BlockResult::kOk;
}

bool UdsGpu::Release(GpuHold* hold, MappedUse use, uint64_t bytes) {
  for (const uint32_t file : hold->files) {
    --core_->file(file).holds;
    core_->UnmapIfUnused(file);
  }
  return core_->EndHold(std::exchange(hold->peer, {}), use, bytes);
}

}  // namespace crumb
