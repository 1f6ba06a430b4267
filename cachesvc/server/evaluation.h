// Evaluations: what a run of a model measured with packed pages in place of raw ones. The evidence
// on which 2-bit codecs are used without codec.int2: accept. Plain data and pure functions; any
// thread.
#ifndef CRUMB_CACHESVC_SERVER_EVALUATION_H_
#define CRUMB_CACHESVC_SERVER_EVALUATION_H_

#include <cstdint>
#include <string>

#include "cachesvc/base/hash.h"
#include "cachesvc/base/status.h"
#include "cachesvc/server/config.h"
#include "gpu/codec/descriptor.h"

namespace crumb {

struct Evaluation {
  std::string model;
  std::string revision;
  Sha256 rotation{};  // of the rotation set; zero: the codec uses none
  CodecKind codec = CodecKind::kRaw;
  double perplexity_change = 0;  // relative to raw pages: 0.005 is half a per cent worse
  double kl = 0;                 // mean KL divergence from raw pages, nats a token
  uint64_t tokens = 0;           // that were scored
  std::string date;              // YYYY-MM-DD
  std::string source;            // what was run, and where its report is
};

// INVALID_ARGUMENT names the field and the remedy.
absl::Status CheckEvaluation(const Evaluation& evaluation);

bool Within(const Evaluation& evaluation, const QualityBounds& bounds);

// "perplexity +0.5 %, KL 0.0071 nats a token over 16384 tokens (2026-01-31)"
std::string Describe(const Evaluation& evaluation);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_EVALUATION_H_
