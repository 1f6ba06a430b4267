// The data plane of a fake daemon: wire messages over UCX or unix sockets, on a thread of its own
// with a mailbox of closures. Owns the thread and the transport.
#ifndef CRUMB_TESTS_INTEG_CLIENT_FAKE_WIRE_SIDE_H_
#define CRUMB_TESTS_INTEG_CLIENT_FAKE_WIRE_SIDE_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cachesvc/base/wire.h"
#include "cachesvc/net/ucx_transport.h"
#include "tests/integ/client/fake_store.h"

namespace crumb {

class WireSide {
 public:
  // `data_socket` empty: UCX.
  WireSide(Store* store, const std::string& data_socket);
  ~WireSide();

  // Runs on the transport's thread.
  void Call(const std::function<void(Transport*)>& work);
  UcxTransport* ucx() { return ucx_; }

 private:
  struct Request {
    PeerId peer;
    std::string message;
  };

  void Loop();
  void RunTasks();
  void Poll();
  void Take(Request request);
  BlockResult Move(bool push, const Transfer& transfer);
  void HandleControls();
  void HandleOne();
  void Greet(PeerId peer, uint64_t session);
  void Cancel(const Request& request, uint64_t id);
  void Reply(PeerId peer, const WireHeader& asked, const std::vector<WireBlockReply>& blocks);
  WireBlockReply Block(PeerId peer, const WireRequest& wire, uint32_t index);
  bool Place(const WireRequest& wire, uint32_t index, uint64_t bytes, std::vector<Segment>* out);
  WireBlockReply Put(PeerId peer, const WireRequest& wire, uint32_t index, const ValueKey& key);
  WireBlockReply Get(PeerId peer, const WireRequest& wire, uint32_t index,
                     const std::string& value);

  Store* store_;
  std::vector<uint8_t> arena_;
  std::unique_ptr<Transport> transport_;
  UcxTransport* ucx_ = nullptr;  // the same, if it is UCX
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;
  std::deque<Request> requests_, controls_;
  BlockResult transfer_result_ = BlockResult::kOk;
  bool transfer_done_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_INTEG_CLIENT_FAKE_WIRE_SIDE_H_
