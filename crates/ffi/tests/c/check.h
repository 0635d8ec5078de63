// Shared by the C programs of the tests: a check that ends the program, and packets.

#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                        \
    do {                                                                   \
        if (!(what)) {                                                     \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            exit(1);                                                       \
        }                                                                  \
    } while (0)

// Writes an IPv4 or IPv6 packet of `size` bytes. `seed` determines its content.
static inline void make_packet(uint8_t *packet, size_t size, int version, uint8_t seed) {
    for (size_t i = 0; i < size; i++) packet[i] = (uint8_t)(seed + 7 * i);
    if (version == 4) {
        packet[0] = 0x45;
        packet[2] = (uint8_t)(size >> 8);
        packet[3] = (uint8_t)size;
    } else {
        packet[0] = 0x60;
        packet[4] = (uint8_t)((size - 40) >> 8);
        packet[5] = (uint8_t)(size - 40);
    }
}
