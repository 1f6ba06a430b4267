// Workers' GPU memory: offers become mappings and links here, on a thread of its own, as opening
// one waits for the device. What is let go ends here too: links first, as their end waits for
// their work, then the memory.
#ifndef CRUMB_CACHESVC_SERVER_GPU_MAPPER_H_
#define CRUMB_CACHESVC_SERVER_GPU_MAPPER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "cachesvc/net/gpu_memory.h"
#include "cachesvc/server/gpus.h"
#include "cachesvc/server/log.h"

namespace crumb {

struct GpuMapperParts {
  Gpus* gpus = nullptr;  // outlives the mapper; Map and Unmap are this thread's
  Log* log = nullptr;
  MutableBytes dram;  // the pool, registered
  // A GPU of which a worker lends memory for the first time: makes it ready, and may wait. This
  // thread.
  std::function<absl::Status(int device)> prepare;
  std::function<void()> wake;  // an answer is there; this thread
};

class WorkerGpus final : public GpuMapper {
 public:
  explicit WorkerGpus(GpuMapperParts parts);
  ~WorkerGpus() override;  // Finish

  // The shard's thread. Bounded by the transport; see gpu_memory.h.
  bool Map(const GpuOffer& offer) override;
  size_t Poll(absl::Span<GpuAnswer> answers) override;
  void Unmap(GpuMapping mapping) override;

  // The end, on the shard's thread: after Hold nothing is let go until Finish, which lets go of
  // everything at once and joins the thread. Between the two the transport ends.
  void Hold();
  void Finish();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_GPU_MAPPER_H_
