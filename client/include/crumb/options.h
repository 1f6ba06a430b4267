// How a Client is made and what it counts. Plain data that names no third-party type.
#ifndef CRUMB_OPTIONS_H_
#define CRUMB_OPTIONS_H_

#include <cstdint>
#include <string>

namespace crumb::client {

// kAuto: kShm on the daemon's own host, else kUcx, else kGrpc, by what both sides offer.
// kShm: a unix socket and mapped memory; a page moves with one copy.
enum class DataPlane : uint8_t { kAuto, kUcx, kGrpc, kShm };

struct Options {
  std::string server;  // "unix:PATH" or "HOST:PORT"; empty = CRUMB_SERVER, then the usual places
  DataPlane data_plane = DataPlane::kAuto;
  bool auto_ucx = true;  // false: kAuto never takes kUcx, for a process with a UCX of its own
  uint32_t deadline_ms = 5000;  // of every request and control call
  uint32_t connect_ms = 2000;   // of Connect and Reconnect, each step
  uint32_t grace_ms = 1000;     // past a deadline: how long an answer may still travel

  // In flight, both asserted; the next request is refused at once (kBusy).
  uint32_t requests_in_flight_max = 64;       // at most 1024; the daemon allows 64 per session
  uint64_t bytes_in_flight_max = 1ull << 30;  // of values; one request may always be in flight
  // kShm: room for values of memory that is not shared, on their way; a request that finds it full
  // is refused at once (kBusy). Only what is used takes memory.
  uint64_t bounce_bytes = 64ull << 20;
  // Room for packed pages on their way between this process's kernels and the daemon, and for raw
  // ones that are not packed: page-locked with the first GPU regions whose codec runs here.
  uint64_t staging_bytes = 256ull << 20;
  // Drain polls so long before it sleeps; 0 = sleeps at once. At most 1000.
  uint32_t spin_us = 0;

  // A lost daemon is connected to again by a helper thread, driven by Submit and Drain. false: the
  // worker calls Reconnect.
  bool auto_reconnect = true;
  // So many requests in a row without an answer open the circuit: until a probe is answered, every
  // request is refused at once (kUnavailable). 0 = never.
  uint32_t breaker_failures = 5;
  uint32_t breaker_open_ms = 200;  // until the first probe, with jitter; doubles
  uint32_t breaker_open_ms_max = 5000;

  std::string client_name;                // for the daemon's status page
  std::string ucx_tls;                    // empty = UCX's choice
  std::string ucx_net_devices;            // empty = loopback
  std::string token_file;                 // empty = no token
  std::string tls_ca, tls_cert, tls_key;  // PEM files; all empty = no TLS
};

enum class Circuit : uint8_t { kClosed, kOpen, kHalfOpen };

// Counters since Connect, and gauges.
struct ClientStats {
  Circuit circuit = Circuit::kClosed;
  uint64_t circuit_opened = 0;   // times
  uint64_t circuit_refused = 0;  // requests
  uint64_t requests = 0, completions = 0;
  uint64_t timeouts = 0, cancelled = 0, losses = 0, reconnects = 0;
  uint64_t refused_busy = 0;  // bounds of requests, bytes or bounce room
  uint64_t in_flight = 0;     // not yet drained
  uint64_t unanswered = 0;    // timed out and still the daemon's
  uint64_t bytes_in_flight = 0;
};

}  // namespace crumb::client

#endif  // CRUMB_OPTIONS_H_
