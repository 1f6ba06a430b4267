// Pages in GPU memory as the engine's paths use it: straight to and from a worker's GPU, and the
// HBM tier, whose pages move to DRAM and back. What the paths go on with is above, in EngineImpl.
// INVARIANT: a packed page lies in HBM or in DRAM; work on a GPU holds every memory that it
// touches.
#ifndef CRUMB_CACHESVC_CORE_ENGINE_GPU_H_
#define CRUMB_CACHESVC_CORE_ENGINE_GPU_H_

#include "cachesvc/core/engine_lent.h"

namespace crumb::core {

// Tensors of a canonical raw page where one slot holds one, in the order of its part.
std::vector<TensorPlace> RawPlaces(const PartShape& part, uint64_t slot_bytes);
// What kernels read of them.
std::vector<CudaPlace> TableOf(const std::vector<TensorPlace>& places,
                               const std::vector<uint64_t>& addresses);

class EngineGpu : public EngineLent {
 public:
  using EngineLent::EngineLent;
  virtual ~EngineGpu() = default;

  // gpu.cc
  bool HoldGpu(Block& block, uint64_t bytes, uint32_t tokens);
  void SubmitGpu(Block& block, GpuJob job);
  void GpuPull(Block& block, const TransferPlan& plan);
  void GpuEncode(Block& block);
  uint8_t* StageOnGpu(Block& block, const GpuCodec& codec);
  void GpuPush(Block& block);
  void OnGpuDone(const GpuDone& done);
  int RetryGates();
  void OnGpuEncoded(Block& block, const EncodeReport& report);
  Grant TakeSlot(const RoomWanted& wanted, SlotId* slot);  // slots.cc
  const RegisteredSet* MayTransfer(Block& block);          // transfer.cc
  // moves.cc
  bool AcquireHbm(Block& block, uint64_t bytes);
  void WaitForDram(Block& block, EntryId id);
  uint32_t FindMove(EntryId id) const;
  uint32_t StartMove(EntryId id, bool raise, SlotId target);
  void AdvanceMove(uint32_t id);
  void CopyMove(uint32_t id);
  void SealMove(uint32_t id);
  void OnMoveCopied(uint32_t id, bool ok);
  void OnMoveSealed(uint32_t id);
  void EndMove(uint32_t id, bool done);
  void RaiseIfHot(const Block& block);
  int RunMoves();
  void Activate(GpuLink* link);

 protected:
  // The paths themselves: engine_impl.h.
  virtual void Run(Block& block) = 0;
  virtual void Finish(Block& block, BlockResult result) = 0;
  virtual void Cleanup(Block& block) = 0;
  virtual void RunJob(Block& block) = 0;
  virtual void OnPutJob(Block& block) = 0;
  virtual void OnGetPushed(Block& block) = 0;
  virtual bool BeginTransfer(Block& block, BlockResult begun) = 0;
  virtual Grant MakeRoom(const RoomWanted& wanted) = 0;
  virtual void OnDemotionEncoded(uint32_t id, const GpuDone& done) = 0;
  virtual Live FindLive(const BlockKey& key, EntryId* id) = 0;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_ENGINE_GPU_H_
