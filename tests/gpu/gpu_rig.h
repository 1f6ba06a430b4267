// Workers on a GPU against a real crumbd: a daemon with a GPU pool, and a worker with its client,
// its tensors and what it put there. For cuda_daemon_test and the processes that it starts. One
// thread.
#ifndef CRUMB_TESTS_GPU_GPU_RIG_H_
#define CRUMB_TESTS_GPU_GPU_RIG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/bench_device_pages.h"
#include "crumb/client.h"
#include "tests/support/child_daemon.h"

namespace crumb {

// Of all pages: without a position none is packed to two bits.
inline constexpr uint32_t kRigToken = 1u << 16;

// Where crumbd is: the environment's CRUMBD, or beside this program (a bundle).
std::string ProgramBeside(const char* variable, const char* name);

class GpuDaemon {
 public:
  struct Options {
    std::string hbm = "256MiB", dram = "1GiB", windows = "off", codec_place = "daemon";
  };
  explicit GpuDaemon(const Options& options);
  absl::Status Start();
  ChildDaemon* process() { return daemon_.get(); }
  std::string server() const { return "unix:" + dir_.path() + "/s"; }
  std::string Log() const;
  // As `crumbctl status` has it; empty if it does not answer.
  std::string StatusJson() const;
  // The hash under which it keeps the set.
  absl::StatusOr<std::string> ImportRotation(const std::string& path) const;

 private:
  ScratchDir dir_;
  std::unique_ptr<ChildDaemon> daemon_;
};

// A layout with one group of layers, as DevicePages has memory for.
client::LayoutSpec SpecFor(const std::string& codec, const cli::DeviceShape& shape,
                           std::vector<uint32_t> layer_ids = {});

// A worker; `pages` pages of memory.
class GpuRig {
 public:
  static absl::StatusOr<std::unique_ptr<GpuRig>> Open(const std::string& server,
                                                      const client::LayoutSpec& spec,
                                                      const cli::DeviceShape& shape,
                                                      uint32_t pages);
  ~GpuRig();

  // Pages [first, first + keys.size()) of memory, behind the worker's stream; waits. The results
  // are as many as keys.
  std::vector<client::Result> Put(const std::vector<std::string>& keys, uint32_t first);
  std::vector<client::Result> Get(const std::vector<std::string>& keys, uint32_t first);
  // The same without waiting.
  client::Status Submit(bool put, const std::vector<std::string>& keys, uint32_t first,
                        client::Ticket* ticket);
  client::Completion Wait(client::Ticket ticket);
  std::vector<client::Result> Lookup(const std::vector<std::string>& keys);
  std::vector<uint8_t> Page(uint32_t page);

  client::Client* client() { return client_.get(); }
  const client::Layout& layout() const { return layout_; }
  cli::DevicePages* pages() { return pages_.get(); }
  GpuWorker* worker() { return worker_.get(); }
  uint32_t region_set() const { return set_; }
  void* stream = nullptr;  // of requests; at first the worker's

 private:
  GpuRig() = default;
  std::vector<client::Block> Blocks(const std::vector<std::string>& keys, uint32_t first) const;

  cli::DeviceShape shape_;
  std::unique_ptr<GpuWorker> worker_;
  std::unique_ptr<cli::DevicePages> pages_;
  std::unique_ptr<client::Client> client_;
  client::Layout layout_;
  uint32_t set_ = 0;
  std::vector<client::Completion> done_;
};

std::vector<std::string> Keys(const std::string& prefix, uint32_t count);
// How many have that code.
size_t CountOf(const std::vector<client::Result>& results, client::Code code);

}  // namespace crumb

#endif  // CRUMB_TESTS_GPU_GPU_RIG_H_
