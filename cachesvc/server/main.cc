// crumbd. Everything is in app.cc.
#include "cachesvc/server/app.h"

int main(int argc, char** argv) { return crumb::RunDaemon(argc, argv); }
