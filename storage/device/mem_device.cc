// See mem_device.h. One thread.
#include "storage/device/mem_device.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "storage/device/io_progress.h"
#include "storage/device/ring_device.h"

namespace crumb {
namespace {

bool IsWrite(IoOp op) { return op == IoOp::kWrite || op == IoOp::kWriteDurable; }

}  // namespace

MemDevice::MemDevice(const MemDeviceOptions& options) : options_(options), image_(options.bytes) {
  CRUMB_CHECK(options.bytes > 0 && options.bytes % options.alignment == 0 && options.depth > 0);
  if (options.track_unsynced) stable_ = AlignedBuffer(options.bytes);
}

absl::Status MemDevice::RegisterBuffers(absl::Span<const MutableBytes> slices) {
  for (const MutableBytes& slice : slices) {
    if (slice.empty() || slice.size() > kRegisteredSliceBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("a slice has ", slice.size(), " bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status MemDevice::Resize(uint64_t bytes) {
  if (bytes == 0 || bytes % options_.alignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a size of ", bytes, " bytes"));
  }
  const uint64_t kept = std::min(bytes, options_.bytes);
  for (AlignedBuffer* buffer : {&image_, &stable_}) {
    if (buffer->size() == 0) continue;
    AlignedBuffer other(bytes);
    std::memcpy(other.data(), buffer->data(), kept);
    *buffer = std::move(other);
  }
  std::erase_if(unsynced_, [bytes](const auto& entry) {
    return entry.second.offset + entry.second.data.size() > bytes;
  });
  options_.bytes = bytes;
  return absl::OkStatus();
}

bool MemDevice::Queue(const IoRequest& request) {
  if (in_flight() >= options_.depth) return false;
  queued_.push_back({request, writes_done_});
  return true;
}

void MemDevice::Submit() {
  while (!queued_.empty()) {
    submitted_.push_back(queued_.front());
    queued_.pop_front();
  }
}

size_t MemDevice::Poll(absl::Span<IoCompletion> completions) {
  size_t count = 0;
  while (count < completions.size() && !submitted_.empty()) {
    const Pending pending = submitted_.front();
    submitted_.pop_front();
    completions[count++] = {pending.request.token, Execute(pending)};
  }
  return count;
}

int MemDevice::Execute(const Pending& pending) {
  const IoRequest& request = pending.request;
  if (int error = CheckIoRequest(request, options_.bytes, options_.alignment); error != 0) {
    return error;
  }
  if (request.op == IoOp::kRead) {
    std::memcpy(request.data, image_.data() + request.offset, request.bytes);
  } else if (IsWrite(request.op)) {
    ApplyWrite(request);
  } else {
    SettleBefore(pending.writes_before);
  }
  return 0;
}

void MemDevice::ApplyWrite(const IoRequest& request) {
  std::memcpy(image_.data() + request.offset, request.data, request.bytes);
  ++writes_done_;
  if (!options_.track_unsynced) return;
  if (request.op == IoOp::kWriteDurable) {
    // WHY: an older cached write to the same place must not come back over the durable one.
    SettleOverlaps(request);
    std::memcpy(stable_.data() + request.offset, request.data, request.bytes);
    return;
  }
  Write write;
  write.offset = request.offset;
  write.data.assign(request.data, request.data + request.bytes);
  write.completed = true;
  unsynced_.emplace_back(writes_done_, std::move(write));
}

void MemDevice::MakeStable(const Write& write) {
  std::memcpy(stable_.data() + write.offset, write.data.data(), write.data.size());
}

void MemDevice::SettleOverlaps(const IoRequest& request) {
  std::deque<std::pair<uint64_t, Write>> rest;
  for (auto& entry : unsynced_) {
    const Write& write = entry.second;
    const bool apart = write.offset + write.data.size() <= request.offset ||
                       request.offset + request.bytes <= write.offset;
    if (apart) {
      rest.push_back(std::move(entry));
    } else {
      MakeStable(write);
    }
  }
  unsynced_ = std::move(rest);
}

void MemDevice::SettleBefore(uint64_t write_number) {
  while (!unsynced_.empty() && unsynced_.front().first <= write_number) {
    MakeStable(unsynced_.front().second);
    unsynced_.pop_front();
  }
}

void MemDevice::Crash(const Survives& survives) {
  CRUMB_CHECK(options_.track_unsynced);
  for (const auto* pending : {&submitted_, &queued_}) {
    for (const Pending& entry : *pending) {
      const IoRequest& request = entry.request;
      if (!IsWrite(request.op)) continue;
      if (CheckIoRequest(request, options_.bytes, options_.alignment) != 0) continue;
      Write write;
      write.offset = request.offset;
      write.data.assign(request.data, request.data + request.bytes);
      write.durable = request.op == IoOp::kWriteDurable;
      unsynced_.emplace_back(++writes_done_, std::move(write));
    }
  }
  submitted_.clear();
  queued_.clear();
  for (const auto& [number, write] : unsynced_) {
    const uint64_t sectors = write.data.size() / kSectorBytes;
    for (uint64_t sector = 0; sector < sectors; ++sector) {
      if (!survives(write, sector)) continue;
      std::memcpy(stable_.data() + write.offset + sector * kSectorBytes,
                  write.data.data() + sector * kSectorBytes, kSectorBytes);
    }
  }
  unsynced_.clear();
  std::memcpy(image_.data(), stable_.data(), options_.bytes);
}

absl::Status MemDevice::Dump(const std::string& path) const {
  std::FILE* file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr)
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  const size_t written = std::fwrite(image_.data(), 1, options_.bytes, file);
  const int closed = std::fclose(file);
  if (written == options_.bytes && closed == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": ", std::strerror(errno)));
}

}  // namespace crumb
