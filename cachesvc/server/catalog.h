// What must outlive the process so that every recovered page can be decoded: layouts, codec
// descriptors, rotation sets and evaluations. One append-only table (record_file.h) in the data
// directory, and rotation sets as flat files named by their hash. PROMISE: what a Put returned OK
// for is on stable storage. One thread: control (its facts: any).
#ifndef CRUMB_CACHESVC_SERVER_CATALOG_H_
#define CRUMB_CACHESVC_SERVER_CATALOG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "cachesvc/server/evaluation.h"
#include "cachesvc/server/record_file.h"
#include "gpu/codec/descriptor.h"
#include "gpu/codec/rotation_set.h"

namespace crumb {

// What a RegisterLayout asked for, empty = the daemon's choice.
struct CodecWish {
  std::string codec;
  std::string rotation;  // full hash in hex, once resolved
  std::string effort;
  std::string metadata;
  bool keep_non_finite_raw = false;
  friend bool operator==(const CodecWish&, const CodecWish&) = default;
};

struct CatalogLayout {
  std::string tenant;
  std::string canonical;  // of the identity
  std::string name;       // for people; may be empty
  CodecWish wish;
  uint64_t codec_id = 0;                 // what new pages are stored with
  std::vector<uint64_t> descriptor_ids;  // what pages may have been stored with, ever
  friend bool operator==(const CatalogLayout&, const CatalogLayout&) = default;
};

struct CatalogRotation {
  Sha256 hash{};
  std::string model;
  std::string revision;
  uint64_t order = 0;  // later imports are larger
};

// For status pages.
struct CatalogFacts {
  std::vector<CatalogRotation> rotations;
  uint64_t bytes = 0;
  uint64_t dropped = 0;
};

class Catalog {
 public:
  static absl::StatusOr<std::unique_ptr<Catalog>> Open(const std::string& data_dir);
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;

  const std::vector<CatalogLayout>& layouts() const { return layouts_; }
  const std::vector<CatalogRotation>& rotations() const { return rotations_; }
  // Oldest first; one per model, revision, rotation set and codec.
  const std::vector<Evaluation>& evaluations() const { return evaluations_; }
  const CodecDescriptor* FindDescriptor(uint64_t id) const;
  const CatalogLayout* FindLayout(const std::string& tenant, const std::string& canonical) const;
  // The rotation whose hash starts with `hex`; NOT_FOUND, or INVALID_ARGUMENT if several do.
  absl::StatusOr<CatalogRotation> FindRotation(const std::string& hex) const;
  // The newest set of a model at a revision.
  const CatalogRotation* NewestRotation(const std::string& model,
                                        const std::string& revision) const;
  // Reads and checks the flat file; the error names it. Kept while somebody uses it.
  absl::StatusOr<std::shared_ptr<const RotationSet>> LoadRotation(const Sha256& hash);

  // Descriptors first, so that a layout never names one that is not there. Ids of an earlier
  // record of the same layout are kept. Nothing is written if nothing is new.
  absl::Status PutLayout(CatalogLayout layout, absl::Span<const CodecDescriptor> descriptors);
  absl::Status PutRotation(const std::shared_ptr<const RotationSet>& set);
  // REQUIRES: CheckEvaluation. Replaces one of the same model, revision, rotation set and codec.
  // RESOURCE_EXHAUSTED: too many.
  absl::Status PutEvaluation(const Evaluation& evaluation);

  uint64_t dropped() const { return dropped_; }  // corrupt records and files, since Open
  // Files in the folder of rotation sets that the catalog does not know: as found by Open, and
  // ignored. At most a thousand.
  const std::vector<std::string>& stray_files() const { return stray_files_; }
  // Any thread.
  CatalogFacts facts() const;

 private:
  Catalog() = default;
  void Apply(const CatalogRecord& record);
  std::vector<CatalogRecord> Snapshot() const;
  absl::Status Write(std::vector<CatalogRecord> records);
  absl::Status FindStrayFiles();
  void Publish();

  Directory data_dir_;
  Directory rotations_dir_;
  RecordFile file_;
  std::vector<CatalogLayout> layouts_;
  std::vector<CatalogRotation> rotations_;
  std::vector<Evaluation> evaluations_;
  std::map<uint64_t, CodecDescriptor> descriptors_;
  std::map<Sha256, std::weak_ptr<const RotationSet>> loaded_;
  std::vector<std::string> stray_files_;
  uint64_t dropped_ = 0;
  uint64_t live_bytes_ = 0;
  mutable std::mutex facts_mutex_;
  CatalogFacts facts_;
};

inline constexpr char kCatalogName[] = "catalog";
inline constexpr char kRotationsName[] = "rotations";
// The file name of a set: nothing but its hash.
std::string RotationFileName(const Sha256& hash);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_CATALOG_H_
