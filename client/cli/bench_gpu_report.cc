// Rates are bytes of raw BF16 over the sustained time; the floor is the time that a copy takes for
// the raw and packed bytes together.
#include "client/cli/bench_gpu_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "client/cli/format.h"

namespace crumb::cli {
namespace {

struct Figures {
  double raw_bytes_per_us = 0, floor_us = 0, floor_ratio = 0;
};

Figures FiguresOf(const GpuBenchReport& report, const GpuBenchResult& result,
                  const GpuBenchTime& time) {
  Figures figures;
  figures.floor_us = result.FloorUs(report.device, time.pages);
  if (time.sustained_us <= 0) return figures;
  const double raw = static_cast<double>(result.raw_page_bytes) * time.pages;
  figures.raw_bytes_per_us = raw / time.sustained_us;
  figures.floor_ratio = time.sustained_us / figures.floor_us;
  return figures;
}

nlohmann::json RowJson(const GpuBenchReport& report, const GpuBenchResult& result,
                       const GpuBenchRow& row) {
  nlohmann::json batches = nlohmann::json::array();
  for (const GpuBenchTime& time : row.times) {
    const Figures figures = FiguresOf(report, result, time);
    batches.push_back({{"pages", time.pages},
                       {"burst_us", time.burst_us},
                       {"sustained_us", time.sustained_us},
                       {"raw_bytes_per_second", figures.raw_bytes_per_us * 1e6},
                       {"floor_us", figures.floor_us},
                       {"floor_ratio", figures.floor_ratio}});
  }
  nlohmann::json document = {{"way", ToString(row.way)}, {"batches", batches}};
  document["why_not"] = row.why_not.empty() ? nlohmann::json() : nlohmann::json(row.why_not);
  return document;
}

std::string RowText(const GpuBenchReport& report, CodecKind kind, const GpuBenchResult& result,
                    const GpuBenchRow& row) {
  if (!row.why_not.empty()) {
    return absl::StrFormat("%s\t%s\t-\t-\t-\t-\t%s\n", ToString(kind), ToString(row.way),
                           row.why_not);
  }
  std::string text;
  for (const GpuBenchTime& time : row.times) {
    const Figures figures = FiguresOf(report, result, time);
    absl::StrAppendFormat(&text, "%s\t%s\t%u\t%.1f\t%.1f\t%.0f\t%.2f\n", ToString(kind),
                          ToString(row.way), time.pages, time.burst_us, time.sustained_us,
                          figures.raw_bytes_per_us / 1e3, figures.floor_ratio);
  }
  return text;
}

}  // namespace

std::string GpuReportJson(const GpuBenchReport& report) {
  nlohmann::json codecs = nlohmann::json::array();
  for (const auto& [kind, result] : report.results) {
    nlohmann::json ways = nlohmann::json::array();
    for (const GpuBenchRow& row : result.rows) ways.push_back(RowJson(report, result, row));
    codecs.push_back({{"codec", ToString(kind)},
                      {"raw_bytes", result.raw_page_bytes},
                      {"payload_bytes", result.payload_page_bytes},
                      {"ways", ways}});
  }
  const GpuBenchDevice& device = report.device;
  const nlohmann::json document = {
      {"device",
       {{"index", device.index},
        {"name", device.name},
        {"compute", absl::StrFormat("%d.%d", device.compute_major, device.compute_minor)},
        {"memory_bytes", device.memory_bytes},
        {"copy_bytes_per_second", device.copy_bytes_per_us * 1e6}}},
      {"effort", ToString(report.wanted.effort)},
      {"tokens", report.wanted.page_tokens},
      {"heads", report.wanted.heads},
      {"dim", report.wanted.dim},
      {"layers", report.wanted.layers},
      {"codecs", codecs}};
  return document.dump(2) + "\n";
}

std::string GpuReportText(const GpuBenchReport& report) {
  std::string rows = "CODEC\tWAY\tPAGES\tBURST us\tSUSTAINED us\tGB/s\tx FLOOR\n";
  for (const auto& [kind, result] : report.results) {
    for (const GpuBenchRow& row : result.rows) rows += RowText(report, kind, result, row);
  }
  const GpuBenchDevice& device = report.device;
  const GpuBenchCase& wanted = report.wanted;
  return Table(rows) +
         absl::StrFormat(
             "\n%s (compute %d.%d), device %d: a copy moves %.2f TB/s; FLOOR is what raw and "
             "packed "
             "bytes take at that\nrate. Pages of %u tokens, %u heads, head dim %u, layers %u; "
             "effort %s. BURST: a launch after idling;\nSUSTAINED: back to back; GB/s: of raw "
             "BF16, sustained.\n",
             device.name, device.compute_major, device.compute_minor, device.index,
             device.copy_bytes_per_us / 1e6, wanted.page_tokens, wanted.heads, wanted.dim,
             wanted.layers, ToString(wanted.effort));
}

}  // namespace crumb::cli
