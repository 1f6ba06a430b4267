// The zip container of a torch.save file, read from memory with bounded sizes: stored or deflated
// entries only, no encryption, no duplicate of data.pkl, nothing unpacked beyond the limits.
// Control path; one thread at a time per archive.
#ifndef CRUMB_GPU_CODEC_PT_ARCHIVE_H_
#define CRUMB_GPU_CODEC_PT_ARCHIVE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

struct zip;  // libzip

namespace crumb {

class PtArchive {
 public:
  // Entries, and bytes that all entries together may unpack to: an absolute limit, and one by the
  // size of the file, which stops zip bombs early. (A Hadamard matrix deflates about 60-fold.)
  static constexpr uint64_t kEntriesMax = 16384;
  static constexpr uint64_t kUnpackedBytesMax = 1ull << 30;
  static constexpr uint64_t kUnpackedRatioMax = 128;
  static constexpr uint64_t kUnpackedBytesFree = 1ull << 20;

  // REQUIRES: `file` outlives the archive.
  static absl::StatusOr<PtArchive> Open(Bytes file);

  // Unpacks ROOT/`path`, where ROOT is the folder that holds data.pkl. NOT_FOUND if absent;
  // INVALID_ARGUMENT if longer than `bytes_max`, damaged or of an unsupported kind.
  absl::StatusOr<std::string> Read(absl::string_view path, uint64_t bytes_max) const;

 private:
  struct Discard {
    void operator()(zip* archive) const;
  };
  explicit PtArchive(zip* archive) : archive_(archive) {}
  absl::Status Survey(uint64_t file_bytes);

  std::unique_ptr<zip, Discard> archive_;
  std::string root_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_PT_ARCHIVE_H_
