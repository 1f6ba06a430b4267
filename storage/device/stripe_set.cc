// Find all, judge, size, label, stripe: in this order. Start-up.
#include "storage/device/stripe_set.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cachesvc/base/rng.h"
#include "storage/device/aligned_buffer.h"
#include "storage/device/data_file.h"
#include "storage/device/stripe_device.h"

namespace crumb {
namespace {

constexpr uint64_t kBlock = kStripeLabelBlock;
constexpr uint64_t kBlankProbes = 1024;  // of a member that looks blank and is not new
constexpr char kStartEmpty[] = ", or delete the files of all members to start empty";

struct Member {
  FileDeviceOptions options;
  FoundFile found;
  StripeHead head;
  DataFile file;
  bool taken = false;
};

// "/a/pages.log is member 2 of 4".
std::string Who(const Member& member) {
  return absl::StrCat(member.options.path, " is member ", member.head.label.index + 1, " of ",
                      member.head.label.count);
}

absl::Status Refused(const Member& member, const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat(member.options.path, ": ", why, "; nothing was changed"));
}

class SetOpener {
 public:
  explicit SetOpener(const StripeSetOptions& options) : options_(options) {}

  absl::StatusOr<FileDevice> Open();

 private:
  size_t count() const { return members_.size(); }
  absl::Status CheckDistinct() const;
  absl::Status Find();
  absl::Status Judge();
  absl::Status JudgeFormed(const Member& reference) const;
  absl::Status CheckBlank(const Member& member) const;
  absl::Status CheckContent() const;
  absl::Status ChooseSize();
  absl::Status Take();
  void Undo();
  absl::Status Label();
  absl::Status WriteLabel(const Member& member, StripeState state) const;
  uint64_t BytesBefore() const;
  FileDevice Stripe();

  const StripeSetOptions& options_;
  std::vector<Member> members_;  // in the order of their labels once judged
  bool fresh_ = false;           // nothing is stored yet: labels are made
  bool reordered_ = false;
  uint64_t set_id_ = 0, member_bytes_ = 0;
  uint32_t unit_bytes_ = 0;
  std::string note_;
};

// WHY before they are opened: the second lock on one file would be taken for another daemon's.
absl::Status SetOpener::CheckDistinct() const {
  std::vector<std::pair<dev_t, ino_t>> seen;
  for (size_t i = 0; i < count(); ++i) {
    struct stat info {};
    std::pair<dev_t, ino_t> place{0, 0};
    if (::stat(members_[i].options.path.c_str(), &info) == 0) {
      place = S_ISBLK(info.st_mode) ? std::pair<dev_t, ino_t>{info.st_rdev, 0}
                                    : std::pair<dev_t, ino_t>{info.st_dev, info.st_ino};
    }
    for (size_t k = 0; k < i; ++k) {
      const bool one_file = (place.first != 0 || place.second != 0) && seen[k] == place;
      if (!one_file && members_[k].options.path != members_[i].options.path) continue;
      return absl::InvalidArgumentError(absl::StrCat(members_[i].options.path, " and ",
                                                     members_[k].options.path,
                                                     " are one file: name each member once"));
    }
    seen.push_back(place);
  }
  return absl::OkStatus();
}

absl::Status SetOpener::Find() {
  AlignedBuffer head(kFileHeadBytes);
  for (Member& member : members_) {
    CRUMB_ASSIGN(member.found, FindDataFile(member.options));
    uint64_t have = 0;
    if (member.found.fd.valid()) {
      CRUMB_ASSIGN(have, ReadFound(member.options.path, member.found, 0, head.span()));
    }
    const Bytes bytes(head.data(), have);
    absl::StatusOr<StripeHead> parsed = ParseStripeHead(bytes);
    if (!parsed.ok()) return Refused(member, std::string(parsed.status().message()));
    member.head = *parsed;
    if (!member.head.foreign) continue;
    const bool log = options_.each.accept != nullptr && options_.each.accept(bytes).ok();
    return Refused(member, log ? "is a log of its own and no member of a striped set: name it "
                                 "alone, or delete it to start an empty set"
                               : "holds data that is no member of a striped set, or a member whose "
                                 "label is destroyed: choose another path, or delete it and the "
                                 "files of all other members to start empty");
  }
  return absl::OkStatus();
}

absl::Status SetOpener::JudgeFormed(const Member& reference) const {
  const StripeLabel& like = reference.head.label;
  if (like.count != count()) {
    return Refused(reference,
                   absl::StrCat("is member ", like.index + 1, " of ", like.count, ", and ", count(),
                                " paths are given: name all ", like.count, kStartEmpty));
  }
  std::vector<const Member*> by_index(count());
  for (const Member& member : members_) {
    const StripeLabel& label = member.head.label;
    if (member.head.blank) {
      return Refused(member, absl::StrCat("is empty, but ", Who(reference),
                                          " of a striped set: a member is missing or was replaced: "
                                          "mount it or name its path",
                                          kStartEmpty));
    }
    if (label.set_id != like.set_id || label.count != like.count ||
        label.unit_bytes != like.unit_bytes) {
      return Refused(member,
                     absl::StrCat("belongs to another striped set than ", reference.options.path,
                                  ": name the members of one set", kStartEmpty));
    }
    const Member*& place = by_index[label.index];
    if (place != nullptr) {
      return Refused(member, absl::StrCat("and ", Who(*place),
                                          " of the same set: one is a copy: name the member that "
                                          "is missing",
                                          kStartEmpty));
    }
    place = &member;
  }
  return absl::OkStatus();
}

absl::Status SetOpener::Judge() {
  const auto formed = std::find_if(members_.begin(), members_.end(), [](const Member& member) {
    return !member.head.blank && member.head.label.state == StripeState::kFormed;
  });
  fresh_ = formed == members_.end();
  if (fresh_) {  // new, or a formatting that was cut short
    unit_bytes_ = options_.unit_bytes;
    for (const Member& member : members_) CRUMB_TRY(CheckBlank(member));
    return absl::OkStatus();
  }
  CRUMB_TRY(JudgeFormed(*formed));
  unit_bytes_ = formed->head.label.unit_bytes;
  set_id_ = formed->head.label.set_id;
  const auto before = [](const Member& a, const Member& b) {
    return a.head.label.index < b.head.label.index;
  };
  reordered_ = !std::is_sorted(members_.begin(), members_.end(), before);
  std::sort(members_.begin(), members_.end(), before);
  return CheckContent();
}

// A blank head may be the front of something else: places all over the member are looked at.
absl::Status SetOpener::CheckBlank(const Member& member) const {
  if (!member.found.fd.valid() || member.found.bytes <= kStripeLabelBytes) return absl::OkStatus();
  const uint64_t blocks = (member.found.bytes - kStripeLabelBytes) / kBlock;
  AlignedBuffer block(kBlock);
  for (uint64_t i = 0; i < std::min(blocks, kBlankProbes); ++i) {
    const uint64_t steps = std::max<uint64_t>(1, std::min(blocks, kBlankProbes) - 1);
    const uint64_t at = kStripeLabelBytes + (blocks - 1) * i / steps * kBlock;
    CRUMB_ASSIGN(const uint64_t have,
                 ReadFound(member.options.path, member.found, at, block.span()));
    const auto end = block.data() + have;
    if (std::all_of(block.data(), end, [](uint8_t byte) { return byte == 0; })) continue;
    return Refused(member,
                   "holds data behind an empty head: choose another path, or zero or "
                   "discard it first");
  }
  return absl::OkStatus();
}

// What the set holds begins on its first member.
absl::Status SetOpener::CheckContent() const {
  const Member& first = members_.front();
  if (options_.each.accept == nullptr || first.found.bytes <= kStripeLabelBytes) {
    return absl::OkStatus();
  }
  AlignedBuffer head(kFileHeadBytes);
  CRUMB_ASSIGN(const uint64_t have,
               ReadFound(first.options.path, first.found, kStripeLabelBytes, head.span()));
  const absl::Status status = options_.each.accept(Bytes(head.data(), have));
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(first.options.path, ": ", status.message()));
}

absl::Status SetOpener::ChooseSize() {
  member_bytes_ = options_.bytes / count() / kBlock * kBlock;
  const Member* smallest = nullptr;
  uint64_t largest = 0;
  for (const Member& member : members_) {
    if (!member.found.block_device) continue;
    largest = std::max(largest, member.found.bytes);
    if (member.found.bytes < member_bytes_) {
      member_bytes_ = member.found.bytes / kBlock * kBlock;
      smallest = &member;
    }
  }
  if (smallest != nullptr) {
    note_ = absl::StrCat("; the smallest member counts: ", smallest->options.path, " has ",
                         smallest->found.bytes, " bytes, the largest ", largest);
  }
  if (member_bytes_ < kStripeLabelBytes + unit_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat(members_.front().options.path, ": ", member_bytes_,
                     " bytes for each member are too few, at least ",
                     kStripeLabelBytes + unit_bytes_, " are needed: raise nvme.bytes"));
  }
  for (Member& member : members_) {
    member.options.bytes = member_bytes_;
    CRUMB_TRY(CheckFileOptions(member.options));
  }
  return absl::OkStatus();
}

absl::Status SetOpener::Take() {
  for (Member& member : members_) {
    absl::StatusOr<DataFile> file = TakeDataFile(member.options, std::move(member.found));
    if (!file.ok()) {
      Undo();
      return file.status();
    }
    member.file = *std::move(file);
    member.taken = true;
  }
  return absl::OkStatus();
}

// Room that was taken is given back: the other members may share its volume.
void SetOpener::Undo() {
  for (const Member& member : members_) {
    if (!member.taken || member.file.block_device) continue;
    if (member.file.created) ::unlink(member.options.path.c_str());
    if (member.file.bytes_before >= member_bytes_) continue;
    const int ignored =
        ::ftruncate(member.file.fd.get(), static_cast<off_t>(member.file.bytes_before));
    static_cast<void>(ignored);  // too large is legal: the next start sets the length
  }
}

absl::Status SetOpener::WriteLabel(const Member& member, StripeState state) const {
  AlignedBuffer head(kStripeLabelOffsets.back() + kBlock);
  StripeLabel label = member.head.label;
  label.state = state;
  StoreStripeLabel(label, head.span());
  for (const uint64_t offset : kStripeLabelOffsets) {
    const int fd = member.file.fd.get();
    ssize_t put = -1;
    do {
      put = ::pwrite(fd, head.data() + offset, kBlock, static_cast<off_t>(offset));
    } while (put < 0 && errno == EINTR);
    if (put != static_cast<ssize_t>(kBlock) || ::fdatasync(fd) != 0) {
      return absl::UnavailableError(absl::StrCat(
          member.options.path, ": its label cannot be written: ",
          put < 0 || put == static_cast<ssize_t>(kBlock) ? std::strerror(errno) : "short write"));
    }
  }
  return absl::OkStatus();
}

// INVARIANT: no member is called formed before each has a label on stable storage, and nothing is
// stored before all are called so. A crash on the way leaves a set that is formatted again.
absl::Status SetOpener::Label() {
  if (fresh_) {
    if (options_.format_seed != 0) {
      set_id_ = SplitMix64(options_.format_seed).Next() | 1;
    } else if (::getrandom(&set_id_, sizeof(set_id_), 0) != sizeof(set_id_)) {
      return absl::UnavailableError("the kernel's random source gives nothing");
    }
    set_id_ |= 1;
    for (size_t i = 0; i < count(); ++i) {
      StripeHead& head = members_[i].head;
      head = {};
      head.label = {.set_id = set_id_,
                    .index = static_cast<uint32_t>(i),
                    .count = static_cast<uint32_t>(count()),
                    .unit_bytes = unit_bytes_};
      CRUMB_TRY(WriteLabel(members_[i], StripeState::kForming));
    }
  }
  for (const Member& member : members_) {
    if (member.head.whole && member.head.label.state == StripeState::kFormed) continue;
    CRUMB_TRY(WriteLabel(member, StripeState::kFormed));
  }
  return absl::OkStatus();
}

// 0: nothing was stored, or nothing is missing.
uint64_t SetOpener::BytesBefore() const {
  if (fresh_) return 0;
  uint64_t first_gap = UINT64_MAX;
  for (size_t i = 0; i < count(); ++i) {
    const DataFile& file = members_[i].file;
    if (file.block_device) continue;
    const uint64_t data = file.bytes_before - std::min(file.bytes_before, kStripeLabelBytes);
    const uint64_t unit = data / unit_bytes_, within = data % unit_bytes_;
    first_gap = std::min(first_gap, (unit * count() + i) * unit_bytes_ + within);
  }
  return first_gap == UINT64_MAX ? 0 : std::max<uint64_t>(first_gap, 1);
}

FileDevice SetOpener::Stripe() {
  FileDevice out;
  out.uring = out.direct = out.preallocated = true;
  out.bytes_before = BytesBefore();
  std::vector<std::string> lines;
  std::vector<std::unique_ptr<BlockDevice>> devices;
  for (Member& member : members_) {
    FileDevice one = MakeFileDevice(member.options, std::move(member.file));
    out.uring = out.uring && one.uring;
    out.direct = out.direct && one.direct;
    out.preallocated = out.preallocated && one.preallocated;
    lines.push_back(std::move(one.description));
    devices.push_back(std::move(one.device));
  }
  out.device = std::make_unique<StripeDevice>(
      StripeOptions{unit_bytes_, kStripeLabelBytes, options_.each.depth}, std::move(devices));
  out.description = absl::StrCat(
      fresh_ ? "new set of " : "set of ", lines.size(), " members striped in units of ",
      unit_bytes_, " bytes, ", out.device->size_bytes(), " bytes",
      reordered_ ? ", in the order of their labels" : "", ": ", absl::StrJoin(lines, " | "), note_);
  return out;
}

absl::StatusOr<FileDevice> SetOpener::Open() {
  if (options_.paths.size() < kStripeMembersMin || options_.paths.size() > kStripeMembersMax) {
    return absl::InvalidArgumentError(absl::StrCat(options_.paths.size(),
                                                   " members: ", kStripeMembersMin, " to ",
                                                   kStripeMembersMax, " are possible"));
  }
  for (const std::string& path : options_.paths) {
    members_.emplace_back();
    members_.back().options = options_.each;
    members_.back().options.path = path;
    members_.back().options.bytes = kBlock;  // until it is chosen
    CRUMB_TRY(CheckFileOptions(members_.back().options));
  }
  CRUMB_TRY(CheckDistinct());
  CRUMB_TRY(Find());
  CRUMB_TRY(Judge());
  CRUMB_TRY(ChooseSize());
  CRUMB_TRY(Take());
  const absl::Status labelled = Label();
  if (!labelled.ok()) {
    if (fresh_) Undo();
    return labelled;
  }
  return Stripe();
}

}  // namespace

uint64_t StripeDataBytes(uint64_t bytes, size_t members) {
  const uint64_t each = bytes / members / kBlock * kBlock;
  return StripeDevice::DataBytes(each, {kStripeUnitBytes, kStripeLabelBytes}, members);
}

absl::StatusOr<FileDevice> OpenStripeSet(const StripeSetOptions& options) {
  return SetOpener(options).Open();
}

}  // namespace crumb
