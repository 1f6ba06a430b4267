// Codecs of every part, and places of every tensor.
#include "client/src/worker_set.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/page_header.h"

namespace crumb::client {
namespace {

absl::Status NoKernel(const CodecDescriptor& descriptor, const absl::Status& why) {
  return absl::UnimplementedError(absl::StrCat("no kernel for ", ToString(descriptor.kind),
                                               " on this GPU: ", std::string(why.message())));
}

// A raw page at a slot of contiguous memory, as tensors.
std::vector<CudaPlace> PlacesOfPage(const PartShape& part, const RegionSetSpec& spec) {
  std::vector<CudaPlace> out;
  uint64_t address = spec.regions[0].address;
  for (const LayerShape& layer : part.layers) {
    for (const uint32_t dim : {layer.k_dim, layer.v_dim}) {
      if (dim == 0) continue;
      const uint64_t row = uint64_t{dim} * DtypeBytes(part.dtype);
      out.push_back({.address = address,
                     .slot_stride = spec.slot_bytes,
                     .token_stride = row,
                     .head_stride = row * part.page_tokens});
      address += row * part.page_tokens * layer.heads;
    }
  }
  return out;
}

std::vector<CudaPlace> PlacesOfTensors(const std::vector<TensorPlace>& places,
                                       const RegionSetSpec& spec) {
  std::vector<CudaPlace> out;
  for (const TensorPlace& place : places) {
    out.push_back({.address = spec.regions[place.region].address + place.offset,
                   .slot_stride = place.slot_stride,
                   .token_stride = place.token_stride,
                   .head_stride = place.head_stride});
  }
  return out;
}

absl::Status MakePart(const PartShape& shape, const LayoutCodecs& codecs, WorkerGpu* gpu,
                      WorkerPart* part) {
  part->page_tokens = shape.page_tokens;
  part->raw_bytes = shape.raw_bytes;
  std::map<Sha256, std::vector<CodecDescriptor>> by_set;
  for (const CodecDescriptor& reader : codecs.readers) {
    by_set[reader.rotation_set].push_back(reader);
  }
  for (const auto& [hash, descriptors] : by_set) {
    const auto set = codecs.FindRotations(descriptors.front());
    for (const GpuCodecMade& made : gpu->MakeCodecs(shape, descriptors, set)) {
      const bool raw = made.descriptor.kind == CodecKind::kRaw;
      const bool packs = made.descriptor.id() == codecs.put.id();
      if (made.codec == nullptr && (raw || packs)) return NoKernel(made.descriptor, made.status);
      if (made.codec == nullptr || part->Find(made.descriptor.id()) != nullptr) continue;
      if (raw) part->raw = made.codec.get();
      if (packs && !raw && made.codec->encodes()) part->pack = made.codec.get();
      part->codecs.push_back(made.codec);
    }
  }
  if (part->raw == nullptr) return absl::UnimplementedError("no kernel for raw pages on this GPU");
  return absl::OkStatus();
}

}  // namespace

const GpuCodec* WorkerPart::Find(uint64_t codec_id) const {
  for (const auto& codec : codecs) {
    if (codec->descriptor().id() == codec_id) return codec.get();
  }
  return nullptr;
}

bool WorkerSet::Packs(const WireBlock& block) const {
  const bool known = block.token_start != kTokenStartUnknown;
  return parts[block.part].pack != nullptr && (known ? packs_known : packs_unknown);
}

absl::StatusOr<std::shared_ptr<WorkerSet>> MakeWorkerSet(const crumb::Layout& layout,
                                                         const LayoutCodecs& codecs,
                                                         WorkerGpu* gpu) {
  auto set = std::make_shared<WorkerSet>();
  set->identity_prefix = layout.hash().prefix64();
  set->codec_id = codecs.put.id();
  set->effort = codecs.effort;
  set->packs_known = codecs.packs_known;
  set->packs_unknown = codecs.packs_unknown;
  for (const PartShape& shape : layout.parts()) {
    WorkerPart& part = set->parts.emplace_back();
    CRUMB_TRY(MakePart(shape, codecs, gpu, &part));
    set->raw_bytes_most = std::max(set->raw_bytes_most, part.raw_bytes);
    for (const auto& codec : part.codecs) {
      if (codec.get() == part.raw) continue;
      set->payload_bytes_most = std::max<uint64_t>(set->payload_bytes_most, codec->payload_bytes());
    }
  }
  if (set->payload_bytes_most == 0) set->payload_bytes_most = set->raw_bytes_most;
  return set;
}

absl::Status AddTables(const LentMemory& memory, const crumb::Layout& layout, GpuLink* link,
                       WorkerSet* set) {
  const RegionSetSpec& spec = memory.spec();
  for (uint32_t i = 0; i < set->parts.size(); ++i) {
    const PartShape& shape = layout.parts()[i];
    const std::vector<CudaPlace> places =
        memory.contiguous() ? PlacesOfPage(shape, spec) : PlacesOfTensors(memory.PlacesOf(i), spec);
    if (places.empty()) continue;
    const auto table = link->AddPlaces(places, shape.page_tokens / spec.slots_per_block);
    if (!table.ok()) {
      DropTables(link, set);
      return table.status();
    }
    set->parts[i].table = *table;
  }
  return absl::OkStatus();
}

void DropTables(GpuLink* link, WorkerSet* set) {
  for (WorkerPart& part : set->parts) {
    if (part.table != UINT32_MAX) link->DropPlaces(std::exchange(part.table, UINT32_MAX));
  }
}

}  // namespace crumb::client
