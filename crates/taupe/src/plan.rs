//! The plan of a device's process.
//!
//! The process that starts a device parses the command line, the environment and the files, once.
//! It sends the result to the device's process as a [`DevicePlan`]. That process parses neither its
//! arguments nor a file.
//!
//! On the wire, a plan is a line of JSON without secrets. If the device goes through another one,
//! a `set` request of the UAPI follows, which configures that other device. It contains keys, so
//! its buffers are zeroised.

use crate::arguments::{DeviceOrder, DeviceSettings};
use crate::capture::CapturePlan;
use crate::device_log::{Destination, Logging};
use crate::via::OuterPlan;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use taupe_engine::Offloads;
use taupe_inspect::interface::InterfaceName;
use taupe_protocol::Lanes;
use taupe_uapi::{Request, RequestReader, UapiError, set_text};
use tracing_subscriber::filter::LevelFilter;
use zeroize::Zeroizing;

/// Bytes that are read at a time.
const BLOCK: usize = 64 << 10;

/// A device to run.
#[derive(Serialize, Deserialize)]
pub(crate) struct DevicePlan {
    pub(crate) interface: InterfaceName,
    pub(crate) offloads: Offloads,
    /// Number of lanes; `None` for that of the machine.
    #[serde(with = "lanes")]
    pub(crate) lanes: Option<Lanes>,
    /// Level of the log of a background process.
    #[serde(with = "level")]
    pub(crate) log_level: LevelFilter,
    /// Descriptor of a TUN that the caller has opened.
    pub(crate) tun: Option<RawFd>,
    /// Descriptor of a configuration socket on which the caller listens.
    pub(crate) uapi: Option<RawFd>,
    /// Capture of selected applications.
    pub(crate) capture: Option<CapturePlan>,
    /// The device through which this one goes.
    pub(crate) outer: Option<OuterPlan>,
}

/// Reason why a plan cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("cannot read the plan of the device: {0}")]
    Read(#[from] io::Error),
    #[error("the plan of the device is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("the plan of the outer device is malformed: {0}")]
    Outer(#[from] UapiError),
}

impl DevicePlan {
    /// Returns the plan of a device that creates its own TUN and socket.
    pub(crate) fn new(interface: InterfaceName, settings: &DeviceSettings) -> Self {
        Self {
            interface,
            offloads: settings.offloads,
            lanes: settings.lanes,
            log_level: background_level(&settings.logging),
            tun: None,
            uapi: None,
            capture: None,
            outer: None,
        }
    }

    /// Returns the plan for `taupe device`.
    pub(crate) fn of_order(order: &DeviceOrder) -> Self {
        Self {
            interface: order.interface.clone(),
            offloads: order.offloads,
            lanes: order.lanes,
            log_level: background_level(&order.logging),
            tun: order.tun,
            uapi: order.uapi,
            capture: None,
            outer: None,
        }
    }

    /// Writes the plan for [`Self::read`].
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        out.write_all(&line)?;
        match &self.outer {
            None => Ok(()),
            Some(outer) => out.write_all(set_text(&outer.configuration).as_bytes()),
        }
    }

    /// Reads a plan. Returns at its end, even if the writer keeps the input open.
    pub(crate) fn read(input: &mut impl Read) -> Result<Self, PlanError> {
        let mut block = Zeroizing::new(vec![0; BLOCK]);
        let mut line = Vec::new();
        let (mut plan, rest) = loop {
            let bytes = read_some(input, &mut block)?;
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                line.extend_from_slice(bytes);
                continue;
            };
            let (piece, rest) = bytes.split_at(end);
            line.extend_from_slice(piece);
            let plan: Self = serde_json::from_slice(&line)?;
            break (plan, rest.get(1..).unwrap_or_default());
        };
        let Some(outer) = &mut plan.outer else {
            return Ok(plan);
        };
        let mut reader = RequestReader::new();
        let mut rest = rest;
        loop {
            match reader.push(&mut rest).transpose()? {
                Some(Request::Set(request)) => {
                    outer.configuration = request;
                    return Ok(plan);
                }
                Some(Request::Get) => {
                    return Err(io::Error::from(io::ErrorKind::InvalidData).into());
                }
                None => rest = read_some(input, &mut block)?,
            }
        }
    }
}

/// Reads at least one byte.
fn read_some<'a>(input: &mut impl Read, block: &'a mut [u8]) -> io::Result<&'a [u8]> {
    loop {
        match input.read(block) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => return Ok(block.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the level of a background process's log.
fn background_level(logging: &Logging) -> LevelFilter {
    match logging.background {
        Destination::Nowhere => LevelFilter::OFF,
        Destination::StandardError | Destination::File(_) => logging.level,
    }
}

/// Serialisation of a number of lanes.
mod lanes {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use taupe_protocol::Lanes;

    pub(super) fn serialize<S: Serializer>(
        lanes: &Option<Lanes>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        lanes.map(Lanes::count).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Lanes>, D::Error> {
        let Some(count) = Option::<usize>::deserialize(deserializer)? else {
            return Ok(None);
        };
        let lanes = Lanes::new(count);
        lanes
            .map(Some)
            .ok_or_else(|| D::Error::custom("not a number of lanes"))
    }
}

/// Serialisation of a level of the log.
mod level {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};
    use tracing_subscriber::filter::LevelFilter;

    pub(super) fn serialize<S: Serializer>(
        level: &LevelFilter,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(level)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<LevelFilter, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::{DevicePlan, LevelFilter, PlanError};
    use crate::capture::Selection;
    use crate::via::OuterPlan;
    use std::io::{self, Read};
    use std::path::Path;
    use taupe_config::file::{Dialect, File, parse};
    use taupe_engine::Offloads;
    use taupe_protocol::Lanes;
    use taupe_uapi::set_text;

    const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";

    fn file(lines: &str, peer: &str) -> File {
        let text = format!(
            "[Interface]\nPrivateKey = {KEY}\n{lines}\n[Peer]\n\
             PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\nPresharedKey = {KEY}\n{peer}\n"
        );
        parse(text.as_bytes(), Dialect::Taupe).file.expect("a file")
    }

    fn whole_plan() -> DevicePlan {
        let mut inner = file(
            "Address = 10.9.0.2/24, fd09::2/64\nDNS = 10.9.0.1\n\
             AllowedApps = curl, /opt/games/, uid:7\nKillSwitch = all",
            "AllowedIPs = 0.0.0.0/0, fd09::/64\nDisallowedIPs = 192.0.2.0/24",
        );
        let selection = Selection::take(&mut inner, Path::new("/etc/wireguard/wg0.conf"), None);
        let outer = file("Address = 10.8.0.2/24", "AllowedIPs = 0.0.0.0/0");
        let endpoint = "[2001:db8::1]:51820".parse().expect("an address");
        DevicePlan {
            interface: "wg0".parse().expect("a name"),
            offloads: Offloads {
                udp_gro: false,
                ..Offloads::default()
            },
            lanes: Lanes::new(8),
            log_level: LevelFilter::DEBUG,
            tun: Some(7),
            uapi: None,
            capture: Some(selection.expect("a selection").plan),
            outer: Some(OuterPlan {
                interface: "wg1".parse().expect("a name"),
                addresses: vec!["10.8.0.2/24".parse().expect("a network")],
                routes: vec!["0.0.0.0/0".parse().expect("a network")],
                mtu: 1420,
                servers: vec!["10.8.0.1".parse().expect("an address")],
                configuration: taupe_client::setconf_request(&outer, &[Some(endpoint)]),
            }),
        }
    }

    fn written(plan: &DevicePlan) -> Vec<u8> {
        let mut bytes = Vec::new();
        plan.write(&mut bytes).expect("written");
        bytes
    }

    /// Returns a few bytes at each call.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = buffer.len().min(3);
            self.0.read(&mut buffer[..length])
        }
    }

    #[test]
    fn a_plan_arrives_as_it_was_sent() {
        let plan = whole_plan();
        let bytes = written(&plan);
        for input in [&mut &*bytes as &mut dyn Read, &mut Slow(&bytes)] {
            let arrived = DevicePlan::read(&mut { input }).expect("a plan");
            assert_eq!(arrived.log_level, plan.log_level);
            assert_eq!(arrived.offloads, plan.offloads);
            assert_eq!(arrived.lanes, plan.lanes);
            assert!(written(&arrived) == bytes, "another plan");
        }
        let alone = DevicePlan {
            outer: None,
            ..whole_plan()
        };
        // The writer may keep its end open: nothing behind the plan is read.
        let more = [&*written(&alone), b"more"].concat();
        let arrived = DevicePlan::read(&mut &*more).expect("a plan");
        assert!(written(&arrived) == written(&alone), "another plan");
    }

    #[test]
    fn keys_are_only_in_the_request_to_the_outer_device() {
        let plan = whole_plan();
        let bytes = written(&plan);
        let end = bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .expect("a line");
        let line = String::from_utf8_lossy(&bytes[..end]);
        let request = set_text(&plan.outer.expect("an outer device").configuration);
        for key in request
            .lines()
            .filter_map(|line| line.strip_prefix("private_key="))
        {
            assert!(!line.contains(key) && !line.contains(KEY), "{line}");
        }
        assert!(bytes.ends_with(request.as_bytes()));
    }

    #[test]
    fn a_plan_that_ends_early_is_refused() {
        let bytes = written(&whole_plan());
        for length in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            let error = DevicePlan::read(&mut &bytes[..length]).err();
            assert!(
                matches!(error, Some(PlanError::Read(_))),
                "{length}: {error:?}"
            );
        }
    }
}
