// Pages to and from workers' GPU memory: packed and unpacked by kernels of the worker's GPU where
// there is one for the codec, else moved as they are to and from DRAM, where the host's codec takes
// over. Work of one turn goes out together. A block holds its worker's memory from before its job
// is submitted until the GPU has said that it is done.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/core/engine_gpu.h"

namespace crumb::core {

std::vector<CudaPlace> TableOf(const std::vector<TensorPlace>& places,
                               const std::vector<uint64_t>& addresses) {
  std::vector<CudaPlace> table;
  for (const TensorPlace& place : places) {
    table.push_back({.address = addresses[place.region] + place.offset,
                     .slot_stride = place.slot_stride,
                     .token_stride = place.token_stride,
                     .head_stride = place.head_stride});
  }
  return table;
}

std::vector<TensorPlace> RawPlaces(const PartShape& part, uint64_t slot_bytes) {
  std::vector<TensorPlace> out;
  uint64_t offset = 0;
  for (const LayerShape& layer : part.layers) {
    for (const uint32_t dim : {layer.k_dim, layer.v_dim}) {
      if (dim == 0) continue;
      const uint64_t row = uint64_t{dim} * DtypeBytes(part.dtype);
      out.push_back({.region = 0,
                     .offset = offset,
                     .slot_stride = slot_bytes,
                     .token_stride = row,
                     .head_stride = row * part.page_tokens});
      offset += row * part.page_tokens * layer.heads;
    }
  }
  return out;
}

const GpuSet* EngineLent::GpuSetOf(const Block& block) const {
  if (!peers.Alive(block.peer, block.peer_generation)) return nullptr;
  for (const GpuSet& set : peers[block.peer].gpu_sets) {
    if (set.region_set == block.region_set) return &set;
  }
  return nullptr;
}

bool EngineLent::GpuEncodes(const Block& block) const {
  if (block.form != PageForm::kRaw || CodecOf(block).kind == CodecKind::kRaw) return false;
  const GpuSet* set = GpuSetOf(block);
  if (set == nullptr) return false;
  const GpuCodec* codec =
      block.binding->FindGpu(block.wire.part, CodecOf(block).id, set->link->device());
  return codec != nullptr && codec->encodes();
}

bool EngineLent::GpuDecodes(const Block& block) const {
  const GpuSet* set = GpuSetOf(block);
  return set != nullptr && block.binding->FindGpu(block.wire.part, block.job.header.codec_id,
                                                  set->link->device()) != nullptr;
}

bool EngineLent::GpuReads(const Block& block, const PageKind& kind) const {
  const GpuSet* set = GpuSetOf(block);
  if (set == nullptr || block.form == PageForm::kPage) return false;
  return block.form == PageForm::kPacked ||
         block.binding->FindGpu(block.wire.part, kind.codec_id, set->link->device()) != nullptr;
}

void EngineLent::DropTables(const GpuSet& set) {
  for (const uint32_t table : set.tables) {
    if (table != kNoId) set.link->DropPlaces(table);
  }
}

// What a peer's GPU set looks like to kernels; nothing for a set in host memory.
absl::Status EngineLent::RegisterGpu(Peer* peer, const RegisteredSet& registered) {
  const auto old =
      std::find_if(peer->gpu_sets.begin(), peer->gpu_sets.end(),
                   [&registered](const GpuSet& set) { return set.region_set == registered.id; });
  if (old != peer->gpu_sets.end()) {
    DropTables(*old);
    peer->gpu_sets.erase(old);
  }
  GpuMemory* memory = gpus[peer->transport];
  GpuLink* link = memory == nullptr ? nullptr : memory->LinkOf(peer->id, registered.id);
  if (link == nullptr) return absl::OkStatus();
  const Binding& binding = *bindings.at(registered.layout_handle);
  const std::vector<uint64_t> addresses = memory->AddressesOf(peer->id, registered.id);
  const RegionSet& set = registered.set;
  GpuSet made{.region_set = registered.id,
              .link = link,
              .address = addresses[0],
              .slot_bytes = set.spec().slot_bytes,
              .tables = {}};
  const absl::Status added = AddTables(binding, set, addresses, &made);
  if (!added.ok()) {
    DropTables(made);
    return added;
  }
  peer->gpu_sets.push_back(std::move(made));
  return absl::OkStatus();
}

// Of every part that is here; what was added before an error stays in `made`.
absl::Status EngineLent::AddTables(const Binding& binding, const RegionSet& set,
                                   const std::vector<uint64_t>& addresses, GpuSet* made) {
  for (uint32_t part = 0; part < binding.part_count(); ++part) {
    if (binding.FindGpu(part, binding.raw_id(part), made->link->device()) == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat("the daemon has no kernels for part ", part,
                                                        " of this layout on that GPU: lend host "
                                                        "memory, or see its log"));
    }
    const std::vector<TensorPlace> places =
        set.contiguous() ? RawPlaces(binding.part(part), set.spec().slot_bytes)
                         : set.PlacesOf(part);
    made->tables.push_back(kNoId);
    if (places.empty()) continue;
    const std::vector<CudaPlace> table = TableOf(places, addresses);
    const uint32_t tokens = binding.part(part).page_tokens / set.spec().slots_per_block;
    CRUMB_ASSIGN(made->tables.back(), made->link->AddPlaces(table, tokens));
  }
  return absl::OkStatus();
}

// False: the block waits, or is finished.
bool EngineGpu::HoldGpu(Block& block, uint64_t bytes, uint32_t tokens) {
  if (block.gpu.held()) return true;  // it waited for room on the link
  const RegisteredSet* set = MayTransfer(block);
  if (set == nullptr) return false;
  const BlockPlace place{.part = block.wire.part,
                         .slots = absl::MakeConstSpan(block.slots.data(), block.slot_count),
                         .bytes = bytes,
                         .tokens = set->set.contiguous() ? 0 : tokens};
  if (!set->set.Holds(place)) return Finish(block, BlockResult::kInvalid), false;
  const Peer& peer = peers[block.peer];
  block.lent_transport = peer.transport;
  return BeginTransfer(block, gpus[peer.transport]->HoldGpu(peer.id, block.region_set, &block.gpu));
}

bool EngineLent::ReleaseGpu(Block& block, uint64_t bytes) {
  EndTransfer(block);
  const MappedUse use = block.type == WireType::kPut ? MappedUse::kRead : MappedUse::kWrite;
  return gpus[block.lent_transport]->ReleaseGpu(&block.gpu, use, bytes);
}

// REQUIRES: the block holds its worker's memory.
void EngineGpu::SubmitGpu(Block& block, GpuJob job) {
  const GpuSet* set = GpuSetOf(block);
  if (set == nullptr || !set->link->health().ok()) {
    return Finish(block, BlockResult::kUnavailable);
  }
  const Peer& peer = peers[block.peer];
  if (block.gpu_ticket != 0 && !gpus[peer.transport]->Reached(peer.id, block.gpu_ticket)) {
    return Wait(gate_wait, block);
  }
  block.gpu_ticket = 0;  // it never goes back
  job.table = set->tables[block.wire.part];
  job.slots = absl::MakeConstSpan(block.slots.data(), block.slot_count);
  job.token = MakeToken(TokenKind::kBlock, block.id, block.generation);
  // WHY not behind others: a link that is full, or that waits for its worker, is no affair of
  // theirs.
  if (!set->link->Submit(job)) return Wait(share_wait, block);
  block.pending = Pending::kGpu;
  Activate(set->link);
}

// The bytes of a put, as they are, to where the host's codec finds them.
void EngineGpu::GpuPull(Block& block, const TransferPlan& plan) {
  if (!HoldGpu(block, plan.local.size(), plan.tokens)) return;
  const GpuSet* set = GpuSetOf(block);
  const uint32_t part = block.wire.part;
  GpuJob job;
  job.payload = plan.local.data();
  if (block.form == PageForm::kRaw) {
    job.codec = block.binding->FindGpu(part, block.binding->raw_id(part), set->link->device());
    job.tokens = plan.tokens == 0 ? block.binding->part(part).page_tokens : plan.tokens;
  } else {
    job.kind = GpuJobKind::kCopy;
    job.payload = reinterpret_cast<uint8_t*>(set->address + block.slots[0] * set->slot_bytes);
    job.to = plan.local.data();
    job.bytes = plan.local.size();
  }
  SubmitGpu(block, job);
}

// Straight from the worker's memory to where the page will lie, in HBM or in DRAM.
void EngineGpu::GpuEncode(Block& block) {
  const PartShape& part = block.binding->part(block.wire.part);
  if (!HoldGpu(block, part.raw_bytes, block.wire.token_count)) return;
  const BoundCodec& codec = CodecOf(block);
  block.job = PageJob{};
  block.job.codec = codec.codec.get();
  block.job.header = MakeHeader(block, codec);
  if (!IsHbm(block.page)) block.job.page = MemoryOf(block.page);
  GpuJob job;
  job.effort = block.binding->effort();
  job.tokens = block.job.header.token_count;
  job.payload = MemoryOf(block.page).data() + kPageHeaderBytes;
  job.codec = block.binding->FindGpu(block.wire.part, codec.id, GpuSetOf(block)->link->device());
  SubmitGpu(block, job);
}

void EngineGpu::OnGpuEncoded(Block& block, const EncodeReport& report) {
  ++counts.gpu_encode_pages;
  block.job.kind = PageJobKind::kEncode;
  block.job.report = report;
  block.job.result = report.result;
  if (report.result != BlockResult::kOk || !report.fits || IsHbm(block.page)) {
    return OnPutJob(block);
  }
  block.job.kind = PageJobKind::kSeal;
  RunJob(block);
}

// Where a packed page of DRAM is copied to before it is unpacked; null: there is no room now, and
// the kernel reads it over PCIe. WHY nobody waits: both ways end.
uint8_t* EngineGpu::StageOnGpu(Block& block, const GpuCodec& codec) {
  const EngineGpuStage& stage = options.gpu_stage;
  if (stage.memory.empty() || stage.device != codec.device()) return nullptr;
  if (block.gpu_stage == kNoId) {  // else it waited for room on the link
    const uint64_t bytes = PagePool::ClassBytes(codec.payload_bytes());
    block.gpu_stage = gpu_stage.Allocate(static_cast<uint32_t>(bytes / kPageAlignment));
  }
  if (block.gpu_stage == kNoId) return nullptr;
  return stage.memory.data() + uint64_t{block.gpu_stage} * kPageAlignment;
}

// What a get asked for: from HBM, or from DRAM once the host has verified it.
void EngineGpu::GpuPush(Block& block) {
  const GpuSet* set = GpuSetOf(block);
  const uint32_t part = block.wire.part;
  const bool in_hbm = !block.staging2.valid() && IsHbm(block.page);
  uint8_t* payload = in_hbm ? MemoryOf(block.page).data() : block.job.page.data();
  payload += kPageHeaderBytes;
  // The host's codec made it, or a whole page to be copied. WHY not by the buffer: a page that is
  // read apart has one in any case.
  const bool made = !in_hbm && (block.job.kind == PageJobKind::kDecode ||
                                block.job.kind == PageJobKind::kCopyPage);
  if (made) payload = block.job.raw.data();
  const uint32_t tokens = block.job.header.token_count;
  const bool raw = block.form == PageForm::kRaw;
  const uint64_t bytes = block.reply.value_bytes;
  if (!HoldGpu(block, bytes, raw ? tokens : 0)) return;
  GpuJob job;
  job.kind = GpuJobKind::kDecode;
  job.tokens = tokens;
  job.payload = payload;
  if (raw) {
    const bool as_is = made || block.reply.precision == Precision::kRaw;
    const uint64_t id = as_is ? block.binding->raw_id(part) : block.job.header.codec_id;
    job.codec = block.binding->FindGpu(part, id, set->link->device());
    block.reply.checksum = 0;  // of bytes that the host never saw
    if (job.codec == nullptr) return Finish(block, BlockResult::kMiss);
    if (!in_hbm && !as_is) job.stage = StageOnGpu(block, *job.codec);
  } else {
    job.kind = GpuJobKind::kCopy;
    job.to = reinterpret_cast<uint8_t*>(set->address + block.slots[0] * set->slot_bytes);
    job.bytes = bytes;
    if (in_hbm) block.reply.checksum = 0;
  }
  SubmitGpu(block, job);
}

void EngineGpu::OnGpuDone(const GpuDone& done) {
  const uint32_t id = IdOf(done.token);
  if (!done.ok) ++counts.gpu_failures;
  if (KindOf(done.token) == TokenKind::kMove) {
    CRUMB_CHECK(moves[id].used && TokenIs(done.token, moves[id].generation));
    return OnMoveCopied(id, done.ok);
  }
  if (KindOf(done.token) == TokenKind::kDemotion) {
    CRUMB_CHECK(demotions[id].used && TokenIs(done.token, demotions[id].generation));
    return OnDemotionEncoded(id, done);
  }
  Block& block = blocks[id];
  CRUMB_CHECK(block.used && TokenIs(done.token, block.generation));
  CRUMB_CHECK(block.pending == Pending::kGpu);
  block.pending = Pending::kNone;
  const bool put = block.type == WireType::kPut;
  const uint64_t bytes = block.binding->part(block.wire.part).raw_bytes;
  const bool alive = ReleaseGpu(block, done.ok ? bytes : 0);
  block.job.took_us = now() - block.phase_us;
  EndPhase(block, block.step == Step::kPutPull ? Phase::kWire : Phase::kCodec);
  if (block.doom != BlockResult::kOk) return Finish(block, block.doom);
  if (block.request == kNoId) return Cleanup(block);
  if (!alive || !done.ok) return Finish(block, BlockResult::kUnavailable);
  if (!put) {
    if (block.gpu_stage != kNoId) ++counts.gpu_staged;
    const bool decoded = block.form == PageForm::kRaw && block.job.kind != PageJobKind::kDecode &&
                         block.reply.precision != Precision::kRaw;
    decoded ? ++counts.gpu_decode_pages : ++counts.gpu_copies;
    return OnGetPushed(block);
  }
  if (block.step == Step::kPutEncode) return OnGpuEncoded(block, done.report);
  ++counts.gpu_copies;
  block.pulled = true;
  block.step = Step::kPutEncode;
  Run(block);
}

// Blocks whose worker's GPU has come as far as they need. One peer's lag is nobody else's.
int EngineGpu::RetryGates() {
  int moved = 0;
  for (uint32_t i = gate_wait.size(); i > 0; --i) {
    Block& block = blocks[gate_wait.PopFront(blocks)];
    const Peer& peer = peers[block.peer];
    const bool alive = peers.Alive(block.peer, block.peer_generation);
    if (alive && !gpus[peer.transport]->Reached(peer.id, block.gpu_ticket)) {
      Wait(gate_wait, block);
      continue;
    }
    Run(block);
    ++moved;
  }
  return moved;
}

void EngineGpu::Activate(GpuLink* link) {
  if (std::find(links.begin(), links.end(), link) == links.end()) links.push_back(link);
}

// WHY a link leaves here and not later: what comes back releases its worker's memory, and with the
// last of it the link may go.
size_t EngineBasics::PollLinks() {
  size_t count = 0;
  for (size_t i = 0; i < links.size() && count < gpu_done.size();) {
    count += links[i]->Poll(absl::MakeSpan(gpu_done).subspan(count));
    if (links[i]->in_flight() > 0) {
      ++i;
    } else {
      links.erase(links.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  if (links.size() > 1) std::rotate(links.begin(), links.begin() + 1, links.end());
  return count;
}

}  // namespace crumb::core
