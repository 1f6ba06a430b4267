// Requests one by one, transfers awaited in place.
#include "tests/integ/client/fake_wire_side.h"

#include <algorithm>
#include <array>
#include <future>
#include <utility>

#include "cachesvc/base/check.h"
#include "cachesvc/net/uds_transport.h"

namespace crumb {

WireSide::WireSide(Store* store, const std::string& data_socket) : store_(store), arena_(8 << 20) {
  if (data_socket.empty()) {
    UcxOptions options;
    options.arena = absl::MakeSpan(arena_);
    auto transport = UcxTransport::Create(options);
    CRUMB_CHECK(transport.ok());
    ucx_ = transport->get();
    transport_ = *std::move(transport);
  } else {
    auto transport = UdsTransport::Create({});
    CRUMB_CHECK(transport.ok() && (*transport)->Listen(data_socket).ok());
    transport_ = *std::move(transport);
  }
  thread_ = std::thread([this] { Loop(); });
}

WireSide::~WireSide() {
  stop_ = true;
  thread_.join();
}

void WireSide::Call(const std::function<void(Transport*)>& work) {
  std::promise<void> done;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back([&] {
      work(transport_.get());
      done.set_value();
    });
  }
  done.get_future().wait();
}

void WireSide::Loop() {
  while (!stop_) {
    RunTasks();
    Poll();
    HandleControls();
    HandleOne();
  }
  transport_.reset();
}

void WireSide::RunTasks() {
  std::deque<std::function<void()>> tasks;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) task();
}

void WireSide::Poll() {
  std::array<NetEvent, 16> events;
  const size_t count = transport_->Poll(absl::MakeSpan(events));
  for (size_t i = 0; i < count; ++i) {
    if (events[i].kind == NetEventKind::kMessage) {
      Take({events[i].peer, std::string(reinterpret_cast<const char*>(events[i].message.data()),
                                        events[i].message.size())});
    } else if (events[i].kind == NetEventKind::kTransferDone) {
      transfer_result_ = events[i].result;
      transfer_done_ = true;
    }
  }
  if (count == 0) std::this_thread::yield();
}

// Also called while a transfer is awaited under the store's lock.
void WireSide::Take(Request request) {
  WireRequest wire;
  CRUMB_CHECK(ParseRequest(AsBytes(request.message), &wire) == WireCheck::kOk);
  const bool data = wire.header.block_count != 0;
  (data ? requests_ : controls_).push_back(std::move(request));
}

void WireSide::HandleControls() {
  while (!controls_.empty()) {
    const Request request = std::move(controls_.front());
    controls_.pop_front();
    WireRequest wire;
    CRUMB_CHECK(ParseRequest(AsBytes(request.message), &wire) == WireCheck::kOk);
    if (wire.header.type == WireType::kHello) Greet(request.peer, wire.header.session_id);
    if (wire.header.type == WireType::kCancel) Cancel(request, wire.header.request_id);
  }
}

BlockResult WireSide::Move(bool push, const Transfer& transfer) {
  transfer_done_ = false;
  const BlockResult started = push ? transport_->Push(transfer) : transport_->Pull(transfer);
  if (started != BlockResult::kOk) return started;
  while (!transfer_done_ && !stop_) Poll();
  return transfer_result_;
}

void WireSide::HandleOne() {
  if (requests_.empty()) return;
  std::unique_lock<std::mutex> lock(store_->mutex);
  if (store_->faults.hold) {
    store_->held = requests_.size();
    return;
  }
  store_->held = 0;
  const Request request = std::move(requests_.front());
  requests_.pop_front();
  WireRequest wire;
  CRUMB_CHECK(ParseRequest(AsBytes(request.message), &wire) == WireCheck::kOk);
  std::vector<WireBlockReply> blocks;
  for (uint32_t i = 0; i < wire.header.block_count; ++i) {
    blocks.push_back(Block(request.peer, wire, i));
  }
  Reply(request.peer, wire.header, blocks);
}

void WireSide::Reply(PeerId peer, const WireHeader& asked,
                     const std::vector<WireBlockReply>& blocks) {
  const FakeFaults& faults = store_->faults;
  const auto count = static_cast<uint32_t>(blocks.size()) + (faults.extra_block ? 1 : 0);
  std::string reply(ReplyBytes(count), '\0');
  const MutableBytes out(reinterpret_cast<uint8_t*>(reply.data()), reply.size());
  WireHeader header;
  header.type = WireType::kReply;
  header.request_id = asked.request_id + (faults.wrong_id ? 1000 : 0);
  header.session_id = asked.session_id;
  header.block_count = static_cast<uint16_t>(count);
  WriteWireHeader(header, out);
  for (uint32_t i = 0; i < count; ++i) {
    WireBlockReply block = blocks[std::min<size_t>(i, blocks.size() - 1)];
    if (faults.value_bytes != 0) block.value_bytes = faults.value_bytes;
    WriteWireBlockReply(i, block, out);
  }
  FinishWireMessage(out);
  if (faults.garbage_replies) reply[reply.size() / 2] ^= 1;
  transport_->Send(peer, AsBytes(reply));
  if (faults.twice) transport_->Send(peer, AsBytes(reply));
}

// The first message of a peer over a unix socket: what its session lent already is lent to it.
void WireSide::Greet(PeerId peer, uint64_t id) {
  const std::lock_guard<std::mutex> lock(store_->mutex);
  const auto session = store_->sessions.find(id);
  if (session == store_->sessions.end() || session->second.peer.value != 0) return;
  session->second.peer = peer;
  for (const auto& [set, regions] : session->second.regions) {
    CRUMB_CHECK(transport_->RegisterRegions(peer, set, *regions).ok());
  }
}

// Held requests are taken out of the queue and answered; one that was answered is none of ours.
void WireSide::Cancel(const Request& request, uint64_t id) {
  const std::lock_guard<std::mutex> lock(store_->mutex);
  if (store_->faults.ignore_cancel) return;
  for (auto held = requests_.begin(); held != requests_.end(); ++held) {
    WireRequest wire;
    CRUMB_CHECK(ParseRequest(AsBytes(held->message), &wire) == WireCheck::kOk);
    if (held->peer != request.peer || wire.header.request_id != id) continue;
    const WireHeader header = wire.header;
    requests_.erase(held);
    Reply(request.peer, header,
          std::vector<WireBlockReply>(header.block_count, {.result = BlockResult::kCancelled}));
    return;
  }
}

WireBlockReply WireSide::Block(PeerId peer, const WireRequest& wire, uint32_t index) {
  WireBlockReply reply;
  const WireBlock block = wire.block(index);
  const ValueKey key = KeyOf(wire.header.layout_handle, DigestBytes(block.digest), block.part);
  const auto found = store_->values.find(key);
  const bool have = found != store_->values.end();
  switch (wire.header.type) {
    case WireType::kPut:
      return Put(peer, wire, index, key);
    case WireType::kGet:
      return have ? Get(peer, wire, index, found->second) : reply;
    case WireType::kDelete:
      reply.result = have ? BlockResult::kOk : BlockResult::kMiss;
      store_->values.erase(key);
      return reply;
    default:
      reply.result = have ? BlockResult::kOk : BlockResult::kMiss;
      reply.tier = have ? Tier::kDram : Tier::kNone;
      return reply;
  }
}

bool WireSide::Place(const WireRequest& wire, uint32_t index, uint64_t bytes,
                     std::vector<Segment>* out) {
  const auto session = store_->sessions.find(wire.header.session_id);
  if (session == store_->sessions.end()) return false;
  const auto set = session->second.regions.find(wire.header.region_set);
  if (set == session->second.regions.end()) return false;
  std::vector<uint32_t> slots;
  for (uint32_t i = 0; i < wire.header.slots_per_block; ++i) slots.push_back(wire.slot(index, i));
  return set->second->Segments(
      {.part = wire.block(index).part, .slots = slots, .bytes = bytes, .tokens = 0}, out);
}

WireBlockReply WireSide::Put(PeerId peer, const WireRequest& wire, uint32_t index,
                             const ValueKey& key) {
  WireBlockReply reply;
  const WireBlock block = wire.block(index);
  const FakeLayout& layout = store_->layouts[wire.header.layout_handle - 1];
  const uint64_t bytes = wire.header.form == PageForm::kRaw
                             ? layout.shape->parts()[block.part].raw_bytes
                             : block.value_bytes;
  std::vector<Segment> segments;
  if (!Place(wire, index, bytes, &segments)) {
    reply.result = BlockResult::kInvalid;
    return reply;
  }
  const Transfer transfer{.peer = peer,
                          .region_set = wire.header.region_set,
                          .segments = segments,
                          .local = absl::MakeSpan(arena_).first(bytes),
                          .token = 1};
  reply.result = Move(false, transfer);
  if (reply.result == BlockResult::kOk) reply.result = store_->faults.put_result;
  if (reply.result == BlockResult::kOk) {
    store_->values[key] = std::string(reinterpret_cast<const char*>(arena_.data()), bytes);
  }
  return reply;
}

WireBlockReply WireSide::Get(PeerId peer, const WireRequest& wire, uint32_t index,
                             const std::string& value) {
  WireBlockReply reply;
  std::vector<Segment> segments;
  if (!Place(wire, index, value.size(), &segments)) {
    reply.result = BlockResult::kInvalid;
    return reply;
  }
  std::copy(value.begin(), value.end(), arena_.begin());
  reply.checksum = Xxh3(AsBytes(value)) + (store_->faults.wrong_checksum ? 1 : 0);
  if (store_->faults.flip_byte) arena_[value.size() / 3] ^= 0x10;
  const Transfer transfer{.peer = peer,
                          .region_set = wire.header.region_set,
                          .segments = segments,
                          .local = absl::MakeSpan(arena_).first(value.size()),
                          .token = 1};
  reply.result = Move(true, transfer);
  reply.tier = Tier::kDram;
  reply.value_bytes = static_cast<uint32_t>(value.size());
  return reply;
}

}  // namespace crumb
