// The daemon's half of lending GPU memory: offers go to the mapper one at a time for each peer (the
// first makes the link that the others share), answers make lent files of them, and holds keep
// those mapped. Must never touch the memory, wait, or drop a link itself: whatever has an end on a
// GPU goes to GpuMapper::Unmap. One thread, the transport's.
// INVARIANT: what a peer lends comes from one GPU, with one word and one link, as long as it is
// there.
#ifndef CRUMB_CACHESVC_NET_UDS_GPU_H_
#define CRUMB_CACHESVC_NET_UDS_GPU_H_

#include <vector>

#include "cachesvc/net/gpu_memory.h"
#include "cachesvc/net/uds_records.h"
#include "cachesvc/net/uds_transport.h"

namespace crumb {

class UdsCore;

class UdsGpu {
 public:
  UdsGpu(UdsCore* core, const UdsOptions& options) : core_(core), options_(options) {}

  void SetMapper(GpuMapper* mapper) { mapper_ = mapper; }
  void Accept(UdsPeerRecord* peer, const UdsFrame& frame, int fd);
  void TakeAnswers();
  void DropWaiting(const UdsPeerRecord& peer);  // offers of a peer that goes
  void Unmap(UdsFile* file);                    // nothing uses it any more
  void Retire(UdsPeerRecord* peer);             // its link goes with the next TakeAnswers

  GpuLink* LinkOf(PeerId peer, uint32_t region_set) const;
  std::vector<uint64_t> AddressesOf(PeerId peer, uint32_t region_set) const;
  bool Reached(PeerId peer, uint64_t ticket) const;
  BlockResult Hold(PeerId peer, uint32_t region_set, GpuHold* hold);
  bool Release(GpuHold* hold, MappedUse use, uint64_t bytes);

 private:
  struct Offer {
    PeerId peer;
    uint32_t file = 0;   // index into UdsCore::files_
    bool given = false;  // the mapper has it
    GpuOffer offer;
  };

  static UdsRefusal MapWord(int fd, UdsMapping* word);
  static void DropWord(UdsMapping* word);
  UdsRefusal WhyNot(const UdsPeerRecord& peer, const UdsFrame& frame) const;
  const UdsSet* SetOf(PeerId peer, uint32_t region_set) const;
  void GiveWaiting();
  bool OfPeerGiven(PeerId peer) const;
  void End(GpuAnswer answer);
  void Refuse(const Offer& offer, UdsRefusal refusal);

  UdsCore* const core_;
  const UdsOptions options_;
  GpuMapper* mapper_ = nullptr;
  uint64_t last_token_ = 0;
  std::vector<Offer> offers_;  // not answered, in the order they came
  std::vector<std::shared_ptr<GpuLink>> retired_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UDS_GPU_H_
