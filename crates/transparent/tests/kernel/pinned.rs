//! The pinned maps of a tunnel, as another version finds and leaves them.

use crate::application::install;
use crate::scene::{REMOTE, Scene, at, nothing, unmet};
use aya::maps::{HashMap, Map, MapData};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::AsFd as _;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::pins::Pins;

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![SystemTest::new(
        "pins_read_while_rules_are_replaced",
        pins_read_while_rules_are_replaced,
    )]
}

/// A search through the BPF file system after new rules are in force, and before the conversations that
/// they do not select have been ended, releases none of these.
fn pins_read_while_rules_are_replaced() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    scene.replace(&["nobody"])?;
    scene.replace(&["chosen"])?;
    let mut connected = scene.start(&chosen, &["ask-later", &at(REMOTE[0], 80)])?;
    let mut unconnected = scene.start(&chosen, &["ask-again", &at(REMOTE[0], 80)])?;
    let pins = only()?;
    let state = PinnedState::open(&pins)?;
    step("the rules from before, as if another process were replacing the rules");
    let generation = state.word(PinnedState::GENERATION);
    state.set_word(PinnedState::GENERATION, generation + 1);
    let links = pins.directory().join("links");
    let links = links.display();
    let read = format!("cat {links}/taupe_leaving {links}/taupe_release {links}/taupe_pending");
    for _ in 0..2 {
        scene.home.run(&["sh", "-c", &read])?;
    }
    let capture = scene.capture("udp and (host 198.51.100.1 or host 2001:db8:9::1)")?;
    let said = [connected.go()?, unconnected.go()?];
    ensure!(said == ["beyond", "beyond beyond"], "{said:?}");
    nothing(&scene, capture)
}

/// The mapped state. Constants are the offsets of words.
pub(crate) struct PinnedState(NonNull<AtomicU32>);

const PAGE: usize = 4096;

impl PinnedState {
    pub(crate) const SCHEMA: usize = 0;
    pub(crate) const DAEMON: usize = 16;
    pub(crate) const GENERATION: usize = 28;

    pub(crate) fn open(pins: &Pins) -> Result<Self> {
        let map = MapData::from_pin(pins.directory().join("state")).map_err(unmet)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let map = map.fd().as_fd();
        // SAFETY: the kernel chooses the address, so the call replaces no existing mapping.
        let page = unsafe { mmap(std::ptr::null_mut(), PAGE, protection, flags, map, 0) };
        let page = page.map_err(unmet)?;
        let page = NonNull::new(page.cast()).ok_or_else(|| unmet("no address"))?;
        Ok(Self(page))
    }

    fn at(&self, offset: usize) -> &AtomicU32 {
        assert!(offset < PAGE && offset.is_multiple_of(4));
        // SAFETY: the word is in the page, which stays mapped until `self` is dropped. Others change
        // it only atomically.
        unsafe { self.0.byte_add(offset).as_ref() }
    }

    pub(crate) fn word(&self, offset: usize) -> u32 {
        self.at(offset).load(Ordering::Acquire)
    }

    pub(crate) fn set_word(&self, offset: usize, value: u32) {
        self.at(offset).store(value, Ordering::Release);
    }
}

impl Drop for PinnedState {
    fn drop(&mut self) {
        // SAFETY: address and length are those of the mapping, and no reference to it is left.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

/// Removes all flows, as the daemon does with those that have been idle for long. Returns their number.
pub(crate) fn forget_flows(pins: &Pins) -> Result<usize> {
    let map = MapData::from_pin(pins.directory().join("flows")).map_err(unmet)?;
    let map = Map::from_map_data(map).map_err(unmet)?;
    let mut flows = HashMap::<_, [u8; 40], [u8; 40]>::try_from(map).map_err(unmet)?;
    let keys = flows.keys().collect::<std::result::Result<Vec<_>, _>>();
    let keys = keys.map_err(unmet)?;
    for key in &keys {
        flows.remove(key).map_err(unmet)?;
    }
    Ok(keys.len())
}

/// Returns the pins of the only tunnel.
pub(crate) fn only() -> Result<Pins> {
    let all: Vec<Pins> = Pins::all().collect();
    match &all[..] {
        [pins] => Ok(pins.clone()),
        _ => Err(Error::unmet(format!("not one set of pins: {all:?}"))),
    }
}
