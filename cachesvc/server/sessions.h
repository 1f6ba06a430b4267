// Sessions as the gRPC side sees them: who said Hello and is still in use. The engine has its own
// part of each, on the shard. Ids are random, so that nobody can guess another's. Any thread.
#ifndef CRUMB_CACHESVC_SERVER_SESSIONS_H_
#define CRUMB_CACHESVC_SERVER_SESSIONS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/status.h"
#include "cachesvc/core/engine.h"

namespace crumb {

class SessionTable {
 public:
  SessionTable(size_t sessions_max, const Clock& clock)
      : sessions_max_(sessions_max), clock_(clock) {}

  // RESOURCE_EXHAUSTED names the limit.
  absl::StatusOr<SessionId> Add(const std::string& client, const std::string& tenant);
  // The session's tenant; marks it as used now. FAILED_PRECONDITION if there is no such session
  // (it ended, or the daemon was restarted): say Hello again.
  absl::StatusOr<std::string> Use(SessionId session);
  bool Remove(SessionId session);
  // Sessions that were not used for that long.
  std::vector<SessionId> IdleFor(uint64_t idle_us) const;
  size_t count() const;

 private:
  struct Entry {
    std::string client;
    std::string tenant;
    uint64_t used_us = 0;
  };
  const size_t sessions_max_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Entry> entries_;
};

// 64 random bits that are not zero, from the kernel.
absl::StatusOr<uint64_t> RandomId();

inline constexpr char kDefaultTenant[] = "default";

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_SESSIONS_H_
