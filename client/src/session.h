// Session: everything a Client has at one daemon, and how to get it all back after the daemon was
// lost: at once (Open), or by a helper thread that the owner looks after (StartOpen, Step). Backs
// off between attempts. Thread: the Client's; the helper works on copies.
#ifndef CRUMB_CLIENT_SRC_SESSION_H_
#define CRUMB_CLIENT_SRC_SESSION_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/rng.h"
#include "client/src/link.h"

namespace crumb::client {

class Session {
 public:
  // `clock` and `rng` outlive the session. `plan` names options and server; `opener` is OpenLink.
  Session(LinkPlan plan, LinkOpener opener, const Clock& clock, Rng* rng);
  // Ends an attempt under way: within connect_ms, or deadline_ms where memory is being lent.
  ~Session();

  // Opens, or opens again with everything registered anew. UNAVAILABLE at once while it backs off
  // from an attempt that failed, or while the helper is at it.
  absl::Status Open();
  bool open() const { return link_.plane != nullptr; }
  // Starts an attempt on the helper thread, if none is under way and none must be waited for.
  void StartOpen();
  // Takes over what the helper brought. True: the session is open now, and was not before.
  bool Step();
  // Readable when Step has something.
  int helper_fd() const { return helper_fd_; }
  // When StartOpen will be worth a call; UINT64_MAX: Step comes first.
  uint64_t next_attempt_us() const { return helping() ? UINT64_MAX : next_attempt_us_; }
  // Drops the plane (its memory is not touched afterwards) and the control side. The first attempt
  // to open again is not held back.
  void Close(uint32_t goodbye_ms);

  Control* control() { return link_.control.get(); }
  Plane* plane() { return link_.plane.get(); }
  const Plane* plane() const { return link_.plane.get(); }
  const std::string& plane_name() const { return link_.name; }

  absl::StatusOr<Layout> RegisterLayout(const LayoutSpec& spec);
  absl::StatusOr<std::vector<Layout>> ListLayouts();
  // nullptr: a handle that this client never gave.
  const LayoutEntry* FindLayout(uint32_t handle) const;

  absl::Status Share(const SharedRange& range) { return plan_.shared.Add(range); }
  absl::StatusOr<uint32_t> Lend(uint32_t layout, std::shared_ptr<const LentMemory> memory) {
    return Lend(Lent{.layout = layout, .memory = std::move(memory)});
  }
  // As RegisterGpuRegions says; `places` has device addresses.
  absl::StatusOr<uint32_t> LendGpu(uint32_t layout, const LentMemory& places, CodecPlace place);
  // Of GPU memory that was lent; null: there is none.
  GpuGate* gate() { return plan_.gate.get(); }
  const Lent* FindLent(uint32_t region_set) const;
  // Why this session does not know lent memory; empty: it does.
  std::string RefusalOf(uint32_t region_set) const;
  void Unlend(uint32_t region_set);
  // REQUIRES: open().
  CodecPlaced PlacedAt(uint32_t region_set) const { return link_.plane->PlacedAt(region_set); }

 private:
  struct Helper {
    LinkPlan plan;
    absl::StatusOr<Link> result = absl::UnknownError("under way");
    std::atomic<bool> done{false};
    std::thread thread;
  };
  bool helping() const { return helper_ != nullptr; }
  absl::Status Adopt(absl::StatusOr<Link> opened);
  Layout Keep(LayoutEntry entry);
  absl::StatusOr<uint32_t> Lend(Lent lent);

  LinkPlan plan_;  // what this session has registered, for the next one
  const LinkOpener opener_;
  const Clock& clock_;
  Rng& rng_;
  Link link_;
  std::unique_ptr<Helper> helper_;
  int helper_fd_ = -1;
  uint64_t next_attempt_us_ = 0;
  uint64_t backoff_us_ = 0;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_SESSION_H_
