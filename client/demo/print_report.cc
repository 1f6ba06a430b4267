// Plain lines of fixed columns; no colours, so that a pipe gets the same as a terminal.
#include "client/demo/print_report.h"

#include <array>
#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/demo/attention_error.h"

namespace crumb::demo {
namespace {

double MegabytesPerSecond(uint64_t pages, uint64_t page_bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(pages * page_bytes) / seconds / 1e6 : 0.0;
}

double Ratio(const CodecRow& row) {
  return row.stored_bytes == 0
             ? 0.0
             : static_cast<double>(row.raw_bytes) / static_cast<double>(row.stored_bytes);
}

uint64_t Hits(const std::array<uint64_t, kTiers>& hits, client::Tier tier) {
  return hits[static_cast<size_t>(tier)];
}

uint64_t RawPages(const CodecRow& row) {
  return std::accumulate(row.raw_at.begin(), row.raw_at.end(), uint64_t{0});
}

// Which pages came back raw, and why newest ones may not have.
std::string RawText(const Report& report) {
  std::array<uint64_t, kPlaces> got{}, raw{};
  uint64_t packed = 0;
  for (const CodecRow& row : report.rows) {
    for (size_t place = 0; place < kPlaces; ++place) {
      got[place] += row.got_at[place];
      raw[place] += row.raw_at[place];
    }
    packed += row.pages_got - RawPages(row);
  }
  std::string out = absl::StrFormat(
      "Raw, byte for byte as put: %u of %u sink pages, %u of %u recent ones, %u of %u between. "
      "Packed: %u.\n",
      raw[kInSink], got[kInSink], raw[kInRecent], got[kInRecent], raw[kBetween], got[kBetween],
      packed);
  if (raw[kInRecent] < got[kInRecent]) {
    absl::StrAppend(
        &out,
        "Recent pages stay raw while the pool's fresh share (pool.fresh_percent) has room "
        "and their\nsequence is not idle (codec.windows_idle); here the rest was "
        "packed.\n");
  }
  return out;
}

nlohmann::json HitsJson(const std::array<uint64_t, kTiers>& hits) {
  nlohmann::json out = nlohmann::json::object();
  for (const auto tier :
       {client::Tier::kHbm, client::Tier::kDram, client::Tier::kNvme, client::Tier::kPeer}) {
    out[client::ToString(tier)] = Hits(hits, tier);
  }
  return out;
}

}  // namespace

std::string ReportTable(const Report& report) {
  std::string out =
      absl::StrFormat("%-14s %8s %8s %6s %8s %8s %8s %9s %9s %6s %6s %7s %6s %6s %7s\n", "codec",
                      "raw", "stored", "ratio", "logits", "centred", "output", "put MB/s",
                      "get MB/s", "sink", "recent", "packed", "dram", "nvme", "missed");
  uint64_t pages = 0;
  for (const CodecRow& row : report.rows) {
    pages += row.pages_put;
    absl::StrAppendFormat(
        &out, "%-14s %8u %8u %6.2f %8.4f %8.4f %8.4f %9.1f %9.1f %6u %6u %7u %6u %6u %7u\n",
        row.codec, row.raw_bytes, row.stored_bytes, Ratio(row), row.error.logit,
        row.error.logit_centred, row.error.output,
        MegabytesPerSecond(row.pages_put, row.raw_bytes, row.put_seconds),
        MegabytesPerSecond(row.pages_got, row.raw_bytes, row.get_seconds), row.raw_at[kInSink],
        row.raw_at[kInRecent], row.pages_got - RawPages(row), Hits(row.hits, client::Tier::kDram),
        Hits(row.hits, client::Tier::kNvme), row.pages_missed);
  }
  absl::StrAppendFormat(
      &out,
      "%u pages of 64 tokens in %u namespaces per codec over %s. raw, stored: bytes of one page, "
      "header and padding\nincluded. logits, centred, output: relative error of attention logits "
      "(as they are; without the shift common to\na query's keys, which a softmax does not see) "
      "and of attention outputs against BF16, with the first %u and\nlast %u tokens exact. MB/s "
      "count raw bytes.\nsink, recent: pages of these tokens that came back raw; packed: all that "
      "did not. dram, nvme: where the gets found their pages.\n",
      pages, report.namespaces, report.data_plane, kSinkTokens, kRecentTokens);
  absl::StrAppend(&out, RawText(report));
  for (const CodecRow& row : report.rows) {
    if (row.codec_in_effect != row.codec || !row.note.empty()) {
      absl::StrAppend(&out, row.codec, ": stored as ", row.codec_in_effect,
                      row.note.empty() ? "" : ": ", row.note, "\n");
    }
  }
  return out;
}

std::string ReportJson(const Report& report) {
  nlohmann::json rows = nlohmann::json::array();
  for (const CodecRow& row : report.rows) {
    rows.push_back({{"codec", row.codec},
                    {"codec_in_effect", row.codec_in_effect},
                    {"note", row.note},
                    {"raw_bytes", row.raw_bytes},
                    {"packed_bytes", row.packed_bytes},
                    {"stored_bytes", row.stored_bytes},
                    {"ratio", Ratio(row)},
                    {"logit_error", row.error.logit},
                    {"logit_error_centred", row.error.logit_centred},
                    {"output_error", row.error.output},
                    {"pages_put", row.pages_put},
                    {"pages_got", row.pages_got},
                    {"pages_exact", RawPages(row)},
                    {"pages_raw",
                     {{"sink", row.raw_at[kInSink]},
                      {"between", row.raw_at[kBetween]},
                      {"recent", row.raw_at[kInRecent]}}},
                    {"pages_missed", row.pages_missed},
                    {"pages_not_durable", row.pages_not_durable},
                    {"put_seconds", row.put_seconds},
                    {"get_seconds", row.get_seconds},
                    {"hits", HitsJson(row.hits)}});
  }
  const nlohmann::json out = {{"data_plane", report.data_plane},
                              {"namespaces", report.namespaces},
                              {"durable", report.durable},
                              {"pages_saved", report.saved.size()},
                              {"codecs", rows}};
  return out.dump(2) + "\n";
}

std::string VerifyText(const VerifyReport& report) {
  return absl::StrFormat(
      "%u of %u durable pages came back byte-equal over %s (dram %u, nvme %u) in %.2f s\n",
      report.pages, report.pages, report.data_plane, Hits(report.hits, client::Tier::kDram),
      Hits(report.hits, client::Tier::kNvme), report.seconds);
}

std::string VerifyJson(const VerifyReport& report) {
  const nlohmann::json out = {{"data_plane", report.data_plane},
                              {"pages_equal", report.pages},
                              {"get_seconds", report.seconds},
                              {"hits", HitsJson(report.hits)}};
  return out.dump(2) + "\n";
}

}  // namespace crumb::demo
