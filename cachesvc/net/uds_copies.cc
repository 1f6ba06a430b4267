// Pull and Push: one copy between local memory and a mapped file, by a pool thread, or at once
// where it is short and cannot fault. Also the pool's other work: taking large mappings down.
#include <array>

#include "cachesvc/base/check.h"
#include "cachesvc/net/guarded_copy.h"
#include "cachesvc/net/uds_core.h"

namespace crumb {
namespace {
constexpr uint64_t kUnmapToken = UINT64_MAX;
constexpr size_t kTokensPerTurn = 64;
}  // namespace

void UdsCore::RunCopy(void* arg, uint32_t /*worker*/) noexcept {
  auto& copy = *static_cast<UdsCopy*>(arg);
  for (const MappedPiece& piece : copy.hold.pieces) {
    uint8_t* local = copy.transfer.local.data() + piece.local_offset;
    const bool read = copy.use == MappedUse::kRead;
    const bool moved = read ? GuardedCopy(local, piece.data, piece.bytes)
                            : GuardedCopy(piece.data, local, piece.bytes);
    if (!moved) return;
  }
  copy.done = true;
}

BlockResult UdsCore::StartCopy(const Transfer& transfer, MappedUse use) {
  if (free_copies_.empty()) {
    return FindOpen(transfer.peer) == nullptr ? BlockResult::kUnavailable : BlockResult::kBusy;
  }
  const uint32_t index = free_copies_.back();
  UdsCopy& copy = copies_[index];
  const BlockResult held = Hold(transfer, use, &copy.hold);
  if (held != BlockResult::kOk) return held;
  copy.use = use;
  copy.transfer = transfer;
  copy.done = false;
  copy.bytes = 0;
  for (const MappedPiece& piece : copy.hold.pieces) copy.bytes += piece.bytes;
  free_copies_.pop_back();
  if (copy.hold.steady && copy.bytes <= options_.inline_bytes_max) {
    ++uds_stats.copies_inline;
    RunCopy(&copy, 0);
    EndCopy(&copy);
    return BlockResult::kOk;
  }
  if (pool_->Submit({.run = RunCopy, .arg = &copy, .token = index})) return BlockResult::kOk;
  free_copies_.push_back(index);
  (void)Release(&copy.hold, use, 0);
  return BlockResult::kBusy;
}

void UdsCore::EndCopy(UdsCopy* copy) {
  const PeerId peer = copy->transfer.peer;
  BlockResult result = copy->done ? BlockResult::kOk : BlockResult::kInvalid;
  if (!copy->done) ++uds_stats.copies_faulted;
  ++transfers_;  // until its event is polled
  // The completion comes before the peer's end, which Release may report.
  const bool open = FindOpen(peer) != nullptr;
  if (!open) result = BlockResult::kUnavailable;
  PushEvent({.event = {.kind = NetEventKind::kTransferDone,
                       .peer = peer,
                       .token = copy->transfer.token,
                       .result = result,
                       .message = {}}});
  (void)Release(&copy->hold, copy->use, copy->done ? copy->bytes : 0);
  free_copies_.push_back(static_cast<uint32_t>(copy - copies_.data()));
}

void UdsCore::TakeJobs() {
  if (pool_ == nullptr) return;
  std::array<uint64_t, kTokensPerTurn> tokens{};
  const size_t count = pool_->Poll(absl::MakeSpan(tokens));
  for (size_t i = 0; i < count; ++i) {
    if (tokens[i] == kUnmapToken) continue;
    CRUMB_CHECK(tokens[i] < copies_.size());
    EndCopy(&copies_[tokens[i]]);
  }
}

void UdsCore::RunUnmap(void* arg, uint32_t /*worker*/) noexcept {
  const std::unique_ptr<UdsMapping> mapping(static_cast<UdsMapping*>(arg));
  UdsUnmap(*mapping);
}

// WHY elsewhere: a large mapping takes the kernel milliseconds, which the owner's thread has not.
void UdsCore::UnmapElsewhere(const UdsMapping& mapping) {
  auto own = std::make_unique<UdsMapping>(mapping);
  if (pool_ != nullptr &&
      pool_->Submit({.run = RunUnmap, .arg = own.get(), .token = kUnmapToken})) {
    (void)own.release();
    return;
  }
  UdsUnmap(mapping);
}

}  // namespace crumb
