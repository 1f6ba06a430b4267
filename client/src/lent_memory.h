// Memory that the worker lends, as the client sees it: real addresses, and the region set that
// describes them to the daemon. The worker owns the memory; this only reads and writes ranges that
// RegionSet checked. Thread: the Client's, and the gRPC plane's callbacks for requests in flight
// (immutable after Make). GPU memory is described and never touched: its addresses are the
// device's.
#ifndef CRUMB_CLIENT_SRC_LENT_MEMORY_H_
#define CRUMB_CLIENT_SRC_LENT_MEMORY_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "cachesvc/net/region_set.h"
#include "crumb/types.h"
#include "gpu/device/gpu_share.h"

namespace crumb::client {

// Where one value lies: one slot of contiguous memory, or several of tensors.
struct ValuePlace {
  uint32_t part = 0;
  absl::Span<const uint32_t> slots;
  uint64_t bytes = 0;
  uint32_t tokens = 0;  // tensors: rows from here on are zero and not in memory; 0 = all
};

class LentMemory {
 public:
  struct Pages {
    void* base = nullptr;
    uint64_t bytes = 0;
    uint64_t slot_bytes = 0;
    absl::string_view call = "LendPages";  // for errors
  };
  struct Tensors {
    std::vector<TensorMemory> tensors;
    uint32_t slots = 0;
    uint32_t tokens_per_slot = 0;
    uint32_t head_group_first = 0, head_group_count = 0;  // count 0: all of the layout
    absl::string_view call = "LendTensors";
  };
  static absl::StatusOr<std::shared_ptr<const LentMemory>> Make(const Pages& pages,
                                                                const crumb::Layout& layout);
  static absl::StatusOr<std::shared_ptr<const LentMemory>> Make(const Tensors& tensors,
                                                                const crumb::Layout& layout);

  // The same places, in GPU memory: how each region of spec() is named to another process.
  static std::shared_ptr<const LentMemory> OnGpu(const LentMemory& places,
                                                 std::vector<GpuShare> shares,
                                                 absl::Status mappable = absl::OkStatus());

  const RegionSetSpec& spec() const { return set_.spec(); }
  bool contiguous() const { return set_.contiguous(); }
  // Tensors of a part, of a rank that holds it; else none.
  std::vector<TensorPlace> PlacesOf(uint32_t part) const { return set_.PlacesOf(part); }
  uint32_t slots() const { return spec().slots; }
  uint32_t slots_per_block() const { return spec().slots_per_block; }
  // What touches bytes REQUIRES !gpu().
  bool gpu() const { return !gpu_shares_.empty(); }
  const std::vector<GpuShare>& gpu_shares() const { return gpu_shares_; }  // as spec().regions
  // Why no other process can map it; then shares name the GPU and nothing more.
  const absl::Status& mappable() const { return mappable_; }

  // Reused by calls in a row, so that they allocate nothing.
  using Scratch = std::vector<Segment>;

  // False if the place is out of range. Lists no segments: a page of 80 layers has 80,000.
  bool Fits(const ValuePlace& place) const;
  // Lent memory to one contiguous value and back. REQUIRES: Fits, and exactly place.bytes.
  void Gather(const ValuePlace& place, MutableBytes out, Scratch* scratch) const;
  void Scatter(const ValuePlace& place, Bytes value, Scratch* scratch) const;
  // Scatter, and XXH3-64 of what lies in lent memory then, in one pass.
  uint64_t ScatterAndHash(const ValuePlace& place, Bytes value, Scratch* scratch) const;
  // The value itself where the memory is contiguous. REQUIRES: contiguous() and Fits.
  MutableBytes View(const ValuePlace& place) const;
  // XXH3-64 of the value. REQUIRES: Fits.
  uint64_t Checksum(const ValuePlace& place, Scratch* scratch) const;

 private:
  bool Segments(const ValuePlace& place, std::vector<Segment>* out) const;
  explicit LentMemory(RegionSet set) : set_(std::move(set)) {}
  RegionSet set_;
  std::vector<GpuShare> gpu_shares_;
  absl::Status mappable_;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_LENT_MEMORY_H_
