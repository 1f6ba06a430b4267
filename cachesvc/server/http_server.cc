// HTTP on civetweb's C interface: it has no exceptions to leak, and says when a port is busy.
#include "cachesvc/server/http_server.h"

#include <civetweb.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace crumb {
namespace {

// For a whole header: whoever takes longer holds a thread that others wait for.
constexpr char kRequestTimeoutMs[] = "1000";
constexpr char kQueue[] = "256";  // accepted, and waiting for a thread

void Send(mg_connection* connection, const HttpReply& reply, bool with_body) {
  const std::string head = absl::StrCat(
      "HTTP/1.1 ", reply.status, " ", mg_get_response_code_text(connection, reply.status),
      "\r\nContent-Type: ", reply.type, "\r\nContent-Length: ", reply.body.size(),
      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
      reply.status == 405 ? "Allow: GET, HEAD\r\n" : "", "Connection: close\r\n\r\n");
  mg_write(connection, head.data(), head.size());
  if (with_body) mg_write(connection, reply.body.data(), reply.body.size());
}

int Handle(mg_connection* connection, void* arg) {
  const auto& options = *static_cast<const HttpOptions*>(arg);
  const mg_request_info* request = mg_get_request_info(connection);
  const std::string method = request->request_method != nullptr ? request->request_method : "";
  const bool head = method == "HEAD";
  HttpReply reply;
  if (method != "GET" && !head) {
    reply = {.status = 405, .type = reply.type, .body = "only GET and HEAD are allowed here\n"};
  } else {
    // The path as it was sent: nothing is decoded or resolved, so "/x/../metrics" is no page.
    const std::string uri = request->request_uri != nullptr ? request->request_uri : "";
    reply = options.handler(uri.substr(0, uri.find('?')));
  }
  Send(connection, reply, !head);
  return reply.status;
}

}  // namespace

struct HttpServer::Impl {
  HttpOptions options;
  mg_context* context = nullptr;
  HostPort place;
  ~Impl() {
    if (context == nullptr) return;
    mg_stop(context);
    mg_exit_library();
  }
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
HostPort HttpServer::place() const { return impl_->place; }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpOptions options) {
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  impl->place = impl->options.place;
  const std::string ports = FormatHostPort(impl->place);
  const std::string threads = absl::StrCat(impl->options.threads);
  std::array<const char*, 13> settings = {"listening_ports",
                                          ports.c_str(),
                                          "num_threads",
                                          threads.c_str(),
                                          "request_timeout_ms",
                                          kRequestTimeoutMs,
                                          "connection_queue",
                                          kQueue,
                                          "enable_directory_listing",
                                          "no",
                                          "enable_keep_alive",
                                          "no",
                                          nullptr};
  mg_init_library(0);
  mg_callbacks callbacks{};
  callbacks.log_message = [](const mg_connection*, const char*) { return 1; };  // not to stderr
  std::array<char, 256> text{};
  unsigned code = 0;
  mg_error_data error{.code = &code, .text = text.data(), .text_buffer_size = text.size()};
  mg_init_data init{
      .callbacks = &callbacks, .user_data = nullptr, .configuration_options = settings.data()};
  impl->context = mg_start2(&init, &error);
  std::array<mg_server_port, 1> bound{};
  if (impl->context == nullptr) {
    mg_exit_library();
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", ports,
                     ": the port is in use, or the address is not "
                     "this machine's: choose another, or 0 for any free port"));
  }
  if (mg_get_server_ports(impl->context, bound.size(), bound.data()) != 1) {
    return absl::InternalError("the HTTP server has no port");
  }
  impl->place.port = static_cast<uint16_t>(bound[0].port);
  mg_set_request_handler(impl->context, "/", Handle, &impl->options);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

}  // namespace crumb
