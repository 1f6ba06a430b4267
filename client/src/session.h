// Session: everything a Client has at one daemon: control, data plane, layouts and lent memory, and
// how to get it all back after the daemon was lost. Thread: the Client's.
#ifndef CRUMB_CLIENT_SRC_SESSION_H_
#define CRUMB_CLIENT_SRC_SESSION_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/rng.h"
#include "client/src/control.h"
#include "client/src/data_plane.h"
#include "client/src/layout_spec.h"

namespace crumb::client {

class Session {
 public:
  struct Lent {
    uint32_t layout = 0;  // the client's handle
    std::shared_ptr<const LentMemory> memory;
  };

  // `clock` outlives the session. `server` from ResolveServer.
  Session(const Options& options, std::string server, const Clock& clock);
  ~Session();

  // Opens, or opens again with everything registered anew. UNAVAILABLE at once while it backs off
  // from an attempt that failed.
  absl::Status Open();
  bool open() const { return plane_ != nullptr; }
  // Drops the plane (its memory is not touched afterwards) and the control side. The first attempt
  // to open again is not held back.
  void Close(uint32_t goodbye_ms);

  Control* control() { return control_.get(); }
  Plane* plane() { return plane_.get(); }

  absl::StatusOr<Layout> RegisterLayout(const LayoutSpec& spec);
  absl::StatusOr<std::vector<Layout>> ListLayouts();
  // nullptr: a handle that this client never gave.
  const LayoutEntry* FindLayout(uint32_t handle) const;

  absl::StatusOr<uint32_t> Lend(uint32_t layout, std::shared_ptr<const LentMemory> memory);
  const Lent* FindLent(uint32_t region_set) const;
  void Unlend(uint32_t region_set);

 private:
  absl::Status OpenOnce();
  absl::Status OpenPlane();
  absl::Status Restore();
  Layout Keep(LayoutEntry entry);

  Options options_;
  std::string server_;
  const Clock& clock_;
  Rng rng_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Plane> plane_;
  std::vector<LayoutEntry> layouts_;  // handle - 1
  std::map<uint32_t, Lent> lent_;     // by region set
  uint64_t next_attempt_us_ = 0;
  uint64_t backoff_us_ = 0;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_SESSION_H_
