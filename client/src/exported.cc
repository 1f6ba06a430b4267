// The shared library's own translation unit: everything it shows comes from crumb::client's
// archive.
#include "crumb/client.h"

namespace crumb::client {

// A shared library made of archives alone would have no language for its linker.
CRUMB_API const char* LibraryName();
const char* LibraryName() { return "crumb_client"; }

}  // namespace crumb::client
