// The wire form of GpuShare, and what must hold before a driver is asked about one.
#include "gpu/device/gpu_share.h"

#include <cstring>
#include <string>

#include "cachesvc/base/bytes.h"

namespace crumb {

std::array<uint8_t, kGpuShareBytes> EncodeGpuShare(const GpuShare& share) {
  std::array<uint8_t, kGpuShareBytes> out;
  uint8_t* at = out.data();
  const auto put = [&at](const void* data, size_t bytes) {
    std::memcpy(at, data, bytes);
    at += bytes;
  };
  put(share.handle.data(), share.handle.size());
  put(share.device.data(), share.device.size());
  put(&share.allocation_bytes, sizeof(uint64_t));
  put(&share.offset, sizeof(uint64_t));
  put(&share.bytes, sizeof(uint64_t));
  return out;
}

absl::StatusOr<GpuShare> ParseGpuShare(Bytes data) {
  if (data.size() != kGpuShareBytes) {
    return absl::InvalidArgumentError("GPU memory: " + std::to_string(data.size()) +
                                      " bytes instead of the " + std::to_string(kGpuShareBytes) +
                                      " that name a range");
  }
  ByteReader reader(data);
  GpuShare share;
  share.handle = reader.ReadArray<kGpuHandleBytes>();
  share.device = reader.ReadArray<16>();
  share.allocation_bytes = reader.Read<uint64_t>();
  share.offset = reader.Read<uint64_t>();
  share.bytes = reader.Read<uint64_t>();
  const bool inside = share.allocation_bytes <= kGpuAllocationBytesMax &&
                      LiesWithin(share.offset, share.bytes, share.allocation_bytes);
  if (inside) return share;
  return absl::InvalidArgumentError("GPU memory: " + std::to_string(share.bytes) +
                                    " bytes at offset " + std::to_string(share.offset) +
                                    " of an allocation of " +
                                    std::to_string(share.allocation_bytes) + " bytes");
}

}  // namespace crumb
