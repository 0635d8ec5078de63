// Log levels in the header's form of 2021. A stub records the call that the header makes.

#define taupe_new_tunnel_with_log recorded
#define TAUPE_BORINGTUN_2021
#include "taupe.h"

#include "check.h"

static void (*printer)(const char *);
static uint32_t level;

struct wireguard_tunnel *recorded(const char *own, const char *peer, const char *psk,
                                  uint16_t keep_alive, uint32_t index,
                                  void (*log_printer)(const char *), uint32_t log_level) {
    CHECK(!strcmp(own, "own") && !strcmp(peer, "peer") && !psk && !keep_alive && !index);
    printer = log_printer;
    level = log_level;
    return NULL;
}

static void print(const char *line) { CHECK(!line); }

int main(void) {
    CHECK(new_tunnel("own", "peer", print, INFO) == NULL && printer == print && level == 1);
    CHECK(new_tunnel("own", "peer", print, DEB) == NULL && printer == print && level == 2);
    CHECK(new_tunnel("own", "peer", print, ALL) == NULL && printer == print && level == 3);
    // With NONE not even errors are printed, and they do not go to the shared function either.
    CHECK(new_tunnel("own", "peer", print, NONE) == NULL && printer && printer != print);
    printer("a line");
    CHECK(level == 0);
    return 0;
}
