// Layouts: from a request to a codec, a catalog record and a binding.
#include "cachesvc/server/layouts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/server/windows.h"

namespace crumb {
namespace {

constexpr size_t kNameBytesMaxOfLayout = 256;

std::string KeyOf(const std::string& tenant, const std::string& canonical) {
  return absl::StrCat(tenant.size(), ":", tenant, canonical);
}

absl::Status CheckName(const std::string& name) {
  if (name.size() > kNameBytesMaxOfLayout) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout name: longer than ", kNameBytesMaxOfLayout, " bytes"));
  }
  for (const char c : name) {
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) {
      return absl::InvalidArgumentError("layout name: control characters are not allowed");
    }
  }
  return absl::OkStatus();
}

// Each once: parts and GPUs have the same to say.
void AddNotes(std::vector<std::string> notes, std::string* out) {
  std::sort(notes.begin(), notes.end());
  notes.erase(std::unique(notes.begin(), notes.end()), notes.end());
  for (const std::string& note : notes) absl::StrAppend(out, out->empty() ? "" : "; ", note);
}

}  // namespace

std::shared_ptr<const BoundLayout> LayoutTable::Find(uint32_t handle,
                                                     const std::string& tenant) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = layouts_.find(handle);
  if (found == layouts_.end() || found->second->tenant != tenant) return nullptr;
  return found->second;
}

std::vector<std::shared_ptr<const BoundLayout>> LayoutTable::List() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<const BoundLayout>> list;
  for (const auto& [handle, layout] : layouts_) list.push_back(layout);
  return list;
}

void LayoutTable::Set(std::shared_ptr<const BoundLayout> layout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  layouts_[layout->handle] = std::move(layout);
}

Registrar::Registrar(Parts parts)
    : config_(parts.config),
      catalog_(parts.catalog),
      table_(parts.table),
      gpu_(parts.gpu),
      bind_(std::move(parts.bind)) {}

absl::StatusOr<std::shared_ptr<const RotationSet>> Registrar::FindRotations(
    const Request& request, std::string* rotation_hex, std::string* note) {
  if (!request.wish.rotation.empty()) {
    CRUMB_ASSIGN(const CatalogRotation found, catalog_->FindRotation(request.wish.rotation));
    if (found.model != request.identity.model) {
      return absl::FailedPreconditionError(absl::StrCat("rotation ", request.wish.rotation,
                                                        " is for model ", found.model, ", not for ",
                                                        request.identity.model));
    }
    *rotation_hex = Hex(found.hash);
    return catalog_->LoadRotation(found.hash);
  }
  const CatalogRotation* newest =
      catalog_->NewestRotation(request.identity.model, request.identity.revision);
  if (newest == nullptr) return std::shared_ptr<const RotationSet>();
  absl::StatusOr<std::shared_ptr<const RotationSet>> set = catalog_->LoadRotation(newest->hash);
  if (set.ok()) return set;
  *note = std::string(set.status().message());  // as if there were none, and said so
  return std::shared_ptr<const RotationSet>();
}

void Registrar::AddReaders(const CatalogLayout& known, LayoutBinding* binding,
                           std::vector<std::string>* notes) {
  const auto lost = [notes](const std::string& what) {
    notes->push_back(absl::StrCat(what, ": pages stored with it are misses"));
  };
  std::map<Sha256, std::vector<CodecDescriptor>> by_set;
  for (const uint64_t id : known.descriptor_ids) {
    const CodecDescriptor* descriptor = catalog_->FindDescriptor(id);
    if (descriptor == nullptr) {
      lost(absl::StrCat("codec ", absl::Hex(id, absl::kZeroPad16), " is not known"));
      continue;
    }
    by_set[descriptor->rotation_set].push_back(*descriptor);
  }
  binding->readers.assign(binding->layout->parts().size(), {});
  if (gpu_ != nullptr) binding->gpu.assign(binding->layout->parts().size(), {});
  for (const auto& [hash, descriptors] : by_set) {
    std::shared_ptr<const RotationSet> set;
    if (hash != Sha256{}) {
      absl::StatusOr<std::shared_ptr<const RotationSet>> loaded = catalog_->LoadRotation(hash);
      if (!loaded.ok()) {
        lost(std::string(loaded.status().message()));
        continue;
      }
      set = *std::move(loaded);
    }
    for (size_t part = 0; part < binding->readers.size(); ++part) {
      const auto codecs = cache_.Build(binding->layout->parts()[part], descriptors, set);
      if (!codecs.ok()) {
        lost(std::string(codecs.status().message()));
        break;
      }
      binding->readers[part].insert(binding->readers[part].end(), codecs->begin(), codecs->end());
      if (gpu_ == nullptr) continue;
      gpu_->Build(binding->layout->parts()[part], descriptors, set, &binding->gpu[part], notes);
    }
  }
}

std::shared_ptr<const BoundLayout> Registrar::Describe(const Request& request, uint32_t handle,
                                                       const CodecChoice& choice,
                                                       const LayoutBinding& binding) const {
  auto bound = std::make_shared<BoundLayout>();
  bound->handle = handle;
  bound->tenant = request.tenant;
  bound->name = request.name;
  bound->layout = binding.layout;
  bound->codec = ToString(choice.ladder.front().kind);
  bound->note = choice.note;
  bound->rotation = choice.rotations ? Hex(choice.rotations->hash()) : "";
  bound->codec_id = choice.ladder.front().id();
  if (choice.ladder.front().kind != CodecKind::kRaw) {
    bound->windows = FormatWindows(WindowsFor(config_.codec.windows, binding.layout->identity()));
  }
  for (size_t part = 0; part < binding.layout->parts().size(); ++part) {
    const uint64_t raw = binding.layout->parts()[part].raw_bytes;
    uint64_t largest = raw;
    for (const auto& codec : binding.readers[part]) {
      largest = std::max<uint64_t>(largest, codec->payload_bytes());
    }
    bound->raw_bytes.push_back(raw);
    bound->payload_bytes.push_back(choice.codecs[part].front()->payload_bytes());
    bound->value_bytes_max = std::max(bound->value_bytes_max, largest + kPageHeaderBytes);
  }
  return bound;
}

// Makes `request` one for what is registered already, or refuses it.
absl::Status Registrar::Join(const CatalogLayout& known, Request* request) const {
  if (request->name.empty()) request->name = known.name;
  const auto handle = handles_.find(KeyOf(known.tenant, known.canonical));
  const std::shared_ptr<const BoundLayout> bound =
      handle == handles_.end() ? nullptr : table_->Find(handle->second, known.tenant);
  std::string codec = known.wish.codec;
  if (codec.empty() && bound != nullptr) codec = bound->codec;
  const bool other_name = !known.name.empty() && request->name != known.name;
  const bool other_codec =
      !request->wish.codec.empty() && !codec.empty() && request->wish.codec != codec;
  if (other_name || other_codec) {
    return absl::AlreadyExistsError(absl::StrCat(
        "layout \"", request->name, "\"",
        request->wish.codec.empty() ? "" : absl::StrCat(" with codec ", request->wish.codec),
        ": the same identity is registered as \"", known.name, "\" with codec ", codec,
        ": use that name and codec (or leave them empty), or give this one a name_space of its "
        "own"));
  }
  if (!request->wish.codec.empty() || known.wish.codec.empty()) return absl::OkStatus();
  request->wish.codec = known.wish.codec;
  if (request->wish.rotation.empty()) request->wish.rotation = known.wish.rotation;
  if (request->wish.effort.empty()) request->wish.effort = known.wish.effort;
  if (request->wish.metadata.empty()) request->wish.metadata = known.wish.metadata;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const BoundLayout>> Registrar::Register(const Request& request) {
  CRUMB_TRY(CheckName(request.name));
  CRUMB_ASSIGN(const Layout layout, Layout::Make(request.identity));
  Request joined = request;
  const CatalogLayout* known = catalog_->FindLayout(request.tenant, layout.canonical());
  if (known != nullptr) CRUMB_TRY(Join(*known, &joined));
  return Install(joined, joined.wish);
}

absl::StatusOr<std::shared_ptr<const BoundLayout>> Registrar::Install(const Request& request,
                                                                      CodecWish wish) {
  CRUMB_ASSIGN(Layout layout, Layout::Make(request.identity));
  LayoutBinding binding;
  binding.layout = std::make_shared<const Layout>(std::move(layout));
  binding.tenant = request.tenant;
  binding.keep_non_finite_raw = request.wish.keep_non_finite_raw;
  binding.unknown_position_precision = ParsePrecision(config_.codec.unknown_position_precision);
  binding.windows = WindowsFor(config_.codec.windows, request.identity).windows;
  std::string note;
  CatalogLayout record{.tenant = request.tenant,
                       .canonical = binding.layout->canonical(),
                       .name = request.name,
                       .wish = std::move(wish),
                       .codec_id = 0,
                       .descriptor_ids = {}};
  CRUMB_ASSIGN(const std::shared_ptr<const RotationSet> rotations,
               FindRotations(request, &record.wish.rotation, &note));
  CRUMB_ASSIGN(CodecChoice choice, ChooseCodec({.layout = binding.layout.get(),
                                                .cache = &cache_,
                                                .wish = request.wish,
                                                .config = &config_.codec,
                                                .rotations = rotations,
                                                .evaluations = catalog_->evaluations(),
                                                .bounds = config_.quality}));
  if (!note.empty())
    choice.note = choice.note.empty() ? note : absl::StrCat(choice.note, "; ", note);
  binding.effort = choice.effort;
  binding.ladder = choice.codecs;
  const std::string key = KeyOf(record.tenant, record.canonical);
  const auto known = handles_.find(key);
  if (known == handles_.end() && handles_.size() >= config_.limits.layouts) {
    return absl::ResourceExhaustedError(
        absl::StrCat("limits.layouts (", config_.limits.layouts, ") are registered: raise it"));
  }
  const uint32_t handle =
      known != handles_.end() ? known->second : static_cast<uint32_t>(handles_.size() + 1);
  // What the engine refuses must not be in the catalog: it would take a place at every start.
  CRUMB_TRY(bind_(handle, binding, BindStep::kCheck));
  record.codec_id = choice.ladder.front().id();
  CRUMB_TRY(catalog_->PutLayout(record, choice.ladder));
  const CatalogLayout* stored = catalog_->FindLayout(record.tenant, record.canonical);
  std::vector<std::string> notes;
  AddReaders(*stored, &binding, &notes);
  AddNotes(std::move(notes), &choice.note);
  const auto before = bindings_.find(handle);
  const bool same = before != bindings_.end() && before->second.effort == binding.effort &&
                    before->second.keep_non_finite_raw == binding.keep_non_finite_raw &&
                    before->second.windows == binding.windows &&
                    before->second.ladder == binding.ladder &&
                    before->second.readers == binding.readers && before->second.gpu == binding.gpu;
  if (!same) CRUMB_TRY(bind_(handle, binding, BindStep::kTake));
  Request described = request;
  described.name = stored->name;
  std::shared_ptr<const BoundLayout> bound = Describe(described, handle, choice, binding);
  handles_[key] = handle;
  bindings_[handle] = std::move(binding);
  table_->Set(bound);
  return bound;
}

absl::StatusOr<Registrar::Codecs> Registrar::CodecsOf(uint32_t handle) const {
  const auto found = bindings_.find(handle);
  if (found == bindings_.end() || found->second.ladder.empty()) {
    return absl::NotFoundError(absl::StrCat("layout ", handle, " has no codecs: register it"));
  }
  const LayoutBinding& binding = found->second;
  Codecs codecs;
  codecs.put = binding.ladder[0].front()->descriptor();
  codecs.effort = binding.effort;
  codecs.packs_known = !binding.windows.on;
  codecs.packs_unknown = PrecisionOf(codecs.put.kind) <= binding.unknown_position_precision ||
                         binding.layout->identity().k_before_rope;
  std::vector<Sha256> known;
  for (const auto& reader : binding.readers[0]) {
    codecs.readers.push_back(reader->descriptor());
    const Sha256& hash = reader->descriptor().rotation_set;
    if (hash == Sha256{} || std::find(known.begin(), known.end(), hash) != known.end()) continue;
    known.push_back(hash);
    CRUMB_ASSIGN(std::shared_ptr<const RotationSet> set, catalog_->LoadRotation(hash));
    codecs.rotations.push_back(std::move(set));
  }
  return codecs;
}

std::string Registrar::MissingFile(uint64_t identity_prefix, uint64_t codec_id) const {
  bool known = false;
  for (const auto& [handle, binding] : bindings_) {
    if (binding.layout->hash().prefix64() != identity_prefix) continue;
    known = true;
    for (const auto& readers : binding.readers) {
      for (const auto& codec : readers) {
        if (codec->descriptor().id() == codec_id) return "";
      }
    }
  }
  if (!known) {
    for (const CatalogLayout& stored : catalog_->layouts()) {
      const auto layout = Layout::FromCanonical(AsBytes(stored.canonical));
      if (layout.ok() && layout->hash().prefix64() == identity_prefix) return "";
    }
  }
  const CodecDescriptor* descriptor = known ? catalog_->FindDescriptor(codec_id) : nullptr;
  if (descriptor == nullptr || descriptor->rotation_set == Sha256{}) return kCatalogName;
  return absl::StrCat(kRotationsName, "/", RotationFileName(descriptor->rotation_set));
}

std::vector<std::string> Registrar::UseGpu(int device) {
  if (gpu_ == nullptr || !gpu_->Use(device)) return {};
  return BindAll();
}

std::vector<std::string> Registrar::BindAll() {
  std::vector<std::string> problems;
  const std::vector<CatalogLayout> layouts = catalog_->layouts();  // Register may change it
  for (const CatalogLayout& stored : layouts) {
    const absl::StatusOr<Layout> layout = Layout::FromCanonical(AsBytes(stored.canonical));
    if (!layout.ok()) {
      problems.push_back(absl::StrCat(stored.name, ": ", std::string(layout.status().message())));
      continue;
    }
    const Request request{.tenant = stored.tenant,
                          .name = stored.name,
                          .identity = layout->identity(),
                          .wish = stored.wish};
    absl::Status bound = Install(request, stored.wish).status();
    if (bound.ok()) continue;
    // The codec that was asked for is not to be had any more: the default one takes new pages, and
    // the old ones stay readable.
    Request fallback = request;
    fallback.wish = {.codec = {},
                     .rotation = {},
                     .effort = {},
                     .metadata = {},
                     .keep_non_finite_raw = stored.wish.keep_non_finite_raw};
    const absl::Status again = Install(fallback, stored.wish).status();
    problems.push_back(absl::StrCat(
        "layout ", stored.name.empty() ? Hex(layout->hash().bytes) : stored.name, ": ",
        std::string(bound.message()),
        again.ok() ? ": the default codec takes new pages" : ": its pages are misses"));
  }
  return problems;
}

}  // namespace crumb
