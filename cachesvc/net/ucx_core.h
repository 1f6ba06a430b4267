// The inside of UcxTransport: peers, messages and transfers ("moves"), one UCX worker per peer.
// Split over ucx_transport.cc (turn), ucx_peers.cc (life of a peer), ucx_messages.cc, ucx_moves.cc
// (transfers), ucx_copies.cc and ucx_answers.cc (by copy messages), ucx_one_sided.cc.
// Must never call the owner: UCX's callbacks only change records here and queue events; what they
// make ready is done by the next step of Poll. One thread.
#ifndef CRUMB_CACHESVC_NET_UCX_CORE_H_
#define CRUMB_CACHESVC_NET_UCX_CORE_H_

#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/clock.h"
#include "cachesvc/net/bounded_ring.h"
#include "cachesvc/net/frames.h"
#include "cachesvc/net/message_slots.h"
#include "cachesvc/net/process_watch.h"
#include "cachesvc/net/ucx_context.h"
#include "cachesvc/net/ucx_records.h"
#include "cachesvc/net/ucx_transport.h"

namespace crumb {

class UcxCore {
 public:
  static absl::StatusOr<std::unique_ptr<UcxCore>> Create(const UcxOptions& options);
  UcxCore(const UcxOptions& options, std::unique_ptr<UcxContext> context,
          std::unique_ptr<ProcessWatch> watch);
  ~UcxCore();

  UcxContext& context() { return *context_; }
  int wake_fd() const { return watch_->fd(); }
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
  UcxPeer* FindFree();
  UcxPeer* FindHello(uint64_t cookie);
  absl::Status Meet(const HelloFrame& frame, UcxPeer* peer);
  absl::Status UnpackKeys(const UcxPeer& peer, const RegionSet& set, UcxRemoteSet* out);
  void DestroySet(UcxRemoteSet* set);
  void Doom(UcxPeer* peer, UcxReport report);
  void Lose(UcxPeer* peer);
  void Refuse(UcxPeer* peer);
  void Strike(UcxPeer* peer);
  void WatchPeers();
  void LeavePeers();
  bool Leave(UcxPeer* peer);
  void Release(UcxPeer* peer);
  static void OnBody(void* owner, unsigned id, Bytes body);
  static void OnFailed(void* owner);
  // ucx_messages.cc
  void Dispatch(UcxPeer* peer, unsigned id, Bytes body);
  void ReceiveMessage(UcxPeer* peer, Bytes data);
  void SendText(UcxPeer* peer, unsigned id, uint32_t slot, size_t bytes);
  void SendData(UcxPeer* peer, unsigned id, uint32_t slot, size_t bytes);
  void SendBare(UcxPeer* peer, unsigned id);
  void SendDone(UcxSend* record, ucs_status_t status);
  void TakeBackSends(const UcxPeer& peer);
  void ReleasePolled();
  static void OnSent(UcxSendBase* record, ucs_status_t status);
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
  void FailOneSided(UcxPeer* peer);
  static void OnOperation(void* request, ucs_status_t status, void* user_data);
  static void OnFlushed(void* request, ucs_status_t status, void* user_data);

  // ucx_transport.cc
  uint32_t SlotOf(const UcxPeer& peer) const;
  void Progress();
  void PushEvent(const UcxEvent& event);
  bool TakeEvent(NetEvent* out);

  const UcxOptions options_;
  const ProcessId self_ = SelfProcess();
  SteadyClock clock_;
  std::unique_ptr<UcxContext> context_;  // before peers_, which hold its workers
  std::unique_ptr<ProcessWatch> watch_;  // by peer slot
  MessageSlots receive_slots_;
  MessageSlots send_slots_;     // of messages
  SlotPool data_slots_;         // of the data path
  std::vector<UcxMove> moves_;  // these five: fixed size, UCX holds pointers into them
  std::vector<UcxCopy> copies_;
  std::vector<UcxSend> text_sends_;  // by send slot
  std::vector<UcxSend> data_sends_;  // by data slot
  std::vector<UcxPeer> peers_;
  std::vector<uint32_t> free_moves_;
  std::vector<uint32_t> free_copies_;
  std::vector<uint32_t> linked_;   // slots of peers that are open or leaving: to progress
  std::vector<uint32_t> leaving_;  // peer slots
  std::vector<uint32_t> unheard_;  // peer slots
  std::vector<uint32_t> gone_;     // these two: scratch of WatchPeers
  std::vector<uint32_t> readable_;
  std::vector<uint32_t> polled_;        // receive slots of the events of the last Poll
  BoundedRing<uint32_t> ready_;         // peer slots, round robin
  BoundedRing<uint32_t> flush_wanted_;  // peer slots
  BoundedRing<UcxAnswer> answers_;
  bool answers_blocked_ = false;  // until a send ends
  BoundedRing<UcxEvent> events_;
  uint64_t serial_ = 0;
  uint64_t polls_ = 0;
  bool armed_ = false;  // slept, perhaps: look who woke us
  bool ending_ = false;
  NetStats stats_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UCX_CORE_H_
