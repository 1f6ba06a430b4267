// The status document and the status page. Any thread.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cachesvc/server/snapshot.h"
#include "nlohmann/json.hpp"

namespace crumb {
namespace {

using nlohmann::ordered_json;

constexpr size_t kLinesMax = 200;  // layouts on the page; the document has them all

double Seconds(uint64_t us) { return static_cast<double>(us) * 1e-6; }

ordered_json TierDocument(uint64_t capacity, uint64_t used, uint64_t pages, uint64_t hits) {
  return {{"capacity_bytes", capacity}, {"used_bytes", used}, {"pages", pages}, {"hits", hits}};
}

uint64_t Got(const EngineStats& s, EngineOp op, BlockResult result) {
  return s.blocks[static_cast<size_t>(op)][static_cast<size_t>(result)];
}

uint64_t HitsOf(const EngineStats& s) {
  uint64_t hits = 0;
  for (size_t tier = 1; tier < kTierCount; ++tier) hits += s.hits[tier];
  return hits;
}

double HitRatio(const EngineStats& s) {
  const double hits = static_cast<double>(HitsOf(s));
  const double misses = static_cast<double>(Got(s, EngineOp::kGet, BlockResult::kMiss));
  return hits + misses > 0 ? hits / (hits + misses) : 0;
}

// null: nothing was measured yet.
ordered_json Quotient(double part, double whole) {
  return whole > 0 ? ordered_json(part / whole) : ordered_json(nullptr);
}

ordered_json Ratio(const EngineStats& s) {
  return Quotient(static_cast<double>(s.encode_raw_bytes),
                  static_cast<double>(s.encode_packed_bytes));
}

ordered_json Operations(const EngineStats& s) {
  static constexpr const char* kNames[] = {"put", "get", "lookup", "delete", "pin", "prefetch"};
  ordered_json out;
  for (size_t op = 0; op < kEngineOpCount; ++op) {
    ordered_json results = ordered_json::object();
    for (size_t result = 0; result < kBlockResultCount; ++result) {
      if (s.blocks[op][result] == 0) continue;
      results[ToString(static_cast<BlockResult>(result))] = s.blocks[op][result];
    }
    out[kNames[op]] = {
        {"requests", s.requests[op]}, {"in_flight", s.in_flight[op]}, {"pages", results}};
  }
  return out;
}

ordered_json Codec(const Snapshot& snapshot) {
  const EngineStats& s = snapshot.engine;
  return {{"backend", snapshot.codec_backend},
          {"pages_encoded", s.encode_pages},
          {"pages_decoded", s.decode_pages},
          {"raw_bytes", s.encode_raw_bytes},
          {"packed_bytes", s.encode_packed_bytes},
          {"ratio", Ratio(s)},
          {"steps_up_the_ladder", s.ladder_steps},
          {"non_finite_pages", s.non_finite_pages},
          {"relative_error_k", Quotient(s.error_k, s.energy_k)},
          {"relative_error_v", Quotient(s.error_v, s.energy_v)}};
}

ordered_json Windows(const EngineStats& s) {
  static constexpr const char* kReasons[] = {"descendant", "full", "idle", "drain", "room"};
  ordered_json demotions = ordered_json::object();
  for (size_t reason = 0; reason < kDemotionReasonCount; ++reason) {
    demotions[kReasons[reason]] = s.demotions[reason];
  }
  ordered_json pages = ordered_json::object();
  for (size_t precision = 0; precision < kPrecisionCount; ++precision) {
    pages[ToString(static_cast<Precision>(precision))] = s.pages[precision];
  }
  return {{"fresh_pages", s.fresh_pages},
          {"fresh_used_bytes", s.fresh_used_bytes},
          {"fresh_slab_bytes", s.fresh_slab_bytes},  // what the share is counted in
          {"fresh_capacity_bytes", s.fresh_capacity_bytes},
          {"fresh_oldest_seconds", Seconds(s.fresh_oldest_us)},
          {"demotions", demotions},
          {"demotions_in_flight", s.demotions_in_flight},
          {"demotion_failures", s.demotion_failures},
          {"fresh_dropped", s.fresh_dropped},
          {"unknown_position_pages", s.unknown_position_pages},
          {"pages_by_precision", pages}};
}

ordered_json Nvme(const Snapshot& snapshot) {
  const EngineStats& s = snapshot.engine;
  const SegmentLogStats& n = s.nvme;
  return {{"description", snapshot.nvme_description},
          {"present", snapshot.engine.nvme_present},
          {"enabled", snapshot.engine.nvme_present && n.enabled},
          {"bytes_read", n.bytes_read},
          {"bytes_written", n.bytes_written},
          {"segments", n.segments},
          {"segments_free", n.segments_free},
          {"segments_quarantined", n.segments_quarantined},
          {"errors", n.read_errors + n.append_errors},
          {"recovered_pages", n.recovered},
          {"recovery_dropped",
           n.dropped_torn + n.dropped_checksum + n.dropped_stale + n.dropped_format},
          {"recovery_seconds", Seconds(n.recovery_us)},
          {"clean_start", n.clean_start},
          {"write_amplification", s.write_amplification()},
          {"write_budget",
           {{"bytes_per_day", s.write_budget_per_day},  // 0: none
            {"left_bytes", s.write_budget_left},
            {"unwritten_pages",
             s.evicted_over_budget + s.rescues_over_budget + s.unsaved_over_budget}}},
          {"rescued_pages", s.rescued},
          {"scrub",
           {{"passes", s.scrub_passes},
            {"progress", s.scrub_progress},
            {"good_pages", s.scrubbed_pages},
            {"bad_pages", s.scrub_bad_pages}}}};
}

ordered_json Gpu(const Snapshot& snapshot) {
  const EngineStats& s = snapshot.engine;
  return {{"enabled", snapshot.gpu_on},
          {"description", snapshot.gpu_description},
          {"hbm", snapshot.hbm_description},
          {"fault", snapshot.gpu_fault},
          {"codec_place", snapshot.gpu_codec_place},
          {"hbm_bytes", snapshot.hbm_bytes},
          {"free_bytes", snapshot.gpu_free_bytes},
          {"workers", snapshot.lent.gpu_links},
          {"mapped_allocations", snapshot.lent.gpu_mapped},
          {"mapped_bytes", snapshot.lent.gpu_bytes_mapped},
          {"offers_refused", snapshot.lent.gpu_refused},
          {"pages_encoded", s.gpu_encode_pages},
          {"pages_decoded", s.gpu_decode_pages},
          {"pages_copied", s.gpu_copies},
          {"failures", s.gpu_failures},
          {"lowered", s.lowered},
          {"raised", s.raised},
          {"moves_failed", s.moves_failed}};
}

ordered_json Layouts(const Snapshot& snapshot) {
  ordered_json out = ordered_json::array();
  for (const LayoutLine& layout : snapshot.layouts) {
    out.push_back({{"name", layout.name},
                   {"hash", layout.hash},
                   {"model", layout.model},
                   {"revision", layout.revision},
                   {"codec", layout.codec},
                   {"note", layout.note},
                   {"windows", layout.windows},
                   {"raw_bytes", layout.raw_bytes},
                   {"payload_bytes", layout.payload_bytes}});
  }
  return out;
}

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

std::string Size(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string Row(const std::string& name, const std::string& value) {
  return absl::StrCat("<tr><th>", Escape(name), "</th><td>", Escape(value), "</td></tr>\n");
}

std::string TierRow(const char* name, uint64_t capacity, uint64_t used, uint64_t pages,
                    uint64_t hits) {
  const double percent =
      capacity == 0 ? 0 : 100 * static_cast<double>(used) / static_cast<double>(capacity);
  return absl::StrCat("<tr><th>", name, "</th><td>", Size(used), " of ", Size(capacity),
                      "</td><td><meter min=0 max=100 value=", absl::StrFormat("%.0f", percent),
                      "></meter></td><td>", pages, "</td><td>", hits, "</td></tr>\n");
}

constexpr char kHead[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>crumbd</title>
<meta name="viewport" content="width=device-width">
<noscript><meta http-equiv="refresh" content="5"></noscript>
<style>
body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222;
background:#fff}
h1{font-size:1.3em}h2{font-size:1.05em;margin-top:1.6em;border-bottom:1px solid #ccc}
table{border-collapse:collapse}th,td{text-align:left;padding:.15em 1.2em .15em 0;font-weight:400;
vertical-align:top}th{color:#555}td{font-variant-numeric:tabular-nums}
.warn{background:#fff3cd;padding:.5em 1em}.state{font-weight:600}
@media(prefers-color-scheme:dark){body{background:#16181b;color:#ddd}th{color:#aaa}
.warn{background:#4a3b00}}
</style></head><body><main>
)";
constexpr char kTail[] = R"(</main>
<p><a href="/metrics">metrics</a> · <a href="/api/v1/status">status as JSON</a></p>
<script>
setInterval(async()=>{try{const r=await fetch('/');if(!r.ok)return;
const d=new DOMParser().parseFromString(await r.text(),'text/html');
document.querySelector('main').replaceWith(d.querySelector('main'));}catch(e){}},2000);
</script></body></html>
)";

}  // namespace

const char* ToString(DaemonState state) {
  switch (state) {
    case DaemonState::kStarting:
      return "starting";
    case DaemonState::kReady:
      return "ready";
    case DaemonState::kDraining:
      return "draining";
  }
  return "unknown";
}

std::string StatusJson(const Snapshot& snapshot) {
  const EngineStats& s = snapshot.engine;
  const auto tier = [&](Tier which) { return s.hits[static_cast<size_t>(which)]; };
  ordered_json rotations = ordered_json::array();
  for (const RotationLine& rotation : snapshot.rotations) {
    rotations.push_back(
        {{"hash", rotation.hash}, {"model", rotation.model}, {"revision", rotation.revision}});
  }
  ordered_json document = {
      {"version", snapshot.version},
      {"node", snapshot.node},
      {"state", ToString(snapshot.state)},
      {"ready", IsReady(snapshot)},
      {"alive", snapshot.alive},
      {"uptime_seconds", Seconds(snapshot.uptime_us)},
      {"warnings", snapshot.warnings},
      {"hit_ratio", HitRatio(s)},
      {"tiers",
       {{"hbm",
         TierDocument(s.hbm_capacity_bytes, s.hbm_used_bytes, s.hbm_pages, tier(Tier::kHbm))},
        {"dram",
         TierDocument(s.pool_capacity_bytes, s.pool_used_bytes, s.pool_pages, tier(Tier::kDram))},
        {"nvme", TierDocument(s.nvme.capacity_bytes, s.nvme.used_bytes, s.nvme.records,
                              tier(Tier::kNvme))}}},
      {"operations", Operations(s)},
      {"codec", Codec(snapshot)},
      {"windows", Windows(s)},
      {"nvme", Nvme(snapshot)},
      {"gpu", Gpu(snapshot)},
      {"evictions",
       {{"policy", ToString(s.policy)},
        {"to_nvme", s.evicted_to_nvme},
        {"dropped", s.evicted_dropped},
        {"bytes", s.evicted_bytes},
        {"failures", s.eviction_failures}}},
      {"index", {{"entries", s.index_entries}, {"bytes", s.index_bytes}}},
      {"checksum_failures",
       {{"dram", s.checksum_failures_dram},
        {"nvme", s.checksum_failures_nvme},
        {"peer", s.checksum_failures_peer}}},
      {"clients",
       {{"sessions", snapshot.clients},
        {"ucx_peers", snapshot.ucx.peers},
        {"data_socket_peers", snapshot.uds.peers},
        {"pins", s.pins},
        {"waiters", s.waiters}}},
      {"ucx", {{"enabled", snapshot.ucx_on}, {"description", snapshot.ucx_description}}},
      {"data_socket",
       {{"enabled", snapshot.data_socket_on},
        {"description", snapshot.data_socket},
        {"mapped_files", snapshot.lent.files_mapped},
        {"mapped_bytes", snapshot.lent.bytes_mapped}}},
      {"grpc",
       {{"calls_in_flight", snapshot.rpcs_in_flight},
        {"calls_refused", snapshot.rpcs_refused},
        {"staging_used_bytes", snapshot.staging_used_bytes},
        {"staging_capacity_bytes", snapshot.staging_capacity_bytes}}},
      {"catalog",
       {{"bytes", snapshot.catalog_bytes}, {"dropped_records", snapshot.catalog_dropped}}},
      {"layouts", Layouts(snapshot)},
      {"rotations", rotations},
      {"process",
       {{"resident_bytes", snapshot.process.resident_bytes},
        {"open_fds", snapshot.process.open_fds},
        {"threads", snapshot.process.threads},
        {"cpu_seconds", snapshot.process.cpu_seconds}}}};
  return document.dump(2, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string StatusPage(const Snapshot& snapshot) {
  const EngineStats& s = snapshot.engine;
  std::string out = kHead;
  absl::StrAppend(&out, "<h1>crumbd on ", Escape(snapshot.node), " <span class=state>",
                  ToString(snapshot.state), snapshot.alive ? "" : " (not answering)",
                  "</span></h1>\n");
  for (const std::string& warning : snapshot.warnings) {
    absl::StrAppend(&out, "<p class=warn>", Escape(warning), "</p>\n");
  }
  const ordered_json ratio = Ratio(s);
  absl::StrAppend(
      &out, "<h2>Is it helping?</h2><table>\n",
      Row("hit ratio", absl::StrFormat("%.1f %%", 100 * HitRatio(s))),
      Row("pages served", absl::StrCat(HitsOf(s))),
      Row("pages stored", absl::StrCat(Got(s, EngineOp::kPut, BlockResult::kOk))),
      Row("compression", ratio.is_null() ? "-" : absl::StrFormat("%.2f x", ratio.get<double>())),
      Row("fresh pages, raw until their chain goes on",
          absl::StrCat(s.fresh_pages, ", in ", Size(s.fresh_slab_bytes), " of ",
                       Size(s.fresh_capacity_bytes))),
      Row("sessions", absl::StrCat(snapshot.clients)),
      Row("up for", absl::StrFormat("%.0f s", Seconds(snapshot.uptime_us))),
      "</table>\n<h2>Tiers</h2><table>\n",
      "<tr><th></th><th>used</th><th></th><th>pages</th><th>hits</th></tr>\n",
      TierRow("HBM", s.hbm_capacity_bytes, s.hbm_used_bytes, s.hbm_pages,
              s.hits[static_cast<size_t>(Tier::kHbm)]),
      TierRow("DRAM", s.pool_capacity_bytes, s.pool_used_bytes, s.pool_pages,
              s.hits[static_cast<size_t>(Tier::kDram)]),
      TierRow("NVMe", s.nvme.capacity_bytes, s.nvme.used_bytes, s.nvme.records,
              s.hits[static_cast<size_t>(Tier::kNvme)]),
      "</table>\n<h2>Layouts</h2><table>\n");
  for (size_t i = 0; i < snapshot.layouts.size() && i < kLinesMax; ++i) {
    const LayoutLine& layout = snapshot.layouts[i];
    absl::StrAppend(
        &out, "<tr><th>", Escape(layout.name.empty() ? layout.hash.substr(0, 16) : layout.name),
        "</th><td>", Escape(layout.model), "</td><td>", Escape(layout.codec), "</td><td>",
        Size(layout.raw_bytes), " → ", Size(layout.payload_bytes), "</td><td>",
        Escape(layout.windows), "</td><td>", Escape(layout.note), "</td></tr>\n");
  }
  absl::StrAppend(
      &out, "</table>\n<h2>Health</h2><table>\n",
      Row("checksum failures", absl::StrCat(s.checksum_failures_dram + s.checksum_failures_nvme +
                                            s.checksum_failures_peer)),
      Row("hits that failed", absl::StrCat(s.hit_then_failed)),
      Row("disk errors", absl::StrCat(s.nvme.read_errors + s.nvme.append_errors)),
      Row("GPU", snapshot.gpu_description), Row("HBM", snapshot.hbm_description),
      Row("NVMe", snapshot.nvme_description), Row("UCX", snapshot.ucx_description),
      Row("data socket", snapshot.data_socket),
      Row("resident memory", Size(snapshot.process.resident_bytes)),
      Row("version", snapshot.version), "</table>\n", kTail);
  return out;
}

}  // namespace crumb
