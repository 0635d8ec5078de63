//! Pairs of machines of which one is in a guest.

use super::OUTER;
use crate::error::Result;
use crate::guest::{Guest, GuestOptions, Namespace};
use crate::host::{Host, add_address};
use crate::peers::Place as _;

/// A guest with links to machines that are not in it. One guest serves many tests, because booting
/// costs more than a test.
pub struct Yard {
    host: Host,
    guest: Guest,
}

impl Yard {
    /// Boots a guest that has a link for each number from 1 to `links`.
    ///
    /// # Errors
    ///
    /// Those of [`Guest::boot_with`].
    pub fn new(links: u8, mut options: GuestOptions) -> Result<Self> {
        let host = Host::new("yard")?;
        options.more_taps = (1..=links).map(|number| format!("tap{number}")).collect();
        let guest = Guest::boot_with(&host, "tap0", &[], &options)?;
        Ok(Self { host, guest })
    }

    /// Creates a machine and a namespace of the guest, with this link between them. Each number can
    /// be used once. The interfaces are called `eth0`; the machine has the first addresses of
    /// [`OUTER`].
    ///
    /// # Errors
    ///
    /// [`Error::Command`](crate::Error::Command).
    pub fn neighbours(&self, number: u8) -> Result<(Host, Namespace)> {
        let near = Host::new(&format!("near{number}"))?;
        let name = format!("far{number}");
        let far = self.guest.namespace(&name)?;
        let tap = format!("tap{number}");
        self.host.move_interface(&tap, &near)?;
        near.ip(&["link", "set", &tap, "name", "eth0", "up"])?;
        self.guest.run(&format!(
            "ip link set eth{number} netns {name} name eth0 && ip -n {name} link set eth0 up"
        ))?;
        let [ours, theirs] = OUTER;
        for address in ours {
            add_address(&near, "eth0", address)?;
        }
        for address in theirs {
            far.add_address("eth0", address)?;
        }
        Ok((near, far))
    }
}
