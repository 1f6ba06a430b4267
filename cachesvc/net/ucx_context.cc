// Set-up of UCX. The settings here are facts about UCX 1.13 that docs/networking.md explains.
// Must never read the environment itself: UCX does for what is not set here. Owner's thread.
#include "cachesvc/net/ucx_context.h"

#include <dlfcn.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/net/frames.h"
#include "cachesvc/net/ucx_late.h"
#include "cachesvc/net/ucx_transport.h"

extern "C" {
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
}

namespace crumb {
namespace {

struct ConfigCloser {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};
using Config = std::unique_ptr<ucp_config_t, ConfigCloser>;

absl::Status Set(ucp_config_t* config, const char* name, const std::string& value) {
  const ucs_status_t status = ucp_config_modify(config, name, value.c_str());
  if (status == UCS_OK) return absl::OkStatus();
  return UcxError(absl::StrCat("UCX refuses ", name, "=", value).c_str(), status);
}

absl::StatusOr<Config> MakeConfig(const UcxOptions& options) {
  ucp_config_t* raw = nullptr;
  const ucs_status_t status = ucp_config_read(nullptr, nullptr, &raw);
  if (status != UCS_OK) return UcxError("UCX cannot read its configuration", status);
  Config config(raw);
  if (!options.tls.empty()) CRUMB_TRY(Set(raw, "TLS", options.tls));
  CRUMB_TRY(Set(raw, "NET_DEVICES", options.net_devices.empty() ? "lo" : options.net_devices));
  // WHY: hangs with peer errors over shared memory in 1.13.
  CRUMB_TRY(Set(raw, "PROTO_ENABLE", "n"));
  // WHY: a peer that dies without closing a socket is found only by asking.
  CRUMB_TRY(Set(raw, "KEEPALIVE_INTERVAL", absl::StrCat(options.keepalive_us, "us")));
  return config;
}

// Settings of transports, by the names that this version of the library knows; one that no chosen
// transport takes makes it print a warning.
absl::Status SetTransports(ucp_config_t* config, const std::set<std::string>& transports) {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  // WHY: without it an endpoint that asks for peer errors silently leaves shared memory out.
  if (transports.contains("posix") || transports.contains("sysv")) {
    CRUMB_TRY(Set(config, "MM_ERROR_HANDLING", "y"));
    // WHY: both sides of a shared-memory queue must agree on these, and UCX does not check; the
    // hello carries kUcxFifoSlots for that, and no environment may change them.
    CRUMB_TRY(Set(config, "MM_FIFO_SIZE", absl::StrCat(kUcxFifoSlots)));
    CRUMB_TRY(Set(config, "MM_FIFO_ELEM_SIZE", "128"));
    CRUMB_TRY(Set(config, "MM_FIFO_RELEASE_FACTOR", "0.1"));
    // WHY: the default makes room for 512 messages in each worker, one system call after another.
    CRUMB_TRY(Set(config, "MM_RX_BUFS_GROW", absl::StrCat(kUcxFifoSlots)));
    CRUMB_TRY(Set(config, "MM_SEG_SIZE", absl::StrCat(kUcxSegmentBytes)));
  }
  if (!transports.contains("tcp")) return absl::OkStatus();
  // WHY: the default connects with a blocking call, on the shard thread.
  return Set(config, major > 1 || minor >= 17 ? "TCP_CONN_NB" : "CONN_NB", "y");
}

// UCX prints its transports and offers no other way to ask; a changed print gives an empty set.
std::set<std::string> TransportsOf(ucp_context_h context) {
  std::set<std::string> names;
  char* text = nullptr;
  size_t bytes = 0;
  FILE* stream = open_memstream(&text, &bytes);
  if (stream == nullptr) return names;
  ucp_context_print_info(context, stream);
  fclose(stream);
  std::istringstream lines(std::string(text, bytes));
  free(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" resource ") == std::string::npos) continue;
    const std::string name = line.substr(line.rfind(' ') + 1);  // "tcp/lo"
    const size_t slash = name.find('/');
    if (slash != std::string::npos) names.insert(name.substr(0, slash));
  }
  return names;
}

// Bytes that UCX keeps in front of what it gives out as a request: one number for the library.
std::atomic<size_t> request_bytes{0};

// WHY: requests that UCX makes for itself to answer a remote get or put are completed, when their
// endpoint fails, by a field that nobody set (found in 1.13, unchanged in 1.22): stale memory there
// is a crash. This runs once for each new request, before its first use; zero is a valid value.
void ClearRequest(void* user_part) {
  const size_t bytes = request_bytes.load(std::memory_order_relaxed);
  std::memset(static_cast<uint8_t*>(user_part) - bytes, 0, bytes);
}

absl::Status LearnRequestBytes(ucp_context_h context) {
  ucp_context_attr_t attributes = {};
  attributes.field_mask = UCP_ATTR_FIELD_REQUEST_SIZE;
  const ucs_status_t status = ucp_context_query(context, &attributes);
  if (status != UCS_OK) return UcxError("UCX does not tell the size of its requests", status);
  request_bytes.store(attributes.request_size, std::memory_order_relaxed);
  return absl::OkStatus();
}

// WHY: UCX prints to stdout, where the data of commands goes, and has a line for each request that
// a dying peer leaves behind. What matters comes back as a status. UCX_LOG_LEVEL set to anything
// but its default (warn) is left alone.
void KeepUcxQuiet() {
  char level[32] = {};
  if (ucs_global_opts_get_value("LOG_LEVEL", level, sizeof(level)) != UCS_OK) return;
  if (std::string(level) == "WARN") ucs_global_opts_set_value("LOG_LEVEL", "FATAL");
}

// UCX takes crash signals over when it is loaded. A core dump says more than its trace, and a
// handler that the program set since then is not ours to remove.
void GiveBackCrashSignals() {
  for (int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) {
    struct sigaction now = {};
    Dl_info where = {};
    if (sigaction(signal, nullptr, &now) != 0) continue;
    if (dladdr(reinterpret_cast<void*>(now.sa_handler), &where) == 0) continue;
    const std::string file = where.dli_fname == nullptr ? "" : where.dli_fname;
    if (file.find("libucs") != std::string::npos) ucs_debug_disable_signal(signal);
  }
}

}  // namespace

absl::Status UcxError(const char* what, ucs_status_t status) {
  return absl::UnavailableError(absl::StrCat(what, ": ", ucs_status_string(status)));
}

absl::StatusOr<std::unique_ptr<UcxContext>> UcxContext::Create(const UcxOptions& options) {
  CRUMB_TRY(LoadUcx());
  GiveBackCrashSignals();
  KeepUcxQuiet();
  auto context = std::make_unique<UcxContext>();
  CRUMB_TRY(context->InitContext(options));
  context->one_sided_ = options.one_sided;
  if (options.one_sided && !options.arena.empty()) {
    CRUMB_ASSIGN(context->arena_, context->Map(options.arena));
  }
  return context;
}

absl::Status UcxContext::InitContext(const UcxOptions& options) {
  CRUMB_ASSIGN(Config config, MakeConfig(options));
  ucp_params_t params = {};
  params.field_mask =
      UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_REQUEST_INIT;
  // WHY: with RMA on, a peer may read and write any address of this process.
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  if (options.one_sided) params.features |= UCP_FEATURE_RMA;
  params.name = "crumb";
  params.request_init = &ClearRequest;
  // Twice: which transports there are decides what can be set for them.
  ucs_status_t status = ucp_init(&params, config.get(), &context_);
  if (status == UCS_OK) {
    const std::set<std::string> transports = TransportsOf(context_);
    const absl::Status learned = LearnRequestBytes(context_);
    ucp_cleanup(context_);
    context_ = nullptr;
    CRUMB_TRY(learned);
    CRUMB_TRY(SetTransports(config.get(), transports));
    status = ucp_init(&params, config.get(), &context_);
  }
  if (status == UCS_OK) return absl::OkStatus();
  context_ = nullptr;
  const std::string what = absl::StrCat("UCX finds no transport for ucx.tls \"", options.tls,
                                        "\" and ucx.net_devices \"", options.net_devices,
                                        "\" (`ucx_info -d` lists what this machine has)");
  return UcxError(what.c_str(), status);
}

UcxContext::~UcxContext() {
  for (const Lent& lent : lent_) {
    if (lent.handle != nullptr) ucp_mem_unmap(context_, lent.handle);
  }
  if (arena_ != nullptr) ucp_mem_unmap(context_, arena_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

absl::StatusOr<ucp_mem_h> UcxContext::Map(MutableBytes memory) {
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = memory.data();
  params.length = memory.size();
  ucp_mem_h handle = nullptr;
  const ucs_status_t status = ucp_mem_map(context_, &params, &handle);
  if (status == UCS_OK) return handle;
  return UcxError(absl::StrCat("UCX cannot register ", memory.size(), " bytes of memory").c_str(),
                  status);
}

absl::StatusOr<Region> UcxContext::Lend(MutableBytes memory) {
  if (memory.empty()) return absl::InvalidArgumentError("cannot lend 0 bytes of memory");
  if (lent_.size() >= kRegionsMax) {
    return absl::ResourceExhaustedError(absl::StrCat("at most ", kRegionsMax, " ranges are lent"));
  }
  Lent lent = {.address = reinterpret_cast<uint64_t>(memory.data()), .bytes = memory.size()};
  Region region = {.address = lent.address, .bytes = lent.bytes, .rkey = {}};
  std::string key;
  if (one_sided_) {
    CRUMB_ASSIGN(lent.handle, Map(memory));
    auto packed = PackKey(lent.handle);
    if (!packed.ok()) {
      ucp_mem_unmap(context_, lent.handle);
      return packed.status();
    }
    key = *std::move(packed);
  }
  region.rkey = EncodeRkey({.address = region.address, .bytes = region.bytes, .key = AsBytes(key)});
  lent_.push_back(lent);
  return region;
}

absl::StatusOr<std::string> UcxContext::PackKey(ucp_mem_h handle) const {
  void* key = nullptr;
  size_t bytes = 0;
  const ucs_status_t status = ucp_rkey_pack(context_, handle, &key, &bytes);
  if (status != UCS_OK) return UcxError("UCX cannot pack the key of lent memory", status);
  std::string out(static_cast<const char*>(key), bytes);
  ucp_rkey_buffer_release(key);
  if (out.empty() || out.size() > kRkeyFrameBytesMax / 2) {
    return absl::UnavailableError(absl::StrCat("a UCX key of ", out.size(), " bytes"));
  }
  return out;
}

void UcxContext::Unlend(const Region& region) {
  for (size_t i = 0; i < lent_.size(); ++i) {
    if (lent_[i].address != region.address || lent_[i].bytes != region.bytes) continue;
    if (lent_[i].handle != nullptr) ucp_mem_unmap(context_, lent_[i].handle);
    lent_.erase(lent_.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
}

bool UcxContext::IsLent(uint64_t address, uint64_t bytes) {
  for (size_t i = 0; i < lent_.size(); ++i) {
    const size_t at = (lent_last_ + i) % lent_.size();
    const Lent& lent = lent_[at];
    if (address < lent.address || bytes > lent.bytes) continue;
    if (address - lent.address > lent.bytes - bytes) continue;
    lent_last_ = at;
    return true;
  }
  return false;
}

std::string UcxVersion() {
  if (!LoadUcx().ok()) return "not installed";
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return absl::StrCat(major, ".", minor, ".", release);
}

std::string UcxContext::Describe() const {
  const std::set<std::string> names = TransportsOf(context_);
  std::string out = UcxVersion();
  if (!names.empty()) absl::StrAppend(&out, " (", absl::StrJoin(names, ", "), ")");
  return out;
}

}  // namespace crumb
