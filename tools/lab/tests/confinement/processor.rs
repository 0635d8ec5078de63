//! Registers of a stopped thread, for each processor.

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{CALL, before_call, is_at, result};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{CALL, before_call, is_at, result};

/// The registers, as `PTRACE_GETREGSET` returns them.
pub(crate) type Registers = libc::user_regs_struct;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::Registers;

    /// The instruction `syscall`.
    pub(crate) const CALL: &[u8] = &[0x0f, 0x05];

    /// Returns the addresses at which the instruction may be if the thread waits in a call. The
    /// program counter is behind it.
    pub(crate) fn is_at(registers: &Registers) -> [u64; 1] {
        [registers.rip - 2]
    }

    /// Returns the registers with which the instruction at `at` makes a call.
    pub(crate) fn before_call(
        registers: &Registers,
        at: u64,
        number: i64,
        arguments: [u64; 6],
    ) -> Registers {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        Registers {
            rip: at,
            rax: number.cast_unsigned(),
            // No call is interrupted, so the kernel repeats none.
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..*registers
        }
    }

    /// Returns the result of the call.
    pub(crate) fn result(registers: &Registers) -> i64 {
        registers.rax.cast_signed()
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::Registers;

    /// The instruction `svc #0`.
    pub(crate) const CALL: &[u8] = &[0x01, 0x00, 0x00, 0xd4];

    /// Returns the addresses at which the instruction may be if the thread waits in a call. The
    /// kernel sets the program counter back before it stops a thread whose call it will repeat.
    pub(crate) fn is_at(registers: &Registers) -> [u64; 2] {
        [registers.pc, registers.pc - 4]
    }

    /// Returns the registers with which the instruction at `at` makes a call.
    pub(crate) fn before_call(
        registers: &Registers,
        at: u64,
        number: i64,
        arguments: [u64; 6],
    ) -> Registers {
        let mut changed = *registers;
        changed.pc = at;
        changed.regs[..6].copy_from_slice(&arguments);
        changed.regs[8] = number.cast_unsigned();
        changed
    }

    /// Returns the result of the call.
    pub(crate) fn result(registers: &Registers) -> i64 {
        registers.regs[0].cast_signed()
    }
}
