// Evaluations from and to their gRPC form. Control thread.
#include "cachesvc/server/quality_calls.h"

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/server/evaluation.h"

namespace crumb {
namespace {

void ToProto(const Evaluation& evaluation, const QualityBounds& bounds, v1::EvaluationVerdict* to) {
  v1::Evaluation* out = to->mutable_evaluation();
  out->set_model(evaluation.model);
  out->set_revision(evaluation.revision);
  if (evaluation.rotation != Sha256{}) out->set_rotation(Hex(evaluation.rotation));
  out->set_codec(ToString(evaluation.codec));
  out->set_perplexity_change(evaluation.perplexity_change);
  out->set_kl(evaluation.kl);
  out->set_tokens(evaluation.tokens);
  out->set_date(evaluation.date);
  out->set_source(evaluation.source);
  to->set_within_bounds(Within(evaluation, bounds));
}

// An evaluation says what its rotation set does to its model: both must be what they say.
absl::Status CheckRotation(const Catalog& catalog, const v1::Evaluation& request,
                           Evaluation* evaluation) {
  if (request.rotation().empty()) {
    if (evaluation->codec != CodecKind::kOscarInt2) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "rotation: oscar-int2 needs one: write the hash of the set that was used");
  }
  CRUMB_ASSIGN(const CatalogRotation found, catalog.FindRotation(request.rotation()));
  if (found.model != evaluation->model) {
    return absl::InvalidArgumentError(absl::StrCat("rotation ", request.rotation(),
                                                   " is for model ", found.model, ", not for ",
                                                   evaluation->model));
  }
  evaluation->rotation = found.hash;
  return absl::OkStatus();
}

}  // namespace

absl::Status RecordEvaluation(Catalog* catalog, const QualityBounds& bounds,
                              const v1::Evaluation& request, v1::EvaluationVerdict* reply) {
  CRUMB_ASSIGN(const CodecKind codec, ParseCodecKind(request.codec()));
  Evaluation evaluation{.model = request.model(),
                        .revision = request.revision(),
                        .rotation = {},
                        .codec = codec,
                        .perplexity_change = request.perplexity_change(),
                        .kl = request.kl(),
                        .tokens = request.tokens(),
                        .date = request.date(),
                        .source = request.source()};
  CRUMB_TRY(CheckEvaluation(evaluation));
  CRUMB_TRY(CheckRotation(*catalog, request, &evaluation));
  CRUMB_TRY(catalog->PutEvaluation(evaluation));
  ToProto(evaluation, bounds, reply);
  return absl::OkStatus();
}

void ListEvaluations(const Catalog& catalog, const QualityBounds& bounds,
                     v1::ListEvaluationsReply* reply) {
  for (const Evaluation& evaluation : catalog.evaluations()) {
    ToProto(evaluation, bounds, reply->add_evaluations());
  }
}

}  // namespace crumb
