// The stated agreement of the vector backends with the scalar reference, over real keys and values,
// made-up ones of head dim 128 and 256 with published rotations, and rows made to break codecs.
#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/codec_agreement.h"
#include "tests/support/codec_cases.h"

namespace crumb {
namespace {

using testing::CodecCase;

constexpr double kDifferentMax = 0.005;  // of rotated and decoded values
constexpr double kCodesEqualMin = 0.995;
constexpr double kErrorMax = 0.005;

constexpr CodecKind kCrumb[] = {CodecKind::kCrumbInt2, CodecKind::kCrumbK3V2,
                                CodecKind::kCrumbInt4};
constexpr CodecKind kAffine[] = {CodecKind::kOscarInt2, CodecKind::kHadamardInt2,
                                 CodecKind::kNaiveInt2, CodecKind::kInt4, CodecKind::kHadamardInt4};

double Share(uint64_t part, uint64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

struct Worst {
  double different = 0.0;
  double codes_equal = 1.0;
  double error = 0.0;
  uint64_t wrong_bytes = 0;
  bool holds = true;
};

void Note(const char* what, const testing::ValueAgreement& values, bool exact, Worst* worst) {
  const double different = Share(values.different, values.values);
  std::printf("  %-34s %9llu values, %.5f %% different, %llu beyond the tolerance\n", what,
              static_cast<unsigned long long>(values.values), 100.0 * different,
              static_cast<unsigned long long>(values.beyond));
  worst->different = std::max(worst->different, different);
  worst->holds &= values.beyond == 0 && different <= (exact ? 0.0 : kDifferentMax);
}

void CheckAffine(const std::vector<CodecCase>& cases, CodecBackend backend, Worst* worst) {
  for (const CodecKind kind : kAffine) {
    testing::ValueAgreement rows, rotated, pages;
    uint64_t wrong = 0;
    for (const CodecCase& page : cases) {
      const CodecDescriptor d = CodecDescriptor::Default(kind, page.set->hash());
      rows.Add(testing::CompareRotation(page, d, backend));
      wrong += testing::CountWrongBytes(page, d, backend);
      rotated.Add(testing::CompareDecoders(page, d, backend, true));
      pages.Add(testing::CompareDecoders(page, d, backend, false));
    }
    std::printf(" %s: %llu bytes differ from the rotated row on\n", ToString(kind),
                static_cast<unsigned long long>(wrong));
    Note("rotated rows", rows, false, worst);
    Note("decoded, rotated frame", rotated, true, worst);
    Note("decoded", pages, false, worst);
    worst->wrong_bytes += wrong;
  }
}

void CheckCrumb(const std::vector<CodecCase>& cases, CodecBackend backend, Worst* worst) {
  for (const CodecKind kind : kCrumb) {
    testing::ValueAgreement rotated, pages;
    for (const CodecCase& page : cases) {
      const CodecDescriptor d = CodecDescriptor::Default(kind, page.set->hash());
      rotated.Add(testing::CompareDecoders(page, d, backend, true));
      pages.Add(testing::CompareDecoders(page, d, backend, false));
    }
    std::printf(" %s\n", ToString(kind));
    Note("decoded, rotated frame", rotated, true, worst);
    Note("decoded", pages, false, worst);
    for (const Effort effort : {Effort::kDraft, Effort::kNormal, Effort::kBest}) {
      testing::SearchAgreement total;
      for (const CodecCase& page : cases) {
        const CodecDescriptor d = CodecDescriptor::Default(kind, page.set->hash());
        const auto one = testing::CompareEncoders(page, d, backend, effort);
        if (!one.reports_agree) std::printf("  %s: the reports differ\n", page.name.c_str());
        worst->holds &= one.reports_agree;
        // On rows made to break codecs a search has no one answer; what it reports is compared.
        if (!page.hostile) total.Add(one);
      }
      const double equal = Share(total.codes_equal, total.codes);
      const double error = total.error / total.error_reference - 1.0;
      std::printf("  encoder %-6s codes equal %.4f %%, metadata %.3f %%, summed error %+.4f %%\n",
                  ToString(effort), 100.0 * equal, 100.0 * Share(total.meta_equal, total.meta),
                  100.0 * error);
      worst->codes_equal = std::min(worst->codes_equal, equal);
      worst->error = std::max(worst->error, std::abs(error));
    }
  }
}

int Run() {
  Worst worst;
  const std::vector<CodecCase> cases = testing::CodecCases(testing::CaseRange::kAll);
  std::string tested;
  for (const CodecBackend backend : SupportedCodecBackends()) {
    if (backend == CodecBackend::kReference) continue;
    std::printf("%s\n", ToString(backend));
    tested += std::string(tested.empty() ? "" : " and ") + ToString(backend);
    CheckAffine(cases, backend, &worst);
    CheckCrumb(cases, backend, &worst);
  }
  if (tested.empty()) {
    std::printf("this processor has no vector backend\n");
    return 77;
  }
  worst.holds &=
      worst.wrong_bytes == 0 && worst.codes_equal >= kCodesEqualMin && worst.error <= kErrorMax;
  std::printf(
      "%s: oscar bytes wrong %llu, values different at most %.4f %% (bar 0.5), crumb codes equal "
      "at "
      "least %.3f %% (bar 99.5), summed error within %.3f %% (bar 0.5)%s\n",
      tested.c_str(), static_cast<unsigned long long>(worst.wrong_bytes), 100.0 * worst.different,
      100.0 * worst.codes_equal, 100.0 * worst.error, worst.holds ? "" : ": NOT MET");
  return worst.holds ? 0 : 1;
}

}  // namespace
}  // namespace crumb

int main() { return crumb::Run(); }
