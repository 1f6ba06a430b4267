// Phases of the demo; see demo.h.
#include "client/demo/demo.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/page_header.h"

namespace crumb::demo {
namespace {

// One codec's state while the demo runs.
struct Track {
  CodecRow row;
  std::vector<client::Layout> layouts;  // by repetition
  std::vector<std::string> name_spaces;
  std::vector<Sha256> first;             // by page: hash of the first that came back packed
  std::vector<std::vector<Sha256>> got;  // by repetition and page: as it came back
  std::optional<Sample> restored;        // out of a repetition that came back whole
};

constexpr uint32_t kExactTokens = kSinkTokens + kRecentTokens;

Place PlaceOf(const Sample& sample, uint32_t page) {
  if (page < kSinkTokens / kPageTokens) return kInSink;
  const bool recent = page + kRecentTokens / kPageTokens >= sample.page_count();
  return recent ? kInRecent : kBetween;
}

// A page that came back.
struct PageAt {
  uint32_t repetition = 0;
  uint32_t page = 0;
  client::Precision precision = client::Precision::kRaw;
};

absl::Status Lost(const Track& track, uint32_t repetition, uint32_t page, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat(track.row.codec, ", namespace ", repetition, ", page ", page, ": ", what));
}

absl::Status PutRepetition(Exchange& exchange, const RunOptions& options, uint32_t repetition,
                           Track& track) {
  const std::string name =
      absl::StrCat("demo/", options.run_id, "/", track.row.codec, "/", repetition);
  CRUMB_ASSIGN(client::Layout layout, exchange.Register(track.row.codec, name));
  CRUMB_ASSIGN(const PutOutcome put, exchange.PutAll(layout, options.durable));
  track.row.pages_put += put.stored;
  track.row.pages_not_durable += put.not_durable;
  if (options.durable && put.not_durable > 0) {
    return Lost(track, repetition, 0,
                absl::StrCat(put.not_durable,
                             " pages of this namespace were "
                             "stored, but not durably; see the daemon's log"));
  }
  track.row.put_seconds += put.seconds;
  track.row.raw_bytes = layout.raw_bytes[0];
  track.row.codec_in_effect = layout.codec;
  track.row.note = layout.codec_note;
  track.layouts.push_back(std::move(layout));
  track.got.emplace_back(track.first.size());
  track.name_spaces.push_back(name);
  return absl::OkStatus();
}

// Gets pages in page form once, to see what they really take, and checks header and payload.
absl::Status MeasureStored(const Sample& sample, Exchange& exchange, Track& track) {
  CRUMB_ASSIGN(const GetOutcome got, exchange.GetPrefix(track.layouts[0], client::Form::kPage));
  uint64_t packed = 0, stored = 0, pages = 0;
  for (uint32_t page = 0; page < got.results.size(); ++page) {
    const client::Result& result = got.results[page];
    if (result.code != client::Code::kOk) continue;
    const bool exact = result.precision == client::Precision::kRaw;
    if (exact && track.row.codec_in_effect != "raw") continue;  // in a window
    if (result.value_bytes > sample.page_bytes() + kPageHeaderBytes) {
      return Lost(track, 0, page, "longer than a raw page");
    }
    const Bytes bytes = exchange.slot(page, result.value_bytes);
    if (const PageCheck check = CheckPage(bytes); check != PageCheck::kOk) {
      return Lost(track, 0, page, absl::StrCat("its header or payload is bad: ", ToString(check)));
    }
    packed += bytes.size();
    stored += PageSlotBytes(bytes.size() - kPageHeaderBytes);
    ++pages;
  }
  if (pages == 0) return Lost(track, 0, 0, "no packed page came back in page form");
  track.row.packed_bytes = packed / pages;
  track.row.stored_bytes = stored / pages;
  return absl::OkStatus();
}

// One page that came back: a raw one equals what was put, also in the windows of a packed layout; a
// packed one equals the same page of other repetitions, since equal input is packed to equal bytes.
absl::Status CheckPageBytes(const Sample& sample, const PageAt& at, Bytes raw, Track& track) {
  const auto [repetition, page, precision] = at;
  const Sha256 hash = Sha256Of(raw);
  track.got[repetition][page] = hash;
  const Place place = PlaceOf(sample, page);
  ++track.row.got_at[place];
  if (precision != client::Precision::kRaw) {
    if (track.first[page] == Sha256{}) track.first[page] = hash;
    if (hash == track.first[page]) return absl::OkStatus();
    return Lost(track, repetition, page, "differs from the same page in another namespace");
  }
  ++track.row.raw_at[place];
  std::vector<uint8_t> wanted(sample.page_bytes());
  WritePage(sample, page, absl::MakeSpan(wanted));
  if (hash != Sha256Of(wanted)) return Lost(track, repetition, page, "differs from what was put");
  return absl::OkStatus();
}

absl::Status GetRepetition(const Sample& sample, Exchange& exchange, uint32_t repetition,
                           Track& track) {
  const client::Layout& layout = track.layouts[repetition];
  CRUMB_ASSIGN(const GetOutcome got, exchange.GetPrefix(layout, client::Form::kRaw));
  CodecRow& row = track.row;
  row.get_seconds += got.seconds;
  uint32_t whole = 0;
  for (uint32_t page = 0; page < got.results.size(); ++page) {
    const client::Result& result = got.results[page];
    if (result.code == client::Code::kMiss) continue;
    if (result.code != client::Code::kOk || result.value_bytes != sample.page_bytes()) {
      return Lost(track, repetition, page,
                  absl::StrCat("get says ", client::ToString(result.code), ", ", result.value_bytes,
                               " bytes"));
    }
    CRUMB_TRY(CheckPageBytes(sample, {repetition, page, result.precision},
                             exchange.slot(page, sample.page_bytes()), track));
    ++row.hits[std::min<size_t>(static_cast<size_t>(result.tier), kTiers - 1)];
    ++row.pages_got;
    ++whole;
  }
  row.pages_missed += sample.page_count() - whole;
  if (whole != sample.page_count() || track.restored.has_value()) return absl::OkStatus();
  track.restored = sample;
  for (uint32_t page = 0; page < sample.page_count(); ++page) {
    ReadPage(exchange.slot(page, sample.page_bytes()), page, *track.restored);
  }
  return absl::OkStatus();
}

absl::Status Finish(const AttentionReference& reference, const RunOptions& options, Track& track,
                    Report& report) {
  if (!track.restored.has_value()) {
    return absl::DataLossError(absl::StrCat(
        track.row.codec, ": no namespace came back whole; give the daemon larger pools"));
  }
  if (options.durable && (track.row.pages_missed > 0 || track.row.pages_not_durable > 0)) {
    return absl::DataLossError(absl::StrCat(track.row.codec, ": of ", track.row.pages_put,
                                            " pages put as durable, ", track.row.pages_not_durable,
                                            " were not made durable and ", track.row.pages_missed,
                                            " are gone; is nvme.bytes too small?"));
  }
  track.row.error = reference.Compare(*track.restored);
  if (options.durable) {
    for (size_t i = 0; i < track.name_spaces.size(); ++i) {
      for (uint32_t page = 0; page < track.got[i].size(); ++page) {
        report.saved.push_back({track.row.codec, track.name_spaces[i], page, track.got[i][page]});
      }
    }
  }
  report.rows.push_back(std::move(track.row));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Report> Run(const Sample& sample, Exchange& exchange, const RunOptions& options,
                           Progress progress) {
  Report report{.data_plane = exchange.data_plane(),
                .namespaces = options.namespaces,
                .durable = options.durable,
                .rows = {},
                .saved = {}};
  std::vector<Track> tracks(options.codecs.size());
  for (size_t i = 0; i < tracks.size(); ++i) {
    tracks[i].row.codec = options.codecs[i];
    tracks[i].first.resize(sample.page_count());
  }
  const uint64_t total = uint64_t{options.namespaces} * tracks.size();
  uint64_t done = 0;
  for (uint32_t repetition = 0; repetition < options.namespaces; ++repetition) {
    for (Track& track : tracks) {
      progress(done++, total, "put");
      CRUMB_TRY(PutRepetition(exchange, options, repetition, track));
    }
  }
  for (Track& track : tracks) {
    if (track.row.codec_in_effect == "raw") continue;
    for (const client::Layout& layout : track.layouts) {
      CRUMB_TRY(exchange.AwaitPacked(layout, kExactTokens / kPageTokens));
    }
  }
  // Newest first: the newest are in memory still, the oldest went to disk.
  done = 0;
  for (uint32_t repetition = options.namespaces; repetition > 0; --repetition) {
    for (Track& track : tracks) {
      progress(done++, total, "get");
      CRUMB_TRY(GetRepetition(sample, exchange, repetition - 1, track));
    }
  }
  const AttentionReference reference(sample);
  done = 0;
  for (Track& track : tracks) {
    progress(done++, tracks.size(), "measure");
    CRUMB_TRY(MeasureStored(sample, exchange, track));
    CRUMB_TRY(Finish(reference, options, track, report));
  }
  return report;
}

absl::StatusOr<VerifyReport> Verify(const Sample& sample, Exchange& exchange,
                                    const std::vector<SavedPage>& saved, Progress progress) {
  std::map<std::pair<std::string, std::string>, std::vector<const SavedPage*>> chains;
  for (const SavedPage& page : saved) {
    if (page.page >= sample.page_count()) {
      return absl::InvalidArgumentError(absl::StrCat("saved page ", page.page, " does not exist"));
    }
    chains[{page.codec, page.name_space}].push_back(&page);
  }
  VerifyReport report;
  report.data_plane = exchange.data_plane();
  uint64_t done = 0;
  for (const auto& [name, pages] : chains) {
    progress(done++, chains.size(), "verify");
    CRUMB_ASSIGN(const client::Layout layout, exchange.Register(name.first, name.second));
    CRUMB_ASSIGN(const GetOutcome got, exchange.GetPrefix(layout, client::Form::kRaw));
    report.seconds += got.seconds;
    for (const SavedPage* page : pages) {
      const std::string where = absl::StrCat(name.second, ", page ", page->page, ": ");
      if (page->page >= got.results.size() || got.results[page->page].code != client::Code::kOk) {
        return absl::DataLossError(absl::StrCat(where, "was durable, and is gone"));
      }
      if (Sha256Of(exchange.slot(page->page, sample.page_bytes())) != page->hash) {
        return absl::DataLossError(absl::StrCat(where, "differs from what it was"));
      }
      const auto tier = static_cast<size_t>(got.results[page->page].tier);
      ++report.hits[std::min(tier, kTiers - 1)];
      ++report.pages;
    }
  }
  return report;
}

}  // namespace crumb::demo
