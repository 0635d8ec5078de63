//! The native methods of boringtun's class for Java, `com.cloudflare.app.boringtun.BoringTunJNI`,
//! and further methods. `java/` has the class and documents each method.
//!
//! The library also exports the C functions of `taupe-ffi`.
//!
//! Java identifies a tunnel by a number, not by a pointer. Every call looks the number up, so a
//! number that is wrong or that belongs to a freed tunnel is an error. Bytes are copied to and from
//! Java's memory, because a program may use its buffers during the call. Copies of keys are erased;
//! those in the virtual machine belong to the program.
// SAFETY of each `export_name`: it is the name of the method, mangled by the rules of the Java
// Native Interface ("Resolving Native Method Names"). No other symbol of a process has that name,
// and Java calls it with the arguments that the class declares.

use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicI64, Ordering};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};

use jni::errors::{LogErrorAndDefault, Result as JavaResult};
use jni::objects::{JByteArray, JByteBuffer, JClass, JString};
use jni::strings::JNIStr;
use jni::sys::{jboolean, jint, jlong, jshort};
use jni::{Env, EnvUnowned};
use taupe::c::{wireguard_result, wireguard_tunnel};
use taupe::crypto::default_provider;
use taupe::key::{self, Key};
use taupe::{
    Config, Error, Numbering, Outcome, PresharedKey, PrivateKey, PublicKey, Result, Tunnel,
};
use zeroize::Zeroizing;

/// Upper bound of what a call reads or writes: more than the longest IP packet with WireGuard's
/// overhead.
const MAX_SIZE: usize = 1 << 17;
/// Characters of a key in hexadecimal, its longest form.
const LONGEST_KEY: usize = 64;

/// The tunnels by number. No number is used twice.
static TUNNELS: RwLock<BTreeMap<jlong, Arc<wireguard_tunnel>>> = RwLock::new(BTreeMap::new());
static NEXT_NUMBER: AtomicI64 = AtomicI64::new(1);

thread_local! {
    /// Buffers for bytes from Java and to Java.
    static BUFFERS: Cell<(Vec<u8>, Vec<u8>)> = Cell::default();
}

/// `byte[] x25519_secret_key()`
#[unsafe(export_name = "Java_com_cloudflare_app_boringtun_BoringTunJNI_x25519_1secret_1key")]
pub extern "system" fn x25519_secret_key<'c>(
    env: EnvUnowned<'c>,
    _class: JClass<'c>,
) -> JByteArray<'c> {
    method(env, |env| {
        env.byte_array_from_slice(taupe::random_secret().expose())
    })
}

/// `byte[] x25519_public_key(byte[] secretKey)`
#[unsafe(export_name = "Java_com_cloudflare_app_boringtun_BoringTunJNI_x25519_1public_1key")]
pub extern "system" fn x25519_public_key<'c>(
    env: EnvUnowned<'c>,
    _class: JClass<'c>,
    secret_key: JByteArray<'c>,
) -> JByteArray<'c> {
    with_key(env, &secret_key, |env, key| {
        env.byte_array_from_slice(&default_provider().dh.public(key))
    })
}

/// `String x25519_key_to_hex(byte[] key)`
#[unsafe(export_name = "Java_com_cloudflare_app_boringtun_BoringTunJNI_x25519_1key_1to_1hex")]
pub extern "system" fn x25519_key_to_hex<'c>(
    env: EnvUnowned<'c>,
    _class: JClass<'c>,
    key: JByteArray<'c>,
) -> JString<'c> {
    with_key(env, &key, |env, key| string(env, &key::to_hex(key)))
}

/// `String x25519_key_to_base64(byte[] key)`
#[unsafe(export_name = "Java_com_cloudflare_app_boringtun_BoringTunJNI_x25519_1key_1to_1base64")]
pub extern "system" fn x25519_key_to_base64<'c>(
    env: EnvUnowned<'c>,
    _class: JClass<'c>,
    key: JByteArray<'c>,
) -> JString<'c> {
    with_key(env, &key, |env, key| string(env, &key::to_base64(key)))
}

/// `long new_tunnel(String secretKey, String publicKey, String presharedKey, short keepAlive,
/// int index)`
#[unsafe(export_name = "Java_com_cloudflare_app_boringtun_BoringTunJNI_new_1tunnel")]
pub extern "system" fn new_tunnel<'c>(
    env: EnvUnowned<'c>,
    _class: JClass<'c>,
    secret_key: JString<'c>,
    public_key: JString<'c>,
    preshared_key: JString<'c>,
    keep_alive: jshort,
    index: jint,
) -> jlong {
    method(env, |env| {
        let preshared_key = if preshared_key.is_null() {
            Some(PresharedKey::NONE)
        } else {
            parse(env, &preshared_key).map(|key| PresharedKey::new(*key))
        };
        let private_key = parse(env, &secret_key).and_then(|key| PrivateKey::new(*key));
        let public_key = parse(env, &public_key).map(|key| PublicKey(*key));
        let (Some(private_key), Some(public_key), Some(preshared_key)) =
            (private_key, public_key, preshared_key)
        else {
            return Ok(0);
        };
        // Java has no unsigned numbers, so the bits of signed ones are reinterpreted.
        let tunnel = Tunnel::new(Config {
            private_key,
            public_key,
            preshared_key,
            keepalive: keep_alive.cast_unsigned(),
            index: index.cast_unsigned(),
            sink: None,
        });
        Ok(tunnel.map_or(0, register))
    })
}

/// `void tunnel_free(long tunnel)`
#[unsafe(export_name = "Java_com_cloudflare_app_boringtun_BoringTunJNI_tunnel_1free")]
pub extern "system" fn tunnel_free<'c>(env: EnvUnowned<'c>, _class: JClass<'c>, tunnel: jlong) {
    method(env, |_| {
        let mut tunnels = TUNNELS.write().unwrap_or_else(PoisonError::into_inner);
        let removed = tunnels.remove(&tunnel);
        drop(tunnels);
        drop(removed);
        Ok(())
    });
}

/// `boolean set_numbering(long tunnel, int numbering)`
#[unsafe(export_name = "Java_com_cloudflare_app_boringtun_BoringTunJNI_set_1numbering")]
pub extern "system" fn set_numbering<'c>(
    env: EnvUnowned<'c>,
    _class: JClass<'c>,
    tunnel: jlong,
    numbering: jint,
) -> jboolean {
    method(env, |_| {
        let numbering = u32::try_from(numbering).ok().and_then(Numbering::of);
        let chosen = find(tunnel).zip(numbering);
        Ok(chosen
            .map(|(tunnel, numbering)| tunnel.set_numbering(numbering))
            .is_some())
    })
}

/// `int wireguard_write(long tunnel, byte[] src, int srcSize, ByteBuffer dst, int dstSize,
/// ByteBuffer op)`
#[unsafe(export_name = "Java_com_cloudflare_app_boringtun_BoringTunJNI_wireguard_1write")]
pub extern "system" fn wireguard_write<'c>(
    env: EnvUnowned<'c>,
    _class: JClass<'c>,
    tunnel: jlong,
    src: JByteArray<'c>,
    src_size: jint,
    dst: JByteBuffer<'c>,
    dst_size: jint,
    op: JByteBuffer<'c>,
) -> jint {
    let buffers = Buffers {
        src: Some((src, src_size)),
        dst: (dst, dst_size),
        op,
    };
    method(env, |env| Ok(buffers.call(env, tunnel, Tunnel::write)))
}

/// `int wireguard_read(long tunnel, byte[] src, int srcSize, ByteBuffer dst, int dstSize,
/// ByteBuffer op)`
#[unsafe(export_name = "Java_com_cloudflare_app_boringtun_BoringTunJNI_wireguard_1read")]
pub extern "system" fn wireguard_read<'c>(
    env: EnvUnowned<'c>,
    _class: JClass<'c>,
    tunnel: jlong,
    src: JByteArray<'c>,
    src_size: jint,
    dst: JByteBuffer<'c>,
    dst_size: jint,
    op: JByteBuffer<'c>,
) -> jint {
    let buffers = Buffers {
        src: Some((src, src_size)),
        dst: (dst, dst_size),
        op,
    };
    method(env, |env| {
        Ok(buffers.call(env, tunnel, |it, src, dst| it.read(None, src, dst)))
    })
}

/// `int wireguard_tick(long tunnel, ByteBuffer dst, int dstSize, ByteBuffer op)`
#[unsafe(export_name = "Java_com_cloudflare_app_boringtun_BoringTunJNI_wireguard_1tick")]
pub extern "system" fn wireguard_tick<'c>(
    env: EnvUnowned<'c>,
    _class: JClass<'c>,
    tunnel: jlong,
    dst: JByteBuffer<'c>,
    dst_size: jint,
    op: JByteBuffer<'c>,
) -> jint {
    let buffers = Buffers {
        src: None,
        dst: (dst, dst_size),
        op,
    };
    method(env, |env| {
        Ok(buffers.call(env, tunnel, |it, _, dst| it.tick(dst)))
    })
}

/// `int wireguard_force_handshake(long tunnel, ByteBuffer dst, int dstSize, ByteBuffer op)`
#[unsafe(export_name = "Java_com_cloudflare_app_boringtun_BoringTunJNI_wireguard_1force_1handshake")]
pub extern "system" fn wireguard_force_handshake<'c>(
    env: EnvUnowned<'c>,
    _class: JClass<'c>,
    tunnel: jlong,
    dst: JByteBuffer<'c>,
    dst_size: jint,
    op: JByteBuffer<'c>,
) -> jint {
    let buffers = Buffers {
        src: None,
        dst: (dst, dst_size),
        op,
    };
    method(env, |env| {
        Ok(buffers.call(env, tunnel, |it, _, dst| it.force_handshake(dst)))
    })
}

/// Runs the body of a method; returns 0, false or null if it fails or panics.
fn method<'c, T: Default>(
    mut env: EnvUnowned<'c>,
    body: impl FnOnce(&mut Env<'c>) -> JavaResult<T>,
) -> T {
    env.with_env(body).resolve::<LogErrorAndDefault>()
}

/// Runs the body of a method with a key; returns null if the array is not one.
fn with_key<'c, T: Default>(
    env: EnvUnowned<'c>,
    key: &JByteArray<'c>,
    make: impl FnOnce(&mut Env<'c>, &Key) -> JavaResult<T>,
) -> T {
    method(env, |env| match key_of(env, key) {
        Some(key) => make(env, &key),
        None => Ok(T::default()),
    })
}

/// Stores a tunnel, and returns its number.
fn register(tunnel: Tunnel) -> jlong {
    let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut tunnels = TUNNELS.write().unwrap_or_else(PoisonError::into_inner);
    tunnels.insert(number, Arc::new(wireguard_tunnel::new(tunnel)));
    number
}

fn find(number: jlong) -> Option<Arc<wireguard_tunnel>> {
    let tunnels = TUNNELS.read().unwrap_or_else(PoisonError::into_inner);
    tunnels.get(&number).cloned()
}

/// Reads a key from an array. Returns `None` for null, and for any other length than 32 bytes.
fn key_of(env: &Env<'_>, array: &JByteArray<'_>) -> Option<Key> {
    let mut key = Key::default();
    let is_key = !array.is_null() && array.len(env).ok()? == key.len();
    if is_key {
        read(env, array, key.as_mut_slice()).ok()?;
    }
    is_key.then_some(key)
}

/// Parses a key from a string. The string is read into memory that is erased. GetStringUTFChars
/// would leave a copy.
fn parse(env: &Env<'_>, text: &JString<'_>) -> Option<Key> {
    if text.is_null() {
        return None;
    }
    let mut units = Zeroizing::new([0_u16; LONGEST_KEY]);
    let mut bytes = Zeroizing::new([0_u8; LONGEST_KEY]);
    let (raw, string) = (env.get_raw(), text.as_raw());
    // SAFETY: the method that received this environment and this string has not returned, and the
    // string is not null.
    let length = unsafe { ((**raw).v1_1.GetStringLength)(raw, string) };
    let count = usize::try_from(length).ok()?;
    let destination = units.get_mut(..count)?.as_mut_ptr();
    // SAFETY: as above. The call asks for all `length` units of the string, and `units` has room for
    // them.
    unsafe { ((**raw).v1_2.GetStringRegion)(raw, string, 0, length, destination) };
    for (byte, unit) in bytes.iter_mut().zip(&units[..count]) {
        *byte = u8::try_from(*unit).ok()?;
    }
    key::parse(&bytes[..count])
}

/// Returns a Java string. The copy that it is made from is erased.
fn string<'c>(env: &mut Env<'c>, text: &str) -> JavaResult<JString<'c>> {
    let mut own = Zeroizing::new(Vec::with_capacity(text.len() + 1));
    own.extend_from_slice(text.as_bytes());
    own.push(0);
    let own = CStr::from_bytes_with_nul(&own).ok();
    match own.and_then(JNIStr::from_cstr) {
        Some(own) => JString::from_jni_str(env, own),
        None => Ok(JString::default()),
    }
}

/// Copies the first bytes of an array, which is at least as long as `to`.
fn read(env: &Env<'_>, array: &JByteArray<'_>, to: &mut [u8]) -> JavaResult<()> {
    let (address, length) = (to.as_mut_ptr().cast::<i8>(), to.len());
    // SAFETY: these are the bytes of `to` with the type that Java uses (`i8` has the same layout).
    // `to` is borrowed mutably and shadowed, so nobody else uses them while this slice lives.
    let to = unsafe { core::slice::from_raw_parts_mut(address, length) };
    array.get_region(env, 0, to)
}

/// The arguments of a method besides the tunnel.
struct Buffers<'c> {
    src: Option<(JByteArray<'c>, jint)>,
    dst: (JByteBuffer<'c>, jint),
    op: JByteBuffer<'c>,
}

/// A direct buffer: Java's memory outside its heap.
struct Direct {
    address: *mut u8,
    size: usize,
}

impl Direct {
    /// Returns the first `size` bytes of a direct buffer, or all of it if it is shorter. `None` for
    /// null and for buffers on Java's heap.
    fn new(env: &Env<'_>, buffer: &JByteBuffer<'_>, size: usize) -> Option<Self> {
        let address = env.get_direct_buffer_address(buffer).ok()?;
        let capacity = env.get_direct_buffer_capacity(buffer).ok()?;
        let size = size.min(capacity);
        (!address.is_null()).then_some(Self { address, size })
    }

    /// Writes `bytes` to the start of the buffer, and truncates them if it is shorter.
    ///
    /// # Safety
    /// The buffer still exists: the method that received it has not returned.
    unsafe fn write(&self, bytes: &[u8]) {
        let count = bytes.len().min(self.size);
        // SAFETY: the buffer has `size` bytes, as the caller guarantees and GetDirectBufferAddress
        // specifies. They are Java's memory, so no Rust reference to them exists, and `bytes` does
        // not overlap them. A program that reads them meanwhile sees a mix of old and new bytes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.address, count) };
    }
}

impl Buffers<'_> {
    /// Calls a tunnel, writes the operation to the buffer `op` and returns the size. Does nothing
    /// and returns 0 if there is no such buffer.
    fn call(
        &self,
        env: &Env<'_>,
        tunnel: jlong,
        call: impl FnOnce(&Tunnel, &[u8], &mut [u8]) -> Result,
    ) -> jint {
        let Some(op) = Direct::new(env, &self.op, 1).filter(|op| op.size == 1) else {
            return 0;
        };
        let called = catch_unwind(AssertUnwindSafe(|| {
            let it = find(tunnel)?;
            Some(it.call(|tunnel| self.run(env, tunnel, call)))
        }));
        let result = match called {
            Ok(Some(result)) => result,
            Ok(None) => wireguard_result::error(Error::InvalidArgument),
            Err(_) => wireguard_result::error(Error::Internal),
        };
        // SAFETY: the method that received the buffer has not returned.
        unsafe { op.write(&[result.op as u8]) };
        result.size.try_into().unwrap_or(jint::MAX)
    }

    fn run(
        &self,
        env: &Env<'_>,
        tunnel: &Tunnel,
        call: impl FnOnce(&Tunnel, &[u8], &mut [u8]) -> Result,
    ) -> Result {
        let (dst, room) = &self.dst;
        let room = usize::try_from(*room).unwrap_or_default().min(MAX_SIZE);
        let dst = Direct::new(env, dst, room).ok_or(Error::DestinationBufferTooSmall)?;
        let (mut from, mut to) = BUFFERS.take();
        from.clear();
        if let Some((src, size)) = &self.src {
            let size = usize::try_from(*size).map_err(|_| Error::InvalidArgument)?;
            if size > MAX_SIZE {
                return Err(Error::InvalidPacket);
            }
            if size > 0 {
                let length = if src.is_null() { Ok(0) } else { src.len(env) };
                let length = length.map_err(|_| Error::InvalidArgument)?;
                if length < size {
                    return Err(Error::InvalidArgument);
                }
                from.resize(size, 0);
                read(env, src, &mut from).map_err(|_| Error::InvalidArgument)?;
            }
        }
        if to.len() < dst.size {
            to.resize(dst.size, 0);
        }
        let called = call(tunnel, &from, &mut to[..dst.size]);
        if let Ok(Outcome::Network(size) | Outcome::Ipv4(size) | Outcome::Ipv6(size)) = called {
            // SAFETY: the method that received the buffer has not returned.
            unsafe { dst.write(&to[..size]) };
        }
        BUFFERS.set((from, to));
        called
    }
}
