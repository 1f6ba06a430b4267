// Pieces and their sums. The owner's thread.
#include "storage/device/stripe_device.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "storage/device/io_progress.h"

namespace crumb {
namespace {

constexpr size_t kPollBatch = 64;

uint64_t SmallestBytes(const std::vector<std::unique_ptr<BlockDevice>>& members) {
  uint64_t smallest = members.front()->size_bytes();
  for (const auto& member : members) smallest = std::min(smallest, member->size_bytes());
  return smallest;
}

}  // namespace

StripeDevice::StripeDevice(const StripeOptions& options,
                           std::vector<std::unique_ptr<BlockDevice>> members)
    : options_(options),
      members_(std::move(members)),
      slots_(options.depth),
      free_(options.depth),
      waiting_(options.depth),
      finished_(options.depth),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      all_(::epoll_create1(EPOLL_CLOEXEC)) {
  CRUMB_CHECK(!members_.empty() && options.depth > 0 && wake_.valid() && all_.valid());
  CRUMB_CHECK((options.unit_bytes & (options.unit_bytes - 1)) == 0);
  std::vector<int> descriptors = {wake_.get()};
  for (const auto& member : members_) {
    alignment_ = std::max(alignment_, member->alignment());
    if (member->wake_fd() >= 0) descriptors.push_back(member->wake_fd());
  }
  CRUMB_CHECK(options.unit_bytes % alignment_ == 0 && options.base % alignment_ == 0);
  for (const int fd : descriptors) {
    epoll_event event{};
    event.events = EPOLLIN;
    CRUMB_CHECK(::epoll_ctl(all_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
  }
  bytes_ = DataBytes(SmallestBytes(members_), options, members_.size());
  CRUMB_CHECK(bytes_ > 0);
  for (uint32_t i = 0; i < options.depth; ++i) free_.Push(i);
}

uint64_t StripeDevice::DataBytes(uint64_t smallest_bytes, const StripeOptions& options,
                                 size_t members) {
  if (smallest_bytes < options.base) return 0;
  return (smallest_bytes - options.base) / options.unit_bytes * options.unit_bytes * members;
}

absl::Status StripeDevice::RegisterBuffers(absl::Span<const MutableBytes> slices) {
  if (used_ != 0) return absl::FailedPreconditionError("requests are in flight");
  absl::Status first;
  for (const auto& member : members_) {
    absl::Status status = member->RegisterBuffers(slices);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

// WHY the bound goes first down and last up: no request may lie beyond the end of a member.
absl::Status StripeDevice::Resize(uint64_t bytes) {
  if (bytes == 0 || bytes % alignment_ != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a size of ", bytes, " bytes: it must be a positive multiple of ", alignment_));
  }
  const uint64_t row = uint64_t{options_.unit_bytes} * members_.size();
  const uint64_t wanted = options_.base + (bytes + row - 1) / row * options_.unit_bytes;
  const uint64_t before = size_bytes();
  if (bytes < before) bytes_.store(bytes, std::memory_order_relaxed);
  std::vector<uint64_t> old;
  absl::Status status;
  for (size_t i = 0; i < members_.size() && status.ok(); ++i) {
    old.push_back(members_[i]->size_bytes());
    status = members_[i]->Resize(wanted);
  }
  if (status.ok()) {
    bytes_.store(bytes, std::memory_order_relaxed);
    return status;
  }
  absl::Status undone;
  for (size_t i = 0; i + 1 < old.size() && undone.ok(); ++i) undone = members_[i]->Resize(old[i]);
  if (undone.ok()) bytes_.store(before, std::memory_order_relaxed);
  return status;
}

bool StripeDevice::Queue(const IoRequest& request) {
  if (free_.empty()) return false;
  const uint32_t index = free_.Pop();
  Slot& slot = slots_[index];
  slot = {};
  slot.request = request;
  ++used_;
  slot.error = CheckIoRequest(request, size_bytes(), alignment_);
  if (slot.error != 0) {
    Finish(index);
    return true;
  }
  slot.waiting = true;
  waiting_.Push(index);
  IssueWaiting();
  return true;
}

// Whether nothing is left to issue. A member that is full ends it for now.
bool StripeDevice::Issue(uint32_t index) {
  Slot& slot = slots_[index];
  const IoRequest& whole = slot.request;
  const bool sync = whole.op == IoOp::kSync;
  // WHY a sync goes to all: what they wrote before this process began may be volatile too.
  const uint64_t end = sync ? members_.size() : whole.bytes;
  while (slot.issued < end && slot.error == 0) {
    uint64_t member = slot.issued, step = 1;
    IoRequest piece = {.op = whole.op, .token = index};
    if (!sync) {
      const uint64_t at = whole.offset + slot.issued;
      const uint64_t unit = at / options_.unit_bytes, within = at % options_.unit_bytes;
      member = unit % members_.size();
      step = std::min<uint64_t>(options_.unit_bytes - within, whole.bytes - slot.issued);
      piece.offset = options_.base + unit / members_.size() * options_.unit_bytes + within;
      piece.data = whole.data + slot.issued;
      piece.bytes = static_cast<uint32_t>(step);
    }
    if (!members_[member]->Queue(piece)) return false;
    slot.issued += step;
    ++slot.outstanding;
  }
  return true;
}

void StripeDevice::IssueWaiting() {
  while (!waiting_.empty() && Issue(waiting_.Front())) {
    const uint32_t index = waiting_.Pop();
    slots_[index].waiting = false;
    if (slots_[index].outstanding == 0) Finish(index);
  }
}

void StripeDevice::Submit() {
  IssueWaiting();
  for (const auto& member : members_) member->Submit();
  // WHY: what is finished but was not taken brings no member's event.
  if (!finished_.empty() && !woken_) woken_ = ::eventfd_write(wake_.get(), 1) == 0;
}

void StripeDevice::OnPiece(const IoCompletion& completion) {
  CRUMB_CHECK(completion.token < slots_.size());
  const auto index = static_cast<uint32_t>(completion.token);
  Slot& slot = slots_[index];
  CRUMB_CHECK(slot.outstanding > 0);
  --slot.outstanding;
  if (slot.error == 0) slot.error = completion.error;
  if (slot.outstanding == 0 && !slot.waiting) Finish(index);
}

size_t StripeDevice::Poll(absl::Span<IoCompletion> completions) {
  if (woken_) {
    eventfd_t ignored = 0;
    woken_ = ::eventfd_read(wake_.get(), &ignored) != 0;
  }
  std::array<IoCompletion, kPollBatch> batch;
  for (const auto& member : members_) {
    const size_t rounds_max = member->in_flight() / kPollBatch + 1;
    for (size_t round = 0; round < rounds_max; ++round) {
      const size_t got = member->Poll(absl::MakeSpan(batch));
      for (size_t i = 0; i < got; ++i) OnPiece(batch[i]);
      if (got < kPollBatch) break;
    }
  }
  IssueWaiting();
  size_t count = 0;
  while (count < completions.size() && !finished_.empty()) {
    const uint32_t index = finished_.Pop();
    completions[count++] = {slots_[index].request.token, slots_[index].error};
    free_.Push(index);
    --used_;
  }
  return count;
}

int StripeDevice::wake_fd() const {
  for (const auto& member : members_) {
    if (member->wake_fd() < 0) return -1;
  }
  return all_.get();
}

}  // namespace crumb
