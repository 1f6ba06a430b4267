// Slots and retries between BlockDevice and Ring. The owner's thread.
#include "storage/device/ring_device.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"

namespace crumb {
namespace {

constexpr uint32_t kReapBatch = 64;
constexpr uint32_t kInterruptsMax = 16;  // EINTR answers of one Submit

uint64_t UserData(uint32_t index, uint32_t use) { return static_cast<uint64_t>(use) << 32 | index; }

}  // namespace

RingDevice::RingDevice(const RingDeviceOptions& options, std::unique_ptr<Ring> ring)
    : options_(options),
      bytes_(options.bytes),
      ring_(std::move(ring)),
      slots_(options.depth),
      vectors_(size_t{options.depth} * kMergedRequestsMax),
      free_(options.depth),
      waiting_(options.depth),
      prepared_(options.depth),
      finished_(options.depth) {
  CRUMB_CHECK(options.depth > 0 && options.alignment > 0);
  CRUMB_CHECK((options.alignment & (options.alignment - 1)) == 0);
  for (uint32_t i = 0; i < options.depth; ++i) free_.Push(i);
}

RingDevice::~RingDevice() {
  ring_->Withdraw();
  while (taken_ > 0) {
    ring_->Wait();
    ReapOnce();
  }
}

absl::Status RingDevice::RegisterBuffers(absl::Span<const MutableBytes> slices) {
  if (used_ != 0) return absl::FailedPreconditionError("requests are in flight");
  if (slices.size() > kRegisteredSlicesMax) {
    return absl::InvalidArgumentError(absl::StrCat("at most ", kRegisteredSlicesMax, " slices"));
  }
  for (const MutableBytes& slice : slices) {
    if (slice.empty() || slice.size() > kRegisteredSliceBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("a slice has ", slice.size(), " bytes; 1 to 1 GiB is possible"));
    }
  }
  slices_.clear();
  CRUMB_TRY(ring_->RegisterBuffers(slices));
  slices_.assign(slices.begin(), slices.end());
  return absl::OkStatus();
}

absl::Status RingDevice::Resize(uint64_t bytes) {
  if (bytes == 0 || bytes % options_.alignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a size of ", bytes, " bytes: it must be a positive multiple of ", options_.alignment));
  }
  bytes_.store(bytes, std::memory_order_relaxed);
  return absl::OkStatus();
}

int RingDevice::BufferOf(const IoRequest& request) const {
  const auto begin = reinterpret_cast<uintptr_t>(request.data);
  for (size_t i = 0; i < slices_.size(); ++i) {
    const auto base = reinterpret_cast<uintptr_t>(slices_[i].data());
    if (begin < base || begin - base > slices_[i].size()) continue;
    if (request.bytes <= slices_[i].size() - (begin - base)) return static_cast<int>(i);
  }
  return -1;
}

bool RingDevice::Queue(const IoRequest& request) {
  if (free_.empty()) return false;
  const uint32_t index = free_.Pop();
  Slot& slot = slots_[index];
  slot.request = request;
  slot.progress = {};
  slot.alone = false;
  slot.next = kNone;
  ++slot.use;
  ++used_;
  if (int error = CheckIoRequest(request, size_bytes(), options_.alignment); error != 0) {
    Finish(index, error);
    return true;
  }
  slot.where = Where::kWaiting;
  waiting_.Push(index);
  return true;
}

bool RingDevice::Follows(const Slot& first, const Slot& second) const {
  const uint32_t most = options_.merge_bytes_max;
  return first.request.op == second.request.op && first.request.op != IoOp::kSync && !first.alone &&
         !second.alone && first.request.bytes <= most && second.request.bytes <= most &&
         first.request.offset + first.request.bytes == second.request.offset;
}

// Of the waiting slots, from the front: how many can go as one operation.
uint32_t RingDevice::CountMergeable() const {
  const size_t most = std::min<size_t>(waiting_.size(), kMergedRequestsMax);
  uint64_t bytes = slots_[waiting_.Front()].request.bytes;
  uint32_t count = 1;
  while (count < most) {
    const Slot& next = slots_[waiting_.At(count)];
    bytes += next.request.bytes;
    if (bytes > kMergedBytesMax || !Follows(slots_[waiting_.At(count - 1)], next)) break;
    ++count;
  }
  return count;
}

// Chains the first `count` waiting slots behind the leader, the very first.
void RingDevice::Gather(uint32_t leader, uint32_t count, RingOp* op) {
  iovec* vectors = &vectors_[size_t{leader} * kMergedRequestsMax];
  op->data = nullptr;
  op->bytes = 0;
  op->buffer = -1;
  for (uint32_t i = 0; i < count; ++i) {
    const IoRequest& request = slots_[waiting_.At(i)].request;
    vectors[i] = {request.data, request.bytes};
    op->bytes += request.bytes;
  }
  op->vectors = vectors;
  op->vector_count = count;
}

bool RingDevice::PrepareFront() {
  const uint32_t leader = waiting_.Front();
  const uint32_t count = CountMergeable();
  const Slot& slot = slots_[leader];
  RingOp op;
  op.op = slot.request.op;
  op.user_data = UserData(leader, slot.use);
  if (op.op != IoOp::kSync) {
    op.offset = slot.request.offset + slot.progress.done;
    op.data = slot.request.data + slot.progress.done;
    op.bytes = slot.request.bytes - slot.progress.done;
    op.buffer = BufferOf(slot.request);
    if (count > 1) Gather(leader, count, &op);
  }
  if (!ring_->Prepare(op)) return false;
  prepared_.Push(leader);
  uint32_t last = waiting_.Pop();
  slots_[leader].where = Where::kPrepared;
  for (uint32_t i = 1; i < count; ++i) {
    const uint32_t index = waiting_.Pop();
    slots_[index].where = Where::kMerged;
    slots_[last].next = index;
    last = index;
  }
  return true;
}

void RingDevice::PrepareWaiting() {
  while (!waiting_.empty() && PrepareFront()) {
  }
}

// One Ring::Submit (again only after a signal).
void RingDevice::HandOver() {
  int taken = -EINTR;
  for (uint32_t i = 0; i < kInterruptsMax && taken == -EINTR; ++i) taken = ring_->Submit();
  if (taken > 0) {
    refusals_ = 0;
    CRUMB_CHECK(static_cast<size_t>(taken) <= prepared_.size());
    for (int i = 0; i < taken; ++i) slots_[prepared_.Pop()].where = Where::kTaken;
    taken_ += static_cast<uint32_t>(taken);
    return;
  }
  const bool transient = taken == 0 || taken == -EINTR || taken == -EAGAIN || taken == -EBUSY;
  if (!transient) {
    FailPrepared(-taken);
  } else if (++refusals_ >= kSubmitRefusalsMax) {
    FailPrepared(taken == 0 ? EAGAIN : -taken);
  }
}

void RingDevice::FailPrepared(int error) {
  ring_->Withdraw();
  refusals_ = 0;
  while (!prepared_.empty()) FinishChain(prepared_.Pop(), error);
}

void RingDevice::FinishChain(uint32_t leader, int error) {
  for (uint32_t index = leader; index != kNone;) {
    const uint32_t next = slots_[index].next;
    Finish(index, error);
    index = next;
  }
}

void RingDevice::Submit() {
  PrepareWaiting();
  if (!prepared_.empty()) HandOver();
  // WHY: after a refusal with nothing in the ring no completion would ever wake the loop.
  if (!prepared_.empty() || !waiting_.empty() || !finished_.empty()) ring_->Wake();
}

void RingDevice::Finish(uint32_t index, int error) {
  Slot& slot = slots_[index];
  slot.error = error;
  slot.next = kNone;
  slot.where = Where::kFinished;
  finished_.Push(index);
}

void RingDevice::OnResult(const RingResult& result) {
  const uint64_t index = result.user_data & 0xffffffff;
  const uint32_t use = static_cast<uint32_t>(result.user_data >> 32);
  if (index >= slots_.size() || slots_[index].use != use || slots_[index].where != Where::kTaken) {
    ++unknown_results_;  // of a withdrawn or foreign operation: never counted for another one
    return;
  }
  --taken_;
  const auto leader = static_cast<uint32_t>(index);
  if (slots_[leader].next != kNone) {
    OnMergedResult(leader, result.result);
  } else {
    Settle(leader, result.result);
  }
}

void RingDevice::Settle(uint32_t index, int64_t result) {
  Slot& slot = slots_[index];
  const IoVerdict verdict = AdvanceIo(slot.request, options_.alignment, result, &slot.progress);
  if (verdict.step == IoStep::kResubmit) return Again(index);
  Finish(index, verdict.error != 0 ? verdict.error : DurabilityError(slot.request.op));
}

void RingDevice::Again(uint32_t index) {
  Slot& slot = slots_[index];
  slot.alone = true;
  slot.next = kNone;
  slot.where = Where::kWaiting;
  waiting_.Push(index);
}

// Each request gets its part of the count. WHY again where there is none: an error, or an end, of
// the whole says nothing about which of them it is; asked alone, each has an answer of its own.
void RingDevice::OnMergedResult(uint32_t leader, int64_t result) {
  int64_t total = 0;
  for (uint32_t index = leader; index != kNone; index = slots_[index].next) {
    total += slots_[index].request.bytes;
  }
  if (result > total) return FinishChain(leader, EIO);  // not believable
  int64_t left = std::max<int64_t>(result, 0);
  for (uint32_t index = leader; index != kNone;) {
    const uint32_t next = slots_[index].next;
    const int64_t part = std::min<int64_t>(left, slots_[index].request.bytes);
    left -= part;
    if (part > 0) {
      Settle(index, part);
    } else {
      Again(index);
    }
    index = next;
  }
}

// WHY at the completion: a name that is gone by then would make the answer a lie; fstat of an open
// file does not touch the device.
int RingDevice::DurabilityError(IoOp op) const {
  if (options_.named_fd < 0 || (op != IoOp::kWriteDurable && op != IoOp::kSync)) return 0;
  struct stat facts {};
  if (::fstat(options_.named_fd, &facts) != 0) return errno;
  return facts.st_nlink == 0 ? ENOENT : 0;
}

size_t RingDevice::ReapOnce() {
  std::array<RingResult, kReapBatch> results;
  const size_t count = ring_->Reap(absl::MakeSpan(results));
  for (size_t i = 0; i < count; ++i) OnResult(results[i]);
  return count;
}

size_t RingDevice::Poll(absl::Span<IoCompletion> completions) {
  const size_t batches_max = options_.depth / kReapBatch + 1;
  for (size_t i = 0; i < batches_max && ReapOnce() == kReapBatch; ++i) {
  }
  size_t count = 0;
  while (count < completions.size() && !finished_.empty()) {
    const uint32_t index = finished_.Pop();
    completions[count++] = {slots_[index].request.token, slots_[index].error};
    slots_[index].where = Where::kFree;
    free_.Push(index);
    --used_;
  }
  return count;
}

}  // namespace crumb
