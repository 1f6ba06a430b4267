// Where the daemon of the kill program lives: its directory and configuration, whatever else fills
// the volume, and how much the tier takes of it. Made and used by one thread but for DiskSamples.
#ifndef CRUMB_TESTS_BENCH_KILL9_PLACE_H_
#define CRUMB_TESTS_BENCH_KILL9_PLACE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "tests/support/child_daemon.h"

namespace crumb {

struct PlaceOptions {
  std::string crumbd;
  std::string parent = "/tmp";  // configuration, socket and log
  std::string volume;           // the data directory; empty: beside them
  uint64_t dram_bytes = 0, nvme_bytes = 0, segment_bytes = 0;
};

// One daemon directory with its configuration.
class Place {
 public:
  explicit Place(const PlaceOptions& options);
  absl::StatusOr<std::unique_ptr<ChildDaemon>> Spawn() const;
  std::string Server() const { return "unix:" + dir_.path() + "/s"; }
  std::string NvmeFolder() const { return data_.path() + "/data/nvme"; }
  std::string LogTail() const;

  // Another file takes all that the volume has left, or gives it back. False: it did not get it.
  bool FillVolume();
  void ClearVolume();

 private:
  std::string ConfigFile() const { return dir_.path() + "/crumbd.yaml"; }
  std::string Filler() const { return data_.path() + "/others"; }

  const PlaceOptions options_;
  ScratchDir dir_, data_;
};

// Looks at the files of the tier all the time, in a thread of its own.
class DiskSamples {
 public:
  explicit DiskSamples(std::string folder);
  ~DiskSamples();
  DiskSamples(const DiskSamples&) = delete;
  DiskSamples& operator=(const DiskSamples&) = delete;
  uint64_t samples() const { return samples_; }
  // The most that all files together had, by length or by blocks taken on the volume.
  uint64_t bytes_max() const { return bytes_max_; }
  uint64_t files_max() const { return files_max_; }

 private:
  void Look();

  const std::string folder_;
  std::atomic<uint64_t> samples_{0}, bytes_max_{0}, files_max_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_BENCH_KILL9_PLACE_H_
