//! Windows Packet Filter: a driver beneath the TCP/IP stack that queues frames for a program.
//!
//! **Not yet run on a Windows machine.** It is built for one, and no more is known of it; what it
//! serves is tested without it (`tests/frames`).
//!
//! Every adapter that the driver lists is put into *tunnel mode*: its frames, both ways, are
//! queued, and go nowhere unless they are sent on. When a [`NdisapiTap`] is dropped, adapters
//! get back the modes that they had. When the process is killed they keep theirs, and nothing
//! passes by them until another one reads, or the machine is restarted: all is held back. So
//! tunnel mode is never given back: it is what a process left that was killed.
//!
//! An adapter of another medium than Ethernet or IP is taken too, so that nothing passes by it: what
//! its frames are, and so whose, is not known.
//!
//! The driver has room for frames of 1,514 bytes, so that an adapter's MTU is 1,500 bytes at
//! most here. Adapters of dial-up networks share one of the driver's, and have no addresses here.

use std::time::Duration;

use ndisapi::{
    DirectionFlags, EthMRequest, EthMRequestMut, FilterFlags, IntermediateBuffer, Ndisapi,
    NetworkAdapterInfo,
};
use taupe_sys::windows::connections::{Connection, connections};
use tracing::{debug, warn};
use windows::Win32::{
    Foundation::{CloseHandle, ERROR_ACCESS_DENIED, ERROR_FILE_NOT_FOUND, HANDLE, WAIT_OBJECT_0},
    System::Threading::{CreateEventW, WaitForMultipleObjects},
};

use crate::frames::{
    Adapter, Event, Frame, Injection, Medium, PacketTap, TapError, Towards, Verdict,
};

/// What the driver is called, as its installer has it.
const DRIVER: &str = "NDISRD";

/// Frames that are read or sent at once.
const BATCH: usize = 128;

/// Bytes of the longest frame that the driver has room for, and of the longest packet in it.
const LONGEST_FRAME: usize = 1514;
const LONGEST_PACKET: u16 = 1500;

/// `NdisMedium802_3`, and `NdisMediumIP`, which has no link header (ntddndis.h).
const MEDIUM_ETHERNET: u32 = 0;
const MEDIUM_IP: u32 = 19;

/// Adapters without addresses are numbered from here.
const UNKNOWN: u32 = 0x8000_0000;

/// The driver, and the adapters that it queues frames of.
pub struct NdisapiTap {
    driver: Ndisapi,
    /// Frames are queued.
    queued: Signal,
    /// The adapters have changed.
    changed: Signal,
    cards: Vec<Card>,
    frames: Vec<IntermediateBuffer>,
}

struct Card {
    index: u32,
    handle: HANDLE,
    /// Its mode afterwards.
    after: FilterFlags,
}

impl NdisapiTap {
    /// Opens the driver.
    ///
    /// # Errors
    ///
    /// It is not installed, or this process may not use it.
    pub fn open() -> Result<Self, TapError> {
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
        let tap = Self {
            queued: Signal::new()?,
            changed: Signal::new()?,
            cards: Vec::new(),
            frames: vec![IntermediateBuffer::default(); BATCH],
            driver,
        };
        tap.driver
            .set_adapter_list_change_event(tap.changed.0)
            .map_err(failed("having changes of adapters told"))?;
        Ok(tap)
    }

    /// An adapter that is not among those before.
    fn card(&self, index: u32, info: &NetworkAdapterInfo) -> Card {
        let handle = info.get_handle();
        let before = self.driver.get_adapter_mode(handle).unwrap_or_default();
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

    /// Has the frames of an adapter queued. It forgets when it is started anew, so this is done
    /// whenever adapters are looked at.
    fn arm(&self, handle: HANDLE) -> Result<(), TapError> {
        self.driver
            .set_packet_event(handle, self.queued.0)
            .map_err(failed("having frames told"))?;
        self.driver
            .set_adapter_mode(handle, FilterFlags::MSTCP_FLAG_SENT_RECEIVE_TUNNEL)
            .map_err(failed("having frames queued"))
    }

    fn listed(&self) -> Result<Vec<NetworkAdapterInfo>, TapError> {
        let listed = self.driver.get_tcpip_bound_adapters_info();
        listed.map_err(failed("listing adapters"))
    }

    /// Shows what is queued at one adapter, a batch at most. Whether there was any.
    fn read_card(&mut self, place: usize, judge: &mut dyn FnMut(Frame<'_>) -> Verdict) -> bool {
        let Card { index, handle, .. } = self.cards[place];
        let mut request = EthMRequestMut::<BATCH>::from_iter(handle, self.frames.iter_mut());
        // An empty queue is an error too.
        let count = self.driver.read_packets(&mut request).unwrap_or(0);
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
                // There is room for all that were read.
                let _ = request.push(frame);
            }
        }
        send(&self.driver, Towards::Card, &to_card);
        send(&self.driver, Towards::System, &to_system);
        count > 0
    }

    /// Gives an adapter back.
    fn release(&self, card: &Card) {
        let mode = self.driver.set_adapter_mode(card.handle, card.after);
        let event = self.driver.set_packet_event(card.handle, HANDLE::default());
        let flushed = self.driver.flush_adapter_packet_queue(card.handle);
        for error in [mode, event, flushed].into_iter().filter_map(Result::err) {
            // It may be gone.
            debug!(adapter = card.index, %error, "giving an adapter back");
        }
    }
}

impl PacketTap for NdisapiTap {
    fn adapters(&mut self) -> Result<Vec<Adapter>, TapError> {
        let listed = self.listed()?;
        // Not by the driver's library, which has the gateways' hardware addresses asked for: nobody
        // passes those questions on meanwhile.
        let connections = connections()
            .map_err(|error| TapError(format!("listing the system's connections: {error}")))?;
        let mut adapters = Vec::new();
        let mut unarmed = Vec::new();
        for (unknown, info) in (UNKNOWN..).zip(&listed) {
            let handle = info.get_handle();
            let connection = connection(info, &connections);
            let index = connection.map_or(unknown, |it| it.index);
            let known = self.cards.iter_mut().find(|card| card.handle == handle);
            match known {
                Some(card) => card.index = index,
                None => self.cards.push(self.card(index, info)),
            }
            if let Err(error) = self.arm(handle) {
                unarmed.push((handle, error));
            }
            adapters.push(adapter(index, info, connection));
        }
        let is_there = |listed: &[NetworkAdapterInfo], handle: HANDLE| {
            listed.iter().any(|info| info.get_handle() == handle)
        };
        let (there, gone) = std::mem::take(&mut self.cards)
            .into_iter()
            .partition(|card| is_there(&listed, card.handle));
        self.cards = there;
        let gone: Vec<Card> = gone;
        for card in &gone {
            self.release(card);
        }
        // One that has gone meanwhile has no frames; one that is still there has, and they pass it
        // by.
        if !unarmed.is_empty() {
            let listed = self.listed()?;
            if let Some((_, error)) = unarmed
                .into_iter()
                .find(|(handle, _)| is_there(&listed, *handle))
            {
                return Err(error);
            }
        }
        Ok(adapters)
    }

    fn read(
        &mut self,
        wait: Duration,
        judge: &mut dyn FnMut(Frame<'_>) -> Verdict,
    ) -> Result<Event, TapError> {
        let mut has_read = false;
        for place in 0..self.cards.len() {
            has_read |= self.read_card(place, judge);
        }
        // What is queued goes before what is waited for, and a batch before the next.
        let wait = if has_read { Duration::ZERO } else { wait };
        let both = [self.changed.0, self.queued.0];
        // Rounded up, or what is due in less than a millisecond would be waited for in haste.
        let milliseconds = wait.as_nanos().div_ceil(1_000_000);
        let milliseconds = u32::try_from(milliseconds).unwrap_or(u32::MAX - 1);
        // SAFETY: both handles are of events that are open as long as `self` is there.
        let woken = unsafe { WaitForMultipleObjects(&both, false, milliseconds) };
        Ok(match woken == WAIT_OBJECT_0 {
            true => Event::Adapters,
            false => Event::Read,
        })
    }

    fn inject(&mut self, frames: &[Injection]) -> Result<(), TapError> {
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
            send(&self.driver, first.towards, &request);
        }
        Ok(())
    }

    fn set_mtu_decrement(&mut self, bytes: u16) -> Result<(), TapError> {
        // The driver reads it when it starts.
        self.driver.set_mtu_decrement(bytes.into()).map_err(failed(
            "setting by how much adapters are to lower their MTU",
        ))
    }
}

impl Drop for NdisapiTap {
    fn drop(&mut self) {
        for card in &self.cards {
            self.release(card);
        }
        let _ = self.driver.set_adapter_list_change_event(HANDLE::default());
    }
}

/// Puts a frame into a place of a batch, which has room for it.
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

fn send(driver: &Ndisapi, towards: Towards, request: &EthMRequest<'_, BATCH>) {
    if request.get_packet_number() == 0 {
        return;
    }
    let sent = match towards {
        Towards::Card => driver.send_packets_to_adapter(request),
        Towards::System => driver.send_packets_to_mstcp(request),
    };
    if let Err(error) = sent {
        debug!(%error, ?towards, "the driver takes no frames");
    }
}

/// The connection of an adapter of the driver's, whose name has its GUID in it.
fn connection<'a>(
    info: &NetworkAdapterInfo,
    connections: &'a [Connection],
) -> Option<&'a Connection> {
    let name = info.get_name().to_ascii_uppercase();
    let is_it = |connection: &&Connection| {
        let guid = connection.guid.to_ascii_uppercase();
        !guid.is_empty() && name.contains(&guid)
    };
    connections.iter().find(is_it)
}

fn adapter(index: u32, info: &NetworkAdapterInfo, connection: Option<&Connection>) -> Adapter {
    Adapter {
        index,
        name: connection.map_or_else(|| info.get_name().to_owned(), |it| it.name.clone()),
        medium: medium(info.get_medium()),
        mac: *info.get_hw_address(),
        mtu: info.get_mtu().min(LONGEST_PACKET),
        addresses: connection.map_or_else(Vec::new, |it| it.addresses.clone()),
        leads_out: connection.is_some_and(|it| it.has_gateway),
    }
}

fn medium(number: u32) -> Medium {
    match number {
        MEDIUM_ETHERNET => Medium::Ethernet,
        MEDIUM_IP => Medium::Ip,
        _ => Medium::Unknown,
    }
}

/// The mode that an adapter is given back in.
fn mode_after(before: FilterFlags) -> FilterFlags {
    match before.intersects(FilterFlags::MSTCP_FLAG_SENT_RECEIVE_TUNNEL) {
        true => FilterFlags::empty(),
        false => before,
    }
}

fn failed(what: &'static str) -> impl Fn(windows::core::Error) -> TapError {
    move |error| TapError(format!("{what}: Windows Packet Filter says: {error}"))
}

/// An event of the system, reset by whoever waits for it.
struct Signal(HANDLE);

impl Signal {
    fn new() -> Result<Self, TapError> {
        // SAFETY: it has neither attributes nor a name, and the rest are plain values.
        let handle = unsafe { CreateEventW(None, false, false, None) };
        handle
            .map(Self)
            .map_err(|error| TapError(format!("making an event: {error}")))
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        // SAFETY: the handle was made by `new` and is closed only here. The driver has a reference
        // of its own to the event.
        let closed = unsafe { CloseHandle(self.0) };
        if let Err(error) = closed {
            warn!(%error, "closing an event");
        }
    }
}

// SAFETY: handles of events and of the driver are the process's, whichever thread uses them, and
// `&mut self` keeps two from doing so at once.
unsafe impl Send for NdisapiTap {}

#[cfg(test)]
mod tests {
    use super::{Medium, medium, mode_after};
    use ndisapi::FilterFlags;

    #[test]
    fn what_a_killed_process_left_is_not_given_back() {
        let nothing = FilterFlags::empty();
        for left in [
            FilterFlags::MSTCP_FLAG_SENT_RECEIVE_TUNNEL,
            FilterFlags::MSTCP_FLAG_SENT_TUNNEL,
            FilterFlags::MSTCP_FLAG_RECV_TUNNEL | FilterFlags::MSTCP_FLAG_FILTER_DIRECT,
        ] {
            assert_eq!(mode_after(left), nothing, "{left:?}");
        }
        let others = FilterFlags::MSTCP_FLAG_SENT_RECEIVE_LISTEN;
        for before in [nothing, others] {
            assert_eq!(mode_after(before), before);
        }
    }

    #[test]
    fn frames_are_read_of_two_mediums_alone() {
        assert_eq!(medium(0), Medium::Ethernet);
        assert_eq!(medium(19), Medium::Ip);
        // A wide area network's, one of IEEE 1394, and what is not there yet.
        for other in [3, 13, 18, 20, u32::MAX] {
            assert_eq!(medium(other), Medium::Unknown, "{other}");
        }
    }
}
