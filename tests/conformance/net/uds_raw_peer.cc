// Raw packets. Never waits.
#include "tests/conformance/net/uds_raw_peer.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "cachesvc/base/bytes.h"
#include "cachesvc/net/uds_socket.h"

namespace crumb {

UdsRawPeer::UdsRawPeer(const std::string& path) {
  absl::StatusOr<int> fd = UdsConnect(path);
  EXPECT_TRUE(fd.ok()) << fd.status();
  if (fd.ok()) fd_ = *fd;
}

UdsRawPeer::~UdsRawPeer() { close(fd_); }

bool UdsRawPeer::Send(Bytes packet, const std::vector<int>& fds) {
  iovec part = {const_cast<uint8_t*>(packet.data()), packet.size()};
  std::vector<uint8_t> control(CMSG_SPACE(sizeof(int) * std::max<size_t>(fds.size(), 1)));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  }
  return sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

bool UdsRawPeer::SendFrame(const UdsFrame& frame, const std::vector<int>& fds) {
  const UdsFrameBytes head = MakeUdsFrame(frame);
  std::vector<uint8_t> packet(head.span().begin(), head.span().end());
  packet.insert(packet.end(), frame.message.begin(), frame.message.end());
  return Send(packet, fds);
}

bool UdsRawPeer::Say(const std::string& message) {
  return SendFrame({.kind = UdsFrameKind::kMessage, .message = AsBytes(message)});
}

bool UdsRawPeer::Lend(uint64_t file, uint64_t bytes, int fd) {
  return SendFrame({.kind = UdsFrameKind::kLend, .file = file, .value = bytes, .message = {}},
                   {fd});
}

bool UdsRawPeer::Receive(std::vector<uint8_t>* packet) {
  packet->resize(kUdsFrameBytesMax);
  const ssize_t got = recv(fd_, packet->data(), packet->size(), MSG_DONTWAIT);
  packet->resize(got > 0 ? static_cast<size_t>(got) : 0);
  return got > 0;
}

bool UdsRawPeer::closed() {
  pollfd state = {.fd = fd_, .events = 0, .revents = 0};
  return poll(&state, 1, 0) == 1 && (state.revents & (POLLHUP | POLLERR)) != 0;
}

}  // namespace crumb
