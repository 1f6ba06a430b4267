// The table of sessions. Any thread.
#include "cachesvc/server/sessions.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace crumb {

absl::StatusOr<uint64_t> RandomId() {
  for (int attempt = 0; attempt < 16; ++attempt) {
    uint64_t id = 0;
    if (getrandom(&id, sizeof(id), 0) == sizeof(id) && id != 0) return id;
  }
  return absl::InternalError(absl::StrCat("no random bytes: ", std::strerror(errno)));
}

absl::StatusOr<SessionId> SessionTable::Add(const std::string& client, const std::string& tenant) {
  CRUMB_ASSIGN(const uint64_t id, RandomId());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (entries_.size() >= sessions_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("limits.sessions (", sessions_max_, ") are open: close some, or raise it"));
  }
  const auto [at, fresh] =
      entries_.emplace(id, Entry{.client = client, .tenant = tenant, .used_us = clock_.now_us()});
  if (!fresh) return absl::UnavailableError("try again");  // one chance in 2^64 per session
  return SessionId{id};
}

absl::StatusOr<std::string> SessionTable::Use(SessionId session) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(session.value);
  if (found == entries_.end()) {
    return absl::FailedPreconditionError(
        "no such session: it ended, or the daemon was restarted; call Hello again");
  }
  found->second.used_us = clock_.now_us();
  return found->second.tenant;
}

bool SessionTable::Remove(SessionId session) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.erase(session.value) != 0;
}

std::vector<SessionId> SessionTable::IdleFor(uint64_t idle_us) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t now = clock_.now_us();
  std::vector<SessionId> idle;
  for (const auto& [id, entry] : entries_) {
    if (now - entry.used_us >= idle_us) idle.push_back({id});
  }
  return idle;
}

size_t SessionTable::count() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
}

}  // namespace crumb
