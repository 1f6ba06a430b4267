// demote on a GPU: the host verifies the raw page, a kernel reads it out of pinned DRAM and packs
// it into its new slot, the host seals that.
#include <cstddef>
#include <cstring>

#include "cachesvc/core/engine_demote.h"

namespace crumb::core {

// Pages that came out of GPU memory are encoded by a GPU, as a put that encodes at once is: one
// page has one image. Null: by the host.
const GpuCodec* EngineDemote::DemotionCodec(const Demotion& demotion) {
  const BoundCodec& codec = demotion.binding->ladder(demotion.part)[demotion.rung];
  GpuLink* link = options.hbm.lower;
  if (link == nullptr || !link->health().ok() || codec.kind == CodecKind::kRaw) return nullptr;
  if (demotion.entry == kNoId || !PageOf(index.at(demotion.entry)).gpu_put) return nullptr;
  const GpuCodec* gpu = demotion.binding->FindGpu(demotion.part, codec.id, link->device());
  return gpu != nullptr && gpu->encodes() && DemotionTable(demotion) != kNoId ? gpu : nullptr;
}

// The DRAM pool as kernels read it: a slot of 4 KiB steps holds a header and a canonical raw page.
uint32_t EngineDemote::DemotionTable(const Demotion& demotion) {
  const std::pair<uint64_t, uint32_t> name{demotion.binding->identity_prefix(), demotion.part};
  const auto it = raw_tables.find(name);
  if (it != raw_tables.end()) return it->second;
  const PartShape& part = demotion.binding->part(demotion.part);
  const auto base = reinterpret_cast<uint64_t>(pool().arena().data()) + kPageHeaderBytes;
  const auto places = TableOf(RawPlaces(part, kPageAlignment), {base});
  const auto table = options.hbm.lower->AddPlaces(places, part.page_tokens);
  return raw_tables.emplace(name, table.ok() ? *table : kNoId).first->second;
}

// False: the link is full.
bool EngineDemote::EncodeDemotion(uint32_t id) {
  Demotion& demotion = demotions[id];
  const GpuCodec* codec = DemotionCodec(demotion);
  if (codec == nullptr) {  // the GPU is lost
    demotion.step = DemotionStep::kSubmit;
    return SubmitDemotion(id);
  }
  const uint32_t slot = demotion.source.value;
  GpuJob job;
  job.effort = demotion.binding->effort();
  job.codec = codec;
  job.table = DemotionTable(demotion);
  job.tokens = index.at(demotion.entry).token_count;
  job.slots = absl::MakeConstSpan(&slot, 1);
  job.payload = pool().memory(demotion.target).data() + kPageHeaderBytes;
  job.token = MakeToken(TokenKind::kDemotion, id, demotion.generation);
  if (!options.hbm.lower->Submit(job)) return false;
  Activate(options.hbm.lower);
  demotion.step = DemotionStep::kGpu;
  return true;
}

// What the GPU packed gets the header that the host would have sealed.
void EngineDemote::OnDemotionEncoded(uint32_t id, const GpuDone& done) {
  Demotion& demotion = demotions[id];
  CRUMB_CHECK(demotion.step == DemotionStep::kGpu);
  if (demotion.entry == kNoId) return EndDemotion(id);
  if (!done.ok) {  // by the host, then
    demotion.step = DemotionStep::kSubmit;
    return;
  }
  ++counts.gpu_encode_pages;
  PageJob& job = demotion.job;
  const BoundCodec& codec = demotion.binding->ladder(demotion.part)[demotion.rung];
  job.kind = PageJobKind::kSeal;
  job.report = done.report;
  job.result = done.report.result;
  job.page = pool().memory(demotion.target);
  job.header = PageHeader{};
  std::memcpy(static_cast<void*>(&job.header), pool().memory(demotion.source).data(),
              offsetof(PageHeader, segment));
  job.header.precision = codec.precision;
  job.header.codec_id = codec.id;
  job.header.flags = demotion.rung > 0 ? kPageFlagStepped : 0;
  job.header.checksum = 0;
  job.header.payload_bytes = codec.payload_bytes;
  if (job.result != BlockResult::kOk || !job.report.fits) return JudgeDemotion(id);
  demotion.step = DemotionStep::kSealSubmit;
  SealDemotion(id);
}

bool EngineDemote::SealDemotion(uint32_t id) { return QueueDemotion(id, DemotionStep::kSeal); }

}  // namespace crumb::core
