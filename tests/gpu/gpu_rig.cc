// Daemon and workers of the GPU tests. Waits are those of the client and of pipes: no sleep.
#include "tests/gpu/gpu_rig.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/src/admin.h"

namespace crumb {
namespace {

constexpr uint32_t kReadyMs = 60'000, kDeadlineMs = 20'000;

absl::StatusOr<std::unique_ptr<client::Admin>> AdminOf(const std::string& server) {
  client::ChannelOptions options;
  options.server = server;
  return client::Admin::Open(options, kDeadlineMs);
}

absl::Status Said(const client::Status& status) {
  return status.ok() ? absl::OkStatus() : absl::UnknownError(status.message);
}

}  // namespace

std::string ProgramBeside(const char* variable, const char* name) {
  if (const char* path = std::getenv(variable); path != nullptr) return path;
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / name).string();
}

GpuDaemon::GpuDaemon(const Options& options) {
  std::ofstream(dir_.path() + "/crumbd.yaml")
      << "data_dir: " << dir_.path() << "/data\n"
      << "listen: {grpc: 127.0.0.1:0, http: 127.0.0.1:0, socket: " << dir_.path() << "/s}\n"
      << "pool: {dram_bytes: " << options.dram << ", hbm_bytes: " << options.hbm
      << ", device: 0}\nnvme: {bytes: 256MiB, segment_bytes: 4MiB}\n"
      << "codec: {int2: accept, windows: " << options.windows << "}\n"
      << "gpu: {codec_place: " << options.codec_place << "}\nlog: {level: info}\n";
}

absl::Status GpuDaemon::Start() {
  daemon_.reset();
  CRUMB_ASSIGN(daemon_, ChildDaemon::Spawn({.program = ProgramBeside("CRUMBD", "crumbd"),
                                            .config_file = dir_.path() + "/crumbd.yaml",
                                            .log_file = dir_.path() + "/log"}));
  const absl::Status ready = daemon_->WaitReady(kReadyMs);
  return ready.ok() ? ready : absl::UnavailableError(absl::StrCat(ready.message(), "\n", Log()));
}

std::string GpuDaemon::Log() const {
  std::ifstream file(dir_.path() + "/log");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string GpuDaemon::StatusJson() const {
  const auto admin = AdminOf(server());
  if (!admin.ok()) return "";
  const auto text = (*admin)->StatusJson();
  return text.ok() ? *text : "";
}

absl::StatusOr<std::string> GpuDaemon::ImportRotation(const std::string& path) const {
  CRUMB_ASSIGN(const auto admin, AdminOf(server()));
  CRUMB_ASSIGN(
      const client::RotationSummary set,
      admin->ImportRotation({.model = "", .revision = "", .provenance = "", .paths = {path}}));
  return set.hash_hex;
}

client::LayoutSpec SpecFor(const std::string& codec, const cli::DeviceShape& shape,
                           std::vector<uint32_t> layer_ids) {
  client::LayoutSpec spec;
  spec.name = absl::StrCat("gpu-test-", codec, "-", shape.layers, "x", shape.heads, "x", shape.dim);
  spec.model = "gpu-test";
  spec.revision = "1";
  spec.name_space = codec;
  spec.page_tokens = shape.page_tokens;
  spec.codec = codec;
  client::LayerGroup& group = spec.groups.emplace_back();
  group.kv_heads = shape.heads;
  group.k_dim = group.v_dim = shape.dim;
  for (uint32_t id = 0; layer_ids.empty() && id < shape.layers; ++id) group.layer_ids.push_back(id);
  if (!layer_ids.empty()) group.layer_ids = std::move(layer_ids);
  return spec;
}

absl::StatusOr<std::unique_ptr<GpuRig>> GpuRig::Open(const std::string& server,
                                                     const client::LayoutSpec& spec,
                                                     const cli::DeviceShape& shape,
                                                     uint32_t pages) {
  std::unique_ptr<GpuRig> rig(new GpuRig);
  rig->shape_ = shape;
  CRUMB_ASSIGN(rig->worker_, OpenGpuWorker(0));
  rig->stream = rig->worker_->stream();
  CRUMB_ASSIGN(rig->pages_, cli::DevicePages::Make(rig->worker_.get(), shape, pages));
  client::Options options;
  options.server = server;
  options.data_plane = client::DataPlane::kShm;
  options.deadline_ms = options.connect_ms = kDeadlineMs;  // a busy machine is no fault
  options.client_name = "cuda_daemon_test";
  CRUMB_TRY(Said(client::Client::Connect(options, &rig->client_)));
  CRUMB_TRY(Said(rig->client_->RegisterLayout(spec, &rig->layout_)));
  CRUMB_TRY(Said(rig->pages_->Lend(rig->client_.get(), rig->layout_, &rig->set_)));
  return rig;
}

// Lent memory outlives the client.
GpuRig::~GpuRig() { client_.reset(); }

std::vector<client::Block> GpuRig::Blocks(const std::vector<std::string>& keys,
                                          uint32_t first) const {
  std::vector<client::Block> blocks(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    blocks[i].key = keys[i];
    blocks[i].token_start = kRigToken;
    blocks[i].slots = pages_->SlotsOf(first + static_cast<uint32_t>(i));
  }
  return blocks;
}

client::Status GpuRig::Submit(bool put, const std::vector<std::string>& keys, uint32_t first,
                              client::Ticket* ticket) {
  client::RequestOptions options;
  options.stream = stream;
  const std::vector<client::Block> blocks = Blocks(keys, first);
  return put ? client_->SubmitPut(layout_, set_, blocks, options, ticket)
             : client_->SubmitGet(layout_, set_, blocks, options, ticket);
}

client::Completion GpuRig::Wait(client::Ticket ticket) {
  while (true) {
    const auto found =
        std::find_if(done_.begin(), done_.end(),
                     [ticket](const client::Completion& one) { return one.ticket == ticket; });
    if (found != done_.end()) {
      client::Completion completion = std::move(*found);
      done_.erase(found);
      return completion;
    }
    if (client_->in_flight() == 0) return {};
    client_->Drain(100, &done_);
  }
}

std::vector<client::Result> GpuRig::Put(const std::vector<std::string>& keys, uint32_t first) {
  client::Ticket ticket = 0;
  if (!Submit(true, keys, first, &ticket).ok()) return std::vector<client::Result>(keys.size());
  return Wait(ticket).results;
}

std::vector<client::Result> GpuRig::Get(const std::vector<std::string>& keys, uint32_t first) {
  client::Ticket ticket = 0;
  if (!Submit(false, keys, first, &ticket).ok()) return std::vector<client::Result>(keys.size());
  return Wait(ticket).results;
}

std::vector<client::Result> GpuRig::Lookup(const std::vector<std::string>& keys) {
  std::vector<client::Block> blocks(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) blocks[i].key = keys[i];
  client::Ticket ticket = 0;
  if (!client_->SubmitLookup(layout_, blocks, {}, &ticket).ok()) return {};
  return Wait(ticket).results;
}

std::vector<uint8_t> GpuRig::Page(uint32_t page) {
  std::vector<uint8_t> raw(shape_.page_bytes());
  if (!pages_->Read(page, {raw.data(), raw.size()}).ok()) raw.clear();
  return raw;
}

std::vector<std::string> Keys(const std::string& prefix, uint32_t count) {
  std::vector<std::string> keys;
  for (uint32_t i = 0; i < count; ++i) keys.push_back(absl::StrCat(prefix, "/", i));
  return keys;
}

size_t CountOf(const std::vector<client::Result>& results, client::Code code) {
  return static_cast<size_t>(
      std::count_if(results.begin(), results.end(),
                    [code](const client::Result& result) { return result.code == code; }));
}

}  // namespace crumb
