// The medium's versions and the device's schedule.
#include "tests/sim/sim_disk.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/page_header.h"
#include "storage/segment/log_format.h"

namespace crumb::sim {

SimDisk::SimDisk(uint64_t bytes) : bytes_(bytes), is_written_(bytes / kSimBlockBytes) {
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CRUMB_CHECK(mapped != MAP_FAILED);
  durable_ = static_cast<uint8_t*>(mapped);
}

SimDisk::~SimDisk() { ::munmap(durable_, bytes_); }

void SimDisk::Keep(uint64_t block, const uint8_t* data) {
  std::memcpy(durable_ + block * kSimBlockBytes, data, kSimBlockBytes);
  if (is_written_[block]) return;
  is_written_[block] = true;
  written_.push_back(block);
}

void SimDisk::ReadStable(uint64_t offset, MutableBytes out) const {
  CRUMB_CHECK(offset % kSimBlockBytes == 0 && out.size() % kSimBlockBytes == 0);
  std::memcpy(out.data(), durable_ + offset, out.size());
}

void SimDisk::Read(uint64_t offset, MutableBytes out) const {
  ReadStable(offset, out);
  const uint64_t first = offset / kSimBlockBytes;
  const uint64_t end = first + out.size() / kSimBlockBytes;
  for (auto it = volatile_.lower_bound(first); it != volatile_.end() && it->first < end; ++it) {
    std::memcpy(out.data() + (it->first - first) * kSimBlockBytes, it->second.back().data->data(),
                kSimBlockBytes);
  }
}

void SimDisk::Resize(uint64_t bytes) {
  // What was cut must not come back: a mapping of the cut part begins anew with zeros.
  if (bytes < bytes_) {
    CRUMB_CHECK(::madvise(durable_ + bytes, bytes_ - bytes, MADV_DONTNEED) == 0);
  }
  void* const moved = ::mremap(durable_, bytes_, bytes, MREMAP_MAYMOVE);
  CRUMB_CHECK(moved != MAP_FAILED);
  durable_ = static_cast<uint8_t*>(moved);
  bytes_ = bytes;
  const uint64_t blocks = bytes / kSimBlockBytes;
  is_written_.resize(blocks);
  std::erase_if(written_, [blocks](uint64_t block) { return block >= blocks; });
  volatile_.erase(volatile_.lower_bound(blocks), volatile_.end());
}

void SimDisk::Write(uint64_t offset, Bytes data) {
  CRUMB_CHECK(offset % kSimBlockBytes == 0 && data.size() % kSimBlockBytes == 0);
  ++version_;
  for (size_t at = 0; at < data.size(); at += kSimBlockBytes) {
    Version version{.number = version_, .data = std::make_unique<Block>()};
    std::memcpy(version.data->data(), data.data() + at, kSimBlockBytes);
    volatile_[(offset + at) / kSimBlockBytes].push_back(std::move(version));
  }
}

void SimDisk::WriteDurable(uint64_t offset, Bytes data) {
  ++version_;
  for (size_t at = 0; at < data.size(); at += kSimBlockBytes) {
    const uint64_t block = (offset + at) / kSimBlockBytes;
    Keep(block, data.data() + at);
    volatile_.erase(block);
  }
}

void SimDisk::SyncTo(uint64_t version) {
  for (auto entry = volatile_.begin(); entry != volatile_.end();) {
    std::vector<Version>& versions = entry->second;
    const auto end = std::find_if(versions.begin(), versions.end(),
                                  [&](const Version& v) { return v.number > version; });
    if (end != versions.begin()) Keep(entry->first, std::prev(end)->data->data());
    versions.erase(versions.begin(), end);
    entry = versions.empty() ? volatile_.erase(entry) : std::next(entry);
  }
}

void SimDisk::Crash(Rng& rng) {
  // One of three moods per crash: everything still in the cache is lost, all of it made it, or each
  // block had its own fate.
  const uint64_t mood = rng.Below(4);
  for (const auto& [block, versions] : volatile_) {
    const uint64_t choice = mood == 0   ? 0
                            : mood == 1 ? versions.size()
                                        : rng.Below(versions.size() + 1);
    if (choice > 0) Keep(block, versions[choice - 1].data->data());
  }
  volatile_.clear();
}

bool SimDisk::FlipBit(uint64_t block, uint32_t bit) {
  if (block >= is_written_.size() || !is_written_[block] || volatile_.contains(block)) return false;
  uint8_t& byte = durable_[block * kSimBlockBytes + bit / 8 % kSimBlockBytes];
  byte = static_cast<uint8_t>(byte ^ (1u << (bit % 8)));
  return true;
}

SimBlockDevice::SimBlockDevice(SimContext* context, SimDisk* disk, const SimDeviceOptions& options)
    : context_(context), disk_(disk), options_(options), rng_(context->rng.Next()) {}

SimBlockDevice::~SimBlockDevice() { context_->events.CancelAll(this); }

absl::Status SimBlockDevice::RegisterBuffers(absl::Span<const MutableBytes> slices) {
  for (const MutableBytes& slice : slices) {
    if (slice.size() > (1ull << 30)) return absl::InvalidArgumentError("a slice over 1 GiB");
  }
  return absl::OkStatus();
}

bool SimBlockDevice::Reachable(const IoRequest& request) const {
  return request.offset % kSimBlockBytes == 0 && request.bytes > 0 &&
         request.bytes % kSimBlockBytes == 0 &&
         reinterpret_cast<uintptr_t>(request.data) % kSimBlockBytes == 0 &&
         request.offset <= disk_->size_bytes() &&
         request.bytes <= disk_->size_bytes() - request.offset;
}

void SimBlockDevice::SetInstant(bool instant) {
  instant_ = instant;
  context_->events.CancelAll(this);
  while (!started_.empty()) Finish(started_.begin()->first);
}

void SimBlockDevice::CutPowerAfter(uint64_t operations) { fuse_ = operations; }

void SimBlockDevice::CutPower() {
  if (dead_) return;
  context_->trace.Add("power cut", started_.size(), queued_.size());
  for (const auto& [id, operation] : started_) {
    const IoRequest& request = operation.request;
    if (request.op == IoOp::kWrite || request.op == IoOp::kWriteDurable) {
      disk_->Write(request.offset, {request.data, request.bytes});
    }
  }
  disk_->Crash(rng_);
  EndEverything();
}

void SimBlockDevice::Kill() {
  silent_ = false;
  if (dead_) return;
  context_->trace.Add("process ends", started_.size(), queued_.size());
  for (const auto& [id, operation] : started_) {
    const IoRequest& request = operation.request;
    const bool writes = request.op == IoOp::kWrite || request.op == IoOp::kWriteDurable;
    for (uint32_t at = 0; writes && at < request.bytes; at += kSimBlockBytes) {
      if (rng_.Chance(1, 3)) continue;
      disk_->Write(request.offset + at, {request.data + at, kSimBlockBytes});
    }
  }
  EndEverything();
}

void SimBlockDevice::EndEverything() {
  dead_ = true;
  context_->events.CancelAll(this);
  for (const auto& [id, operation] : started_) {
    ready_.push_back({.token = operation.request.token, .error = EIO});
  }
  started_.clear();
  for (const IoRequest& request : queued_) {
    ready_.push_back({.token = request.token, .error = EIO});
  }
  queued_.clear();
}

size_t SimBlockDevice::in_flight() const {
  return queued_.size() + started_.size() + ready_.size();
}

absl::Status SimBlockDevice::Resize(uint64_t bytes) {
  if (dead_) return absl::UnavailableError("the power is gone");
  if (bytes == 0 || bytes % kSimBlockBytes != 0) return absl::InvalidArgumentError("odd size");
  disk_->Resize(bytes);
  return absl::OkStatus();
}

bool SimBlockDevice::Queue(const IoRequest& request) {
  if (in_flight() >= options_.depth) return false;
  queued_.push_back(request);
  return true;
}

void SimBlockDevice::Submit() {
  while (!queued_.empty()) {
    const IoRequest request = queued_.front();
    queued_.pop_front();
    Start(request);
  }
}

void SimBlockDevice::Start(const IoRequest& request) {
  if (!dead_ && fuse_-- == 0) {
    CutPower();
    silent_ = !instant_;  // no process goes on to see what failed
  }
  const bool has_data = request.op != IoOp::kSync;
  const bool valid = !has_data || Reachable(request);
  if (!valid) context_->Fail("a request outside the device or misaligned was queued");
  if (dead_ || !valid) {
    ready_.push_back({.token = request.token, .error = dead_ ? EIO : EINVAL});
    return;
  }
  Operation operation{.request = request};
  operation.sync_version = disk_->version();
  if (request.op == IoOp::kRead) {
    // Whoever looks at the buffer before the completion sees rubbish.
    std::memset(request.data, 0xa5, request.bytes);
  } else if (has_data) {
    operation.content = Xxh3({request.data, request.bytes});
  }
  const uint64_t id = next_id_++;
  started_.emplace(id, operation);
  context_->trace.Add("io start", static_cast<uint64_t>(request.op), request.offset,
                      operation.content);
  if (instant_) {
    Finish(id);
    return;
  }
  context_->events.After(this, Delay(request), [this, id] { Finish(id); });
}

uint64_t SimBlockDevice::Delay(const IoRequest& request) {
  const uint64_t usual =
      request.op == IoOp::kRead ? Latency(rng_, 60, 200) : Latency(rng_, 20, 400);
  if (rng_.Chance(options_.slow_seconds_per_10k, 10'000)) {
    return 500'000 + rng_.Below(3'500'000);
  }
  return usual * options_.slow_factor;
}

void SimBlockDevice::Stall(uint64_t duration_us) {
  context_->trace.Add("disk stalls", duration_us);
  stalled_until_us_ = context_->clock.now_us() + duration_us;
}

// An errno, or 0.
int SimBlockDevice::Refuses(const IoRequest& request) {
  const bool read = request.op == IoOp::kRead;
  const bool data = request.op == IoOp::kWrite || request.op == IoOp::kWriteDurable;
  int error = 0;
  if (rng_.Chance(read ? options_.read_errors_per_10k : options_.write_errors_per_10k, 10'000)) {
    error = EIO;
  } else if (data && rng_.Chance(options_.no_space_per_10k, 10'000)) {
    error = ENOSPC;
  }
  if (error != 0 && on_error_) on_error_(request);
  return error;
}

// Only records and room that nobody uses: see SimDeviceOptions.
bool SimBlockDevice::MayOverwrite(uint64_t offset, uint32_t bytes) const {
  if (offset < kLogHeadBytes || offset + bytes > disk_->size_bytes()) return false;
  std::array<uint8_t, kSimBlockBytes> block;
  constexpr uint32_t kTombstones = TombstoneBlock{}.magic;
  for (uint64_t at = offset; at < offset + bytes; at += kSimBlockBytes) {
    if ((at + kSimBlockBytes) % kSegmentBytesMin == 0) return false;  // maybe a mark
    disk_->Read(at, absl::MakeSpan(block));
    uint32_t first, second;
    std::memcpy(&first, block.data(), sizeof(first));
    std::memcpy(&second, block.data() + kCopyStride, sizeof(second));
    if (first == kTombstones || second == kTombstones) return false;
  }
  return true;
}

// True: the write was reported as done, and was not, or not as it should be.
bool SimBlockDevice::Lies(const IoRequest& request) {
  const bool data = request.op == IoOp::kWrite || request.op == IoOp::kWriteDurable;
  if (!data || !options_.lies() || LoadHeader({request.data, request.bytes}).magic != kPageMagic) {
    return false;
  }
  const Bytes bytes(request.data, request.bytes);
  if (rng_.Chance(options_.lost_writes_per_10k, 10'000)) {
    if (on_error_) on_error_(request);
    context_->trace.Add("write lost", request.offset);
    return true;
  }
  if (rng_.Chance(options_.torn_writes_per_10k, 10'000)) {
    if (on_error_) on_error_(request);
    const uint64_t kept = rng_.Below(request.bytes / kSimBlockBytes) * kSimBlockBytes;
    context_->trace.Add("write torn", request.offset, kept);
    if (kept > 0) disk_->Write(request.offset, bytes.subspan(0, kept));
    return true;
  }
  if (!rng_.Chance(options_.misdirected_per_10k, 10'000)) return false;
  const uint64_t away = (1 + rng_.Below(48)) * kSimBlockBytes;
  const bool down = rng_.Chance(1, 2);
  const uint64_t offset = down ? request.offset - away : request.offset + away;
  if ((down && away > request.offset) || !MayOverwrite(offset, request.bytes)) return false;
  if (on_error_) on_error_(request);
  if (on_overwrite_) on_overwrite_(offset, request.bytes);
  context_->trace.Add("write misdirected", request.offset, offset);
  disk_->Write(offset, bytes);
  return true;
}

int SimBlockDevice::Perform(const Operation& operation) {
  const IoRequest& request = operation.request;
  const Bytes data(request.data, request.bytes);
  if (const int error = Refuses(request); error != 0) {
    // A failed write may have reached the medium in part.
    if (request.op == IoOp::kWrite && rng_.Chance(1, 2)) disk_->Write(request.offset, data);
    return error;
  }
  if (Lies(request)) return 0;
  switch (request.op) {
    case IoOp::kRead:
      disk_->Read(request.offset, {request.data, request.bytes});
      return 0;
    case IoOp::kWrite:
      disk_->Write(request.offset, data);
      return 0;
    case IoOp::kWriteDurable:
      disk_->WriteDurable(request.offset, data);
      return 0;
    case IoOp::kSync:
      disk_->SyncTo(operation.sync_version);
      return 0;
  }
  return EINVAL;
}

void SimBlockDevice::Finish(uint64_t id) {
  const uint64_t now = context_->clock.now_us();
  if (!instant_ && stalled_until_us_ > now) {
    context_->events.After(this, stalled_until_us_ - now + rng_.Below(50),
                           [this, id] { Finish(id); });
    return;
  }
  const Operation operation = started_.at(id);
  const IoRequest& request = operation.request;
  started_.erase(id);
  if (request.op != IoOp::kRead && request.op != IoOp::kSync &&
      Xxh3({request.data, request.bytes}) != operation.content) {
    context_->Fail("a buffer was changed while the device was writing it");
  }
  const int error = Perform(operation);
  context_->trace.Add("io done", static_cast<uint64_t>(request.op), request.offset,
                      static_cast<uint64_t>(error));
  ready_.push_back({.token = request.token, .error = error});
}

size_t SimBlockDevice::Poll(absl::Span<IoCompletion> completions) {
  size_t count = 0;
  while (!silent_ && count < completions.size() && !ready_.empty()) {
    completions[count++] = ready_.front();
    ready_.pop_front();
  }
  return count;
}

}  // namespace crumb::sim
