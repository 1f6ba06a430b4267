// Packets of the unix-socket transport: a 16-byte header, then a wire message or the few words that
// lend and take back files. Little-endian, fixed layout, one frame per packet.
// PROMISE: ParseUdsFrame touches no byte outside its input and accepts only what adds up. Any
// thread.
#ifndef CRUMB_CACHESVC_NET_UDS_FRAMES_H_
#define CRUMB_CACHESVC_NET_UDS_FRAMES_H_

#include <array>
#include <cstdint>

#include "cachesvc/base/types.h"
#include "cachesvc/base/wire.h"

namespace crumb {

inline constexpr uint32_t kUdsMagic = 0x46555243;  // "CRUF"
inline constexpr uint16_t kUdsVersion = 1;
inline constexpr size_t kUdsHeaderBytes = 16;
inline constexpr size_t kUdsLendBytes = kUdsHeaderBytes + 8;
inline constexpr size_t kUdsFrameBytesMax = kUdsHeaderBytes + kWireMessageBytesMax;
inline constexpr size_t kUdsGpuShareBytes = 104;  // gpu/device/gpu_share.h
inline constexpr size_t kUdsLendGpuBytes = kUdsHeaderBytes + kUdsGpuShareBytes;
inline constexpr uint32_t kUdsRkeyBytes = 16;  // file, offset: the key inside an RkeyFrame

// Numbers never change; new ones go behind.
enum class UdsFrameKind : uint16_t {
  kMessage = 1,  // a wire message follows
  kLend = 2,     // with one descriptor; u64: bytes of the file, from its start, that are lent
  kLent = 3,     // answer; u64: 0, or a UdsRefusal
  kUnlend = 4,
  kLendGpu = 5,  // a GpuShare; may bring the file of the peer's word; answered like kLend
};
enum class UdsRefusal : uint64_t {
  kNone = 0,
  kNotMemory = 1,  // neither a memfd nor a file of a memory file system
  kTooShort = 2,   // the file is shorter than what is lent
  kTooMany = 3,    // files or bytes of this peer
  kNoMapping = 4,  // the kernel refused
  kNoGpu = 5,      // the daemon has none, or not this one
  kNotShared = 6,  // CUDA will not map it
  kOtherGpu = 7,   // this peer lends memory of another GPU
  kNoWord = 8,     // the file of its word is no sealed memory of eight bytes at least
};

struct UdsFrame {
  UdsFrameKind kind = UdsFrameKind::kMessage;
  uint64_t file = 0;   // kLend, kLent, kUnlend: chosen by the lender, never 0; kMessage: 0
  uint64_t value = 0;  // kLend, kLent; kLendGpu: bytes of the range, out of `share`
  Bytes message = {};  // kMessage; this and the next two are views into the input
  Bytes share = {};    // kLendGpu: kUdsGpuShareBytes, a range that lies in its allocation
};
bool ParseUdsFrame(Bytes packet, UdsFrame* out);

// All frames but messages, and the header of those.
struct UdsFrameBytes {
  std::array<uint8_t, kUdsLendGpuBytes> bytes{};
  size_t size = 0;
  Bytes span() const { return {bytes.data(), size}; }
};
UdsFrameBytes MakeUdsFrame(const UdsFrame& frame);

// What this layer reads of a GpuShare: it does not know the GPU's.
struct UdsGpuShare {
  std::array<uint8_t, 16> device{};  // which GPU, by its id
  uint64_t allocation_bytes = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
// False: another length, an empty range, or one that passes its allocation.
bool ParseUdsGpuShare(Bytes share, UdsGpuShare* out);
// The same allocation, all of it. REQUIRES: it parses.
std::array<uint8_t, kUdsGpuShareBytes> WholeUdsGpuShare(Bytes share);

// The key that names lent memory inside an RkeyFrame.
struct UdsRkey {
  uint64_t file = 0;
  uint64_t offset = 0;
};
std::array<uint8_t, kUdsRkeyBytes> MakeUdsRkey(const UdsRkey& rkey);
bool ParseUdsRkey(Bytes key, UdsRkey* out);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UDS_FRAMES_H_
