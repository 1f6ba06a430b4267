// An append-only file of checksummed records: the form of the catalog on disk. A torn tail and
// corrupt records are dropped and counted; what was appended is durable when Append returns; the
// file is rewritten as a whole by Rewrite. One thread; blocking.
// Layout, little-endian: header of 32 bytes {magic, version, zeros, XXH3-64}; records of {magic,
// type, payload bytes, XXH3-64 of those and the payload}, padded to 8 (docs/format.md).
#ifndef CRUMB_CACHESVC_SERVER_RECORD_FILE_H_
#define CRUMB_CACHESVC_SERVER_RECORD_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cachesvc/base/status.h"
#include "cachesvc/server/files.h"

namespace crumb {

struct CatalogRecord {
  uint16_t type = 0;
  std::string payload;
};

inline constexpr uint64_t kRecordFileBytesMax = 256ull << 20;
inline constexpr uint32_t kRecordBytesMax = 16u << 20;

class RecordFile {
 public:
  // Opens or makes `name`. FAILED_PRECONDITION: not such a file, or of a newer version.
  static absl::StatusOr<RecordFile> Open(const Directory& directory, const std::string& name,
                                         std::vector<CatalogRecord>* records);

  // All or none of them. RESOURCE_EXHAUSTED: the disk or the file is full; nothing was added.
  absl::Status Append(absl::Span<const CatalogRecord> records);
  absl::Status Rewrite(absl::Span<const CatalogRecord> records);

  uint64_t size_bytes() const { return size_bytes_; }
  uint64_t dropped() const { return dropped_; }  // stretches of bytes that were no valid record

 private:
  const Directory* directory_ = nullptr;
  std::string name_;
  UniqueFd file_;
  uint64_t size_bytes_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_RECORD_FILE_H_
