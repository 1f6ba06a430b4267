// Control: one session's gRPC side. Synchronous calls, each with a deadline; no retries: the
// caller decides. Thread: the Client's (stub() may be used from any thread, as gRPC allows).
#ifndef CRUMB_CLIENT_SRC_CONTROL_H_
#define CRUMB_CLIENT_SRC_CONTROL_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cachesvc/base/status.h"
#include "client/src/channel.h"
#include "client/src/layout_codecs.h"
#include "crumb/v1/cache.grpc.pb.h"

namespace crumb::client {

// Ends synchronous calls from another thread: those under way, and all later ones. Any thread.
class CallStopper {
 public:
  void Stop();
  // By a call. False: it must not be made.
  bool Enter(grpc::ClientContext* context);
  void Leave();

 private:
  std::mutex mutex_;
  grpc::ClientContext* under_way_ = nullptr;  // one at a time
  bool stopped_ = false;
};

struct ControlOptions {
  ChannelOptions channel;
  std::string client_name;
  std::shared_ptr<CallStopper> stopper = std::make_shared<CallStopper>();
  uint32_t connect_ms = 2000;
  uint32_t deadline_ms = 5000;
};

class Control {
 public:
  // Says hello; UNAVAILABLE names the server and the remedy.
  static absl::StatusOr<std::unique_ptr<Control>> Open(const ControlOptions& options);
  ~Control();

  const v1::HelloReply& hello() const { return hello_; }
  uint64_t session() const { return hello_.session(); }
  v1::Cache::Stub* stub() { return stub_.get(); }
  const Channel& channel() const { return channel_; }

  absl::StatusOr<v1::LayoutInfo> RegisterLayout(v1::RegisterLayoutRequest request);
  absl::StatusOr<std::vector<v1::LayoutInfo>> ListLayouts();
  absl::StatusOr<LayoutCodecs> GetCodecs(uint32_t layout_handle);
  absl::Status RegisterRegions(v1::RegisterRegionsRequest request);
  absl::StatusOr<std::string> ExchangeHello(const std::string& blob);
  absl::StatusOr<v1::PinReply> Pin(v1::PinRequest request);
  absl::Status Flush(v1::FlushRequest request);
  // Best effort, bounded: closes the session, which ends its requests.
  void Goodbye(uint32_t deadline_ms);

  // Asks in the background whether the daemon still knows this session; one question at a time.
  // Dead: it refuses connections, or was restarted. A daemon that merely does not answer is not
  // dead: the question ends at its deadline as kNone.
  enum class Life : uint8_t { kNone, kAsking, kAlive, kDead };
  void AskLife();
  Life life() const;

 private:
  Control(const ControlOptions& options, Channel channel);
  struct Probe;
  class Call;

  ControlOptions options_;
  Channel channel_;
  std::unique_ptr<v1::Cache::Stub> stub_;
  v1::HelloReply hello_;
  std::shared_ptr<Probe> probe_;  // shared with its callback
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_CONTROL_H_
