// The liars.
#include "tests/sim/planted_bugs.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "cachesvc/base/page_header.h"
#include "tests/sim/mutation.h"

namespace crumb::sim {
namespace {

// Forwards everything; the liars change one thing each.
class DeviceDecorator : public BlockDevice {
 public:
  explicit DeviceDecorator(BlockDevice* inner) : inner_(inner) {}
  uint64_t size_bytes() const override { return inner_->size_bytes(); }
  uint32_t alignment() const override { return inner_->alignment(); }
  absl::Status RegisterBuffers(absl::Span<const MutableBytes> slices) override {
    return inner_->RegisterBuffers(slices);
  }
  bool Queue(const IoRequest& request) override { return inner_->Queue(request); }
  void Submit() override { inner_->Submit(); }
  size_t Poll(absl::Span<IoCompletion> completions) override { return inner_->Poll(completions); }
  size_t in_flight() const override { return inner_->in_flight(); }
  int wake_fd() const override { return inner_->wake_fd(); }
  absl::Status Resize(uint64_t bytes) override { return inner_->Resize(bytes); }

 protected:
  BlockDevice* const inner_;
};

// Says of some requests that they were done, and does nothing.
class SilentDevice : public DeviceDecorator {
 public:
  using DeviceDecorator::DeviceDecorator;
  size_t Poll(absl::Span<IoCompletion> completions) override {
    size_t count = 0;
    while (count < completions.size() && !done_.empty()) {
      completions[count++] = done_.front();
      done_.pop_front();
    }
    return count + inner_->Poll(completions.subspan(count));
  }
  size_t in_flight() const override { return inner_->in_flight() + done_.size(); }

 protected:
  bool Pretend(const IoRequest& request) {
    done_.push_back({.token = request.token, .error = 0});
    return true;
  }

 private:
  std::deque<IoCompletion> done_;
};

class VolatileSync final : public SilentDevice {
 public:
  using SilentDevice::SilentDevice;
  bool Queue(const IoRequest& request) override {
    IoRequest weak = request;
    if (weak.op == IoOp::kWriteDurable) weak.op = IoOp::kWrite;
    if (weak.op != IoOp::kSync) return inner_->Queue(weak);
    return Pretend(request);
  }
};

class WrongPage final : public DeviceDecorator {
 public:
  using DeviceDecorator::DeviceDecorator;
  bool Queue(const IoRequest& request) override {
    IoRequest tagged = request;
    tagged.token = next_;
    if (!inner_->Queue(tagged)) return false;
    pending_[next_++] = request;
    return true;
  }
  size_t Poll(absl::Span<IoCompletion> completions) override {
    const size_t count = inner_->Poll(completions);
    for (size_t i = 0; i < count; ++i) {
      const IoRequest request = pending_.at(completions[i].token);
      pending_.erase(completions[i].token);
      completions[i].token = request.token;
      if (request.op == IoOp::kRead && completions[i].error == 0) Misread(request);
    }
    return count;
  }

 private:
  // Every eighth page read gets the payload of the last page of its size, under its own header.
  void Misread(const IoRequest& request) {
    MutableBytes page(request.data, request.bytes);
    if (CheckPage(page) != PageCheck::kOk) return;
    PageHeader header = LoadHeader(page);
    const MutableBytes payload = page.subspan(kPageHeaderBytes, header.payload_bytes);
    std::vector<uint8_t>& last = last_[header.payload_bytes];
    std::vector<uint8_t> truth(payload.begin(), payload.end());
    if (++reads_ % 8 == 0 && !last.empty()) {
      std::memcpy(payload.data(), last.data(), last.size());
      SealHeader(header, payload);
      SealStamp(header);
      StoreHeader(header, page);
    }
    last = std::move(truth);
  }

  uint64_t next_ = 0;
  uint64_t reads_ = 0;
  std::map<uint64_t, IoRequest> pending_;
  std::map<uint32_t, std::vector<uint8_t>> last_;
};

// Reports a job done before it ran: what reads its result reads what was there before.
class EarlyJob final : public DeviceQueue {
 public:
  explicit EarlyJob(DeviceQueue* inner) : inner_(inner) {}
  bool Submit(const DeviceJob& job) override {
    if (++jobs_ % 16 != 0) return inner_->Submit(job);
    done_.push_back(job.token);
    return true;
  }
  size_t Poll(absl::Span<uint64_t> done) override {
    size_t count = 0;
    while (count < done.size() && !done_.empty()) {
      done[count++] = done_.front();
      done_.pop_front();
    }
    return count + inner_->Poll(done.subspan(count));
  }
  size_t in_flight() const override { return inner_->in_flight() + done_.size(); }
  uint32_t worker_count() const override { return inner_->worker_count(); }
  int wake_fd() const override { return inner_->wake_fd(); }

 private:
  DeviceQueue* const inner_;
  uint64_t jobs_ = 0;
  std::deque<uint64_t> done_;
};

// Drops one record in ten on its way down and says that it was written.
class LostWrite final : public SilentDevice {
 public:
  using SilentDevice::SilentDevice;
  bool Queue(const IoRequest& request) override {
    const bool record = request.op == IoOp::kWriteDurable &&
                        LoadHeader({request.data, request.bytes}).magic == kPageMagic;
    if (!record || ++writes_ % 10 != 0) return inner_->Queue(request);
    return Pretend(request);
  }

 private:
  uint64_t writes_ = 0;
};

class EarlyPush final : public Transport {
 public:
  explicit EarlyPush(Transport* inner) : inner_(inner) {}
  BlockResult Send(PeerId peer, Bytes message) override { return inner_->Send(peer, message); }
  BlockResult Pull(const Transfer& transfer) override { return inner_->Pull(transfer); }
  BlockResult Push(const Transfer& transfer) override {
    // The data goes its way from a copy: what is wrong is only when the end is reported.
    auto copy = std::make_unique<Copy>();
    copy->segments.assign(transfer.segments.begin(), transfer.segments.end());
    copy->local.assign(transfer.local.begin(), transfer.local.end());
    Transfer late = transfer;
    late.segments = copy->segments;
    late.local = absl::MakeSpan(copy->local);
    late.token = kMine | next_;
    const BlockResult result = inner_->Push(late);
    if (result != BlockResult::kOk) return result;
    copies_[next_++] = std::move(copy);
    early_.push_back({.kind = NetEventKind::kTransferDone,
                      .peer = transfer.peer,
                      .token = transfer.token,
                      .result = BlockResult::kOk,
                      .message = {}});
    return BlockResult::kOk;
  }
  absl::Status RegisterRegions(PeerId peer, uint32_t region_set, const RegionSet& set) override {
    return inner_->RegisterRegions(peer, region_set, set);
  }
  void ClosePeer(PeerId peer) override { inner_->ClosePeer(peer); }
  size_t Poll(absl::Span<NetEvent> events) override {
    size_t count = 0;
    while (count < events.size() && !early_.empty()) {
      events[count++] = early_.front();
      early_.pop_front();
    }
    const size_t first = count;
    const size_t end = first + inner_->Poll(events.subspan(first));
    for (size_t i = first; i < end; ++i) {
      const bool late =
          events[i].kind == NetEventKind::kTransferDone && (events[i].token & kMine) == kMine;
      if (late) {
        copies_.erase(events[i].token & ~kMine);
      } else {
        events[count++] = events[i];
      }
    }
    return count;
  }
  bool Arm() override { return early_.empty() && inner_->Arm(); }
  int wake_fd() const override { return inner_->wake_fd(); }

 private:
  static constexpr uint64_t kMine = 0xeeull << 56;
  struct Copy {
    std::vector<Segment> segments;
    std::vector<uint8_t> local;
  };
  Transport* const inner_;
  uint64_t next_ = 0;
  std::map<uint64_t, std::unique_ptr<Copy>> copies_;
  std::deque<NetEvent> early_;
};

}  // namespace

bool FindPlant(const std::string& name, Planted* planted) {
  if (name == "volatile_sync") {
    planted->device = [](BlockDevice* inner) { return std::make_unique<VolatileSync>(inner); };
  } else if (name == "wrong_page") {
    planted->device = [](BlockDevice* inner) { return std::make_unique<WrongPage>(inner); };
  } else if (name == "early_push") {
    planted->transport = [](Transport* inner) { return std::make_unique<EarlyPush>(inner); };
  } else if (name == "lost_write") {
    planted->device = [](BlockDevice* inner) { return std::make_unique<LostWrite>(inner); };
  } else if (name == "early_job") {
    planted->queue = [](DeviceQueue* inner) { return std::make_unique<EarlyJob>(inner); };
  } else if (name != "none") {
    const std::vector<std::string>& names = MutationNames();
    planted->mutation = name;
    return std::find(names.begin(), names.end(), name) != names.end();
  }
  return true;
}

std::string PlantNames() {
  std::string names = "none, volatile_sync, lost_write, early_push, early_job, wrong_page";
  for (const std::string& name : MutationNames()) names += ", " + name;
  return names;
}

}  // namespace crumb::sim
