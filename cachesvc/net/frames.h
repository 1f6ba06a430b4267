// Blobs that two transports exchange over the control plane: a worker's address with the cookie of
// the connection, and the packed key of lent memory. Framed with magic, version, lengths and
// checksum, so that a damaged or foreign blob is refused before the network library reads it: the
// library trusts what it parses. (A checksum is no signature: who may connect is decided by the
// control plane.) PROMISE: Parse* touch no byte outside their input. Any thread.
#ifndef CRUMB_CACHESVC_NET_FRAMES_H_
#define CRUMB_CACHESVC_NET_FRAMES_H_

#include <cstdint>
#include <string>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "cachesvc/net/process_watch.h"

namespace crumb {

inline constexpr uint32_t kHelloMagic = 0x4c485243;  // "CRHL"
inline constexpr uint32_t kRkeyMagic = 0x4b525243;   // "CRRK"
inline constexpr uint16_t kFrameVersion = 1;
inline constexpr uint32_t kHelloFrameBytesMax = 16 * 1024;
inline constexpr uint32_t kRkeyFrameBytesMax = 4096;

// magic u32, version u16, flags u16, cookie u64, length u32, queue_slots u32,
// queue_bytes u32, pid u32, host u64, start u64, address, XXH3-64 of all before.
struct HelloFrame {
  uint64_t cookie = 0;
  uint32_t queue_slots = 0;  // the maker's shared-memory queue: places
  uint32_t queue_bytes = 0;  // and bytes of each
  bool one_sided = false;    // flags, bit 0: its memory may be read and written by RDMA
  ProcessId process;         // the maker
  Bytes address;             // of the library's worker; a view into the input
};
std::string EncodeHello(const HelloFrame& hello);
absl::StatusOr<HelloFrame> ParseHello(Bytes blob);

// magic u32, version u16, length u16, address u64, bytes u64, key (may be empty), XXH3-64 of all
// before.
struct RkeyFrame {
  uint64_t address = 0;
  uint64_t bytes = 0;
  Bytes key;  // a view into the input
};
std::string EncodeRkey(const RkeyFrame& rkey);
absl::StatusOr<RkeyFrame> ParseRkey(Bytes blob);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_FRAMES_H_
