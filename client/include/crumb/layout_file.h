// Layout files (docs/crumbctl.md): the YAML form of a LayoutSpec, as `crumbctl layout add` reads
// it. Unknown keys, wrong types and sizes out of range are errors that name the line.
#ifndef CRUMB_LAYOUT_FILE_H_
#define CRUMB_LAYOUT_FILE_H_

#include <string>
#include <string_view>

#include "crumb/types.h"

namespace crumb::client {

// `name` is for messages only.
CRUMB_API Status ParseLayout(std::string_view yaml, std::string_view name, LayoutSpec* out);
CRUMB_API Status LoadLayoutFile(const std::string& path, LayoutSpec* out);

}  // namespace crumb::client

#endif  // CRUMB_LAYOUT_FILE_H_
