// The cluster secret: 32 random bytes made at the first start, from which block keys are derived.
// Whoever loses it loses the cache, and nothing else; whoever copies it can name its pages. Never
// logged, never sent. Start-up thread.
#ifndef CRUMB_CACHESVC_SERVER_SECRET_H_
#define CRUMB_CACHESVC_SERVER_SECRET_H_

#include "cachesvc/base/keys.h"
#include "cachesvc/base/status.h"
#include "cachesvc/server/files.h"

namespace crumb {

inline constexpr char kSecretName[] = "secret";

// Reads the secret of `directory`, or makes one (0600, durable before it is used). The file is
// magic "CRUMBSEC", the 32 bytes, XXH3-64 of both. FAILED_PRECONDITION: damaged, not private, or
// not a secret: with the remedy; such a file is left as it was.
absl::StatusOr<ClusterSecret> LoadOrMakeSecret(const Directory& directory);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_SECRET_H_
