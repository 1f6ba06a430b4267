// Sums that cannot wrap: figures come from a driver and from a configuration. Auto is what lies
// outside of the engines' share, whether they started already or not.
#include "gpu/pool/hbm_size.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gpu/pool/page_pool.h"

namespace crumb {
namespace {

constexpr uint64_t kMiB = 1ull << 20;
constexpr uint64_t kGiB = 1ull << 30;
constexpr uint64_t kReserveFixedBytes = kGiB;
constexpr uint64_t kReservePercent = 2;

constexpr char kWhyReserve[] = "CUDA contexts, graphs and communication buffers";

uint64_t Percent(uint64_t bytes, uint64_t percent) {
  return bytes / 100 * percent + bytes % 100 * percent / 100;
}

uint64_t Minus(uint64_t from, uint64_t what) { return from - std::min(from, what); }

uint64_t RoundDown(uint64_t bytes) { return bytes / kHbmStepBytes * kHbmStepBytes; }

std::string Text(uint64_t bytes) {  // "12.3 GiB", "512 MiB": never more than there is
  if (bytes < kGiB) return absl::StrCat(bytes / kMiB, " MiB");
  return absl::StrCat(bytes / kGiB, ".", bytes % kGiB * 10 / kGiB, " GiB");
}

std::string Key(uint64_t bytes) {  // as the configuration takes it
  return absl::StrCat("pool.hbm_bytes: ", bytes / kMiB, "MiB");
}

absl::Status Check(const HbmSizeOptions& options) {
  if (options.total_bytes == 0 || options.free_bytes > options.total_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the GPU says that ", options.free_bytes, " of ",
                                                   options.total_bytes, " bytes are free"));
  }
  const uint64_t value = options.wanted.value;
  if (options.wanted.wish == HbmWish::kPercent && (value < 1 || value > 100)) {
    return absl::InvalidArgumentError(
        absl::StrCat("pool.hbm_bytes: ", value, "% must be 1% to 100%; 0 is no GPU tier"));
  }
  if (options.wanted.wish == HbmWish::kBytes && (value < kHbmBytesMin || value > kPoolBytesMax)) {
    return absl::InvalidArgumentError(absl::StrCat("pool.hbm_bytes: ", value, " bytes must be ",
                                                   kHbmBytesMin / kMiB, "MiB to ",
                                                   kPoolBytesMax / kGiB, "GiB; 0 is no GPU tier"));
  }
  return absl::OkStatus();
}

// What the sizes are made from.
struct Sums {
  uint64_t total = 0;
  uint64_t free = 0;
  uint64_t reserve = 0;
  uint64_t engines = 0;       // in all; 0: not known
  uint64_t engines_more = 0;  // of what is free
  uint64_t limit = 0;         // the most that the pool may take
};

Sums Sum(const HbmSizeOptions& options) {
  Sums sums{.total = options.total_bytes,
            .free = options.free_bytes,
            .reserve = HbmReserveBytes(options.total_bytes)};
  const bool automatic = options.wanted.wish == HbmWish::kAuto;
  sums.engines = options.engine_bytes.value_or(
      automatic ? sums.total - Percent(sums.total, 100 - kEnginePercent) : 0);
  sums.engines_more = Minus(sums.engines, sums.total - sums.free);
  const uint64_t left = Minus(Minus(sums.free, sums.reserve), sums.engines_more);
  sums.limit = RoundDown(std::min(left, kPoolBytesMax));
  return sums;
}

absl::Status TooMuch(const Sums& sums, const std::string& asked) {
  std::string text =
      absl::StrCat(asked, " does not fit: ", Text(sums.free), " of the GPU's ", Text(sums.total),
                   " are free, ", Text(sums.reserve), " of that must stay free for ", kWhyReserve);
  if (sums.engines_more > 0) {
    absl::StrAppend(&text, " and ", Text(sums.engines_more), " for engines");
  }
  if (sums.limit >= kHbmBytesMin) {
    absl::StrAppend(&text, "; set at most ", Key(sums.limit), ", or free some");
  } else {
    absl::StrAppend(&text, "; set pool.hbm_bytes: 0 for no GPU tier, or free some");
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(text, ": a smaller memory fraction for engines; nvidia-smi shows who holds it"));
}

// What engines can be told to take beside the pool, in hundredths of the device.
std::string EngineFraction(const Sums& sums, uint64_t bytes) {
  const uint64_t left = Minus(sums.total, bytes + sums.reserve);
  uint64_t hundredths = 0;
  while (hundredths < 100 && sums.total - Percent(sums.total, 99 - hundredths) <= left) {
    ++hundredths;
  }
  return absl::StrCat("0.", hundredths / 10, hundredths % 10);
}

std::string Reason(const HbmSizeOptions& options, const Sums& sums, uint64_t bytes) {
  std::string text = absl::StrCat(Text(bytes), " of the GPU's ", Text(sums.total), " (");
  switch (options.wanted.wish) {
    case HbmWish::kAuto:
      absl::StrAppend(&text, "auto: what engines do not take");
      break;
    case HbmWish::kPercent:
      absl::StrAppend(&text, options.wanted.value, "%");
      break;
    case HbmWish::kBytes:
      absl::StrAppend(&text, "as configured");
      if (bytes != options.wanted.value) absl::StrAppend(&text, ", in whole 2 MiB");
      break;
  }
  absl::StrAppend(&text, "); ", Text(sums.free), " were free, ", Text(sums.reserve),
                  " of that stay free for ", kWhyReserve);
  if (sums.engines > 0) {
    absl::StrAppend(&text, "; engines take ", Text(sums.engines), " in all, ",
                    Text(sums.engines_more), " of that not yet");
  }
  return absl::StrCat(text, "; engines on this GPU may take ", EngineFraction(sums, bytes),
                      " of it (vLLM: --gpu-memory-utilization)");
}

}  // namespace

uint64_t HbmReserveBytes(uint64_t total_bytes) {
  return kReserveFixedBytes + Percent(total_bytes, kReservePercent);
}

absl::StatusOr<HbmSize> SizeHbmPool(const HbmSizeOptions& options) {
  CRUMB_TRY(Check(options));
  const Sums sums = Sum(options);
  uint64_t bytes = sums.limit;
  std::string asked = "pool.hbm_bytes: auto";
  if (options.wanted.wish == HbmWish::kBytes) {
    bytes = RoundDown(options.wanted.value);
    asked = Key(bytes);
  } else if (options.wanted.wish == HbmWish::kPercent) {
    bytes = RoundDown(Percent(options.total_bytes, options.wanted.value));
    asked = absl::StrCat("pool.hbm_bytes: ", options.wanted.value, "%, ", Text(bytes), ",");
  }
  if (bytes > sums.limit || sums.limit < kHbmBytesMin) return TooMuch(sums, asked);
  if (bytes < kHbmBytesMin) {
    return absl::InvalidArgumentError(
        absl::StrCat(asked, " must be at least ", kHbmBytesMin / kMiB, "MiB; 0 is no GPU tier"));
  }
  return HbmSize{bytes, Reason(options, sums, bytes)};
}

}  // namespace crumb
