//! The translator of a packet process as its broker sees it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use taupe_nat::flows::ExpiringFlows;
use taupe_nat::translate::TranslatorControl;

use crate::control::{Control, Patience};
use crate::message::{FromBroker, MAX_FLOWS};

/// The translator of a device in a packet process.
#[derive(Clone, Debug)]
pub struct RemoteTranslator(pub(crate) Arc<Control>);

impl RemoteTranslator {
    /// Makes the packet process write a report of the UDP flows to a client.
    ///
    /// # Errors
    /// The packet process has ended or misbehaves.
    pub fn report(&self, client: &UnixStream) -> io::Result<()> {
        let sent = self.0.command(&FromBroker::Report, &[client.as_fd()]);
        sent.map_err(io::Error::other)
    }
}

impl TranslatorControl for RemoteTranslator {
    fn set_main_uplink(&self, v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>) {
        // On failure the device ends.
        let _ = self.0.command(&FromBroker::SetMainUplink { v4, v6 }, &[]);
    }

    fn forget(&self, flows: &ExpiringFlows) -> io::Result<()> {
        let mut patience = Patience::new();
        for flows in flows.0.chunks(MAX_FLOWS) {
            let flows = ExpiringFlows(flows.to_vec());
            let forgotten = self.0.forget(&FromBroker::Forget { flows }, &mut patience);
            forgotten.map_err(io::Error::other)?;
        }
        Ok(())
    }
}
