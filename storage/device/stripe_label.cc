// See stripe_label.h. Pure.
#include "storage/device/stripe_label.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"

namespace crumb {
namespace {

enum class Parsed : uint8_t { kOk, kNewer, kBad };

uint64_t Checksum(const StripeLabel& label) {
  return Xxh3(Bytes(reinterpret_cast<const uint8_t*>(&label), offsetof(StripeLabel, checksum)));
}

bool InRange(const StripeLabel& label) {
  const bool state = label.state == StripeState::kForming || label.state == StripeState::kFormed;
  const bool unit = label.unit_bytes >= kStripeUnitBytesMin &&
                    label.unit_bytes <= kStripeUnitBytesMax &&
                    (label.unit_bytes & (label.unit_bytes - 1)) == 0;
  return state && unit && label.set_id != 0 && label.count >= kStripeMembersMin &&
         label.count <= kStripeMembersMax && label.index < label.count;
}

Parsed Parse(Bytes block, StripeLabel* label) {
  if (block.size() < sizeof(StripeLabel)) return Parsed::kBad;
  std::memcpy(label, block.data(), sizeof(StripeLabel));
  if (label->magic != StripeLabel{}.magic || label->checksum != Checksum(*label)) {
    return Parsed::kBad;
  }
  if (label->format_version > kStripeFormatVersion) return Parsed::kNewer;
  return label->struct_bytes == sizeof(StripeLabel) && InRange(*label) ? Parsed::kOk : Parsed::kBad;
}

}  // namespace

absl::StatusOr<StripeHead> ParseStripeHead(Bytes head) {
  StripeHead out;
  out.blank = std::all_of(head.begin(), head.end(), [](uint8_t byte) { return byte == 0; });
  if (out.blank) return out;
  uint32_t found = 0;
  bool same = true;
  for (const uint64_t offset : kStripeLabelOffsets) {
    if (offset >= head.size()) continue;
    StripeLabel label;
    const Parsed parsed = Parse(head.subspan(offset), &label);
    if (parsed == Parsed::kNewer) {
      return absl::FailedPreconditionError(
          absl::StrCat("is a member of a striped set of a newer format than ", kStripeFormatVersion,
                       ", the newest that this program reads: run the newer program again, or "
                       "delete the files of all members to start empty"));
    }
    if (parsed != Parsed::kOk) continue;
    if (found > 0) same = std::memcmp(&label, &out.label, sizeof(label)) == 0;
    // Formed wins: the copies differ only where a crash came between them.
    if (found == 0 || label.state == StripeState::kFormed) out.label = label;
    ++found;
  }
  out.foreign = found == 0;
  out.whole = found == kStripeLabelOffsets.size() && same;
  return out;
}

void StoreStripeLabel(StripeLabel label, MutableBytes out) {
  CRUMB_CHECK(InRange(label));
  label.checksum = Checksum(label);
  for (const uint64_t offset : kStripeLabelOffsets) {
    CRUMB_CHECK(out.size() >= offset + sizeof(label));
    std::memcpy(out.data() + offset, &label, sizeof(label));
  }
}

absl::Status RefuseStripeMember(Bytes head) {
  CRUMB_ASSIGN(const StripeHead parsed, ParseStripeHead(head));
  if (parsed.blank || parsed.foreign) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("is member ", parsed.label.index + 1, " of ", parsed.label.count,
                   " of a striped set and no log by itself: name all ", parsed.label.count,
                   " in nvme.path, or delete the files of all of them to start empty"));
}

}  // namespace crumb
