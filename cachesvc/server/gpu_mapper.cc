// A queue in, a queue out, and a thread between them.
#include "cachesvc/server/gpu_mapper.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "gpu/pool/cuda_registered.h"

namespace crumb {
namespace {

constexpr size_t kOffersMax = 256;

UdsRefusal RefusalOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return UdsRefusal::kNone;
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnavailable:
      return UdsRefusal::kNoGpu;
    case absl::StatusCode::kResourceExhausted:
      return UdsRefusal::kTooMany;
    default:
      return UdsRefusal::kNotShared;
  }
}

}  // namespace

struct WorkerGpus::Impl {
  explicit Impl(GpuMapperParts p) : parts(std::move(p)) {}

  const GpuMapperParts parts;
  std::mutex mutex;
  std::condition_variable changed;
  // By the mutex.
  std::deque<GpuOffer> offers;
  std::deque<GpuAnswer> answers;
  std::vector<GpuMapping> ended;
  bool held = false;
  bool finishing = false;
  std::atomic<size_t> answered{0};  // a hint: the shard asks every turn
  // The thread's alone.
  std::map<uint64_t, GpuImports::Range> ranges;
  std::set<int> prepared;
  uint64_t last_id = 0;
  std::thread thread;

  void Run();
  bool HasWork() const { return finishing || !offers.empty() || (!held && !ended.empty()); }
  absl::Status Open(const GpuOffer& offer, GpuMapping* out);
  absl::StatusOr<std::shared_ptr<GpuLink>> LinkFor(const GpuOffer& offer, int device);
  GpuAnswer Answer(GpuOffer offer);
  void LetGo(std::vector<GpuMapping> mappings);
};

absl::StatusOr<std::shared_ptr<GpuLink>> WorkerGpus::Impl::LinkFor(const GpuOffer& offer,
                                                                   int device) {
  if (offer.link != nullptr) {
    if (offer.link->device() == device) return offer.link;
    return absl::InvalidArgumentError("GPU memory: of another GPU than what was lent before");
  }
  if (!prepared.contains(device)) {
    CRUMB_TRY(parts.prepare(device));
    prepared.insert(device);
  }
  return parts.gpus->MakeLink(
      {.device = device, .slices_from = parts.dram.data(), .slice_bytes = kRegisterSliceBytes});
}

absl::Status WorkerGpus::Impl::Open(const GpuOffer& offer, GpuMapping* out) {
  CRUMB_ASSIGN(const GpuShare share, ParseGpuShare(offer.share));
  CRUMB_ASSIGN(const GpuImports::Range range, parts.gpus->Map(share));
  absl::StatusOr<std::shared_ptr<GpuLink>> link = LinkFor(offer, range.device);
  if (!link.ok()) {
    parts.gpus->Unmap(range);
    return link.status();
  }
  *out = {.address = reinterpret_cast<uint64_t>(range.data),
          .bytes = range.bytes,
          .id = ++last_id,
          .link = *std::move(link)};
  ranges[out->id] = range;
  return absl::OkStatus();
}

GpuAnswer WorkerGpus::Impl::Answer(GpuOffer offer) {
  GpuAnswer answer{.token = offer.token, .refusal = UdsRefusal::kNone, .mapping = {}};
  const absl::Status opened = Open(offer, &answer.mapping);
  answer.refusal = RefusalOf(opened);
  if (!opened.ok()) {
    parts.log->WriteLimited(LogLevel::kWarning, "gpu_offer", "a worker's GPU memory was refused",
                            {{"why", opened.ToString()}});
  }
  return answer;
}

// Links first: the end of one waits for work that reads and writes the memory.
void WorkerGpus::Impl::LetGo(std::vector<GpuMapping> mappings) {
  for (GpuMapping& mapping : mappings) mapping.link.reset();
  for (const GpuMapping& mapping : mappings) {
    if (mapping.id == 0) continue;
    const auto found = ranges.find(mapping.id);
    CRUMB_CHECK(found != ranges.end());
    parts.gpus->Unmap(found->second);
    ranges.erase(found);
  }
}

void WorkerGpus::Impl::Run() {
  (void)pthread_setname_np(pthread_self(), "crumb-gpus");
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return HasWork(); });
    std::vector<GpuMapping> letting;
    if (!held || finishing) letting = std::exchange(ended, {});
    if (finishing) {  // nobody waits for an answer any more
      for (GpuAnswer& answer : answers) letting.push_back(std::move(answer.mapping));
      answers.clear();
      std::deque<GpuOffer> unanswered = std::exchange(offers, {});
      lock.unlock();
      for (GpuOffer& offer : unanswered) offer.link.reset();
      LetGo(std::move(letting));
      return;
    }
    GpuOffer offer;
    const bool offered = !offers.empty();
    if (offered) {
      offer = std::move(offers.front());
      offers.pop_front();
    }
    lock.unlock();
    LetGo(std::move(letting));
    GpuAnswer answer;
    if (offered) answer = Answer(std::move(offer));
    lock.lock();
    if (!offered) continue;
    answers.push_back(std::move(answer));
    answered.store(answers.size());
    lock.unlock();
    parts.wake();
    lock.lock();
  }
}

WorkerGpus::WorkerGpus(GpuMapperParts parts) : impl_(std::make_unique<Impl>(std::move(parts))) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
}

WorkerGpus::~WorkerGpus() { Finish(); }

bool WorkerGpus::Map(const GpuOffer& offer) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->offers.size() >= kOffersMax) return false;
  impl_->offers.push_back(offer);
  impl_->changed.notify_one();
  return true;
}

size_t WorkerGpus::Poll(absl::Span<GpuAnswer> answers) {
  if (impl_->answered.load(std::memory_order_relaxed) == 0) return 0;
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  const size_t count = std::min(answers.size(), impl_->answers.size());
  for (size_t i = 0; i < count; ++i) {
    answers[i] = std::move(impl_->answers.front());
    impl_->answers.pop_front();
  }
  impl_->answered.store(impl_->answers.size());
  return count;
}

void WorkerGpus::Unmap(GpuMapping mapping) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->ended.push_back(std::move(mapping));
  impl_->changed.notify_one();
}

void WorkerGpus::Hold() {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->held = true;
}

void WorkerGpus::Finish() {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->finishing = true;
  }
  impl_->changed.notify_one();
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace crumb
