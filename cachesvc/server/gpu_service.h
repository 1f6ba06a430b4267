// The daemon's GPU: the HBM pool, the DRAM pool that GPUs reach, links, codecs and workers' memory.
// Opened by the starting thread, attached to the shard's pool by the shard while it builds, ended
// there; looked after by the control thread. PROMISE: what an operator asked for by name stops the
// start when it cannot be had; what is automatic is left out, and said.
#ifndef CRUMB_CACHESVC_SERVER_GPU_SERVICE_H_
#define CRUMB_CACHESVC_SERVER_GPU_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cachesvc/core/engine.h"
#include "cachesvc/server/config.h"
#include "cachesvc/server/gpu_codecs.h"
#include "cachesvc/server/gpu_mapper.h"
#include "cachesvc/server/log.h"
#include "gpu/pool/page_pool.h"

namespace crumb {

// What is on; does not change after the start.
struct GpuReport {
  bool on = false;
  // Who packs and unpacks where the worker does not say: "daemon" or "worker".
  std::string codec_place = "worker";
  std::string gpu;  // one line, or why it is off
  std::string hbm;  // the same of the HBM tier
  uint64_t hbm_bytes = 0;
  std::vector<std::string> warnings;
};

class GpuService {
 public:
  // `open`: OpenGpus, or what tests have instead; called once, unless gpu.enabled is false. The
  // error names the key and the remedy.
  using Opener = std::function<absl::StatusOr<std::unique_ptr<Gpus>>()>;
  static absl::StatusOr<std::unique_ptr<GpuService>> Open(const Config& config, Log* log,
                                                          const Opener& open);
  ~GpuService();

  // The shard's thread, while it builds. Registers the pool with CUDA: about as long as touching
  // it. `wake` makes the shard's loop turn; any thread calls it.
  absl::Status Attach(MutableBytes dram, std::function<void()> wake);
  EngineHbm hbm() const;
  EngineGpuStage stage() const;
  GpuMapper* mapper() const { return mapper_.get(); }  // null: off
  // Not OK once the GPU is lost. The shard's thread.
  absl::Status LinkHealth() const;
  // The shard's thread, at its end: Hold, then the transports go, then Detach.
  void Hold();
  void Detach();

  // Makes a GPU that a worker lends memory of ready, when it is the first. Until this is set there
  // is no worker. Called by the mapper's thread.
  void SetPrepare(std::function<absl::Status(int device)> prepare);
  GpuCodecs* codecs() { return on() ? codecs_.get() : nullptr; }  // null: off. Control thread
  // Not OK once a GPU in use is lost. Control thread.
  absl::Status Look();
  uint64_t free_bytes() const { return free_bytes_.load(); }  // of pool.device, as last seen

  const GpuReport& report() const { return report_; }
  bool on() const { return report_.on; }

 private:
  GpuService(const Config& config, Log* log);
  absl::Status OpenDevice(const Opener& open);
  void MakeStage();
  absl::Status MakeArena();
  absl::Status MakeLinks(MutableBytes dram);
  bool asked() const;  // by name
  // An error where it was asked for; else the GPU is off, or the HBM tier alone, with a warning.
  absl::Status Without(const absl::Status& why);
  absl::Status WithoutHbm(const absl::Status& why);

  const Config& config_;
  Log* const log_;
  const int device_;
  GpuReport report_;
  std::unique_ptr<Gpus> gpus_;
  std::unique_ptr<GpuCodecs> codecs_;
  std::atomic<uint64_t> free_bytes_{0};
  std::mutex prepare_mutex_;
  std::function<absl::Status(int device)> prepare_;
  // In the order in which they are made.
  GpuArea stage_, arena_;
  std::unique_ptr<PagePool> hbm_;
  GpuArea registered_;
  std::shared_ptr<GpuLink> lower_, raise_;
  std::unique_ptr<WorkerGpus> mapper_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_GPU_SERVICE_H_
