// The medium's versions and the device's schedule.
#include "tests/sim/sim_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"

namespace crumb::sim {

void SimDisk::ReadStable(uint64_t offset, MutableBytes out) const {
  CRUMB_CHECK(offset % kSimBlockBytes == 0 && out.size() % kSimBlockBytes == 0);
  for (size_t at = 0; at < out.size(); at += kSimBlockBytes) {
    const auto kept = durable_.find((offset + at) / kSimBlockBytes);
    if (kept != durable_.end()) {
      std::memcpy(out.data() + at, kept->second.data(), kSimBlockBytes);
    } else {
      std::memset(out.data() + at, 0, kSimBlockBytes);
    }
  }
}

void SimDisk::Read(uint64_t offset, MutableBytes out) const {
  ReadStable(offset, out);
  for (size_t at = 0; at < out.size(); at += kSimBlockBytes) {
    const auto found = volatile_.find((offset + at) / kSimBlockBytes);
    if (found == volatile_.end()) continue;
    std::memcpy(out.data() + at, found->second.back().data.data(), kSimBlockBytes);
  }
}

void SimDisk::Resize(uint64_t bytes) {
  bytes_ = bytes;
  durable_.erase(durable_.lower_bound(bytes / kSimBlockBytes), durable_.end());
  volatile_.erase(volatile_.lower_bound(bytes / kSimBlockBytes), volatile_.end());
}

void SimDisk::Write(uint64_t offset, Bytes data) {
  CRUMB_CHECK(offset % kSimBlockBytes == 0 && data.size() % kSimBlockBytes == 0);
  ++version_;
  for (size_t at = 0; at < data.size(); at += kSimBlockBytes) {
    Version version{.number = version_, .data = {}};
    std::memcpy(version.data.data(), data.data() + at, kSimBlockBytes);
    volatile_[(offset + at) / kSimBlockBytes].push_back(version);
  }
}

void SimDisk::WriteDurable(uint64_t offset, Bytes data) {
  ++version_;
  for (size_t at = 0; at < data.size(); at += kSimBlockBytes) {
    const uint64_t block = (offset + at) / kSimBlockBytes;
    std::memcpy(durable_[block].data(), data.data() + at, kSimBlockBytes);
    volatile_.erase(block);
  }
}

void SimDisk::SyncTo(uint64_t version) {
  for (auto entry = volatile_.begin(); entry != volatile_.end();) {
    std::vector<Version>& versions = entry->second;
    const auto end = std::find_if(versions.begin(), versions.end(),
                                  [&](const Version& v) { return v.number > version; });
    if (end != versions.begin()) durable_[entry->first] = std::prev(end)->data;
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
    if (choice > 0) durable_[block] = versions[choice - 1].data;
  }
  volatile_.clear();
}

bool SimDisk::FlipBit(uint64_t block, uint32_t bit) {
  const auto found = durable_.find(block);
  if (found == durable_.end() || volatile_.contains(block)) return false;
  uint8_t& byte = found->second[bit / 8 % kSimBlockBytes];
  byte = static_cast<uint8_t>(byte ^ (1u << (bit % 8)));
  return true;
}

std::vector<uint64_t> SimDisk::DurableBlocks() const {
  std::vector<uint64_t> blocks;
  for (const auto& [block, data] : durable_) blocks.push_back(block);
  return blocks;
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
  if (!dead_ && fuse_-- == 0) CutPower();
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
  const uint64_t delay =
      request.op == IoOp::kRead ? Latency(rng_, 60, 200) : Latency(rng_, 20, 400);
  context_->events.After(this, delay, [this, id] { Finish(id); });
}

bool SimBlockDevice::Refuses(const IoRequest& request) {
  const uint32_t rate =
      request.op == IoOp::kRead ? options_.read_errors_per_10k : options_.write_errors_per_10k;
  if (!rng_.Chance(rate, 10'000)) return false;
  if (on_error_) on_error_(request);
  return true;
}

int SimBlockDevice::Perform(const Operation& operation) {
  const IoRequest& request = operation.request;
  const Bytes data(request.data, request.bytes);
  if (Refuses(request)) {
    // A failed write may have reached the medium in part.
    if (request.op == IoOp::kWrite && rng_.Chance(1, 2)) disk_->Write(request.offset, data);
    return EIO;
  }
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
  while (count < completions.size() && !ready_.empty()) {
    completions[count++] = ready_.front();
    ready_.pop_front();
  }
  return count;
}

}  // namespace crumb::sim
