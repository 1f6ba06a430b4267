// The cluster secret's file. Start-up thread; blocking.
#include "cachesvc/server/secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"

namespace crumb {
namespace {

constexpr char kMagic[] = "CRUMBSEC";
constexpr size_t kMagicBytes = 8;
constexpr size_t kFileBytes = kMagicBytes + kClusterSecretBytes + sizeof(uint64_t);

absl::Status Damaged(const Directory& directory, absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat(directory.path(), "/", kSecretName, ": ", what,
                   ": restore it from a copy; or remove it together with nvme/, which starts an "
                   "empty cache"));
}

absl::StatusOr<ClusterSecret> Parse(const Directory& directory, const std::string& content) {
  if (content.size() != kFileBytes) return Damaged(directory, "wrong length");
  ByteReader reader(AsBytes(content));
  const Bytes magic = reader.ReadBytes(kMagicBytes);
  ClusterSecret secret;
  secret.bytes = reader.ReadArray<kClusterSecretBytes>();
  const auto checksum = reader.Read<uint64_t>();
  if (!std::equal(magic.begin(), magic.end(), kMagic)) return Damaged(directory, "not a secret");
  if (checksum != Xxh3(AsBytes(content).subspan(0, kFileBytes - sizeof(uint64_t)))) {
    return Damaged(directory, "checksum mismatch");
  }
  if (secret.bytes == ClusterSecret{}.bytes) return Damaged(directory, "all zero");
  return secret;
}

absl::StatusOr<ClusterSecret> Make(const Directory& directory) {
  ClusterSecret secret;
  size_t have = 0;
  while (have < secret.bytes.size()) {
    const ssize_t got = getrandom(secret.bytes.data() + have, secret.bytes.size() - have, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return FileError("getrandom", "no random bytes", errno);
    have += static_cast<size_t>(got);
  }
  ByteWriter writer;
  writer.WriteBytes({reinterpret_cast<const uint8_t*>(kMagic), kMagicBytes});
  writer.WriteBytes(secret.bytes);
  writer.Write<uint64_t>(Xxh3(AsBytes(writer.str())));
  CRUMB_TRY(directory.Create(kSecretName, AsBytes(writer.str())));
  return secret;
}

}  // namespace

absl::StatusOr<ClusterSecret> LoadOrMakeSecret(const Directory& directory) {
  const absl::StatusOr<std::string> content = directory.Read(kSecretName, kFileBytes * 2);
  if (absl::IsNotFound(content.status())) return Make(directory);
  if (!content.ok()) return content.status();
  CRUMB_ASSIGN(const UniqueFd file, directory.OpenFile(kSecretName, O_RDONLY));
  struct stat info {};
  if (fstat(file.get(), &info) != 0 || (info.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory.path(), "/", kSecretName, ": others may read it: chmod 600 it"));
  }
  return Parse(directory, *content);
}

}  // namespace crumb
