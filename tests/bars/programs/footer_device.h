// A block device that keeps what a log writes about pages and throws the pages away: room for any
// number of them in little memory. What was thrown away reads as zeros. In order, at the Poll after
// the Submit. One thread.
#ifndef CRUMB_TESTS_BARS_PROGRAMS_FOOTER_DEVICE_H_
#define CRUMB_TESTS_BARS_PROGRAMS_FOOTER_DEVICE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/page_header.h"
#include "gpu/pool/arena.h"
#include "storage/device/block_device.h"

namespace crumb::bars {

class FooterDevice final : public BlockDevice {
 public:
  FooterDevice(uint64_t bytes, Arena kept) : bytes_(bytes), kept_(std::move(kept)) {}

  uint64_t size_bytes() const override { return bytes_; }
  uint32_t alignment() const override { return kPageAlignment; }
  absl::Status RegisterBuffers(absl::Span<const MutableBytes>) override { return absl::OkStatus(); }
  bool Queue(const IoRequest& request) override {
    queued_.push_back(request);
    return true;
  }
  void Submit() override {
    for (const IoRequest& request : queued_) submitted_.push_back(request);
    queued_.clear();
  }
  size_t Poll(absl::Span<IoCompletion> completions) override {
    size_t count = 0;
    for (; count < completions.size() && !submitted_.empty(); ++count) {
      Execute(submitted_.front());
      completions[count] = {.token = submitted_.front().token};
      submitted_.pop_front();
    }
    return count;
  }
  size_t in_flight() const override { return queued_.size() + submitted_.size(); }
  int wake_fd() const override { return -1; }
  absl::Status Resize(uint64_t) override { return absl::FailedPreconditionError("of one size"); }

  uint64_t kept_bytes() const { return places_.size() * kPageAlignment; }

 private:
  // A footer begins like a page, but has no stamp.
  static bool IsPage(const IoRequest& request) {
    const PageHeader header = LoadHeader(Bytes(request.data, request.bytes));
    return header.magic == kPageMagic && StampIsValid(header);
  }
  void Execute(const IoRequest& request) {
    const bool writes = request.op == IoOp::kWrite || request.op == IoOp::kWriteDurable;
    if (request.op == IoOp::kSync || (writes && IsPage(request))) return;
    for (uint32_t at = 0; at < request.bytes; at += kPageAlignment) {
      const uint64_t block = (request.offset + at) / kPageAlignment;
      const auto found = places_.find(block);
      if (!writes && found == places_.end()) {
        std::memset(request.data + at, 0, kPageAlignment);
        continue;
      }
      const uint64_t place = found != places_.end()
                                 ? found->second
                                 : places_.try_emplace(block, places_.size()).first->second;
      CRUMB_CHECK((place + 1) * kPageAlignment <= kept_.bytes().size());
      uint8_t* const kept = kept_.bytes().data() + place * kPageAlignment;
      writes ? std::memcpy(kept, request.data + at, kPageAlignment)
             : std::memcpy(request.data + at, kept, kPageAlignment);
    }
  }

  const uint64_t bytes_;
  Arena kept_;
  absl::flat_hash_map<uint64_t, uint64_t> places_;  // in kept_, by block
  std::deque<IoRequest> queued_, submitted_;
};

}  // namespace crumb::bars

#endif  // CRUMB_TESTS_BARS_PROGRAMS_FOOTER_DEVICE_H_
