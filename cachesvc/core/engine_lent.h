// Memory of workers that a transport has mapped, as the engine's paths use it: held for a block
// from before its job until after it. Starts no path and sends nothing but the end of a hold.
// INVARIANT: a block holds lent memory only while it has work for it, and is not answered before.
#ifndef CRUMB_CACHESVC_CORE_ENGINE_LENT_H_
#define CRUMB_CACHESVC_CORE_ENGINE_LENT_H_

#include "cachesvc/core/engine_basics.h"

namespace crumb::core {

// On which rung of its ladder a put is.
inline const BoundCodec& CodecOf(const Block& block) {
  return block.binding->ladder(block.wire.part)[block.rung];
}
// What a put's page is sealed with.
PageHeader MakeHeader(const Block& block, const BoundCodec& codec);

class EngineLent : public EngineBasics {
 public:
  using EngineBasics::EngineBasics;

  // transfer.cc
  MappedMemory* MappedFor(const Block& block) const;  // null: its transport moves the bytes
  // False: the peer is gone, whatever was copied.
  bool ReleaseLent(Block& block, uint64_t bytes);
  void DropLent(Block& block);  // for good; the record is kept for others
  void EndTransfer(const Block& block);

  // gpu.cc. The set that a block names, where it lies in its worker's GPU memory; else null.
  const GpuSet* GpuSetOf(const Block& block) const;
  bool OnGpu(const Block& block) const { return GpuSetOf(block) != nullptr; }
  // Its worker's GPU packs (unpacks) this block's page.
  bool GpuEncodes(const Block& block) const;
  bool GpuDecodes(const Block& block) const;
  bool GpuReads(const Block& block, const PageKind& kind) const;  // straight from HBM
  bool ReleaseGpu(Block& block, uint64_t bytes);                  // false: the peer is gone
  absl::Status RegisterGpu(Peer* peer, const RegisteredSet& set);
  static absl::Status AddTables(const Binding& binding, const RegionSet& set,
                                const std::vector<uint64_t>& addresses, GpuSet* made);
  static void DropTables(const GpuSet& set);

  // blocks.cc
  bool RunInline(Block& block);  // false: its job is worth the way to a worker thread

  // Where the bytes of a put go: to staging, or where the page stays if it is kept as it is.
  MutableBytes RawOf(const Block& block) const;
  TransferPlan PullPlan(const Block& block) const;
  // Where the value of a get lies once its job is done. A whole page for mapped memory lies nowhere
  // in one piece: there only its length counts.
  TransferPlan PushPlan(const Block& block) const;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_ENGINE_LENT_H_
