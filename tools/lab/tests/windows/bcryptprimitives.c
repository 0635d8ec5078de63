// The one function of Windows's bcryptprimitives.dll that Rust's library needs, for a Wine that
// has no such file. For tests alone.
#include <windows.h>
#include <ntsecapi.h>

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T length) {
    return length <= 0xffffffff && RtlGenRandom(data, (ULONG)length);
}
