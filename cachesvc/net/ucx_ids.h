// Numbers of the active messages between two UCX transports. They never change; new ones go behind.
#ifndef CRUMB_CACHESVC_NET_UCX_IDS_H_
#define CRUMB_CACHESVC_NET_UCX_IDS_H_

namespace crumb {

inline constexpr unsigned kUcxNoise = 0;    // no message: this and all unknown ones are dropped
inline constexpr unsigned kUcxMessage = 1;  // cookie, then the message
inline constexpr unsigned kUcxGoodbye = 2;  // cookie; the sender closes
inline constexpr unsigned kUcxRead = 3;     // copy_wire.h from here on
inline constexpr unsigned kUcxData = 4;
inline constexpr unsigned kUcxWrite = 5;
inline constexpr unsigned kUcxDone = 6;
inline constexpr unsigned kUcxGreeting = 7;  // cookie; the sender's first word

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UCX_IDS_H_
