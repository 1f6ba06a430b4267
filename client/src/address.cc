// Resolution of the daemon's address. Never guesses past the documented places.
#include "client/src/address.h"

#include <sys/stat.h>

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace crumb::client {
namespace {

constexpr size_t kUnixPathMax = 107;  // sockaddr_un::sun_path without its zero
constexpr size_t kHostBytesMax = 253;

std::string FromEnv(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

bool IsSocket(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

bool IsHostByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_';
}

absl::Status BadServer(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("server \"", text.substr(0, 200), "\": ", why, "; use unix:PATH or HOST:PORT"));
}

absl::Status CheckHost(absl::string_view text, absl::string_view host) {
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    for (char c : host.substr(1, host.size() - 2)) {
      if (!IsHostByte(c) && c != ':' && c != '%') return BadServer(text, "not an IPv6 address");
    }
    return absl::OkStatus();
  }
  if (host.empty() || host.size() > kHostBytesMax) return BadServer(text, "no host name");
  for (char c : host) {
    if (!IsHostByte(c)) return BadServer(text, "the host name has a character that none may have");
  }
  return absl::OkStatus();
}

}  // namespace

ServerPlaces ServerPlaces::FromEnvironment() {
  ServerPlaces places;
  places.crumb_server = FromEnv("CRUMB_SERVER");
  places.runtime_dir = FromEnv("XDG_RUNTIME_DIR");
  return places;
}

absl::StatusOr<std::string> CheckServer(absl::string_view text) {
  if (text.substr(0, 5) == "unix:") {
    const absl::string_view path = text.substr(5);
    if (path.empty()) return BadServer(text, "the socket's path is empty");
    if (path.size() > kUnixPathMax) {
      return BadServer(text, absl::StrCat("the socket's path is longer than ", kUnixPathMax));
    }
    if (path.find('\0') != absl::string_view::npos) return BadServer(text, "the path holds a zero");
    return std::string(text);
  }
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return BadServer(text, "no port");
  uint32_t port = 0;
  const absl::string_view digits = text.substr(colon + 1);
  const bool is_number = !digits.empty() && digits.size() <= 5 &&
                         digits.find_first_not_of("0123456789") == absl::string_view::npos &&
                         absl::SimpleAtoi(digits, &port);
  if (!is_number || port == 0 || port > 65535) return BadServer(text, "the port is not 1..65535");
  CRUMB_TRY(CheckHost(text, text.substr(0, colon)));
  return std::string(text);
}

absl::StatusOr<std::string> ResolveServer(const std::string& asked, const ServerPlaces& places) {
  if (!asked.empty()) return CheckServer(asked);
  if (!places.crumb_server.empty()) return CheckServer(places.crumb_server);
  if (!places.runtime_dir.empty()) {
    const std::string path = absl::StrCat(places.runtime_dir, "/crumb/crumbd.sock");
    if (IsSocket(path)) return CheckServer(absl::StrCat("unix:", path));
  }
  const std::string path = absl::StrCat(places.system_dir, "/crumbd.sock");
  if (IsSocket(path)) return CheckServer(absl::StrCat("unix:", path));
  return CheckServer(places.tcp_fallback);
}

bool IsLocal(const std::string& server) {
  if (server.substr(0, 5) == "unix:") return true;
  const std::string host = server.substr(0, server.rfind(':'));
  return host == "localhost" || host == "[::1]" || host.substr(0, 4) == "127.";
}

std::string GrpcTarget(const std::string& server) {
  return server.substr(0, 5) == "unix:" ? server : absl::StrCat("dns:///", server);
}

}  // namespace crumb::client
