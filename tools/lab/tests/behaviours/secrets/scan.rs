//! A search of the memory of processes for secrets.

use base64ct::{Base64, Encoding};
use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use taupe_lab::{Error, Result};

/// Length of the shortest part that is searched for, in bytes. A part is found by its first
/// [`PREFIX`] bytes and then compared.
const PART: usize = 16;

const PREFIX: usize = 8;

/// The form of a secret that is stored as it is.
const PLAIN: &str = "bytes";

/// The kernel's name for the mapping of the main heap.
const HEAP: &str = "[heap]";

/// Size of a page on x86-64.
const PAGE: usize = 4096;

const ZEROS: [u8; PAGE] = [0; PAGE];

/// Memory that is read at once. Windows overlap by [`MAX_PATTERN`].
const WINDOW: usize = 1 << 20;

const MAX_PATTERN: usize = 64;

/// The bytes with which HMAC pads the key of its inner and its outer hash (RFC 2104 §2).
const PADS: [u8; 2] = [0x36, 0x5c];

/// Patterns to search for: forms in which a program may store secrets.
#[derive(Default)]
pub(super) struct Patterns {
    all: Vec<SecretForm>,
    by_prefix: HashMap<u64, Vec<usize>>,
    /// One bit for each pair of first bytes of a pattern.
    firsts: Vec<u64>,
}

struct SecretForm {
    secret: String,
    form: &'static str,
    bytes: Vec<u8>,
}

/// A part of a secret in a process's memory.
pub(super) struct Hit {
    pub(super) secret: String,
    form: &'static str,
    place: FoundAt,
}

/// FoundAt in a process's memory.
enum FoundAt {
    /// In the stack of a thread that is in a system call, so many bytes above its pointer; below it
    /// is dead stack.
    Stack(String, i64),
    /// So many bytes into a mapping.
    Mapping(String, u64),
}

impl Hit {
    /// Returns true if it is a plain copy on the heap.
    pub(super) fn is_in_place(&self) -> bool {
        let is_heap = matches!(&self.place, FoundAt::Mapping(name, _) if name == HEAP);
        is_heap && self.form == PLAIN
    }
}

impl fmt::Display for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) ", self.secret, self.form)?;
        match &self.place {
            FoundAt::Stack(thread, offset @ 0..) => {
                write!(f, "{offset} bytes up the stack of {thread}")
            }
            FoundAt::Stack(thread, offset) => {
                write!(f, "{} bytes below the stack of {thread}", -offset)
            }
            FoundAt::Mapping(name, offset) => write!(f, "{offset} bytes into {name}"),
        }
    }
}

impl Patterns {
    /// Adds a secret of 32 or more bytes: each 16 bytes of it, as they are and as a key of HMAC, and
    /// each word of 32 bits as a vector of four equal words, which is how ChaCha20 works on several
    /// blocks.
    pub(super) fn add(&mut self, secret: &str, value: &[u8]) {
        for part in value.chunks_exact(PART) {
            self.insert(secret, PLAIN, part.to_vec());
            for pad in PADS {
                let padded = part.iter().map(|byte| byte ^ pad).collect();
                self.insert(secret, "HMAC's key", padded);
            }
        }
        for word in value.chunks_exact(4) {
            self.insert(secret, "a word, four times", word.repeat(4));
        }
    }

    /// Adds the text of a key too, in hexadecimal and Base64.
    pub(super) fn add_with_text(&mut self, secret: &str, value: &[u8]) {
        self.add(secret, value);
        let hexadecimal: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
        let base64 = Base64::encode_string(value);
        for (form, text) in [("hexadecimal", hexadecimal), ("Base64", base64)] {
            for part in text.as_bytes().chunks_exact(PART) {
                self.insert(secret, form, part.to_vec());
            }
        }
    }

    fn insert(&mut self, secret: &str, form: &'static str, bytes: Vec<u8>) {
        let Some(prefix) = bytes.first_chunk::<PREFIX>() else {
            return;
        };
        let prefix = u64::from_le_bytes(*prefix);
        self.firsts.resize((1 << 16) / 64, 0);
        let first = usize::from(prefix as u16);
        self.firsts[first / 64] |= 1 << (first % 64);
        let places = self.by_prefix.entry(prefix).or_default();
        places.push(self.all.len());
        self.all.push(SecretForm {
            secret: secret.to_owned(),
            form,
            bytes,
        });
    }

    /// Calls `found` with the offset of each occurrence of a pattern in `memory`.
    fn find(&self, memory: &[u8], mut found: impl FnMut(usize, &SecretForm)) {
        let Some(firsts) = self.firsts.first_chunk::<{ (1 << 16) / 64 }>() else {
            return;
        };
        let last = memory.len().saturating_sub(PREFIX - 1);
        for start in (0..last).step_by(PAGE) {
            let end = last.min(start + PAGE);
            // No secret begins with so many zeros.
            let is_zero = memory[start..end] == ZEROS[..end - start];
            let start = if is_zero {
                end - PREFIX.min(end - start)
            } else {
                start
            };
            for offset in start..end {
                let first = usize::from(u16::from_le_bytes([memory[offset], memory[offset + 1]]));
                if firsts[first / 64] >> (first % 64) & 1 == 0 {
                    continue;
                }
                let prefix = memory[offset..]
                    .first_chunk()
                    .map(|it| u64::from_le_bytes(*it));
                let places = prefix.and_then(|prefix| self.by_prefix.get(&prefix));
                for pattern in places.into_iter().flatten().map(|place| &self.all[*place]) {
                    if memory[offset..].starts_with(&pattern.bytes) {
                        found(offset, pattern);
                    }
                }
            }
        }
    }
}

/// Searches the memory of all processes that run a program.
pub(super) fn scan(program: &Path, patterns: &Patterns) -> Result<Vec<Hit>> {
    let program = fs::canonicalize(program).map_err(Error::io("the program's path"))?;
    let mut hits = Vec::new();
    let processes = processes_of(&program)?;
    if processes.is_empty() {
        return Err(Error::unmet("no process of the program"));
    }
    for process in processes {
        scan_process(&process, patterns, &mut hits)?;
    }
    Ok(hits)
}

/// Returns the folders in `/proc` of all processes that run a program.
fn processes_of(program: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir("/proc").map_err(Error::io("/proc"))?;
    let processes = entries.flatten().map(|entry| entry.path());
    let runs = |process: &PathBuf| fs::read_link(process.join("exe")).is_ok_and(|it| it == program);
    Ok(processes.filter(runs).collect())
}

/// Searches all memory that the process can write, and the names of whose parts it lists.
fn scan_process(process: &Path, patterns: &Patterns, hits: &mut Vec<Hit>) -> Result<()> {
    let what = process.display().to_string();
    let memory = File::open(process.join("mem")).map_err(Error::io(&*what))?;
    let stacks = stack_pointers(process);
    let mut buffer = vec![0; WINDOW + MAX_PATTERN];
    for (range, name) in mappings(process)? {
        for present in present_pages(process, &range)? {
            let mut start = present.start;
            while start < present.end {
                let length = buffer.len().min((present.end - start) as usize);
                // A mapping may have gone, or end earlier.
                let Ok(length) = memory.read_at(&mut buffer[..length], start) else {
                    break;
                };
                patterns.find(&buffer[..length], |offset, pattern| {
                    // The next window begins with the end of this one.
                    if offset < WINDOW {
                        let address = start + offset as u64;
                        hits.push(Hit {
                            secret: pattern.secret.clone(),
                            form: pattern.form,
                            place: place(&range, &name, address, &stacks),
                        });
                    }
                });
                start += WINDOW as u64;
            }
        }
    }
    Ok(())
}

/// Returns the parts of a mapping that are in memory or swapped out (`proc_pid_pagemap(5)`); all
/// other pages are zeros.
fn present_pages(process: &Path, range: &Range<u64>) -> Result<Vec<Range<u64>>> {
    let page = PAGE as u64;
    let path = process.join("pagemap");
    let what = path.display().to_string();
    let pages = File::open(path).map_err(Error::io(&*what))?;
    let mut entries = vec![0; ((range.end - range.start) / page * 8) as usize];
    let length = pages.read_at(&mut entries, range.start / page * 8);
    let length = length.map_err(Error::io(what))?;
    let mut present: Vec<Range<u64>> = Vec::new();
    for (number, entry) in (0..).zip(entries[..length].chunks_exact(8)) {
        // Bits 63 and 62, little-endian.
        if entry[7] & 0xc0 == 0 {
            continue;
        }
        let start = range.start + number * page;
        match present.last_mut() {
            Some(last) if last.end == start => last.end += page,
            _ => present.push(start..start + page),
        }
    }
    Ok(present)
}

/// Returns the mappings that are readable and writable, with their names.
fn mappings(process: &Path) -> Result<Vec<(Range<u64>, String)>> {
    let path = process.join("maps");
    let text = fs::read_to_string(&path).map_err(Error::io(path.display().to_string()))?;
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let range = number(start)?..number(end)?;
        let name = words.nth(3).unwrap_or("anonymous").to_owned();
        rights.starts_with("rw").then_some((range, name))
    };
    Ok(text.lines().filter_map(parse).collect())
}

/// Returns the names and stack pointers of threads that are in a system call
/// (`proc_pid_syscall(5)`).
fn stack_pointers(process: &Path) -> Vec<(String, u64)> {
    let Ok(threads) = fs::read_dir(process.join("task")) else {
        return Vec::new();
    };
    let threads = threads.flatten().filter_map(|thread| {
        let name = fs::read_to_string(thread.path().join("comm")).ok()?;
        let call = fs::read_to_string(thread.path().join("syscall")).ok()?;
        let pointer = call.split_whitespace().rev().nth(1)?;
        let pointer = u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()?;
        Some((name.trim().to_owned(), pointer))
    });
    threads.collect()
}

/// Returns the thread in whose stack an address is, or the mapping.
fn place(range: &Range<u64>, name: &str, address: u64, stacks: &[(String, u64)]) -> FoundAt {
    match stacks.iter().find(|(_, pointer)| range.contains(pointer)) {
        Some((thread, pointer)) => {
            FoundAt::Stack(thread.clone(), address.wrapping_sub(*pointer) as i64)
        }
        None => FoundAt::Mapping(name.to_owned(), address - range.start),
    }
}
