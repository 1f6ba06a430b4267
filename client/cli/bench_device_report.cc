// Figures of both phases, in words and as JSON.
#include "client/cli/bench_device_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/format.h"

namespace crumb::cli {
namespace {

double PerSecond(double amount, const DeviceTally& tally) {
  return tally.seconds > 0 ? amount / tally.seconds : 0;
}

double BytesPerSecond(const DeviceReport& report, const DeviceTally& tally) {
  const auto page = static_cast<double>(report.shape.page_bytes());
  return PerSecond(static_cast<double>(tally.pages) * page, tally);
}

double TokensPerSecond(const DeviceReport& report, const DeviceTally& tally) {
  return PerSecond(static_cast<double>(tally.pages) * report.shape.page_tokens, tally);
}

nlohmann::json CpuPerPage(const DeviceReport& report, const DevicePhaseReport& phase) {
  const uint64_t pages = phase.tally.pages + report.warm * report.args.batch;
  if (phase.daemon_cpu_seconds < 0 || pages == 0) return nullptr;
  return phase.daemon_cpu_seconds * 1e6 / static_cast<double>(pages);
}

template <size_t kCount, typename Name>
nlohmann::json Counted(const std::array<uint64_t, kCount>& counts, Name name) {
  nlohmann::json out = nlohmann::json::object();
  for (size_t i = 0; i < kCount; ++i) {
    if (counts[i] != 0) out[name(i)] = counts[i];
  }
  return out;
}

nlohmann::json ToJson(const DeviceReport& report, const DevicePhaseReport& phase) {
  const DeviceTally& tally = phase.tally;
  nlohmann::json load = nullptr;
  if (phase.kernels_alone > 0) {
    load = {{"kernel_us_alone", phase.kernel_us},
            {"kernels_per_second_alone", phase.kernels_alone},
            {"kernels_per_second", tally.kernels_per_second},
            {"loss", LossOf(phase)}};
  }
  const auto tier = [](size_t i) { return client::ToString(static_cast<client::Tier>(i)); };
  const auto precision = [](size_t i) {
    return client::ToString(static_cast<client::Precision>(i));
  };
  const auto code = [](size_t i) { return client::ToString(static_cast<client::Code>(i)); };
  return {{"gpu", phase.gpu},
          {"device", phase.device},
          {"batches", tally.batches},
          {"pages", tally.pages},
          {"seconds", tally.seconds},
          {"bf16_bytes_per_second", BytesPerSecond(report, tally)},
          {"tokens_per_second", TokensPerSecond(report, tally)},
          {"batches_per_second", PerSecond(static_cast<double>(tally.batches), tally)},
          {"p50_us", tally.latency_us.Percentile(0.5)},
          {"p99_us", tally.latency_us.Percentile(0.99)},
          {"max_us", tally.latency_us.max()},
          {"daemon_cpu_us_per_page", CpuPerPage(report, phase)},
          {"tiers", Counted(tally.tiers, tier)},
          {"precisions", Counted(tally.precisions, precision)},
          {"failures", Counted(tally.failures, code)},
          {"worker", load}};
}

std::string PhaseText(const DeviceReport& report, const char* name,
                      const DevicePhaseReport& phase) {
  const DeviceTally& tally = phase.tally;
  const nlohmann::json document = ToJson(report, phase);
  std::string text = absl::StrFormat(
      "%-4s GPU %d (%s): %d batches\n  %-20s%s/s\n  %-20s%s/s\n  %-20s%s / %s / %s\n", name,
      phase.device, phase.gpu, tally.batches, "BF16 bytes",
      HumanBytes(BytesPerSecond(report, tally)), "KV tokens",
      HumanCount(TokensPerSecond(report, tally)), "p50 / p99 / max",
      HumanMicros(static_cast<double>(tally.latency_us.Percentile(0.5))),
      HumanMicros(static_cast<double>(tally.latency_us.Percentile(0.99))),
      HumanMicros(static_cast<double>(tally.latency_us.max())));
  absl::StrAppendFormat(&text, "  %-20s%s %s\n", "pages", document["tiers"].dump(),
                        document["precisions"].dump());
  if (!document["daemon_cpu_us_per_page"].is_null()) {
    absl::StrAppendFormat(&text, "  %-20s%.2f us a page\n", "daemon CPU",
                          document["daemon_cpu_us_per_page"].get<double>());
  }
  if (phase.kernels_alone > 0) {
    absl::StrAppendFormat(&text, "  %-20s%.1f kernels/s alone, %.1f beside: %.2f %% lost\n",
                          "worker", phase.kernels_alone, tally.kernels_per_second,
                          100 * LossOf(phase));
  }
  if (!document["failures"].empty()) {
    absl::StrAppendFormat(&text, "  %-20s%s %s\n", "failures", document["failures"].dump(),
                          tally.note);
  }
  return text;
}

}  // namespace

double LossOf(const DevicePhaseReport& phase) {
  if (phase.kernels_alone <= 0) return 0;
  return 1.0 - phase.tally.kernels_per_second / phase.kernels_alone;
}

std::string DeviceReportText(const DeviceReport& report) {
  const DeviceShape& shape = report.shape;
  std::string text = absl::StrFormat(
      "%s over %s, pages of %d tokens: %d layers, %d heads, d = %d, slots of %d; %s raw, %s "
      "packed; batch %d, depth %d%s\n",
      report.codec, report.data_plane, shape.page_tokens, shape.layers, shape.heads, shape.dim,
      shape.block_tokens, HumanBytes(static_cast<double>(shape.page_bytes())),
      HumanBytes(static_cast<double>(report.payload_bytes)), report.args.batch, report.args.depth,
      report.args.kernel_load ? ", beside a load of kernels" : "");
  if (!report.codec_note.empty()) absl::StrAppend(&text, "note: ", report.codec_note, "\n");
  absl::StrAppend(&text, PhaseText(report, "put", report.put),
                  PhaseText(report, "get", report.get));
  const DeviceCheckTally& check = report.check;
  absl::StrAppendFormat(&text, "check: %d pages, %d exact, %d wrong", check.pages, check.exact,
                        check.wrong);
  if (check.exact < check.pages) {
    absl::StrAppendFormat(&text, "; differs from the reference by at most %.2e (loss %.4f)",
                          check.worst, check.error);
  }
  return text + "\n";
}

std::string DeviceReportJson(const DeviceReport& report) {
  const DeviceShape& shape = report.shape;
  const DeviceCheckTally& check = report.check;
  const nlohmann::json document = {{"verb", "device"},
                                   {"data_plane", report.data_plane},
                                   {"codec", report.codec},
                                   {"codec_note", report.codec_note},
                                   {"effort", report.args.effort},
                                   {"layers", shape.layers},
                                   {"kv_heads", shape.heads},
                                   {"dim", shape.dim},
                                   {"page_tokens", shape.page_tokens},
                                   {"block_tokens", shape.block_tokens},
                                   {"batch", report.args.batch},
                                   {"depth", report.args.depth},
                                   {"rate", report.args.rate},
                                   {"spin_us", report.args.spin_us},
                                   {"kernel_load", report.args.kernel_load},
                                   {"raw_page_bytes", shape.page_bytes()},
                                   {"packed_page_bytes", report.payload_bytes},
                                   {"put", ToJson(report, report.put)},
                                   {"get", ToJson(report, report.get)},
                                   {"check",
                                    {{"pages", check.pages},
                                     {"exact", check.exact},
                                     {"wrong", check.wrong},
                                     {"difference", check.worst},
                                     {"error", check.error}}}};
  return document.dump(2) + "\n";
}

}  // namespace crumb::cli
