// Why a daemon answers "mismatch" to a page put in packed or page form: what differs between the
// file and the layout, as far as the two can tell, and the remedy. Never decides anything: the
// daemon's answer stands. Any thread.
#ifndef CRUMB_CLIENT_CLI_PUT_MISMATCH_H_
#define CRUMB_CLIENT_CLI_PUT_MISMATCH_H_

#include <cstdint>
#include <string>

#include "cachesvc/base/types.h"
#include "crumb/types.h"

namespace crumb::cli {

// One line, without a full stop. REQUIRES: `part` is a part of `layout`. `token_count` is what was
// asked for, 0 = not said.
std::string ExplainMismatch(const client::Layout& layout, uint32_t part, uint32_t token_count,
                            client::Form form, Bytes file);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_PUT_MISMATCH_H_
