// Checks and words of evaluations. Any thread.
#include "cachesvc/server/evaluation.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/civil_time.h"

namespace crumb {
namespace {

constexpr size_t kTextBytesMax = 1024;
constexpr double kChangeMax = 1e6;

absl::Status CheckText(absl::string_view name, const std::string& text) {
  if (!text.empty() && text.size() <= kTextBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", text.size(), " bytes; write 1 to ", kTextBytesMax));
}

bool IsDate(const std::string& text) {
  absl::CivilDay day;
  return absl::ParseCivilTime(text, &day) && absl::FormatCivilTime(day) == text;
}

}  // namespace

absl::Status CheckEvaluation(const Evaluation& evaluation) {
  CRUMB_TRY(CheckText("model", evaluation.model));
  CRUMB_TRY(CheckText("revision", evaluation.revision));
  CRUMB_TRY(CheckText("source", evaluation.source));
  if (!IsDate(evaluation.date)) {
    return absl::InvalidArgumentError(
        absl::StrCat("date \"", evaluation.date.substr(0, 32), "\": write YYYY-MM-DD"));
  }
  if (evaluation.tokens == 0) {
    return absl::InvalidArgumentError("tokens: 0 were scored; that shows nothing");
  }
  const double change = evaluation.perplexity_change;
  if (!std::isfinite(change) || change <= -1.0 || change > kChangeMax) {
    return absl::InvalidArgumentError(
        "perplexity_change: write the relative change, such as 0.005 for half a per cent worse");
  }
  if (!std::isfinite(evaluation.kl) || evaluation.kl < 0 || evaluation.kl > kChangeMax) {
    return absl::InvalidArgumentError(
        "kl: write the mean KL divergence in nats a token, 0 or more");
  }
  return absl::OkStatus();
}

bool Within(const Evaluation& evaluation, const QualityBounds& bounds) {
  return evaluation.perplexity_change * 1000 <=
             static_cast<double>(bounds.perplexity_permille_max) &&
         evaluation.kl * 1000 <= static_cast<double>(bounds.kl_millinats_max);
}

std::string Describe(const Evaluation& evaluation) {
  return absl::StrFormat("perplexity %+.3g %%, KL %.3g nats a token over %d tokens (%s)",
                         evaluation.perplexity_change * 100, evaluation.kl, evaluation.tokens,
                         evaluation.date);
}

}  // namespace crumb
