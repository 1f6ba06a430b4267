// HTTP for people and scrapers: GET and HEAD of whatever the handler knows, nothing else. Own
// threads (civetweb's). Must never change state, read a file or serve a path by name.
#ifndef CRUMB_CACHESVC_SERVER_HTTP_SERVER_H_
#define CRUMB_CACHESVC_SERVER_HTTP_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cachesvc/base/status.h"
#include "cachesvc/server/config.h"

namespace crumb {

struct HttpReply {
  int status = 404;
  std::string type = "text/plain; charset=utf-8";
  std::string body = "not found\n";
};

struct HttpOptions {
  HostPort place;
  uint32_t threads = 64;  // connections served at once
  // Any of the server's threads, several at once. `path` has no query.
  std::function<HttpReply(const std::string& path)> handler;
};

class HttpServer {
 public:
  // FAILED_PRECONDITION if the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpOptions options);
  ~HttpServer();  // returns when no handler runs

  HostPort place() const;  // with the port that was bound

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_HTTP_SERVER_H_
