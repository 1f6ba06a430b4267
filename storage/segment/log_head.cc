// See log_head.h. Start-up.
#include "storage/segment/log_head.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/rng.h"
#include "storage/device/aligned_buffer.h"
#include "storage/segment/blocking_io.h"
#include "storage/segment/log_geometry.h"

namespace crumb {
namespace {

constexpr size_t kProbesAtOnce = 64;

bool IsZero(Bytes bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

absl::Status Foreign() {
  return absl::FailedPreconditionError(
      "holds data that is not a segment log, or a log whose superblocks are destroyed: nothing was "
      "changed; choose another path, or delete it to start empty");
}

absl::Status Newer() {
  return absl::FailedPreconditionError(
      absl::StrCat("is a segment log of a newer format than ", kLogFormatVersion,
                   ", the newest that this program reads: run the newer program again, or delete "
                   "the file to start empty"));
}

// Everything of the head that no superblock uses.
bool RestIsZero(Bytes head) {
  for (size_t i = 0; i < kSuperblockOffsets.size(); ++i) {
    const uint64_t begin = std::min<uint64_t>(kSuperblockOffsets[i] + kLogBlock, head.size());
    const uint64_t end = i + 1 < kSuperblockOffsets.size()
                             ? std::min<uint64_t>(kSuperblockOffsets[i + 1], head.size())
                             : head.size();
    if (!IsZero(head.subspan(begin, end - begin))) return false;
  }
  return true;
}

absl::Status ReadHead(BlockDevice* device, AlignedBuffer* head) {
  std::vector<IoRequest> requests;
  for (uint64_t offset : kSuperblockOffsets) {
    requests.push_back({IoOp::kRead, offset, head->data() + offset, kLogHeadBytes / 2, 0});
  }
  std::vector<int> errors;
  CRUMB_TRY(RunBlocking(device, requests, &errors));
  if (errors[0] != 0 && errors[1] != 0) {
    return absl::UnavailableError(
        absl::StrCat("neither superblock can be read: ", std::strerror(errors[0])));
  }
  return absl::OkStatus();
}

// A blank head may still be the front of something else: look where the log itself would write.
absl::Status CheckSegmentsAreBlank(const LogGeometry& geometry, BlockDevice* device) {
  AlignedBuffer blocks(kProbesAtOnce * kLogBlock);
  std::vector<uint64_t> offsets;
  for (uint32_t segment = 0; segment < geometry.segment_count; ++segment) {
    if (segment > 0) offsets.push_back(geometry.Offset(segment));
    offsets.push_back(geometry.MarkOffset(segment));
  }
  for (size_t first = 0; first < offsets.size(); first += kProbesAtOnce) {
    const size_t count = std::min(kProbesAtOnce, offsets.size() - first);
    std::vector<IoRequest> requests;
    for (size_t i = 0; i < count; ++i) {
      requests.push_back(
          {IoOp::kRead, offsets[first + i], blocks.data() + i * kLogBlock, kLogBlock, 0});
    }
    std::vector<int> errors;
    const absl::Status status = RunBlocking(device, requests, &errors);
    if (!status.ok()) blocks.Abandon();
    CRUMB_TRY(status);
    for (int error : errors) {
      if (error != 0) return absl::UnavailableError(std::strerror(error));
    }
    if (!IsZero(blocks.span().subspan(0, count * kLogBlock))) return Foreign();
  }
  return absl::OkStatus();
}

absl::StatusOr<LogGeometry> ChooseGeometry(const SegmentLogOptions& options,
                                           const BlockDevice& device, uint32_t segment_bytes) {
  const uint64_t bytes = std::min(options.bytes_max, device.size_bytes());
  const bool power = segment_bytes != 0 && (segment_bytes & (segment_bytes - 1)) == 0;
  if (!power || segment_bytes < kSegmentBytesMin || segment_bytes > kSegmentBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("nvme.segment_bytes is ", segment_bytes,
                                                   ": a power of two from ", kSegmentBytesMin,
                                                   " to ", kSegmentBytesMax, " is needed"));
  }
  const uint64_t count = bytes / segment_bytes;
  if (count < kSegmentsMin || count >= 0xffffffff) {
    return absl::InvalidArgumentError(absl::StrCat(
        "nvme.bytes of ", bytes, " holds ", count, " segments of ", segment_bytes, "; at least ",
        kSegmentsMin, " are needed: raise nvme.bytes or lower nvme.segment_bytes"));
  }
  return LogGeometry{segment_bytes, static_cast<uint32_t>(count)};
}

absl::Status ChooseIdentity(uint64_t seed, Superblock* superblock) {
  std::array<uint64_t, 3> words{};
  if (seed != 0) {
    SplitMix64 mix(seed);
    for (uint64_t& word : words) word = mix.Next();
  } else if (::getrandom(words.data(), sizeof(words), 0) != sizeof(words)) {
    return absl::UnavailableError("the kernel's random source gives nothing");
  }
  superblock->log_id = words[0] | 1;
  std::memcpy(superblock->salt.data(), &words[1], superblock->salt.size());
  return absl::OkStatus();
}

absl::StatusOr<Superblock> Format(const SegmentLogOptions& options, BlockDevice* device) {
  const uint32_t segment_bytes = options.segment_bytes != 0
                                     ? options.segment_bytes
                                     : SegmentLog::DefaultSegmentBytes(options.bytes_max);
  CRUMB_ASSIGN(const LogGeometry geometry, ChooseGeometry(options, *device, segment_bytes));
  CRUMB_TRY(CheckSegmentsAreBlank(geometry, device));
  Superblock superblock;
  CRUMB_TRY(ChooseIdentity(options.format_seed, &superblock));
  superblock.secret_fingerprint = options.secret_fingerprint;
  superblock.segment_bytes = geometry.segment_bytes;
  superblock.segment_count = geometry.segment_count;
  superblock.clean = 1;
  CRUMB_TRY(WriteSuperblock(device, &superblock));
  return superblock;
}

}  // namespace

absl::StatusOr<LogHead> ParseHead(Bytes head) {
  LogHead out;
  bool found = false, unfinished = true;
  for (uint64_t offset : kSuperblockOffsets) {
    if (offset >= head.size()) continue;
    const Bytes block = head.subspan(offset, std::min<uint64_t>(kLogBlock, head.size() - offset));
    Superblock superblock;
    const ParseResult result = ParseSuperblock(block, &superblock);
    if (result == ParseResult::kNewer) return Newer();
    unfinished = unfinished && IsUnfinishedSuperblock(block);
    if (result != ParseResult::kOk) continue;
    if (!found || superblock.revision > out.superblock.revision) out.superblock = superblock;
    found = true;
  }
  if (found) return out;
  if (!unfinished || !RestIsZero(head)) return Foreign();
  out.blank = true;
  return out;
}

absl::StatusOr<Superblock> OpenHead(const SegmentLogOptions& options, BlockDevice* device) {
  if (device->alignment() > kLogBlock || kLogBlock % device->alignment() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the device wants blocks of ",
                                                   device->alignment(), " bytes; at most ",
                                                   kLogBlock, " are possible"));
  }
  if (device->size_bytes() < kLogHeadBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the device has only ", device->size_bytes(), " bytes; at least ",
                     kSegmentsMin, " segments of ", kSegmentBytesMin, " are needed"));
  }
  AlignedBuffer bytes(kLogHeadBytes);
  const absl::Status status = ReadHead(device, &bytes);
  if (absl::IsDeadlineExceeded(status)) bytes.Abandon();
  CRUMB_TRY(status);
  CRUMB_ASSIGN(const LogHead head, ParseHead(bytes.span()));
  if (head.blank) return Format(options, device);
  Superblock superblock = head.superblock;
  if (superblock.secret_fingerprint != options.secret_fingerprint) {
    return absl::FailedPreconditionError(
        "belongs to another cluster secret: restore the secret file that it was written with, or "
        "delete the log to start empty");
  }
  if (options.segment_bytes != 0 && options.segment_bytes != superblock.segment_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "has segments of ", superblock.segment_bytes, " bytes, nvme.segment_bytes says ",
        options.segment_bytes, ": change the setting, or delete the log to start empty"));
  }
  CRUMB_TRY(ChooseGeometry(options, *device, superblock.segment_bytes).status());
  return superblock;
}

absl::Status WriteSuperblock(BlockDevice* device, Superblock* superblock) {
  AlignedBuffer block(kLogBlock);
  ++superblock->revision;
  StoreSuperblock(*superblock, block.span());
  for (uint64_t offset : kSuperblockOffsets) {
    const absl::Status status =
        RunOne(device, {IoOp::kWriteDurable, offset, block.data(), kLogBlock, 0}, "superblock");
    if (absl::IsDeadlineExceeded(status)) block.Abandon();
    CRUMB_TRY(status);
  }
  return absl::OkStatus();
}

}  // namespace crumb
