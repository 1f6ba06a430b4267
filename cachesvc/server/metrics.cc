// The metrics of docs/operations.md from one snapshot, in Prometheus' text format. Counters come
// from the engine's totals and gauges from its allocators, so nothing here can drift. Any thread.
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <utility>

#include "cachesvc/base/page_header.h"
#include "cachesvc/base/wire.h"
#include "cachesvc/server/snapshot.h"

namespace crumb {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<std::pair<std::string, std::string>>;

constexpr std::array<const char*, kEngineOpCount> kOps = {"put",    "get", "lookup",
                                                          "delete", "pin", "prefetch"};
constexpr std::array<const char*, kPhaseCount> kPhases = {"queue", "index", "io", "codec", "wire"};
constexpr double kMicros = 1e6;  // divided by, so that bounds print as 1e-05, not 9.99e-06

class Families {
 public:
  MetricFamily& Add(const char* name, MetricType type, const char* help) {
    families_.push_back({.name = name, .help = help, .type = type, .metric = {}});
    return families_.back();
  }
  void Counter(const char* name, const char* help, uint64_t value, Labels labels = {}) {
    Counter(&Add(name, MetricType::Counter, help), value, std::move(labels));
  }
  static void Counter(MetricFamily* family, uint64_t value, Labels labels) {
    ClientMetric metric = Make(std::move(labels));
    metric.counter.value = static_cast<double>(value);
    family->metric.push_back(std::move(metric));
  }
  void Gauge(const char* name, const char* help, double value, Labels labels = {}) {
    Gauge(&Add(name, MetricType::Gauge, help), value, std::move(labels));
  }
  static void Gauge(MetricFamily* family, double value, Labels labels) {
    ClientMetric metric = Make(std::move(labels));
    metric.gauge.value = value;
    family->metric.push_back(std::move(metric));
  }
  static void Histogram(MetricFamily* family, const LatencyHistogram& histogram, Labels labels) {
    ClientMetric metric = Make(std::move(labels));
    double bound = 10 / kMicros;
    uint64_t cumulative = 0;
    for (size_t i = 0; i < LatencyHistogram::kBuckets; ++i, bound *= 2) {
      cumulative += histogram.counts[i];
      if (i + 1 == LatencyHistogram::kBuckets) continue;  // the open one is +Inf
      metric.histogram.bucket.push_back({.cumulative_count = cumulative, .upper_bound = bound});
    }
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = static_cast<double>(histogram.sum_us) / kMicros;
    family->metric.push_back(std::move(metric));
  }
  std::vector<MetricFamily>& list() { return families_; }

 private:
  static ClientMetric Make(Labels labels) {
    ClientMetric metric;
    for (auto& [name, value] : labels) {
      metric.label.push_back({.name = std::move(name), .value = std::move(value)});
    }
    return metric;
  }
  std::vector<MetricFamily> families_;
};

uint64_t Sum(const LatencyHistogram& histogram) {
  uint64_t sum = 0;
  for (const uint64_t count : histogram.counts) sum += count;
  return sum;
}

void AddTraffic(const EngineStats& s, Families* out) {
  MetricFamily* requests = &out->Add("crumb_requests_total", MetricType::Counter, "Requests.");
  for (size_t op = 0; op < kEngineOpCount; ++op) {
    Families::Counter(requests, s.requests[op], {{"op", kOps[op]}, {"tenant", "default"}});
  }
  MetricFamily* blocks =
      &out->Add("crumb_blocks_total", MetricType::Counter, "Pages in requests, by outcome.");
  for (size_t op = 0; op < kEngineOpCount; ++op) {
    for (size_t result = 0; result < kBlockResultCount; ++result) {
      Families::Counter(blocks, s.blocks[op][result],
                        {{"op", kOps[op]},
                         {"code", ToString(static_cast<BlockResult>(result))},
                         {"tenant", "default"}});
    }
  }
  MetricFamily* seconds = &out->Add("crumb_request_seconds", MetricType::Histogram,
                                    "Time from receipt to answer, by the slowest tier used.");
  for (size_t op = 0; op < kEngineOpCount; ++op) {
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      if (Sum(s.latency[op][tier]) == 0) continue;
      Families::Histogram(seconds, s.latency[op][tier],
                          {{"op", kOps[op]}, {"tier", ToString(static_cast<Tier>(tier))}});
    }
  }
  MetricFamily* phases = &out->Add("crumb_request_phase_seconds", MetricType::Histogram,
                                   "Where the time of requests went.");
  for (size_t phase = 0; phase < kPhaseCount; ++phase) {
    Families::Histogram(phases, s.phases[phase], {{"phase", kPhases[phase]}});
  }
  MetricFamily* in_flight =
      &out->Add("crumb_inflight_requests", MetricType::Gauge, "Requests under way.");
  for (size_t op = 0; op < kEngineOpCount; ++op) {
    Families::Gauge(in_flight, static_cast<double>(s.in_flight[op]), {{"op", kOps[op]}});
  }
  out->Counter("crumb_deadline_exceeded_total", "Requests that ran out of time.",
               s.deadline_exceeded);
  out->Counter("crumb_cancelled_total", "Requests that their client took back.", s.cancelled);
  MetricFamily* bytes = &out->Add("crumb_bytes_total", MetricType::Counter,
                                  "Bytes taken from and given to clients, by tier.");
  MetricFamily hits{.name = "crumb_hits_total",
                    .help = "Pages served, by the tier they came from.",
                    .type = MetricType::Counter,
                    .metric = {}};
  MetricFamily lookups{.name = "crumb_lookup_blocks_total",
                       .help = "Pages asked for by look-ups, by where they are.",
                       .type = MetricType::Counter,
                       .metric = {}};
  for (size_t tier = 0; tier < kTierCount; ++tier) {
    const std::string name = ToString(static_cast<Tier>(tier));
    const bool none = tier == static_cast<size_t>(Tier::kNone);
    Families::Counter(&lookups, s.lookup_blocks[tier],
                      {{"result", none ? "miss" : name}, {"tenant", "default"}});
    if (none) continue;
    Families::Counter(bytes, s.bytes_in[tier], {{"dir", "in"}, {"tier", name}});
    Families::Counter(bytes, s.bytes_out[tier], {{"dir", "out"}, {"tier", name}});
    Families::Counter(&hits, s.hits[tier], {{"tier", name}});
  }
  out->list().push_back(std::move(hits));
  out->list().push_back(std::move(lookups));
  out->Counter("crumb_hit_then_failed_total", "Pages that were found and could not be delivered.",
               s.hit_then_failed);
}

void AddTiers(const EngineStats& s, Families* out) {
  MetricFamily* capacity =
      &out->Add("crumb_tier_capacity_bytes", MetricType::Gauge, "What a tier may hold.");
  Families::Gauge(capacity, static_cast<double>(s.hbm_capacity_bytes), {{"tier", "hbm"}});
  Families::Gauge(capacity, static_cast<double>(s.pool_capacity_bytes), {{"tier", "dram"}});
  Families::Gauge(capacity, static_cast<double>(s.nvme.capacity_bytes), {{"tier", "nvme"}});
  MetricFamily* used = &out->Add("crumb_tier_used_bytes", MetricType::Gauge, "What it holds.");
  Families::Gauge(used, static_cast<double>(s.hbm_used_bytes), {{"tier", "hbm"}});
  Families::Gauge(used, static_cast<double>(s.pool_used_bytes), {{"tier", "dram"}});
  Families::Gauge(used, static_cast<double>(s.nvme.used_bytes), {{"tier", "nvme"}});
  MetricFamily* pages = &out->Add("crumb_tier_blocks", MetricType::Gauge, "Pages in a tier.");
  Families::Gauge(pages, static_cast<double>(s.hbm_pages), {{"tier", "hbm"}, {"state", "sealed"}});
  Families::Gauge(pages, static_cast<double>(s.hbm_pinned), {{"tier", "hbm"}, {"state", "pinned"}});
  Families::Gauge(pages, static_cast<double>(s.pool_pages),
                  {{"tier", "dram"}, {"state", "sealed"}});
  Families::Gauge(pages, static_cast<double>(s.pool_pinned),
                  {{"tier", "dram"}, {"state", "pinned"}});
  Families::Gauge(pages, static_cast<double>(s.nvme.records),
                  {{"tier", "nvme"}, {"state", "sealed"}});
  MetricFamily* evicted = &out->Add("crumb_evicted_blocks_total", MetricType::Counter,
                                    "Pages that left DRAM: to NVMe, or for good.");
  Families::Counter(evicted, s.evicted_to_nvme, {{"tier", "dram"}, {"to", "nvme"}});
  Families::Counter(evicted, s.evicted_dropped, {{"tier", "dram"}, {"to", "none"}});
  MetricFamily* admission = &out->Add("crumb_admission_total", MetricType::Counter,
                                      "Evicted pages that were dropped unwritten.");
  Families::Counter(admission, s.evicted_unseen, {{"tier", "nvme"}, {"outcome", "rejected_freq"}});
  MetricFamily* policy = &out->Add("crumb_eviction_policy_info", MetricType::Gauge,
                                   "1 for the eviction policy in use.");
  Families::Gauge(policy, 1, {{"policy", ToString(s.policy)}});
  out->Counter("crumb_evicted_bytes_total", "Their bytes.", s.evicted_bytes);
  out->Counter("crumb_eviction_failures_total", "Evictions that found no page to evict.",
               s.eviction_failures);
  MetricFamily* promoted = &out->Add("crumb_promotions_total", MetricType::Counter,
                                     "Pages raised from NVMe for gets and prefetches.");
  for (const auto& [outcome, count] : {std::pair{"done", s.promoted},
                                       {"failed", s.promotions_failed},
                                       {"rejected_watermark", s.promotions_rejected},
                                       {"rejected_freq", s.promotions_deferred}}) {
    Families::Counter(promoted, count, {{"from", "nvme"}, {"to", "dram"}, {"outcome", outcome}});
  }
  out->Counter("crumb_alloc_failures_total", "Slots that could not be had.", s.alloc_failures,
               {{"tier", "dram"}});
  out->Gauge("crumb_index_entries", "Pages known, in all tiers.",
             static_cast<double>(s.index_entries));
  out->Gauge("crumb_index_bytes", "Memory of the index.", static_cast<double>(s.index_bytes));
  out->Gauge("crumb_pins", "Pages that clients pinned.", static_cast<double>(s.pins));
  out->Gauge("crumb_waiters", "Gets that wait for a put.", static_cast<double>(s.waiters));
  out->Gauge("crumb_prefetches", "Reads for prefetch under way.",
             static_cast<double>(s.prefetches));
  out->Counter("crumb_abandoned_puts_total", "Puts whose client went away.", s.abandoned_puts);
}

void AddCodec(const EngineStats& s, Families* out) {
  out->Counter("crumb_codec_pages_total", "Pages encoded.", s.encode_pages, {{"dir", "encode"}});
  Families::Counter(&out->list().back(), s.decode_pages, {{"dir", "decode"}});
  MetricFamily& seconds =
      out->Add("crumb_codec_seconds_total", MetricType::Counter, "Time of codec threads.");
  for (const auto& [dir, us] : {std::pair{"encode", s.encode_us}, {"decode", s.decode_us}}) {
    ClientMetric metric;
    metric.label.push_back({.name = "dir", .value = dir});
    metric.counter.value = static_cast<double>(us) / kMicros;
    seconds.metric.push_back(std::move(metric));
  }
  out->Counter("crumb_codec_bytes_total", "Bytes of encoded pages, before and after.",
               s.encode_raw_bytes, {{"form", "raw"}});
  Families::Counter(&out->list().back(), s.encode_packed_bytes, {{"form", "compressed"}});
  if (s.encode_packed_bytes != 0) {
    out->Gauge(
        "crumb_compression_ratio", "Raw over stored payload bytes, since start.",
        static_cast<double>(s.encode_raw_bytes) / static_cast<double>(s.encode_packed_bytes));
  }
  out->Counter("crumb_codec_fallback_total", "Pages stored one step up the ladder, or refused.",
               s.ladder_steps, {{"reason", "did_not_fit"}});
  Families::Counter(&out->list().back(), s.non_finite_pages, {{"reason", "nan"}});
  MetricFamily* error = &out->Add("crumb_codec_rel_error", MetricType::Gauge,
                                  "Summed squared error over energy of all pages encoded.");
  if (s.energy_k > 0) Families::Gauge(error, s.error_k / s.energy_k, {{"kv", "k"}});
  if (s.energy_v > 0) Families::Gauge(error, s.error_v / s.energy_v, {{"kv", "v"}});
}

void AddWindows(const EngineStats& s, Families* out) {
  static constexpr const char* kReasons[] = {"descendant", "full", "idle", "drain", "room"};
  MetricFamily* demotions = &out->Add("crumb_demotions_total", MetricType::Counter,
                                      "Fresh pages that got their final precision, by reason.");
  for (size_t reason = 0; reason < kDemotionReasonCount; ++reason) {
    Families::Counter(demotions, s.demotions[reason], {{"reason", kReasons[reason]}});
  }
  out->Counter("crumb_demotion_failures_total",
               "Demotions that left a page as it was, or found it damaged.", s.demotion_failures);
  out->Counter("crumb_fresh_dropped_total",
               "Fresh pages forgotten because no slot could be had to demote them.",
               s.fresh_dropped);
  out->Gauge("crumb_fresh_pages", "Raw pages that will be demoted.",
             static_cast<double>(s.fresh_pages));
  out->Gauge("crumb_fresh_bytes", "Their share of the pool.",
             static_cast<double>(s.fresh_used_bytes), {{"state", "used"}});
  Families::Gauge(&out->list().back(), static_cast<double>(s.fresh_slab_bytes),
                  {{"state", "slabs"}});
  Families::Gauge(&out->list().back(), static_cast<double>(s.fresh_capacity_bytes),
                  {{"state", "capacity"}});
  out->Gauge("crumb_fresh_oldest_seconds", "Since the chain of the oldest fresh page grew.",
             static_cast<double>(s.fresh_oldest_us) / kMicros);
  MetricFamily* pages =
      &out->Add("crumb_pages", MetricType::Gauge, "Pages in all tiers, by precision.");
  for (size_t precision = 0; precision < kPrecisionCount; ++precision) {
    Families::Gauge(pages, static_cast<double>(s.pages[precision]),
                    {{"precision", ToString(static_cast<Precision>(precision))}});
  }
  out->Counter("crumb_unknown_position_pages_total",
               "Pages encoded at once because their put did not say where they start.",
               s.unknown_position_pages);
}

void AddStorage(const EngineStats& s, Families* out) {
  MetricFamily* checksums = &out->Add("crumb_checksum_failures_total", MetricType::Counter,
                                      "Pages that did not verify; each became a miss.");
  Families::Counter(checksums, s.checksum_failures_dram, {{"tier", "dram"}, {"where", "read"}});
  Families::Counter(checksums, s.checksum_failures_nvme, {{"tier", "nvme"}, {"where", "read"}});
  Families::Counter(checksums, s.checksum_failures_peer, {{"tier", "peer"}, {"where", "peer"}});
  const SegmentLogStats& n = s.nvme;
  Families::Counter(checksums, n.dropped_checksum, {{"tier", "nvme"}, {"where", "recover"}});
  Families::Counter(checksums, s.checksum_failures_scrub, {{"tier", "nvme"}, {"where", "scrub"}});
  out->Gauge("crumb_nvme_enabled", "1 while the NVMe tier takes writes.",
             s.nvme_present && n.enabled ? 1 : 0);
  out->Counter("crumb_nvme_bytes_total", "Bytes read from and written to the device.", n.bytes_read,
               {{"op", "read"}});
  Families::Counter(&out->list().back(), n.bytes_written, {{"op", "write"}});
  out->Counter("crumb_nvme_errors_total", "Errors of the device.", n.read_errors, {{"op", "read"}});
  Families::Counter(&out->list().back(), n.append_errors, {{"op", "write"}});
  out->Counter("crumb_nvme_no_space_total", "Writes that a full volume refused.",
               n.no_space_errors);
  out->Gauge("crumb_nvme_segments", "Segments, by state.", static_cast<double>(n.segments),
             {{"state", "all"}});
  Families::Gauge(&out->list().back(), static_cast<double>(n.segments_free), {{"state", "free"}});
  out->Counter("crumb_nvme_segments_reclaimed_total", "Segments written over.",
               n.segments_reclaimed);
  out->Gauge("crumb_quarantined_segments", "Segments set aside after bad records.",
             static_cast<double>(n.segments_quarantined));
  out->Gauge("crumb_recovery_seconds", "How long the last recovery took.",
             static_cast<double>(n.recovery_us) / kMicros);
  out->Gauge("crumb_recovered_blocks", "Pages that it found.", static_cast<double>(n.recovered));
  out->Counter("crumb_recovery_dropped_total", "Records that it did not take.", n.dropped_torn,
               {{"reason", "torn"}});
  MetricFamily* dropped = &out->list().back();
  Families::Counter(dropped, n.dropped_checksum, {{"reason", "crc"}});
  Families::Counter(dropped, n.dropped_stale, {{"reason", "stale"}});
  Families::Counter(dropped, n.dropped_format, {{"reason", "format"}});
  Families::Counter(dropped, n.dropped_stamp, {{"reason", "stamp"}});
  out->Gauge("crumb_recovery_missing_bytes", "What the log file lacked of its length at the start.",
             static_cast<double>(n.bytes_missing));
}

// The NVMe tier beside serving: budget, rescue, scrub.
void AddUpkeep(const EngineStats& s, Families* out) {
  out->Counter("crumb_nvme_page_bytes_total", "Bytes of pages written because of a put.",
               s.nvme_page_bytes);
  out->Gauge("crumb_nvme_write_amplification",
             "Bytes given to the device per byte of those pages; 0 before the first.",
             s.write_amplification());
  out->Gauge("crumb_nvme_write_budget_bytes_per_day", "nvme.write_bytes_per_day; 0: no budget.",
             static_cast<double>(s.write_budget_per_day));
  out->Gauge("crumb_nvme_write_budget_left_bytes",
             "What may be written now; below 0 durable puts are owed for.",
             static_cast<double>(s.write_budget_left));
  out->Counter("crumb_nvme_unwritten_pages_total",
               "Pages that the write budget kept from the NVMe tier, by what would have written.",
               s.evicted_over_budget, {{"by", "eviction"}});
  MetricFamily* unwritten = &out->list().back();
  Families::Counter(unwritten, s.rescues_over_budget, {{"by", "rescue"}});
  Families::Counter(unwritten, s.unsaved_over_budget, {{"by", "drain"}});
  out->Counter("crumb_nvme_rescued_pages_total",
               "Pages that were read and lay in a segment to be written over, by outcome.",
               s.rescued, {{"outcome", "done"}});
  MetricFamily* rescued = &out->list().back();
  Families::Counter(rescued, s.rescues_failed, {{"outcome", "failed"}});
  Families::Counter(rescued, s.rescues_over_share, {{"outcome", "too_many"}});
  out->Counter("crumb_nvme_rescued_bytes_total", "Bytes written anew for them.", s.rescued_bytes);
  out->Counter("crumb_scrubbed_pages_total", "Pages that the scrub read, by what it found.",
               s.scrubbed_pages, {{"result", "ok"}});
  Families::Counter(&out->list().back(), s.scrub_bad_pages, {{"result", "bad"}});
  out->Counter("crumb_scrubbed_bytes_total", "Bytes of good pages that it read.", s.scrubbed_bytes);
  out->Counter("crumb_scrub_passes_total", "Passes over the whole log that ended.", s.scrub_passes);
  out->Gauge("crumb_scrub_progress_ratio", "Of the pass under way.", s.scrub_progress);
}

void AddDataSocket(const Snapshot& snapshot, Families* out) {
  const NetStats& u = snapshot.uds;
  const UdsStats& lent = snapshot.lent;
  out->Gauge("crumb_uds_enabled", "1 if workers can connect over the data socket.",
             snapshot.data_socket_on ? 1 : 0);
  out->Gauge("crumb_uds_connections", "Workers on the data socket.", u.peers, {{"state", "open"}});
  Families::Gauge(&out->list().back(), u.peers_closing, {{"state", "closing"}});
  out->Gauge("crumb_uds_mapped_files", "Files that workers lend, mapped here.",
             static_cast<double>(lent.files_mapped));
  out->Gauge("crumb_uds_mapped_bytes", "Address space of those files.",
             static_cast<double>(lent.bytes_mapped));
  out->Gauge("crumb_uds_transfers", "Copies from and to mapped memory under way.",
             u.transfers_pending);
  out->Gauge("crumb_uds_messages_held", "Messages received or being sent.", u.messages_held);
  out->Counter("crumb_uds_messages_total", "Messages.", u.messages_received, {{"dir", "in"}});
  Families::Counter(&out->list().back(), u.messages_sent, {{"dir", "out"}});
  Families::Counter(&out->list().back(), u.messages_unsent, {{"dir", "lost"}});
  out->Counter("crumb_uds_bytes_total", "Bytes moved by get and put.", u.bytes_pulled,
               {{"dir", "in"}});
  Families::Counter(&out->list().back(), u.bytes_pushed, {{"dir", "out"}});
  out->Counter("crumb_uds_refused_total", "What was not accepted from workers.", lent.files_refused,
               {{"what", "file"}});
  Families::Counter(&out->list().back(), lent.frames_refused, {{"what", "frame"}});
  Families::Counter(&out->list().back(), u.peers_refused, {{"what", "peer"}});
  out->Counter("crumb_uds_outlived_total", "Copies whose worker went away in the middle.",
               lent.holds_outlived);
  out->Counter("crumb_uds_faults_total", "Copies whose memory was taken away by its worker.",
               lent.copies_faulted);
}

void AddGpu(const Snapshot& snapshot, Families* out) {
  const EngineStats& s = snapshot.engine;
  out->Gauge("crumb_gpu_enabled", "1 if workers' GPU memory is served.",
             snapshot.gpu_on && snapshot.gpu_fault.empty() ? 1 : 0);
  if (!snapshot.gpu_on) return;
  out->Gauge("crumb_gpu_lost", "1 once a GPU is lost: the process ends.",
             snapshot.gpu_fault.empty() ? 0 : 1);
  out->Gauge("crumb_gpu_codec_place", "1 for where kernels run.", 1,
             {{"place", snapshot.gpu_codec_place}});
  out->Gauge("crumb_gpu_memory_bytes", "Of the GPU with the HBM tier.",
             static_cast<double>(snapshot.hbm_bytes), {{"kind", "arena"}});
  Families::Gauge(&out->list().back(), static_cast<double>(snapshot.gpu_free_bytes),
                  {{"kind", "free"}});
  out->Gauge("crumb_gpu_links", "Workers that lent GPU memory.",
             static_cast<double>(snapshot.lent.gpu_links));
  out->Gauge("crumb_gpu_mapped_allocations", "Allocations that they lend, mapped here.",
             static_cast<double>(snapshot.lent.gpu_mapped));
  out->Gauge("crumb_gpu_mapped_bytes", "Their size.",
             static_cast<double>(snapshot.lent.gpu_bytes_mapped));
  out->Counter("crumb_gpu_refused_total", "Offers of GPU memory that were refused.",
               snapshot.lent.gpu_refused);
  out->Counter("crumb_gpu_pages_total", "Pages that a GPU packed, unpacked, or moved as they are.",
               s.gpu_encode_pages, {{"kind", "encode"}});
  Families::Counter(&out->list().back(), s.gpu_decode_pages, {{"kind", "decode"}});
  Families::Counter(&out->list().back(), s.gpu_copies, {{"kind", "copy"}});
  out->Counter("crumb_gpu_staged_total",
               "Of unpacked pages, those of DRAM that were staged on the GPU.", s.gpu_staged);
  out->Counter("crumb_gpu_failures_total", "Work that a GPU refused or lost.", s.gpu_failures);
  out->Counter("crumb_hbm_moves_total", "Packed pages moved between HBM and DRAM.", s.lowered,
               {{"to", "dram"}});
  Families::Counter(&out->list().back(), s.raised, {{"to", "hbm"}});
  Families::Counter(&out->list().back(), s.moves_failed, {{"to", "nowhere"}});
  out->Counter("crumb_hbm_moved_bytes_total", "Their bytes.", s.lowered_bytes, {{"to", "dram"}});
  Families::Counter(&out->list().back(), s.raised_bytes, {{"to", "hbm"}});
  out->Gauge("crumb_hbm_moves_in_flight", "Of them under way.",
             static_cast<double>(s.moves_in_flight));
}

void AddNetwork(const Snapshot& snapshot, Families* out) {
  const NetStats& u = snapshot.ucx;
  out->Gauge("crumb_ucx_enabled", "1 if workers can connect over UCX.", snapshot.ucx_on ? 1 : 0);
  out->Gauge("crumb_ucx_endpoints", "UCX peers.", u.peers, {{"state", "open"}});
  Families::Gauge(&out->list().back(), u.peers_closing, {{"state", "closing"}});
  out->Counter("crumb_client_died_total", "Workers whose connection was lost.",
               u.peers_lost + snapshot.uds.peers_lost);
  out->Counter("crumb_ucx_messages_total", "Messages.", u.messages_received, {{"dir", "in"}});
  Families::Counter(&out->list().back(), u.messages_sent, {{"dir", "out"}});
  Families::Counter(&out->list().back(), u.messages_dropped, {{"dir", "dropped"}});
  out->Counter("crumb_ucx_bytes_total", "Bytes moved by get and put.", u.bytes_pulled,
               {{"dir", "in"}});
  Families::Counter(&out->list().back(), u.bytes_pushed, {{"dir", "out"}});
  out->Counter("crumb_bad_messages_total", "Messages that did not parse.",
               snapshot.engine.bad_messages);
  ClientMetric busy;
  busy.counter.value = static_cast<double>(snapshot.shard_busy_us) / kMicros;
  out->Add("crumb_shard_busy_seconds_total", MetricType::Counter,
           "Of the shard's thread, in turns that found work.")
      .metric.push_back(std::move(busy));
  out->Gauge("crumb_clients", "Sessions.", static_cast<double>(snapshot.clients));
  out->Gauge("crumb_grpc_staging_bytes", "Pages of gRPC streams under way.",
             static_cast<double>(snapshot.staging_used_bytes), {{"kind", "used"}});
  Families::Gauge(&out->list().back(), static_cast<double>(snapshot.staging_capacity_bytes),
                  {{"kind", "capacity"}});
  out->Counter("crumb_grpc_staging_refused_total", "Streams refused for want of it.",
               snapshot.staging_refused);
  out->Gauge("crumb_grpc_inflight", "Data calls over gRPC.",
             static_cast<double>(snapshot.rpcs_in_flight));
  out->Counter("crumb_grpc_refused_total", "Calls refused: malformed, over a limit, no session.",
               snapshot.rpcs_refused);
}

void AddProcess(const Snapshot& snapshot, Families* out) {
  out->Gauge("crumb_build_info", "Always 1.", 1,
             {{"version", snapshot.version},
              {"codec_abi", "1"},
              {"layout_abi", "1"},
              {"page_format", std::to_string(kPageFormatVersion)},
              {"wire", std::to_string(kWireVersion)}});
  out->Gauge("crumb_ready", "1 while the daemon serves.", IsReady(snapshot) ? 1 : 0);
  out->Gauge("crumb_start_time_seconds", "Unix time of the start.", snapshot.process.start_time);
  out->Gauge("crumb_layouts", "Layouts known.", static_cast<double>(snapshot.layouts.size()));
  MetricFamily* sets =
      &out->Add("crumb_rotation_set_info", MetricType::Gauge, "Rotation sets; always 1.");
  for (const RotationLine& rotation : snapshot.rotations) {
    Families::Gauge(sets, 1,
                    {{"id", rotation.hash.substr(0, 16)},
                     {"model", rotation.model},
                     {"version", rotation.revision}});
  }
  out->Counter("crumb_catalog_dropped_total", "Corrupt records and files of the catalog.",
               snapshot.catalog_dropped);
  const ProcessFacts& p = snapshot.process;
  out->Gauge("process_resident_memory_bytes", "Resident memory.",
             static_cast<double>(p.resident_bytes));
  out->Gauge("process_virtual_memory_bytes", "Virtual memory.",
             static_cast<double>(p.virtual_bytes));
  out->Gauge("process_open_fds", "Open file descriptors.", static_cast<double>(p.open_fds));
  out->Gauge("process_max_fds", "Their limit.", static_cast<double>(p.fds_max));
  out->Gauge("process_locked_memory_bytes", "Locked memory.", static_cast<double>(p.locked_bytes));
  out->Gauge("process_threads", "Threads.", static_cast<double>(p.threads));
  ClientMetric cpu;
  cpu.counter.value = p.cpu_seconds;
  out->Add("process_cpu_seconds_total", MetricType::Counter, "Processor time.")
      .metric.push_back(cpu);
}

}  // namespace

std::string MetricsText(const Snapshot& snapshot) {
  Families families;
  AddTraffic(snapshot.engine, &families);
  AddTiers(snapshot.engine, &families);
  AddCodec(snapshot.engine, &families);
  AddWindows(snapshot.engine, &families);
  AddStorage(snapshot.engine, &families);
  AddUpkeep(snapshot.engine, &families);
  AddNetwork(snapshot, &families);
  AddDataSocket(snapshot, &families);
  AddGpu(snapshot, &families);
  AddProcess(snapshot, &families);
  return prometheus::TextSerializer().Serialize(families.list());
}

}  // namespace crumb
