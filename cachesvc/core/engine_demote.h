// Fresh pages on their way to their final precision: encoded by the host, or by a GPU where they
// came out of GPU memory.
#ifndef CRUMB_CACHESVC_CORE_ENGINE_DEMOTE_H_
#define CRUMB_CACHESVC_CORE_ENGINE_DEMOTE_H_

#include "cachesvc/core/engine_gpu.h"

namespace crumb::core {

class EngineDemote : public EngineGpu {
 public:
  using EngineGpu::EngineGpu;

  // demote.cc, demote_gpu.cc
  int RunDemotions();
  void StartDemotion(EntryId id);
  bool AdvanceDemotion(uint32_t id);
  Grant AcquireTarget(uint32_t id);
  bool SubmitDemotion(uint32_t id);
  bool QueueDemotion(uint32_t id, DemotionStep next);
  const GpuCodec* DemotionCodec(const Demotion& demotion);
  uint32_t DemotionTable(const Demotion& demotion);
  bool EncodeDemotion(uint32_t id);
  void OnDemotionEncoded(uint32_t id, const GpuDone& done) override;
  bool SealDemotion(uint32_t id);
  void OnDemotionJob(uint32_t id);
  void JudgeDemotion(uint32_t id);
  void WriteDemotion(uint32_t id);
  void EndDemotionAppend(DiskAppend& append, const LogEvent& event);
  void KeepRaw(uint32_t id);
  void SwapDemoted(uint32_t id);
  void EndDemotion(uint32_t id);

 protected:
  // slots.cc, disk.cc
  virtual void ForgetPage(EntryId id) = 0;
  virtual void ForgetRecord(const BlockKey& key, const DiskLocation& location, uint32_t flush) = 0;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_ENGINE_DEMOTE_H_
