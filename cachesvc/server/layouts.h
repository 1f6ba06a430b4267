// Registered layouts: a table that gRPC threads read, and the registrar that fills it on the
// control thread (chooses and builds codecs, writes the catalog, binds the engine).
#ifndef CRUMB_CACHESVC_SERVER_LAYOUTS_H_
#define CRUMB_CACHESVC_SERVER_LAYOUTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "cachesvc/core/engine.h"
#include "cachesvc/server/catalog.h"
#include "cachesvc/server/codec_choice.h"
#include "cachesvc/server/config.h"
#include "cachesvc/server/gpu_codecs.h"

namespace crumb {

// Immutable once in the table.
struct BoundLayout {
  uint32_t handle = 0;
  std::string tenant;
  std::string name;
  std::shared_ptr<const Layout> layout;
  std::string codec;     // in effect
  std::string note;      // why, where it is not what was asked for
  std::string rotation;  // hash in hex, or empty
  std::string windows;   // and their source; empty where pages are kept raw
  uint64_t codec_id = 0;
  std::vector<uint64_t> raw_bytes;      // per part
  std::vector<uint64_t> payload_bytes;  // per part, of the codec in effect
  uint64_t value_bytes_max = 0;         // of any part in any form
};

// Any thread.
class LayoutTable {
 public:
  // Null if there is none of that tenant.
  std::shared_ptr<const BoundLayout> Find(uint32_t handle, const std::string& tenant) const;
  std::vector<std::shared_ptr<const BoundLayout>> List() const;  // by handle
  void Set(std::shared_ptr<const BoundLayout> layout);

 private:
  mutable std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<const BoundLayout>> layouts_;
};

// One thread: control.
class Registrar {
 public:
  // Has the engine check a binding, or take it; blocks until it did.
  enum class BindStep : uint8_t { kCheck, kTake };
  using Bind = std::function<absl::Status(uint32_t handle, LayoutBinding binding, BindStep step)>;

  // `gpu` null: no GPU is used.
  struct Parts {
    const Config& config;
    Catalog* catalog = nullptr;
    LayoutTable* table = nullptr;
    GpuCodecs* gpu = nullptr;
    Bind bind;
  };
  explicit Registrar(Parts parts);

  // Binds what the catalog knows. One line for each layout that could not be: its pages are misses.
  std::vector<std::string> BindAll();
  // Binds them again, with codecs for one more GPU. What BindAll says.
  std::vector<std::string> UseGpu(int device);

  // The file of data_dir, relative to it, whose loss keeps pages of this kind from being served:
  // the catalog, or a rotation set. Empty: they are served, or BindAll said why not.
  std::string MissingFile(uint64_t identity_prefix, uint64_t codec_id) const;

  struct Request {
    std::string tenant;
    std::string name;
    Identity identity;
    CodecWish wish;
  };
  // What a worker needs to do the codecs' work itself. NOT_FOUND: no layout is bound to `handle`.
  struct Codecs {
    CodecDescriptor put;
    std::vector<CodecDescriptor> readers;
    Effort effort = Effort::kNormal;
    bool packs_known = false;    // pages that say where they start are not kept raw
    bool packs_unknown = false;  // the others are packed by `put`, too
    std::vector<std::shared_ptr<const RotationSet>> rotations;  // that they name, each once
  };
  absl::StatusOr<Codecs> CodecsOf(uint32_t handle) const;

  // ALREADY_EXISTS if the identity is registered under another name or with another codec, with
  // the remedy. An empty name or codec means: as it is. What the daemon chooses may change, with
  // its configuration and rotation sets; pages stored before stay readable.
  absl::StatusOr<std::shared_ptr<const BoundLayout>> Register(const Request& request);

 private:
  absl::Status Join(const CatalogLayout& known, Request* request) const;
  // Chooses by the request's wish; the catalog keeps `wish`.
  absl::StatusOr<std::shared_ptr<const BoundLayout>> Install(const Request& request,
                                                             CodecWish wish);
  absl::StatusOr<std::shared_ptr<const RotationSet>> FindRotations(const Request& request,
                                                                   std::string* rotation_hex,
                                                                   std::string* note);
  // Codecs of every descriptor that pages of this layout were ever stored with, on the processor
  // and on GPUs.
  void AddReaders(const CatalogLayout& known, LayoutBinding* binding,
                  std::vector<std::string>* notes);
  std::shared_ptr<const BoundLayout> Describe(const Request& request, uint32_t handle,
                                              const CodecChoice& choice,
                                              const LayoutBinding& binding) const;

  const Config& config_;
  Catalog* catalog_;
  LayoutTable* table_;
  GpuCodecs* const gpu_;
  const Bind bind_;
  CodecCache cache_{BackendOf(config_.codec)};
  std::map<std::string, uint32_t> handles_;  // by tenant and canonical form
  std::map<uint32_t, LayoutBinding> bindings_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_LAYOUTS_H_
