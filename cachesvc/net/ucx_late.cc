// UCX, loaded when it is first needed. Must never be linked: loading alone puts hooks into the
// process (on madvise and its like, and on crash signals), and an engine may have a UCX of its own.
// The library stays loaded for the life of the process. Any thread.
#include "cachesvc/net/ucx_late.h"

#include <dlfcn.h>
#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"

namespace crumb {
namespace {

constexpr char kLibrary[] = "libucp.so.0";

struct Functions {
  absl::Status status;
  decltype(&::ucp_am_send_nbx) ucp_am_send_nbx = nullptr;
  decltype(&::ucp_cleanup) ucp_cleanup = nullptr;
  decltype(&::ucp_config_modify) ucp_config_modify = nullptr;
  decltype(&::ucp_config_read) ucp_config_read = nullptr;
  decltype(&::ucp_config_release) ucp_config_release = nullptr;
  decltype(&::ucp_context_print_info) ucp_context_print_info = nullptr;
  decltype(&::ucp_context_query) ucp_context_query = nullptr;
  decltype(&::ucp_ep_create) ucp_ep_create = nullptr;
  decltype(&::ucp_ep_flush_nbx) ucp_ep_flush_nbx = nullptr;
  decltype(&::ucp_ep_rkey_unpack) ucp_ep_rkey_unpack = nullptr;
  decltype(&::ucp_get_nbx) ucp_get_nbx = nullptr;
  decltype(&::ucp_get_version) ucp_get_version = nullptr;
  decltype(&::ucp_init_version) ucp_init_version = nullptr;
  decltype(&::ucp_mem_map) ucp_mem_map = nullptr;
  decltype(&::ucp_mem_unmap) ucp_mem_unmap = nullptr;
  decltype(&::ucp_put_nbx) ucp_put_nbx = nullptr;
  decltype(&::ucp_request_free) ucp_request_free = nullptr;
  decltype(&::ucp_rkey_buffer_release) ucp_rkey_buffer_release = nullptr;
  decltype(&::ucp_rkey_destroy) ucp_rkey_destroy = nullptr;
  decltype(&::ucp_rkey_pack) ucp_rkey_pack = nullptr;
  decltype(&::ucp_worker_arm) ucp_worker_arm = nullptr;
  decltype(&::ucp_worker_create) ucp_worker_create = nullptr;
  decltype(&::ucp_worker_destroy) ucp_worker_destroy = nullptr;
  decltype(&::ucp_worker_get_address) ucp_worker_get_address = nullptr;
  decltype(&::ucp_worker_get_efd) ucp_worker_get_efd = nullptr;
  decltype(&::ucp_worker_progress) ucp_worker_progress = nullptr;
  decltype(&::ucp_worker_release_address) ucp_worker_release_address = nullptr;
  decltype(&::ucp_worker_set_am_recv_handler) ucp_worker_set_am_recv_handler = nullptr;
  decltype(&::ucs_debug_disable_signal) ucs_debug_disable_signal = nullptr;
  decltype(&::ucs_global_opts_get_value) ucs_global_opts_get_value = nullptr;
  decltype(&::ucs_global_opts_set_value) ucs_global_opts_set_value = nullptr;
  decltype(&::ucs_status_string) ucs_status_string = nullptr;
};

template <typename Function>
bool Bind(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  return *function != nullptr;
}

Functions Load() {
  Functions out;
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    out.status = absl::UnavailableError(absl::StrCat(
        "UCX cannot be loaded: ", why == nullptr ? kLibrary : why, "; install libucx0"));
    return out;
  }
  bool bound = true;
  bound = Bind(library, "ucp_am_send_nbx", &out.ucp_am_send_nbx) && bound;
  bound = Bind(library, "ucp_cleanup", &out.ucp_cleanup) && bound;
  bound = Bind(library, "ucp_config_modify", &out.ucp_config_modify) && bound;
  bound = Bind(library, "ucp_config_read", &out.ucp_config_read) && bound;
  bound = Bind(library, "ucp_config_release", &out.ucp_config_release) && bound;
  bound = Bind(library, "ucp_context_print_info", &out.ucp_context_print_info) && bound;
  bound = Bind(library, "ucp_context_query", &out.ucp_context_query) && bound;
  bound = Bind(library, "ucp_ep_create", &out.ucp_ep_create) && bound;
  bound = Bind(library, "ucp_ep_flush_nbx", &out.ucp_ep_flush_nbx) && bound;
  bound = Bind(library, "ucp_ep_rkey_unpack", &out.ucp_ep_rkey_unpack) && bound;
  bound = Bind(library, "ucp_get_nbx", &out.ucp_get_nbx) && bound;
  bound = Bind(library, "ucp_get_version", &out.ucp_get_version) && bound;
  bound = Bind(library, "ucp_init_version", &out.ucp_init_version) && bound;
  bound = Bind(library, "ucp_mem_map", &out.ucp_mem_map) && bound;
  bound = Bind(library, "ucp_mem_unmap", &out.ucp_mem_unmap) && bound;
  bound = Bind(library, "ucp_put_nbx", &out.ucp_put_nbx) && bound;
  bound = Bind(library, "ucp_request_free", &out.ucp_request_free) && bound;
  bound = Bind(library, "ucp_rkey_buffer_release", &out.ucp_rkey_buffer_release) && bound;
  bound = Bind(library, "ucp_rkey_destroy", &out.ucp_rkey_destroy) && bound;
  bound = Bind(library, "ucp_rkey_pack", &out.ucp_rkey_pack) && bound;
  bound = Bind(library, "ucp_worker_arm", &out.ucp_worker_arm) && bound;
  bound = Bind(library, "ucp_worker_create", &out.ucp_worker_create) && bound;
  bound = Bind(library, "ucp_worker_destroy", &out.ucp_worker_destroy) && bound;
  bound = Bind(library, "ucp_worker_get_address", &out.ucp_worker_get_address) && bound;
  bound = Bind(library, "ucp_worker_get_efd", &out.ucp_worker_get_efd) && bound;
  bound = Bind(library, "ucp_worker_progress", &out.ucp_worker_progress) && bound;
  bound = Bind(library, "ucp_worker_release_address", &out.ucp_worker_release_address) && bound;
  bound =
      Bind(library, "ucp_worker_set_am_recv_handler", &out.ucp_worker_set_am_recv_handler) && bound;
  bound = Bind(library, "ucs_debug_disable_signal", &out.ucs_debug_disable_signal) && bound;
  bound = Bind(library, "ucs_global_opts_get_value", &out.ucs_global_opts_get_value) && bound;
  bound = Bind(library, "ucs_global_opts_set_value", &out.ucs_global_opts_set_value) && bound;
  bound = Bind(library, "ucs_status_string", &out.ucs_status_string) && bound;
  if (!bound) {
    out.status = absl::UnavailableError(
        absl::StrCat("the UCX in ", kLibrary, " lacks functions of version 1.13"));
  }
  return out;
}

const Functions& LoadOnce() {
  static const Functions functions = Load();
  return functions;
}

// REQUIRES: LoadUcx said ok.
const Functions& Library() {
  const Functions& functions = LoadOnce();
  CRUMB_CHECK(functions.status.ok());
  return functions;
}

}  // namespace

absl::Status LoadUcx() { return LoadOnce().status; }

}  // namespace crumb

// What UCX's headers declare, on the way to the library.
extern "C" {

ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void* header, size_t header_length,
                                 const void* buffer, size_t count,
                                 const ucp_request_param_t* param) {
  return crumb::Library().ucp_am_send_nbx(ep, id, header, header_length, buffer, count, param);
}

void ucp_cleanup(ucp_context_h context_p) { crumb::Library().ucp_cleanup(context_p); }

ucs_status_t ucp_config_modify(ucp_config_t* config, const char* name, const char* value) {
  return crumb::Library().ucp_config_modify(config, name, value);
}

ucs_status_t ucp_config_read(const char* env_prefix, const char* filename,
                             ucp_config_t** config_p) {
  return crumb::Library().ucp_config_read(env_prefix, filename, config_p);
}

void ucp_config_release(ucp_config_t* config) { crumb::Library().ucp_config_release(config); }

void ucp_context_print_info(const ucp_context_h context, FILE* stream) {
  crumb::Library().ucp_context_print_info(context, stream);
}

ucs_status_t ucp_context_query(ucp_context_h context_p, ucp_context_attr_t* attr) {
  return crumb::Library().ucp_context_query(context_p, attr);
}

ucs_status_t ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t* params, ucp_ep_h* ep_p) {
  return crumb::Library().ucp_ep_create(worker, params, ep_p);
}

ucs_status_ptr_t ucp_ep_flush_nbx(ucp_ep_h ep, const ucp_request_param_t* param) {
  return crumb::Library().ucp_ep_flush_nbx(ep, param);
}

ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h ep, const void* rkey_buffer, ucp_rkey_h* rkey_p) {
  return crumb::Library().ucp_ep_rkey_unpack(ep, rkey_buffer, rkey_p);
}

ucs_status_ptr_t ucp_get_nbx(ucp_ep_h ep, void* buffer, size_t count, uint64_t remote_addr,
                             ucp_rkey_h rkey, const ucp_request_param_t* param) {
  return crumb::Library().ucp_get_nbx(ep, buffer, count, remote_addr, rkey, param);
}

void ucp_get_version(unsigned* major_version, unsigned* minor_version, unsigned* release_number) {
  crumb::Library().ucp_get_version(major_version, minor_version, release_number);
}

ucs_status_t ucp_init_version(unsigned api_major_version, unsigned api_minor_version,
                              const ucp_params_t* params, const ucp_config_t* config,
                              ucp_context_h* context_p) {
  return crumb::Library().ucp_init_version(api_major_version, api_minor_version, params, config,
                                           context_p);
}

ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t* params,
                         ucp_mem_h* memh_p) {
  return crumb::Library().ucp_mem_map(context, params, memh_p);
}

ucs_status_t ucp_mem_unmap(ucp_context_h context, ucp_mem_h memh) {
  return crumb::Library().ucp_mem_unmap(context, memh);
}

ucs_status_ptr_t ucp_put_nbx(ucp_ep_h ep, const void* buffer, size_t count, uint64_t remote_addr,
                             ucp_rkey_h rkey, const ucp_request_param_t* param) {
  return crumb::Library().ucp_put_nbx(ep, buffer, count, remote_addr, rkey, param);
}

void ucp_request_free(void* request) { crumb::Library().ucp_request_free(request); }

void ucp_rkey_buffer_release(void* rkey_buffer) {
  crumb::Library().ucp_rkey_buffer_release(rkey_buffer);
}

void ucp_rkey_destroy(ucp_rkey_h rkey) { crumb::Library().ucp_rkey_destroy(rkey); }

ucs_status_t ucp_rkey_pack(ucp_context_h context, ucp_mem_h memh, void** rkey_buffer_p,
                           size_t* size_p) {
  return crumb::Library().ucp_rkey_pack(context, memh, rkey_buffer_p, size_p);
}

ucs_status_t ucp_worker_arm(ucp_worker_h worker) { return crumb::Library().ucp_worker_arm(worker); }

ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t* params,
                               ucp_worker_h* worker_p) {
  return crumb::Library().ucp_worker_create(context, params, worker_p);
}

void ucp_worker_destroy(ucp_worker_h worker) { crumb::Library().ucp_worker_destroy(worker); }

ucs_status_t ucp_worker_get_address(ucp_worker_h worker, ucp_address_t** address_p,
                                    size_t* address_length_p) {
  return crumb::Library().ucp_worker_get_address(worker, address_p, address_length_p);
}

ucs_status_t ucp_worker_get_efd(ucp_worker_h worker, int* fd) {
  return crumb::Library().ucp_worker_get_efd(worker, fd);
}

unsigned ucp_worker_progress(ucp_worker_h worker) {
  return crumb::Library().ucp_worker_progress(worker);
}

void ucp_worker_release_address(ucp_worker_h worker, ucp_address_t* address) {
  crumb::Library().ucp_worker_release_address(worker, address);
}

ucs_status_t ucp_worker_set_am_recv_handler(ucp_worker_h worker,
                                            const ucp_am_handler_param_t* param) {
  return crumb::Library().ucp_worker_set_am_recv_handler(worker, param);
}

void ucs_debug_disable_signal(int signum) { crumb::Library().ucs_debug_disable_signal(signum); }

ucs_status_t ucs_global_opts_get_value(const char* name, char* value, size_t max) {
  return crumb::Library().ucs_global_opts_get_value(name, value, max);
}

ucs_status_t ucs_global_opts_set_value(const char* name, const char* value) {
  return crumb::Library().ucs_global_opts_set_value(name, value);
}

const char* ucs_status_string(ucs_status_t status) {
  return crumb::Library().ucs_status_string(status);
}

}  // extern "C"
