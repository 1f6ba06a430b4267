// Checks of SubmitPut, SubmitGet, SubmitLookup and SubmitDelete.
#include "client/src/request_build.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/keys.h"

namespace crumb::client {
namespace {

constexpr uint32_t kDeadlineMsMax = 600'000;

template <typename... Args>
absl::Status Bad(size_t block, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("block ", block, ": ", args...));
}

bool MovesData(WireType type) { return type == WireType::kPut || type == WireType::kGet; }

absl::Status CheckOptions(const BuildInput& input) {
  const RequestOptions& options = input.options;
  if (options.deadline_ms > kDeadlineMsMax || options.wait_ms > kDeadlineMsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("deadline_ms and wait_ms are at most ", kDeadlineMsMax));
  }
  if (options.form > Form::kPage) return absl::InvalidArgumentError("form: unknown");
  const bool tensors = input.lent != nullptr && !input.lent->memory->contiguous();
  if (tensors && options.form != Form::kRaw) {
    return absl::InvalidArgumentError(
        "lent tensors hold raw pages only: use LendPages for the "
        "packed and page forms");
  }
  return absl::OkStatus();
}

absl::StatusOr<WireBlock> BuildBlock(const BuildInput& input, size_t index) {
  const Block& block = (*input.blocks)[index];
  const crumb::Layout& shape = *input.layout->shape;
  WireBlock wire;
  CRUMB_ASSIGN(wire.digest, DigestKey(block.key, index));
  if (!block.parent.empty()) {
    CRUMB_ASSIGN(wire.parent, DigestKey(block.parent, index));
  }
  if (block.part >= shape.part_count()) {
    return Bad(index, "part ", block.part, " of a layout with ", shape.part_count());
  }
  if (block.token_count > shape.identity().page_tokens) {
    return Bad(index, "token_count ", block.token_count, " of a layout with pages of ",
               shape.identity().page_tokens);
  }
  if (block.provenance > Provenance::kTranscoded) return Bad(index, "provenance: unknown");
  wire.token_start = block.token_start;
  wire.token_count = static_cast<uint16_t>(block.token_count);
  wire.part = static_cast<uint16_t>(block.part);
  wire.provenance = static_cast<crumb::Provenance>(block.provenance);
  return wire;
}

// Length of the value in lent memory: known for raw pages, given for a put of other forms, unknown
// for a get of them (then 1: the slot must exist, the answer is checked).
absl::StatusOr<uint64_t> ValueBytes(const BuildInput& input, size_t index) {
  const Block& block = (*input.blocks)[index];
  if (input.options.form == Form::kRaw) return input.layout->shape->parts()[block.part].raw_bytes;
  if (input.type == WireType::kGet) return uint64_t{1};
  if (block.value_bytes == 0) return Bad(index, "value_bytes: the packed and page forms need it");
  return uint64_t{block.value_bytes};
}

absl::Status AddPlace(const BuildInput& input, size_t index, PlaneRequest* request) {
  const Block& block = (*input.blocks)[index];
  const LentMemory& memory = *input.lent->memory;
  const absl::Span<const uint32_t> slots =
      block.slots.empty() ? absl::MakeConstSpan(&block.slot, 1)
                          : absl::MakeConstSpan(block.slots.data(), block.slots.size());
  if (slots.size() != memory.slots_per_block()) {
    return Bad(index, slots.size(), " slots named, this lent memory needs ",
               memory.slots_per_block());
  }
  for (uint32_t slot : slots) {
    if (slot >= memory.slots()) {
      return Bad(index, "slot ", slot, " of lent memory with ", memory.slots());
    }
  }
  CRUMB_ASSIGN(const uint64_t bytes, ValueBytes(input, index));
  const ValuePlace place{
      .part = block.part, .slots = slots, .bytes = bytes, .tokens = block.token_count};
  if (!memory.Fits(place)) {
    return Bad(index, "a value of ", bytes, " bytes does not fit slots of ",
               memory.spec().slot_bytes);
  }
  request->raw_bytes.push_back(bytes);
  request->slots.insert(request->slots.end(), slots.begin(), slots.end());
  return absl::OkStatus();
}

uint16_t FlagsOf(const BuildInput& input) {
  const RequestOptions& options = input.options;
  if (input.type == WireType::kPut && options.durable) return kWireFlagDurable;
  if (input.type == WireType::kGet && options.wait_ms != 0) return kWireFlagWait;
  if (input.type == WireType::kLookup && options.stop_at_gap) return kWireFlagStopAtGap;
  return 0;
}

}  // namespace

absl::StatusOr<Digest> DigestKey(std::string_view key, size_t block) {
  if (key.empty() || key.size() > kExternalKeyBytesMax) {
    return Bad(block, "a key of ", key.size(), " bytes; keys have 1 to ", kExternalKeyBytesMax);
  }
  return DigestOf(AsBytes(key));
}

absl::Status BuildRequest(const BuildInput& input, PlaneRequest* out) {
  CRUMB_TRY(CheckOptions(input));
  const size_t count = input.blocks->size();
  if (count == 0 || count > kBlocksPerRequestMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(count, " blocks in a request; 1 to ", kBlocksPerRequestMax, " are allowed"));
  }
  out->type = input.type;
  out->flags = FlagsOf(input);
  out->form = static_cast<PageForm>(input.options.form);
  out->verify = input.options.verify;
  out->layout_handle = input.layout->daemon_handle;
  out->deadline_ms =
      input.options.deadline_ms != 0 ? input.options.deadline_ms : input.deadline_ms_default;
  out->wait_ms = input.type == WireType::kGet ? input.options.wait_ms : 0;
  out->grace_ms = input.grace_ms;
  out->blocks.clear();
  out->raw_bytes.clear();
  out->slots.clear();
  const bool moves = MovesData(input.type);
  out->region_set = moves ? input.region_set : 0;
  out->memory = moves ? input.lent->memory : nullptr;
  out->slots_per_block = moves ? out->memory->slots_per_block() : 0;
  for (size_t i = 0; i < count; ++i) {
    CRUMB_ASSIGN(WireBlock wire, BuildBlock(input, i));
    if (moves) CRUMB_TRY(AddPlace(input, i, out));
    const bool carries = input.type == WireType::kPut && input.options.form != Form::kRaw;
    wire.value_bytes = carries ? (*input.blocks)[i].value_bytes : 0;
    out->blocks.push_back(wire);
  }
  return absl::OkStatus();
}

}  // namespace crumb::client
