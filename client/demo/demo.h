// The demo itself: puts the sample's pages once per codec and repetition, gets everything back,
// measures what each codec costs; or proves that saved pages are still there, byte for byte.
// One thread.
#ifndef CRUMB_CLIENT_DEMO_DEMO_H_
#define CRUMB_CLIENT_DEMO_DEMO_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cachesvc/base/status.h"
#include "client/demo/attention_error.h"
#include "client/demo/exchange.h"
#include "client/demo/sample.h"
#include "client/demo/saved_pages.h"

namespace crumb::demo {

inline constexpr size_t kTiers = 5;  // by client::Tier

// Where a page lies in its sequence, by the windows of the sample's model.
enum Place : size_t { kInSink, kBetween, kInRecent };
inline constexpr size_t kPlaces = 3;

// What one codec did, over all its repetitions.
struct CodecRow {
  std::string codec;            // asked for
  std::string codec_in_effect;  // what the daemon chose
  std::string note;             // why, if it is another one
  uint64_t pages_put = 0, pages_got = 0, pages_missed = 0, pages_not_durable = 0;
  uint64_t raw_bytes = 0;     // of one page
  uint64_t packed_bytes = 0;  // mean over packed pages of the first repetition, with header
  uint64_t stored_bytes = 0;  // the same in a slot, padding included
  double put_seconds = 0, get_seconds = 0;
  std::array<uint64_t, kTiers> hits{};
  // Of pages_got, by Place: all, and those that came back raw, byte for byte as put.
  std::array<uint64_t, kPlaces> got_at{}, raw_at{};
  AttentionError error;
};

struct Report {
  std::string data_plane;
  uint32_t namespaces = 0;
  bool durable = false;
  std::vector<CodecRow> rows;
  std::vector<SavedPage> saved;  // of pages answered durable
};

struct RunOptions {
  std::vector<std::string> codecs;
  uint32_t namespaces = 1;  // per codec
  bool durable = false;
  std::string run_id;  // keeps namespaces of two runs apart
};

// Called with done and total steps, and what is being done.
using Progress = void (*)(uint64_t done, uint64_t total, const char* what);

// DATA_LOSS if any page that came back differs from what it must be.
absl::StatusOr<Report> Run(const Sample& sample, Exchange& exchange, const RunOptions& options,
                           Progress progress);

struct VerifyReport {
  std::string data_plane;
  uint64_t pages = 0;
  double seconds = 0;
  std::array<uint64_t, kTiers> hits{};
};

// DATA_LOSS names the first page that is gone or differs.
absl::StatusOr<VerifyReport> Verify(const Sample& sample, Exchange& exchange,
                                    const std::vector<SavedPage>& saved, Progress progress);

}  // namespace crumb::demo

#endif  // CRUMB_CLIENT_DEMO_DEMO_H_
