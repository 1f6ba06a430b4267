// See fault_device.h. One thread.
#include "storage/device/fault_device.h"

#include <array>
#include <utility>

#include "cachesvc/base/check.h"

namespace crumb {
namespace {

constexpr size_t kSlots = 1024;
constexpr size_t kBatch = 64;

bool IsWrite(IoOp op) { return op == IoOp::kWrite || op == IoOp::kWriteDurable; }

bool IsFault(const Fault& fault) {
  return fault.error != 0 || fault.delay_polls != 0 || fault.lose_write ||
         fault.torn_bytes != 0xffffffff || fault.misdirect_bytes != 0 || fault.flip_bit >= 0;
}

}  // namespace

FaultDevice::FaultDevice(BlockDevice* inner, FaultPlan plan)
    : inner_(inner), plan_(std::move(plan)), slots_(kSlots) {}

bool FaultDevice::QueueInner(Slot& slot, uint32_t index) {
  IoRequest request = slot.request;
  request.token = index;
  if (IsWrite(request.op)) {
    const uint64_t size = inner_->size_bytes();
    const uint64_t target = request.offset + static_cast<uint64_t>(slot.fault.misdirect_bytes);
    if (target % inner_->alignment() == 0 && target < size && request.bytes <= size - target) {
      request.offset = target;
    }
    const uint32_t whole = slot.fault.torn_bytes & ~(inner_->alignment() - 1);
    if (whole < request.bytes) request.bytes = whole;
  }
  return inner_->Queue(request);
}

bool FaultDevice::Queue(const IoRequest& request) {
  uint32_t index = 0;
  while (index < slots_.size() && slots_[index].used) ++index;
  if (index == slots_.size()) return false;
  Slot& slot = slots_[index];
  slot = {};
  slot.request = request;
  slot.fault = plan_ ? plan_(request, requests_) : Fault{};
  slot.polls_left = slot.fault.delay_polls;
  const bool torn_to_nothing = IsWrite(request.op) && slot.fault.torn_bytes < inner_->alignment();
  const bool lost = IsWrite(request.op) && (slot.fault.lose_write || torn_to_nothing);
  if (slot.fault.error != 0 || lost) {
    slot.finished = true;
    slot.error = slot.fault.error;
    ++held_;
  } else if (!QueueInner(slot, index)) {
    return false;
  }
  ++requests_;
  if (IsFault(slot.fault)) ++faults_;
  slot.used = true;
  return true;
}

size_t FaultDevice::Poll(absl::Span<IoCompletion> completions) {
  std::array<IoCompletion, kBatch> batch;
  const size_t got = inner_->Poll(absl::MakeSpan(batch));
  for (size_t i = 0; i < got; ++i) {
    CRUMB_CHECK(batch[i].token < slots_.size() && slots_[batch[i].token].used);
    Slot& slot = slots_[batch[i].token];
    slot.finished = true;
    slot.error = batch[i].error;
    ++held_;
    const auto bit = static_cast<uint64_t>(slot.fault.flip_bit);
    if (slot.fault.flip_bit >= 0 && slot.request.op == IoOp::kRead && slot.error == 0 &&
        bit / 8 < slot.request.bytes) {
      slot.request.data[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    }
  }
  size_t count = 0;
  for (size_t i = 0; i < slots_.size() && held_ > 0 && count < completions.size(); ++i) {
    Slot& slot = slots_[i];
    if (!slot.used || !slot.finished) continue;
    if (slot.polls_left > 0) {
      --slot.polls_left;
      continue;
    }
    completions[count++] = {slot.request.token, slot.error};
    slot.used = false;
    --held_;
  }
  return count;
}

size_t FaultDevice::in_flight() const { return inner_->in_flight() + held_; }

void FaultDevice::Forget() {
  for (Slot& slot : slots_) slot.used = false;
  held_ = 0;
}

}  // namespace crumb
