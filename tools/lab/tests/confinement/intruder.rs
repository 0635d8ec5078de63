//! System calls inside another process, as an attacker makes them who runs code there.
//!
//! ptrace(2) stops all threads of the process. One of them waits in a call, so an instruction that makes
//! calls is at its program counter. With other registers and a single step there, the thread makes any
//! call, with the process's credentials, filters and descriptors.

use crate::processor::{self, Registers};
use rustix::io::Errno;
use std::fs::{self, File};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use taupe_lab::process::wait_until;
use taupe_lab::{Error, Result, ensure};

/// Bytes of memory for arguments.
const ROOM: usize = 128 << 10;

/// `NT_PRSTATUS` of `linux/elf.h`: the general registers.
const GENERAL_REGISTERS: usize = 1;

const PATIENCE: Duration = Duration::from_secs(20);

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The call's result, which is not an error number.
    Returned(u64),
    /// The call failed.
    Failed(Errno),
    /// The call ended the process by this signal.
    Ended(i32),
}

/// A process whose threads are stopped. They go on when this is dropped.
pub(crate) struct Intruder {
    /// All threads. The leader is the last: the kernel reports its end after the others', and
    /// [`wait`] for it would not return while the others wait to be reported.
    threads: Vec<i32>,
    /// The thread that makes the calls, and the address of the instruction.
    caller: i32,
    instruction: u64,
    saved: Registers,
    memory: File,
    /// Memory that the process got for the calls, and its used part.
    room: u64,
    used: usize,
    has_ended: bool,
    /// ptrace(2) is for the thread that has stopped the process.
    _of_this_thread: PhantomData<*const UnixStream>,
}

impl Intruder {
    /// Stops a process.
    pub(crate) fn enter(process: u32) -> Result<Self> {
        let path = format!("/proc/{process}/mem");
        let memory = File::options().read(true).write(true).open(&path);
        let memory = memory.map_err(Error::io(path))?;
        let mut threads = stop_all(process)?;
        threads.sort_by_key(|thread| i64::from(*thread) == i64::from(process));
        let waiting = threads.iter().find_map(|thread| {
            let registers = registers(*thread).ok()?;
            let instruction = processor::is_at(&registers).into_iter().find(|at| {
                let mut found = [0; processor::CALL.len()];
                memory.read_exact_at(&mut found, *at).is_ok() && found == processor::CALL
            })?;
            Some((*thread, registers, instruction))
        });
        let (caller, saved, instruction) =
            waiting.ok_or_else(|| Error::unmet("no thread waits in a call"))?;
        let mut entered = Self {
            threads,
            caller,
            instruction,
            saved,
            memory,
            room: 0,
            used: 0,
            has_ended: false,
            _of_this_thread: PhantomData,
        };
        entered.room = entered.map_memory()?;
        Ok(entered)
    }

    /// Makes a call.
    pub(crate) fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<Outcome> {
        let changed = processor::before_call(&self.saved, self.instruction, number, arguments);
        set_registers(self.caller, &changed)?;
        ptrace(libc::PTRACE_SINGLESTEP, self.caller, 0, 0)?;
        let status = wait(self.caller)?;
        if libc::WIFSIGNALED(status) {
            self.reap();
            return Ok(Outcome::Ended(libc::WTERMSIG(status)));
        }
        let is_step = libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP;
        ensure!(is_step, "call {number}: status {status:#x}");
        let result = processor::result(&registers(self.caller)?);
        Ok(match result {
            // The range of error numbers (`MAX_ERRNO` of the kernel).
            -4095..0 => Outcome::Failed(Errno::from_raw_os_error(
                -i32::try_from(result).unwrap_or(0),
            )),
            _ => Outcome::Returned(result.cast_unsigned()),
        })
    }

    /// Makes a call that must succeed.
    pub(crate) fn succeed(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64> {
        match self.call(number, arguments)? {
            Outcome::Returned(result) => Ok(result),
            other => Err(Error::unmet(format!("call {number}: {other:?}"))),
        }
    }

    /// Writes bytes into the process's memory, and returns their address. The address is valid until
    /// [`clear`](Self::clear).
    pub(crate) fn place(&mut self, bytes: &[u8]) -> Result<u64> {
        let address = self.room + self.used as u64;
        self.used += bytes.len().next_multiple_of(16);
        ensure!(self.used <= ROOM, "{} bytes of arguments", self.used);
        let written = self.memory.write_all_at(bytes, address);
        written.map_err(Error::io("memory of the process"))?;
        Ok(address)
    }

    /// Reads bytes of the process's memory.
    pub(crate) fn read(&self, address: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let read = self.memory.read_exact_at(&mut bytes, address);
        read.map_err(Error::io("memory of the process"))?;
        Ok(bytes)
    }

    /// Frees the memory of all arguments.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Maps memory, which a packet process may do. So this also shows that calls are made.
    fn map_memory(&mut self) -> Result<u64> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let [protection, flags] = [protection, flags].map(|it| u64::from(it.cast_unsigned()));
        self.succeed(
            libc::SYS_mmap,
            [0, ROOM as u64, protection, flags, u64::MAX, 0],
        )
    }

    /// Waits for the threads of a process that has ended: until then it stays a zombie.
    fn reap(&mut self) {
        self.has_ended = true;
        for thread in self.threads.iter().filter(|it| **it != self.caller) {
            while wait(*thread).is_ok_and(|status| libc::WIFSTOPPED(status)) {}
        }
    }
}

impl Drop for Intruder {
    fn drop(&mut self) {
        if self.room != 0 && !self.has_ended {
            let _ = self.call(libc::SYS_munmap, [self.room, ROOM as u64, 0, 0, 0, 0]);
        }
        if self.has_ended {
            return;
        }
        // With the old registers the kernel repeats the call in which the thread was.
        let _ = set_registers(self.caller, &self.saved);
        for thread in &self.threads {
            // A thread that is not stopped has been killed.
            if ptrace(libc::PTRACE_DETACH, *thread, 0, 0).is_err() {
                while wait(*thread).is_ok_and(|status| libc::WIFSTOPPED(status)) {}
            }
        }
    }
}

fn threads(process: u32) -> Result<Vec<i32>> {
    let path = format!("/proc/{process}/task");
    let tasks = fs::read_dir(&path).map_err(Error::io(path))?;
    let ids = tasks
        .flatten()
        .filter_map(|task| task.file_name().to_str()?.parse().ok());
    Ok(ids.collect())
}

/// Stops all threads of a process, and returns them. A thread that answers a client starts and ends
/// at any moment, so the process is stopped once there is no further thread.
fn stop_all(process: u32) -> Result<Vec<i32>> {
    let mut stopped = Vec::new();
    wait_until("the stop of all threads", PATIENCE, || {
        let mut found = threads(process)?;
        found.retain(|thread| !stopped.contains(thread));
        for thread in &found {
            if stop(*thread)? {
                stopped.push(*thread);
            }
        }
        Ok(found.is_empty())
    })?;
    Ok(stopped)
}

/// Returns false if the thread ends instead.
fn stop(thread: i32) -> Result<bool> {
    if ptrace(libc::PTRACE_SEIZE, thread, 0, 0).is_err() {
        return Ok(false);
    }
    // It fails if the thread has ended since, which the kernel reports to its tracer.
    let _ = ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0);
    Ok(libc::WIFSTOPPED(wait(thread)?))
}

fn registers(thread: i32) -> Result<Registers> {
    let mut registers = MaybeUninit::<Registers>::zeroed();
    let mut vector = libc::iovec {
        iov_base: registers.as_mut_ptr().cast(),
        iov_len: size_of::<Registers>(),
    };
    let vector = (&raw mut vector) as usize;
    ptrace(libc::PTRACE_GETREGSET, thread, GENERAL_REGISTERS, vector)?;
    // SAFETY: the structure consists of integers, for which every value is valid, zero too.
    Ok(unsafe { registers.assume_init() })
}

fn set_registers(thread: i32, registers: &Registers) -> Result<()> {
    let mut vector = libc::iovec {
        iov_base: (&raw const *registers).cast_mut().cast(),
        iov_len: size_of::<Registers>(),
    };
    let vector = (&raw mut vector) as usize;
    ptrace(libc::PTRACE_SETREGSET, thread, GENERAL_REGISTERS, vector)
}

/// Calls ptrace(2). If the request has a structure, `data` is its address, which the caller holds
/// until this returns.
fn ptrace(request: libc::c_uint, thread: i32, address: usize, data: usize) -> Result<()> {
    // SAFETY: the requests of this file change another process, whose memory is not this one's. Those
    // for registers have the address of an iovec in `data`. It and the registers that it describes are
    // variables of the caller, with the size that the iovec has. The others ignore `address` and `data`.
    let done = unsafe { libc::ptrace(request, thread, address, data) };
    match done {
        -1 => Err(Error::io(format!("ptrace({request:#x}, {thread})"))(
            std::io::Error::last_os_error(),
        )),
        _ => Ok(()),
    }
}

/// Waits until a thread stops or ends. rustix has no `__WALL`, without which threads are not found.
fn wait(thread: i32) -> Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a variable of this function, to which the kernel writes an integer.
        let found = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
        if found == thread {
            return Ok(status);
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(Error::io(format!("waiting for {thread}"))(error));
        }
    }
}
