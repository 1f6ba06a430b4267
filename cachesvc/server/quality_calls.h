// Evaluations over gRPC: record and list. On the control thread; nothing of a text becomes a path.
#ifndef CRUMB_CACHESVC_SERVER_QUALITY_CALLS_H_
#define CRUMB_CACHESVC_SERVER_QUALITY_CALLS_H_

#include "cachesvc/server/catalog.h"
#include "cachesvc/server/config.h"
#include "crumb/v1/cache.pb.h"

namespace crumb {

// Durable when it returns. INVALID_ARGUMENT names the field; NOT_FOUND: no such rotation set here.
absl::Status RecordEvaluation(Catalog* catalog, const QualityBounds& bounds,
                              const v1::Evaluation& request, v1::EvaluationVerdict* reply);
void ListEvaluations(const Catalog& catalog, const QualityBounds& bounds,
                     v1::ListEvaluationsReply* reply);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_QUALITY_CALLS_H_
