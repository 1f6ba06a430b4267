// Checks a layout's codecs and sizes once, so that no put can store what no get could read.
#include "cachesvc/core/binding.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/page_header.h"

namespace crumb::core {
namespace {

BoundCodec Bind(const std::shared_ptr<const PageCodec>& codec) {
  const CodecDescriptor& descriptor = codec->descriptor();
  return {.codec = codec,
          .id = descriptor.id(),
          .kind = descriptor.kind,
          .precision = PrecisionOf(descriptor.kind),
          .payload_bytes = codec->payload_bytes()};
}

}  // namespace

Binding::Binding(const ClusterSecret& secret, LayoutBinding source)
    : source_(std::move(source)),
      deriver_(secret, source_.tenant, source_.layout->hash()),
      tenant_prefix_(TenantPrefix(source_.tenant)),
      identity_prefix_(source_.layout->hash().prefix64()) {}

absl::Status Binding::BindPart(uint32_t part, const PagePool& pool) {
  const auto fail = [part](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("part ", part, ": ", what));
  };
  const uint64_t raw_bytes = this->part(part).raw_bytes;
  ladder_.emplace_back();
  readers_.emplace_back();
  for (const auto& codec : source_.ladder[part]) {
    if (codec == nullptr) return fail("a codec of the ladder is missing");
    ladder_[part].push_back(Bind(codec));
  }
  if (ladder_[part].empty() || ladder_[part].back().kind != CodecKind::kRaw) {
    return fail("the last codec of a ladder must be raw");
  }
  if (ladder_[part].back().payload_bytes != raw_bytes) {
    return fail("the raw codec is not of this part's size");
  }
  readers_[part] = ladder_[part];
  for (const auto& codec : source_.readers[part]) {
    if (codec == nullptr) return fail("a reading codec is missing");
    if (FindReader(part, codec->descriptor().id()) == nullptr) {
      readers_[part].push_back(Bind(codec));
    }
  }
  for (const BoundCodec& codec : readers_[part]) {
    const uint64_t slot_bytes = PageSlotBytes(codec.payload_bytes);
    if (!pool.CanEverFit(slot_bytes) || !pool.CanEverStage(slot_bytes)) {
      return fail(absl::StrCat("a page takes ", slot_bytes, " bytes; the pool holds ",
                               pool.capacity_bytes(), " and stages ",
                               pool.staging_capacity_bytes() / 2,
                               " at once: raise pool.dram_bytes or cut the layout into parts"));
    }
  }
  return absl::OkStatus();
}

absl::Status Binding::BindGpu(uint32_t part) {
  for (const auto& codec : source_.gpu[part]) {
    const uint64_t id = codec == nullptr ? 0 : codec->descriptor().id();
    const BoundCodec* reader = codec == nullptr ? nullptr : FindReader(part, id);
    if (reader == nullptr || reader->payload_bytes != codec->payload_bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("part ", part, ": a GPU codec that no codec of the host goes with"));
    }
    gpu_[part].push_back({.id = id, .codec = codec.get()});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Binding>> Binding::Make(const ClusterSecret& secret,
                                                             LayoutBinding source,
                                                             const PagePool& pool) {
  if (source.layout == nullptr) return absl::InvalidArgumentError("the binding names no layout");
  const uint32_t parts = source.layout->part_count();
  const uint32_t window = source.windows.recent_tokens / source.layout->identity().page_tokens;
  if (source.windows.on && window > kChainWalkMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a recent window of ", source.windows.recent_tokens, " tokens holds ", window,
                     " pages; it may hold ", kChainWalkMax, ": use a smaller one"));
  }
  source.readers.resize(std::max<size_t>(source.readers.size(), parts));
  source.gpu.resize(parts);
  if (source.ladder.size() != parts || source.readers.size() != parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("the layout has ", parts, " parts, the binding codecs for ",
                     source.ladder.size(), " (ladder) and ", source.readers.size(), " (readers)"));
  }
  std::shared_ptr<Binding> binding(new Binding(secret, std::move(source)));
  binding->gpu_.resize(parts);
  for (uint32_t part = 0; part < parts; ++part) {
    CRUMB_TRY(binding->BindPart(part, pool));
    CRUMB_TRY(binding->BindGpu(part));
  }
  return std::shared_ptr<const Binding>(std::move(binding));
}

uint32_t Binding::rung(uint32_t part, bool position_known) const {
  if (position_known || layout().identity().k_before_rope) return 0;
  for (uint32_t i = 0; i < ladder_[part].size(); ++i) {
    if (ladder_[part][i].precision <= source_.unknown_position_precision) return i;
  }
  return static_cast<uint32_t>(ladder_[part].size()) - 1;
}

const BoundCodec* Binding::FindReader(uint32_t part, uint64_t codec_id) const {
  for (const BoundCodec& codec : readers_[part]) {
    if (codec.id == codec_id) return &codec;
  }
  return nullptr;
}

const GpuCodec* Binding::FindGpu(uint32_t part, uint64_t codec_id, int device) const {
  for (const BoundGpu& gpu : gpu_[part]) {
    if (gpu.id == codec_id && gpu.codec->device() == device) return gpu.codec;
  }
  return nullptr;
}

}  // namespace crumb::core
