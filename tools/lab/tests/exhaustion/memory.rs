//! Processes without memory.

use crate::world::{INTERFACE, Kind, SOON, World};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{figure, scratch, scratch_file, step};
use taupe_lab::{Error, Result, ensure};

/// A control group with a limit of memory, which its processes leave and which is removed when this
/// is dropped.
struct Group {
    root: PathBuf,
    path: PathBuf,
    is_second: bool,
}

impl Group {
    /// Creates a group in cgroup2, or in cgroup1 if that has the memory of this machine.
    fn new() -> Result<Self> {
        let root = scratch("cgroup");
        fs::create_dir_all(&root).map_err(Error::io("cgroup"))?;
        // Sandboxes share the hierarchy, and number their processes alike.
        const UNIQUE: &str = "/proc/sys/kernel/random/uuid";
        let unique = fs::read_to_string(UNIQUE).map_err(Error::io(UNIQUE))?;
        let name = format!("taupe-lab-{}", unique.trim());
        mount("cgroup", &root, "cgroup2", MountFlags::empty(), None)
            .map_err(Error::io("cgroup2"))?;
        let controllers = fs::read_to_string(root.join("cgroup.controllers"));
        let controllers = controllers.map_err(Error::io("cgroup.controllers"))?;
        let is_second = controllers.split_whitespace().any(|name| name == "memory");
        if is_second {
            let control = root.join("cgroup.subtree_control");
            fs::write(&control, "+memory").map_err(Error::io("cgroup.subtree_control"))?;
        } else {
            unmount(&root, UnmountFlags::empty()).map_err(Error::io("cgroup2"))?;
            mount(
                "cgroup",
                &root,
                "cgroup",
                MountFlags::empty(),
                Some(c"memory"),
            )
            .map_err(Error::io("the memory controller"))?;
        }
        let path = root.join(name);
        fs::create_dir(&path).map_err(Error::io("a group"))?;
        Ok(Self {
            root,
            path,
            is_second,
        })
    }

    fn number(&self, second: &str, first: &str) -> Result<u64> {
        let path = self.path.join(if self.is_second { second } else { first });
        let text = fs::read_to_string(&path).map_err(Error::io(path.display().to_string()))?;
        let number = text.trim().parse();
        number.map_err(|_| Error::unmet(format!("{}: {text}", path.display())))
    }

    /// Returns the bytes in use.
    fn usage(&self) -> Result<u64> {
        self.number("memory.current", "memory.usage_in_bytes")
    }

    fn limit(&self, bytes: u64) -> Result<()> {
        let name = match self.is_second {
            true => "memory.max",
            false => "memory.limit_in_bytes",
        };
        fs::write(self.path.join(name), bytes.to_string()).map_err(Error::io(name))
    }

    /// Returns the words that start a command in the group.
    fn enter(&self) -> Vec<String> {
        let script = format!("echo 0 > {} && exec \"$@\"", self.procs().display());
        ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec()
    }

    fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let processes = fs::read_to_string(self.procs()).unwrap_or_default();
        for number in processes.lines() {
            let _ = fs::write(self.root.join("cgroup.procs"), number);
        }
        let _ = fs::remove_dir(&self.path);
        let _ = unmount(&self.root, UnmountFlags::DETACH);
    }
}

/// The kernel kills the tunnel's process for its memory: traffic stays blocked, `status` says so,
/// and `down` removes everything.
pub(crate) fn killed(kind: Kind) -> Result<()> {
    let world = World::new(kind)?;
    let before = world.state()?;
    let group = Group::new()?;
    let enter = group.enter();
    let enter: Vec<_> = enter.iter().map(String::as_str).collect();
    let attempt = world.start(&enter)?;
    ensure!(attempt.status == Some(0), "{attempt:?}");
    world.must_carry("in a control group")?;
    let usage = group.usage()?;
    figure("bytes in use", usage);
    group.limit(usage + (4 << 20))?;
    let mut batch = 0_u32;
    wait_until("the end of the device", 3 * SOON, || {
        let mut text = String::new();
        for number in 0..1000_u32 {
            let mut key = [0; 32];
            key[..4].copy_from_slice(&(batch * 1000 + number + 1).to_le_bytes());
            let key = base64(&key);
            let _ = writeln!(
                text,
                "[Peer]\nPublicKey = {key}\nAllowedIPs = 203.0.113.1/32"
            );
        }
        batch += 1;
        let file = scratch_file("peers.conf", &text)?;
        // It fails when the device is killed meanwhile.
        world
            .near
            .attempt(&["timeout", "5", "wg", "addconf", INTERFACE, &file])?;
        Ok(world.processes()?.is_empty())
    })?;
    figure("batches of peers", batch);
    wait_until("end of the interface", SOON, || {
        let show = ["ip", "link", "show", "dev", INTERFACE];
        Ok(world.near.attempt(&show)?.status != Some(0))
    })?;
    match kind {
        Kind::Device => {
            // Another device of the name replaces what is left, its socket.
            world.up()?;
            world.must_carry("the next device")?;
        }
        Kind::Adapter | Kind::Transparent => {
            world.must_be_blocked("without a process")?;
            let status = world.taupe(&["status"])?;
            ensure!(status.status == Some(2), "{status:?}");
            let text = &status.stdout;
            ensure!(text.contains("its process has ended"), "{text}");
            ensure!(text.contains("is blocked"), "{text}");
        }
    }
    let down = world.down()?;
    ensure!(down.status == Some(0), "{down:?}");
    world.is_as_before(&before, "down")?;
    world.must_be_free("after down")?;
    drop(group);
    Ok(())
}

/// With little address space or locked memory, the tunnel comes up or is refused with nothing left
/// of it.
pub(crate) fn start(kind: Kind) -> Result<()> {
    let world = World::new(kind)?;
    let before = world.state()?;
    step("no locked memory");
    let attempt = world.start(&["prlimit", "--memlock=0:0"])?;
    ensure!(attempt.status == Some(0), "{attempt:?}");
    world.must_carry("without locked memory")?;
    world.down()?;
    world.is_as_before(&before, "down")?;
    let mut least = None;
    for megabytes in [8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 128, 1024] {
        let when = format!("{megabytes} MiB of address space");
        step(&when);
        let limit = format!("--as={0}:{0}", megabytes << 20);
        let attempt = world.start_only(&["prlimit", &limit])?;
        if attempt.status == Some(0) {
            // A request may need more than the start.
            let works = world.configure().is_ok() && world.carries()?;
            least = least.or(works.then_some(megabytes));
            world.down()?;
        } else {
            let text = &attempt.stderr;
            for wrong in ["newer", "CONFIG_", "panicked", "another program"] {
                ensure!(!text.contains(wrong), "{when}: {text}");
            }
            world.await_end()?;
        }
        world.is_as_before(&before, &when)?;
    }
    figure("address space in MiB", least);
    ensure!(least.is_some(), "a gigabyte does not suffice");
    Ok(())
}

fn base64(key: &[u8; 32]) -> String {
    use base64ct::Encoding as _;
    base64ct::Base64::encode_string(key)
}
