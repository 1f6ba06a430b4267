// Whole files, bounded, with errors that name the file and the remedy.
#ifndef CRUMB_CLIENT_CLI_FILE_IO_H_
#define CRUMB_CLIENT_CLI_FILE_IO_H_

#include <cstdint>
#include <string>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb::cli {

// "-" is standard input. INVALID_ARGUMENT when it cannot be read or is larger than `bytes_max`.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t bytes_max);
// "-" is standard output. Through a temporary file beside it and a rename: whole or not at all.
absl::Status WriteFile(const std::string& path, Bytes content);

// Standard output is a pipe whose reader went, as `| head` does.
bool ReaderIsGone();

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_FILE_IO_H_
