// Runs a fuzzer's inputs from files, each in a buffer of exactly its size.
//
// replay FILE...

#include "check.h"

void taupe_fuzz(const uint8_t *data, size_t size);

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        CHECK(file && !fseek(file, 0, SEEK_END));
        long size = ftell(file);
        CHECK(size >= 0);
        rewind(file);
        uint8_t *data = malloc((size_t)size);
        CHECK(data && fread(data, 1, (size_t)size, file) == (size_t)size);
        fclose(file);
        taupe_fuzz(data, (size_t)size);
        free(data);
    }
    CHECK(argc > 20);
    printf("%d inputs\n", argc - 1);
    return 0;
}
