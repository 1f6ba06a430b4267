// A queue whose room, copies and device a test takes away, and a codec that writes down what it is
// asked for: what GpuLink is tested with. One thread.
#ifndef CRUMB_TESTS_UNIT_GPU_CODEC_LINK_RIG_H_
#define CRUMB_TESTS_UNIT_GPU_CODEC_LINK_RIG_H_

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "gpu/codec/gpu_codec.h"
#include "gpu/device/stream_queue.h"

namespace crumb::codec_test {

// Does the work at once; hands it back only when Finish says so.
class TestQueue final : public StreamQueue {
 public:
  bool Submit(const StreamWork& work) override {
    if (!health_.ok() || room == 0) return false;
    --room;
    ++submits;
    bool ok = refused_copies == 0 || work.copies.empty();
    if (!ok) --refused_copies;
    if (ok) {
      for (const StreamCopy& copy : work.copies) {
        std::memcpy(copy.dst, copy.src, copy.bytes);
        copied.push_back(copy);
      }
      ok = work.launch == nullptr || work.launch(work.arg, nullptr).ok();
    }
    flying_.push_back({.token = work.token, .ok = ok});
    return true;
  }
  size_t Poll(absl::Span<StreamDone> done) override {
    size_t count = 0;
    for (; count < done.size() && finished_ > 0; --finished_) {
      done[count++] = flying_.front();
      flying_.pop_front();
    }
    return count;
  }
  size_t in_flight() const override { return flying_.size(); }
  const absl::Status& health() const override { return health_; }

  void Finish(size_t works) { finished_ = std::min(flying_.size(), finished_ + works); }
  void Finish() { finished_ = flying_.size(); }
  void Lose() {
    health_ = absl::UnavailableError("the device is lost");
    for (size_t i = finished_; i < flying_.size(); ++i) flying_[i].ok = false;
    Finish();
  }

  size_t room = ~size_t{0};
  size_t refused_copies = 0;  // works with copies that are refused from now on
  size_t submits = 0;
  std::vector<StreamCopy> copied;

 private:
  std::deque<StreamDone> flying_;
  size_t finished_ = 0;
  absl::Status health_;
};

// Encoding writes the token count and the slots of a page into its payload.
class NotingCodec final : public GpuCodec {
 public:
  struct Launch {
    bool encode = false;
    Effort effort = Effort::kNormal;
    uint32_t pages = 0;
    uint64_t place = 0;  // address of the first one
    uint32_t tokens_per_slot = 0;
    bool aligned = false;
    bool fresh_reports = true;
  };

  const CodecDescriptor& descriptor() const override { return descriptor_; }
  int device() const override { return -1; }
  uint32_t payload_bytes() const override { return 64; }
  bool encodes() const override { return true; }
  absl::Status Decode(const CudaPages& pages, Frame frame, StreamHandle) const override {
    if (frame != Frame::kOriginal) return absl::InternalError("another frame");
    return Note(pages, {.encode = false});
  }
  absl::Status Encode(const CudaPages& pages, Effort effort, StreamHandle) const override {
    Launch launch = {.encode = true, .effort = effort};
    for (uint32_t i = 0; i < pages.count; ++i) {
      CudaPageReport& report = pages.reports[i];
      launch.fresh_reports &= report.bad_place == ~0ull && report.unfit == 0 &&
                              report.rows_static == 0 && report.error[0] == 0.0f;
      report.rows_static = pages.pages[i].tokens;
    }
    return Note(pages, launch);
  }
  absl::Status ResetReports(const CudaPages&, StreamHandle) const override {
    return absl::InternalError("a link resets reports itself");
  }
  EncodeReport ReportOf(const CudaPageReport& report) const override {
    EncodeReport out;
    out.rows_static = report.rows_static;
    return out;
  }

  mutable std::vector<Launch> launches;
  mutable size_t refused = 0;  // launches that are refused from now on
  bool noting = true;

 private:
  absl::Status Note(const CudaPages& pages, Launch launch) const {
    if (refused != 0) {
      --refused;
      return absl::InternalError("refused");
    }
    launch.pages = pages.count;
    launch.place = pages.places[0].address;
    launch.tokens_per_slot = pages.tokens_per_slot;
    launch.aligned = pages.aligned;
    if (noting) launches.push_back(launch);
    for (uint32_t i = 0; i < pages.count; ++i) {
      const CudaPage& page = pages.pages[i];
      auto* const payload = reinterpret_cast<uint32_t*>(page.payload);
      payload[0] = page.tokens;
      payload[1] = pages.slots[page.slots_first];
    }
    return absl::OkStatus();
  }

  CodecDescriptor descriptor_;
};

}  // namespace crumb::codec_test

#endif  // CRUMB_TESTS_UNIT_GPU_CODEC_LINK_RIG_H_
