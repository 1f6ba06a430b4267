// crumbctl: see cli.h.
#include <csignal>
#include <iostream>

#include "client/cli/cli.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a failed write, not a death
  return crumb::cli::RunCrumbctl(std::vector<std::string>(argv + 1, argv + argc), std::cout,
                                 std::cerr);
}
