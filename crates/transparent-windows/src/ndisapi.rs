//! Windows Packet Filter: a driver below the TCP/IP stack that queues frames for a program.
//!
//! **Not yet run on a Windows machine.** It is compiled for Windows but not tested there. The code
//! that uses it is tested without it (`tests/frames`).
//!
//! Every adapter that the driver lists is put into *tunnel mode*: the driver queues its frames in
//! both directions, and they go nowhere unless they are sent on. When a [`NdisapiTap`] is dropped,
//! adapters get back their previous modes. If the process is killed, the adapters stay in tunnel
//! mode, and everything is blocked until another process reads the frames or the machine restarts.
//! Tunnel mode is therefore never restored as a previous mode: a killed process has left it.
//!
//! Adapters with another medium than Ethernet or IP are taken too. Since their frames cannot be
//! read and their owners are unknown, nothing passes by them.
//!
//! An error closes the driver, so that it can be reinstalled. The next listing of adapters opens it
//! again.
//!
//! The driver has room for frames of 1,514 bytes, so an adapter's MTU is at most 1,500 bytes here.
//! Dial-up adapters share one adapter of the driver, and have no addresses here.

mod adapters;

use std::time::Duration;

use ndisapi::{
    DirectionFlags, EthMRequest, EthMRequestMut, FilterFlags, IntermediateBuffer, Ndisapi,
    NetworkAdapterInfo,
};
use taupe_os_windows::connections::connections;
use tracing::{debug, warn};
use windows::Win32::{
    Foundation::{
        CloseHandle, ERROR_ACCESS_DENIED, ERROR_FILE_NOT_FOUND, HANDLE, WAIT_FAILED, WAIT_OBJECT_0,
    },
    System::Threading::{CreateEventW, GetCurrentProcess, IsWow64Process, WaitForMultipleObjects},
};

use self::adapters::{adapter, connection, medium, missed, mode_after};
use crate::{Adapters, Event, Frame, Injection, Medium, PacketTap, TapError, Towards, Verdict};

/// Name of the driver, given by its installer.
const DRIVER: &str = "NDISRD";

/// Number of frames that are read or sent at once.
const BATCH: usize = 128;

/// Maximum length of a frame in the driver, and of the packet in it, in bytes.
const LONGEST_FRAME: usize = 1514;
const LONGEST_PACKET: u16 = 1500;

/// First index for adapters without a connection.
const UNKNOWN: u32 = 0x8000_0000;

/// The driver, and the adapters whose frames it queues.
pub struct NdisapiTap {
    /// `None` after an error.
    driver: Option<Ndisapi>,
    /// Signalled when frames are queued.
    queued: Signal,
    /// Signalled when the adapters have changed.
    changed: Signal,
    cards: Vec<Card>,
    frames: Vec<IntermediateBuffer>,
}

struct Card {
    index: u32,
    handle: HANDLE,
    /// The mode to restore.
    after: FilterFlags,
}

impl NdisapiTap {
    /// Opens the driver.
    ///
    /// # Errors
    ///
    /// The driver is not installed, this process may not use it, or this process has 32 bits on a
    /// 64-bit system.
    pub fn open() -> Result<Self, TapError> {
        if cfg!(target_pointer_width = "32") && is_on_64_bits() {
            return Err(TapError(
                "this taupe.exe is of 32 bits, which cannot speak with the driver of a 64-bit \
                 Windows; use the 64-bit taupe.exe"
                    .into(),
            ));
        }
        let changed = Signal::new()?;
        Ok(Self {
            driver: Some(open(&changed)?),
            queued: Signal::new()?,
            changed,
            cards: Vec::new(),
            frames: vec![IntermediateBuffer::default(); BATCH],
        })
    }

    /// Closes the driver after an error.
    fn noted<T>(&mut self, result: Result<T, TapError>) -> Result<T, TapError> {
        if result.is_err() {
            self.driver = None;
        }
        result
    }

    fn look(&mut self) -> Result<Adapters, TapError> {
        let driver = match &mut self.driver {
            Some(driver) => driver,
            closed => closed.insert(open(&self.changed)?),
        };
        let listed = listed(driver)?;
        // Not by the driver's library: it sends queries for the gateways' hardware addresses, which
        // nobody would pass on meanwhile.
        let connections = connections()
            .map_err(|error| TapError(format!("listing the system's connections: {error}")))?;
        let (mut taken, mut cards, mut unarmed) = (Vec::new(), Vec::new(), Vec::new());
        for (unknown, info) in (UNKNOWN..).zip(&listed) {
            let handle = info.get_handle();
            let connection = connection(info, &connections);
            let index = connection.map_or(unknown, |it| it.index);
            let known = self.cards.iter().find(|card| card.handle == handle);
            cards.push(match known {
                Some(card) => Card { index, ..*card },
                None => card(driver, index, info),
            });
            if let Err(error) = arm(driver, handle, &self.queued) {
                unarmed.push((handle, error));
            }
            taken.push(adapter(index, info, connection));
        }
        for gone in std::mem::replace(&mut self.cards, cards) {
            if !is_listed(&listed, gone.handle) {
                release(driver, &gone);
            }
        }
        // An adapter that has disappeared meanwhile has no frames. One that still exists would let
        // its frames bypass the tunnel.
        if !unarmed.is_empty() {
            let listed = self::listed(driver)?;
            let mut unarmed = unarmed.into_iter();
            if let Some((_, error)) = unarmed.find(|(handle, _)| is_listed(&listed, *handle)) {
                return Err(error);
            }
        }
        let names: Vec<&str> = listed.iter().map(NetworkAdapterInfo::get_name).collect();
        let takes_dial_up = || names.iter().any(|name| Ndisapi::is_ndiswan_ip(*name));
        let missed = missed(&connections, &names, takes_dial_up);
        Ok(Adapters { taken, missed })
    }

    fn read_all(
        &mut self,
        wait: Duration,
        judge: &mut dyn FnMut(Frame<'_>) -> Verdict,
    ) -> Result<Event, TapError> {
        let (mut has_read, mut is_gone) = (false, false);
        for place in 0..self.cards.len() {
            match self.read_card(place, judge)? {
                Seen::Frames => has_read = true,
                Seen::Nothing => {}
                Seen::Gone => is_gone = true,
            }
        }
        if is_gone {
            return Ok(Event::Adapters);
        }
        // Queued frames come before the wait, and a batch is handled before the next.
        let wait = if has_read { Duration::ZERO } else { wait };
        let both = [self.changed.0, self.queued.0];
        // Rounded up: a wait shorter than a millisecond would become a busy loop.
        let milliseconds = wait.as_nanos().div_ceil(1_000_000);
        let milliseconds = u32::try_from(milliseconds).unwrap_or(u32::MAX - 1);
        // SAFETY: both handles are of events that stay open as long as `self` lives.
        let woken = unsafe { WaitForMultipleObjects(&both, false, milliseconds) };
        match woken {
            WAIT_OBJECT_0 => Ok(Event::Adapters),
            WAIT_FAILED => {
                let error = windows::core::Error::from_thread();
                Err(TapError(format!("waiting for frames: {error}")))
            }
            _ => Ok(Event::Read),
        }
    }

    /// Judges the queued frames of one adapter, at most a batch.
    fn read_card(
        &mut self,
        place: usize,
        judge: &mut dyn FnMut(Frame<'_>) -> Verdict,
    ) -> Result<Seen, TapError> {
        let Card { index, handle, .. } = self.cards[place];
        let driver = self.driver.as_ref().ok_or_else(closed)?;
        let mut request = EthMRequestMut::<BATCH>::from_iter(handle, self.frames.iter_mut());
        let count = match driver.read_packets(&mut request) {
            Ok(count) => count,
            // The driver returns an error for an empty queue too; its documentation says no more.
            Err(_) => match queue(driver, handle)? {
                Queue::Gone => return Ok(Seen::Gone),
                Queue::Frames(0) => return Ok(Seen::Nothing),
                // Frames may have arrived since.
                Queue::Frames(_) => driver
                    .read_packets(&mut request)
                    .map_err(failed("reading frames"))?,
            },
        };
        let mut to_card = EthMRequest::<BATCH>::new(handle);
        let mut to_system = EthMRequest::<BATCH>::new(handle);
        for frame in self.frames.iter().take(count) {
            let is_sent = frame.get_device_flags() == DirectionFlags::PACKET_FLAG_ON_SEND;
            let (towards, request) = match is_sent {
                true => (Towards::Card, &mut to_card),
                false => (Towards::System, &mut to_system),
            };
            let verdict = judge(Frame {
                adapter: index,
                towards,
                bytes: frame.get_data(),
            });
            if verdict == Verdict::Pass {
                // There is room for all frames that were read.
                let _ = request.push(frame);
            }
        }
        send(driver, handle, Towards::Card, &to_card)?;
        send(driver, handle, Towards::System, &to_system)?;
        Ok(match count {
            0 => Seen::Nothing,
            _ => Seen::Frames,
        })
    }

    fn send_all(&mut self, frames: &[Injection]) -> Result<(), TapError> {
        let driver = self.driver.as_ref().ok_or_else(closed)?;
        let alike = |a: &Injection, b: &Injection| a.adapter == b.adapter && a.towards == b.towards;
        for run in frames.chunk_by(alike).flat_map(|run| run.chunks(BATCH)) {
            let Some(first) = run.first() else {
                continue;
            };
            let Some(card) = self.cards.iter().find(|card| card.index == first.adapter) else {
                debug!(
                    adapter = first.adapter,
                    "frames for an adapter that is gone"
                );
                continue;
            };
            let mut count = 0;
            let fitting = run
                .iter()
                .filter(|frame| frame.bytes().len() <= LONGEST_FRAME);
            for (frame, place) in fitting.zip(&mut self.frames) {
                fill(place, frame);
                count += 1;
            }
            let filled = self.frames.iter().take(count);
            let request = EthMRequest::<BATCH>::from_iter(card.handle, filled);
            send(driver, card.handle, first.towards, &request)?;
        }
        Ok(())
    }
}

/// Result of reading one adapter's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    Frames,
    Nothing,
    /// The driver no longer lists the adapter.
    Gone,
}

impl PacketTap for NdisapiTap {
    fn adapters(&mut self) -> Result<Adapters, TapError> {
        let adapters = self.look();
        self.noted(adapters)
    }

    fn read(
        &mut self,
        wait: Duration,
        judge: &mut dyn FnMut(Frame<'_>) -> Verdict,
    ) -> Result<Event, TapError> {
        let event = self.read_all(wait, judge);
        self.noted(event)
    }

    fn inject(&mut self, frames: &[Injection]) -> Result<(), TapError> {
        let sent = self.send_all(frames);
        self.noted(sent)
    }

    fn set_mtu_decrement(&mut self, bytes: u16) -> Result<(), TapError> {
        // The driver reads the value when it starts.
        let driver = self.driver.as_ref().ok_or_else(closed)?;
        driver.set_mtu_decrement(bytes.into()).map_err(failed(
            "setting by how much adapters are to lower their MTU",
        ))
    }
}

impl Drop for NdisapiTap {
    fn drop(&mut self) {
        let driver = match self.driver.take() {
            Some(driver) => Ok(driver),
            None => open(&self.changed),
        };
        match driver {
            Ok(driver) => {
                for card in &self.cards {
                    release(&driver, card);
                }
                let _ = driver.set_adapter_list_change_event(HANDLE::default());
            }
            Err(error) => warn!(%error, "adapters cannot be given back"),
        }
    }
}

/// Opens the driver and subscribes to changes of adapters.
fn open(changed: &Signal) -> Result<Ndisapi, TapError> {
    let driver = Ndisapi::new(DRIVER).map_err(|error| {
        let code = error.code();
        TapError(if code == ERROR_FILE_NOT_FOUND.to_hresult() {
            "the driver of Windows Packet Filter is not installed, without which no packets can \
             be intercepted; install it (docs/windows.md says from where), then try again"
                .into()
        } else if code == ERROR_ACCESS_DENIED.to_hresult() {
            "this process may not use the driver of Windows Packet Filter; run it as \
             administrator, or as a service"
                .into()
        } else {
            format!("the driver of Windows Packet Filter cannot be opened: {error}")
        })
    })?;
    let version = driver
        .get_version()
        .map_err(failed("asking for the driver's version"))?;
    debug!(?version, "Windows Packet Filter");
    driver
        .set_adapter_list_change_event(changed.0)
        .map_err(failed("registering for changes of adapters"))?;
    Ok(driver)
}

/// Returns true if this is a 32-bit process on a 64-bit system. The driver's structures contain
/// handles, and the driver accepts only those of its own size.
fn is_on_64_bits() -> bool {
    let mut is_it = windows::core::BOOL::default();
    // SAFETY: the handle is a constant that stands for this process, and `is_it` lives during the
    // call.
    let asked = unsafe { IsWow64Process(GetCurrentProcess(), &raw mut is_it) };
    asked.is_ok() && is_it.as_bool()
}

/// Returns a new adapter with the mode to restore.
fn card(driver: &Ndisapi, index: u32, info: &NetworkAdapterInfo) -> Card {
    let handle = info.get_handle();
    let before = driver.get_adapter_mode(handle).unwrap_or_default();
    if medium(info.get_medium()) == Medium::Unknown {
        warn!(
            name = info.get_name(),
            medium = info.get_medium(),
            "an adapter of a medium that Taupe does not know: nothing passes by it"
        );
    }
    Card {
        index,
        handle,
        after: mode_after(before),
    }
}

/// Makes the driver queue an adapter's frames. An adapter loses this setting when it restarts, so
/// this is repeated at each listing.
fn arm(driver: &Ndisapi, handle: HANDLE, queued: &Signal) -> Result<(), TapError> {
    driver
        .set_packet_event(handle, queued.0)
        .map_err(failed("registering for queued frames"))?;
    driver
        .set_adapter_mode(handle, FilterFlags::MSTCP_FLAG_SENT_RECEIVE_TUNNEL)
        .map_err(failed("having frames queued"))
}

fn listed(driver: &Ndisapi) -> Result<Vec<NetworkAdapterInfo>, TapError> {
    let listed = driver.get_tcpip_bound_adapters_info();
    listed.map_err(failed("listing adapters"))
}

fn is_listed(listed: &[NetworkAdapterInfo], handle: HANDLE) -> bool {
    listed.iter().any(|info| info.get_handle() == handle)
}

/// The queue of an adapter for which the driver returned an error.
enum Queue {
    /// It has this many frames.
    Frames(u32),
    /// The driver no longer lists the adapter.
    Gone,
}

/// Checks if the adapter caused the error, or the driver.
fn queue(driver: &Ndisapi, handle: HANDLE) -> Result<Queue, TapError> {
    let error = match driver.get_adapter_packet_queue_size(handle) {
        Ok(frames) => return Ok(Queue::Frames(frames)),
        Err(error) => error,
    };
    match is_listed(&listed(driver)?, handle) {
        true => Err(failed("asking for an adapter's queue")(error)),
        false => Ok(Queue::Gone),
    }
}

/// Restores an adapter's mode.
fn release(driver: &Ndisapi, card: &Card) {
    let mode = driver.set_adapter_mode(card.handle, card.after);
    let event = driver.set_packet_event(card.handle, HANDLE::default());
    let flushed = driver.flush_adapter_packet_queue(card.handle);
    for error in [mode, event, flushed].into_iter().filter_map(Result::err) {
        // The adapter may have gone.
        debug!(adapter = card.index, %error, "giving an adapter back");
    }
}

/// Writes a frame into a slot of a batch, which is large enough.
fn fill(place: &mut IntermediateBuffer, frame: &Injection) {
    let bytes = frame.bytes();
    *place = IntermediateBuffer::default();
    place.device_flags = match frame.towards {
        Towards::Card => DirectionFlags::PACKET_FLAG_ON_SEND,
        Towards::System => DirectionFlags::PACKET_FLAG_ON_RECEIVE,
    };
    place.set_length(bytes.len() as u32);
    place.get_data_mut().copy_from_slice(bytes);
}

/// Sends frames. If the driver works but does not accept them, they are lost.
fn send(
    driver: &Ndisapi,
    handle: HANDLE,
    towards: Towards,
    request: &EthMRequest<'_, BATCH>,
) -> Result<(), TapError> {
    if request.get_packet_number() == 0 {
        return Ok(());
    }
    let sent = match towards {
        Towards::Card => driver.send_packets_to_adapter(request),
        Towards::System => driver.send_packets_to_mstcp(request),
    };
    if let Err(error) = sent {
        debug!(%error, ?towards, "the driver takes no frames");
        queue(driver, handle)?;
    }
    Ok(())
}

fn closed() -> TapError {
    TapError("the driver of Windows Packet Filter is closed since it failed".into())
}

fn failed(what: &'static str) -> impl Fn(windows::core::Error) -> TapError {
    move |error| TapError(format!("{what}: Windows Packet Filter says: {error}"))
}

/// An auto-reset event of the system.
struct Signal(HANDLE);

impl Signal {
    fn new() -> Result<Self, TapError> {
        // SAFETY: the call has no pointers: there are neither attributes nor a name.
        let handle = unsafe { CreateEventW(None, false, false, None) };
        handle
            .map(Self)
            .map_err(|error| TapError(format!("making an event: {error}")))
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        // SAFETY: the handle was created by `new` and is closed only here. The driver has its own
        // reference to the event.
        let closed = unsafe { CloseHandle(self.0) };
        if let Err(error) = closed {
            warn!(%error, "closing an event");
        }
    }
}

// SAFETY: handles of events and of the driver belong to the process and may be used by any thread.
// `&mut self` excludes simultaneous use.
unsafe impl Send for NdisapiTap {}
