// The oracle's rules. "Unknown" outcomes widen what may come; answers narrow it.
#include "tests/bench/kill9_model.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/rng.h"

namespace crumb {
namespace {

constexpr size_t kHeadBytes = 16;

bool Unknown(client::Code code) {
  return code == client::Code::kUnavailable || code == client::Code::kTimeout ||
         code == client::Code::kCancelled;
}

Rng StreamOf(uint64_t key, uint32_t generation) {
  return Rng(SplitMix64(key * 0x9e3779b97f4a7c15ull + generation).Next());
}

uint16_t NormalBf16(uint64_t bits) {
  int64_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<int64_t>(bits >> (16 * i) & 0xffff);
  const float value = static_cast<float>(sum - 2 * 0xffff) / 32768.0f;
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

float ToFloat(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

}  // namespace

void FillValue(uint64_t key, uint32_t generation, MutableBytes out) {
  CRUMB_CHECK(out.size() >= kHeadBytes);
  const auto size = static_cast<uint32_t>(out.size());
  std::memcpy(out.data(), &key, 8);
  std::memcpy(out.data() + 8, &generation, 4);
  std::memcpy(out.data() + 12, &size, 4);
  Rng rng = StreamOf(key, generation);
  for (size_t i = kHeadBytes; i < out.size(); i += 8) {
    const uint64_t word = rng.Next();
    std::memcpy(out.data() + i, &word, std::min<size_t>(8, out.size() - i));
  }
}

uint32_t GenerationOf(uint64_t key, Bytes value) {
  if (value.size() < kHeadBytes) return 0;
  uint32_t generation = 0;
  std::memcpy(&generation, value.data() + 8, 4);
  std::vector<uint8_t> right(value.size());
  FillValue(key, generation, absl::MakeSpan(right));
  return std::memcmp(right.data(), value.data(), value.size()) == 0 ? generation : 0;
}

void FillBf16(uint64_t key, uint32_t generation, MutableBytes out) {
  Rng rng = StreamOf(key, generation);
  for (size_t i = 0; i + 1 < out.size(); i += 2) {
    const uint16_t bits = NormalBf16(rng.Next());
    std::memcpy(out.data() + i, &bits, 2);
  }
}

double DistanceBf16(uint64_t key, uint32_t generation, Bytes decoded) {
  std::vector<uint8_t> original(decoded.size());
  FillBf16(key, generation, absl::MakeSpan(original));
  double error = 0;
  double energy = 0;
  for (size_t i = 0; i + 1 < decoded.size(); i += 2) {
    uint16_t a = 0;
    uint16_t b = 0;
    std::memcpy(&a, original.data() + i, 2);
    std::memcpy(&b, decoded.data() + i, 2);
    const double x = static_cast<double>(ToFloat(a));
    const double y = static_cast<double>(ToFloat(b));
    error += (x - y) * (x - y);
    energy += x * x;
  }
  return energy > 0 ? error / energy : 1.0;
}

void KeyModel::Note(const std::string& event) {
  constexpr size_t kHistoryMax = 400;
  absl::StrAppend(&history, " ", event);
  if (history.size() > kHistoryMax) history.erase(0, history.find(' ', history.size() / 2));
}

void KeyModel::OnFlushes(const std::vector<FlushSpan>& flushes, uint64_t asked, uint64_t now) {
  asked_ = asked;
  now_ = now;
  flushed_meanwhile = false;
  for (const FlushSpan& flush : flushes) {
    flushed_meanwhile = flushed_meanwhile || flush.over > asked;
    if (flush.over > durable_asked) must_hit = false;
    if (!flush.done || flush.over > asked) continue;
    for (auto* puts : {&possible, &older}) {
      std::erase_if(*puts, [&flush](const auto& put) { return put.second < flush.began; });
    }
  }
}

void KeyModel::OnKill() {
  possible.merge(older);
  older.clear();
}

void KeyModel::OnWritten(uint64_t bytes, uint64_t limit) {
  if (bytes - durable_bytes > limit) must_hit = false;
}

std::string KeyModel::OnPut(uint32_t generation, client::Code code, bool durable) {
  using client::Code;
  if (Unknown(code)) {
    // A key that certainly holds something keeps it: a put of no higher precision is a no-op.
    if (!must_hit) possible[generation] = now_;
    return "";
  }
  if (code == Code::kNotDurable) {
    possible[generation] = now_;  // or what was there
    return flushed_meanwhile ? "" : "a durable put was not made durable, though the disk is well";
  }
  if (code == Code::kOk) {
    const bool had = must_hit;
    if (durable) older.clear();
    if (reclaims && !durable) older.merge(possible);
    possible = {{generation, now_}};
    must_hit = durable && !flushed_meanwhile;
    durable_asked = asked_;
    return had ? absl::StrCat("a put replaced a durable page: generation ", generation) : "";
  }
  if (code == Code::kExists) {
    if (!must_hit && durable && !flushed_meanwhile) {
      must_hit = true;
      durable_asked = asked_;
    }
    return possible.empty() ? "a put met a page that was never put, or was deleted" : "";
  }
  return "";  // refused: no trace
}

std::string KeyModel::OnDelete(client::Code code) {
  if (Unknown(code)) {
    must_hit = false;
    return "";
  }
  if (code != client::Code::kOk && code != client::Code::kMiss) return "";
  const bool lost = code == client::Code::kMiss && must_hit;
  possible.clear();
  older.clear();
  must_hit = false;
  return lost ? "a delete did not find a durable page" : "";
}

std::string KeyModel::OnGet(client::Code code, uint32_t generation) {
  if (code == client::Code::kMiss) return must_hit ? "a durable page is gone" : "";
  if (code != client::Code::kOk) return "";
  if (generation == 0) return "wrong bytes";
  const auto found = possible.find(generation);
  if (found == possible.end()) {
    return absl::StrCat("stale or foreign bytes: generation ", generation);
  }
  possible = {*found};
  return "";
}

std::string KeyModel::OnSeen(uint32_t generation, uint64_t hash) {
  for (const auto& [known, before] : seen) {
    if (known == generation) return before == hash ? "" : "a lossy page changed";
  }
  seen.emplace_back(generation, hash);
  return "";
}

}  // namespace crumb
