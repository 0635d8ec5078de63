//! Fuzzing of the C interface: the input selects a sequence of calls. Each buffer has exactly the
//! size that is passed, so that AddressSanitizer finds accesses beyond it.

use core::ptr::null;
use std::collections::VecDeque;

use super::*;

/// Queued datagrams for each of the two tunnels, at most.
const KEPT: usize = 16;
/// The private keys of the two tunnels (RFC 7748, section 6.1).
const KEYS: [&core::ffi::CStr; 2] = [
    c"77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
    c"5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
];

/// The rest of the input, which ends with endless zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// Returns a size that is mostly small, and at times up to 2 KiB.
    fn size(&mut self) -> usize {
        match self.byte() {
            byte @ 0..=199 => usize::from(byte),
            byte => usize::from(byte - 199) * 36 + usize::from(self.byte() % 36),
        }
    }

    /// Returns a buffer of exactly `size` bytes on the heap.
    fn bytes(&mut self, size: usize) -> Box<[u8]> {
        let taken = size.min(self.0.len()).min(64);
        let mut bytes = self.0[..taken].to_vec();
        self.0 = &self.0[taken..];
        bytes.resize(size, 0x45);
        bytes.into()
    }
}

fn check(result: wireguard_result, dst: usize) -> usize {
    match result.op {
        result_type::WIREGUARD_DONE => assert_eq!(result.size, 0),
        result_type::WIREGUARD_ERROR => {
            assert!(
                result.size <= 16 || (1000..=1001).contains(&result.size),
                "{result:?}"
            );
        }
        _ => assert!(result.size <= dst && result.size > 0, "{result:?}"),
    }
    match result.op {
        result_type::WRITE_TO_NETWORK => result.size,
        _ => 0,
    }
}

/// Runs one input, for callers in C (scripts/sanitize). A panic ends the process.
///
/// # Safety
/// `data` is NULL, or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_fuzz(data: *const u8, size: usize) {
    // SAFETY: the caller guarantees the bytes.
    c_surface(unsafe { boundary::source(data, size) }.unwrap_or_default());
}

/// Runs one input.
///
/// # Panics
/// If a call returns a result that it must not return.
pub fn c_surface(data: &[u8]) {
    let mut input = Input(data);
    let public = |private: &core::ffi::CStr| {
        let key = key::parse(private.to_bytes()).expect("a key");
        let public = default_provider().dh.public(&key);
        CString::new(key::to_hex(&public).as_str()).expect("no NUL")
    };
    let publics = KEYS.map(public);
    let make = |own: usize, index: u8| {
        let (private, peer) = (KEYS[own].as_ptr(), publics[1 - own].as_ptr());
        // SAFETY: strings that end with a NUL.
        let tunnel = unsafe { new_tunnel(private, peer, null(), 0, index.into()) };
        assert!(!tunnel.is_null());
        tunnel
    };
    let mut tunnels = [make(0, 1), make(1, 2)];
    let mut wires: [VecDeque<Vec<u8>>; 2] = Default::default();

    for _ in 0..200 {
        if input.0.is_empty() {
            break;
        }
        let what = input.byte();
        let own = usize::from(what & 1);
        let tunnel = if what & 0x80 != 0 && what & 0x40 != 0 && what & 0x20 != 0 {
            null()
        } else {
            tunnels[own].cast_const()
        };
        let room = match input.byte() {
            byte @ 0..=127 => 1500 + usize::from(byte),
            _ => input.size(),
        };
        let mut dst = vec![0; room].into_boxed_slice();
        let (to, space) = (dst.as_mut_ptr(), room as u32);
        let mut sent = 0;
        match what >> 1 & 15 {
            0 | 1 => {
                let size = input.size();
                let mut src = input.bytes(size);
                if size >= 20 {
                    src[0] = 0x45;
                    src[2..4].copy_from_slice(&(size as u16).to_be_bytes());
                }
                // SAFETY: the tunnel is one or NULL, both buffers are so long.
                sent = check(
                    unsafe { wireguard_write(tunnel, src.as_ptr(), size as u32, to, space) },
                    room,
                );
            }
            2..=5 => {
                let mut src = wires[own].pop_front().unwrap_or_default();
                let flips = input.byte();
                if flips & 3 == 3 && !src.is_empty() {
                    let at = usize::from(input.byte()) % src.len();
                    src[at] ^= input.byte();
                }
                if flips & 12 == 12 {
                    src.truncate(input.size());
                }
                if flips & 48 == 48 {
                    wires[own].push_back(src.clone());
                }
                let src = src.into_boxed_slice();
                let from = taupe_address {
                    version: 4 + (flips & 64) / 32,
                    port: 1,
                    ip: [flips; 16],
                    scope: 0,
                };
                // SAFETY: as above, and an address.
                let result = unsafe {
                    if flips & 128 == 0 {
                        wireguard_read(tunnel, src.as_ptr(), src.len() as u32, to, space)
                    } else {
                        taupe_read_from(tunnel, &from, src.as_ptr(), src.len() as u32, to, space)
                    }
                };
                sent = check(result, room);
            }
            6 => {
                let size = input.size();
                let src = input.bytes(size);
                // SAFETY: as above.
                sent = check(
                    unsafe { wireguard_read(tunnel, src.as_ptr(), size as u32, to, space) },
                    room,
                );
            }
            // SAFETY: as above.
            7 => sent = check(unsafe { wireguard_tick(tunnel, to, space) }, room),
            8 => {
                // SAFETY: as above.
                sent = check(
                    unsafe { wireguard_force_handshake(tunnel, to, space) },
                    room,
                );
            }
            9 => {
                let size = input.size();
                // SAFETY: as above.
                sent = check(
                    unsafe { taupe_write_in_place(tunnel, to, size as u32, space) },
                    room,
                );
            }
            10 => {
                let src = wires[own].pop_front().unwrap_or_default();
                let size = src.len().min(room);
                dst[..size].copy_from_slice(&src[..size]);
                let to = dst.as_mut_ptr();
                // SAFETY: as above; no address.
                let result = unsafe { taupe_read_in_place(tunnel, null(), to, size as u32, space) };
                sent = check(result, room);
            }
            11 => {
                let (count, stride) = (usize::from(input.byte() % 20), input.size());
                let sizes: Box<[usize]> = (0..count).map(|_| input.size()).collect();
                let last = sizes.last().copied().unwrap_or(0);
                let length = stride * count.saturating_sub(1) + last;
                let src = input.bytes(length);
                let dst_stride = input.size();
                let mut dst = vec![0; dst_stride * count].into_boxed_slice();
                let mut sealed = vec![0; count].into_boxed_slice();
                // SAFETY: all buffers are so long.
                let result = unsafe {
                    taupe_write_batch(
                        tunnel,
                        src.as_ptr(),
                        stride,
                        sizes.as_ptr(),
                        count,
                        dst.as_mut_ptr(),
                        dst_stride,
                        sealed.as_mut_ptr(),
                    )
                };
                if result.op == result_type::WRITE_TO_NETWORK {
                    assert!(result.size <= count);
                    for (i, size) in sealed[..result.size].iter().enumerate() {
                        wires[1 - own].push_back(dst[i * dst_stride..][..*size].to_vec());
                    }
                }
            }
            12 => {
                let batch: Vec<_> = wires[own].drain(..).collect();
                let stride =
                    batch.iter().map(Vec::len).max().unwrap_or(0) + usize::from(input.byte());
                let sizes: Box<[usize]> = batch.iter().map(Vec::len).collect();
                let count = sizes.len();
                let length = stride * count.saturating_sub(1) + sizes.last().copied().unwrap_or(0);
                let mut buffer = vec![0; length].into_boxed_slice();
                for (i, datagram) in batch.iter().enumerate() {
                    buffer[i * stride..][..datagram.len()].copy_from_slice(datagram);
                }
                let mut results =
                    vec![wireguard_result::error(Error::Internal); count].into_boxed_slice();
                // SAFETY: all buffers are so long.
                let result = unsafe {
                    taupe_read_batch(
                        tunnel,
                        null(),
                        buffer.as_mut_ptr(),
                        stride,
                        sizes.as_ptr(),
                        count,
                        results.as_mut_ptr(),
                    )
                };
                if result.op == result_type::WIREGUARD_DONE {
                    assert!(result.size <= count);
                    for (result, size) in results.iter().zip(&sizes) {
                        check(*result, size.saturating_sub(crate::OVERHEAD));
                    }
                }
            }
            13 => {
                let mode = u32::from(input.byte() % 5);
                let latched = input.byte() & 1 == 1;
                // SAFETY: no keys.
                unsafe { taupe_set_post_quantum(tunnel, mode, null(), null(), 0, latched) };
                // SAFETY: a string or NULL.
                unsafe { taupe_set_preshared_key(tunnel, [null(), publics[0].as_ptr()][own]) };
            }
            14 => {
                let seconds = input.byte().into();
                // SAFETY: the tunnel is one or NULL.
                unsafe {
                    taupe_set_keep_alive(tunnel, seconds);
                    assert!(taupe_next_timeout(tunnel) >= -1);
                    assert!(wireguard_stats(tunnel).estimated_loss <= 1.0);
                    assert!(taupe_get_counters(tunnel).waiting <= 256);
                }
            }
            _ => {
                let text = input.size();
                let mut text = input.bytes(text).into_vec();
                text.push(0);
                // SAFETY: strings that end with a NUL; the tunnel is this function's, and is
                // not used again.
                unsafe {
                    let odd = text.as_ptr().cast();
                    check_base64_encoded_x25519_key(odd);
                    let tunnel = new_tunnel(KEYS[0].as_ptr(), odd, odd, 1, 2);
                    tunnel_free(tunnel);
                    if what & 64 != 0 {
                        tunnel_free(tunnels[own]);
                        tunnels[own] = make(own, what);
                    }
                }
            }
        }
        if sent > 0 {
            wires[1 - own].push_back(dst[..sent].to_vec());
        }
        for wire in &mut wires {
            while wire.len() > KEPT {
                wire.pop_front();
            }
        }
    }
    for tunnel in tunnels {
        // SAFETY: it is this function's, and not used again.
        unsafe { tunnel_free(tunnel) };
    }
}
