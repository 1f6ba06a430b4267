// The demo's findings as a table for people or as JSON for programs. Any thread.
#ifndef CRUMB_CLIENT_DEMO_PRINT_REPORT_H_
#define CRUMB_CLIENT_DEMO_PRINT_REPORT_H_

#include <string>

#include "client/demo/demo.h"

namespace crumb::demo {

std::string ReportTable(const Report& report);
std::string ReportJson(const Report& report);
std::string VerifyText(const VerifyReport& report);
std::string VerifyJson(const VerifyReport& report);

}  // namespace crumb::demo

#endif  // CRUMB_CLIENT_DEMO_PRINT_REPORT_H_
