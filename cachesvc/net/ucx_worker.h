// The inside of UcxTransport: peers, messages and transfers ("moves") over one UCX worker. Split
// over ucx_transport.cc (turn), ucx_peers.cc (life of a peer), ucx_messages.cc, ucx_moves.cc
// (transfers), ucx_copies.cc (by copy messages, the side that drives), ucx_answers.cc (the side
// that lends), ucx_one_sided.cc (by ucp_get and ucp_put).
// Must never call the owner: UCX's callbacks only change records here and queue events; what they
// make ready is done by the next step of Poll. One thread.
#ifndef CRUMB_CACHESVC_NET_UCX_WORKER_H_
#define CRUMB_CACHESVC_NET_UCX_WORKER_H_

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cachesvc/net/bounded_ring.h"
#include "cachesvc/net/message_slots.h"
#include "cachesvc/net/ucx_context.h"
#include "cachesvc/net/ucx_records.h"
#include "cachesvc/net/ucx_transport.h"

namespace crumb {

class UcxWorker {
 public:
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const UcxOptions& options);
  UcxWorker(const UcxOptions& options, std::unique_ptr<UcxContext> context);
  ~UcxWorker();

  UcxContext& context() { return *context_; }
  std::string MakeHello(uint64_t* cookie);
  absl::StatusOr<PeerId> Connect(Bytes hello, uint64_t my_cookie);
  absl::Status RegisterRegions(PeerId id, uint32_t region_set, const RegionSet& set);
  void ClosePeer(PeerId id);
  BlockResult Send(PeerId id, Bytes message);
  BlockResult Start(UcxMoveKind kind, const Transfer& transfer);
  size_t Poll(absl::Span<NetEvent> events);
  bool Arm();
  NetStats stats() const;

 private:
  // ucx_peers.cc
  UcxPeer* Find(PeerId id);
  UcxPeer* FindOpen(PeerId id);
  UcxPeer* FindByCookie(Bytes body);
  uint32_t SlotOf(const UcxPeer& peer) const {
    return static_cast<uint32_t>(&peer - peers_.data());
  }
  absl::Status OpenEndpoint(Bytes address, UcxPeer* peer);
  absl::Status UnpackKeys(const UcxPeer& peer, const RegionSet& set, UcxRemoteSet* out);
  void DestroySet(UcxRemoteSet* set);
  void Doom(UcxPeer* peer, UcxReport report);
  void Refuse(UcxPeer* peer);
  void Strike(UcxPeer* peer);
  void CloseEndpoint(UcxPeer* peer);
  void DrainPeers();
  void DrainPeer(UcxPeer* peer);
  bool Drained(const UcxPeer& peer) const;
  static void OnEndpointError(void* arg, ucp_ep_h endpoint, ucs_status_t status);
  static void OnClosed(void* request, ucs_status_t status, void* user_data);

  // ucx_messages.cc
  absl::Status SetHandlers();
  void SendBody(UcxPeer* peer, unsigned id, UcxSend* record, Bytes body);
  void SendDone(UcxSend* record, ucs_status_t status);
  void SendData(UcxPeer* peer, unsigned id, uint32_t slot, size_t bytes);
  void SayGoodbye(UcxPeer* peer);
  void ReceiveMessage(UcxPeer* peer, Bytes data);
  void ReleasePolled();
  template <unsigned kId>
  static ucs_status_t OnId(void* arg, const void* header, size_t header_length, void* data,
                           size_t length, const ucp_am_recv_param_t* param);
  void Dispatch(unsigned id, Bytes body);
  static void OnSent(void* request, ucs_status_t status, void* user_data);

  // ucx_moves.cc
  void Append(UcxMoveList* list, uint32_t move);
  uint32_t TakeFirst(UcxMoveList* list);
  void MarkReady(UcxPeer* peer);
  bool HasRoom(const UcxPeer& peer) const;
  bool CanIssue() const;
  void IssueMoves();
  void IssueFromPeer(UcxPeer* peer, uint32_t* operations, uint64_t* bytes);
  void OperationBegun(UcxMove* move, const PieceWalk::Start& next, uint64_t bytes);
  void OperationDone(uint32_t move, BlockResult result);
  void MoveIssued(uint32_t move);
  void SettleMove(uint32_t move);
  void Complete(uint32_t move);
  void FailMoves(UcxPeer* peer);

  // ucx_copies.cc
  uint64_t IssueCopy(UcxPeer* peer, uint32_t move);
  size_t WriteRequest(uint32_t copy, uint8_t* body);
  void ReceiveAnswer(UcxPeer* peer, UcxMoveKind kind, Bytes body);
  void EndCopy(uint32_t copy, BlockResult result);
  void FailCopies(const UcxPeer& peer);

  // ucx_answers.cc
  void ReceiveRead(UcxPeer* peer, Bytes body);
  void ReceiveWrite(UcxPeer* peer, Bytes body);
  void QueueAnswer(UcxPeer* peer, const UcxAnswer& answer);
  void SendAnswers();
  void SendAnswer(UcxPeer* peer, const UcxAnswer& answer);
  size_t WriteData(const UcxPeer& peer, Bytes message, uint8_t* body);
  bool AllLent(const CopyRequest& request);

  // ucx_one_sided.cc
  uint64_t IssueOneSided(UcxPeer* peer, uint32_t move);
  void WantFlush(UcxPeer* peer);
  void FlushPeers();
  void FlushDone(UcxPeer* peer, ucs_status_t status);
  static void OnOperation(void* request, ucs_status_t status, void* user_data);
  static void OnFlushed(void* request, ucs_status_t status, void* user_data);

  // ucx_transport.cc
  void Progress();
  void PushEvent(const UcxEvent& event);
  bool TakeEvent(NetEvent* out);

  const UcxOptions options_;
  MessageSlots receive_slots_;
  MessageSlots send_slots_;     // of messages
  SlotPool data_slots_;         // of the data path
  std::vector<UcxPeer> peers_;  // these five: fixed size, UCX holds pointers into them
  std::vector<UcxMove> moves_;
  std::vector<UcxCopy> copies_;
  std::vector<UcxSend> text_sends_;  // by send slot
  std::vector<UcxSend> data_sends_;  // by data slot
  std::vector<uint32_t> free_moves_;
  std::vector<uint32_t> free_copies_;
  std::vector<uint32_t> draining_;      // peer slots
  std::vector<uint32_t> polled_;        // receive slots of the events of the last Poll
  BoundedRing<uint32_t> ready_;         // peer slots, round robin
  BoundedRing<uint32_t> flush_wanted_;  // peer slots
  BoundedRing<UcxAnswer> answers_;
  bool answers_blocked_ = false;  // until a send ends
  BoundedRing<UcxEvent> events_;
  absl::flat_hash_map<uint64_t, uint32_t> cookies_;  // mine -> peer slot
  uint64_t serial_ = 0;
  bool ending_ = false;
  NetStats stats_;
  // Last: destroyed first, so that UCX can call back no more when the records go.
  std::unique_ptr<UcxContext> context_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UCX_WORKER_H_
