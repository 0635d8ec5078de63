//! Reasons why there is no TUN device, from error numbers.

use std::{fmt, io};

use crate::{
    System,
    layout::{EACCES, EBUSY, EEXIST, ENOENT, EPERM},
};

/// Error of creating or taking over a TUN device. Its text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The process lacks a right.
    #[error("{0}")]
    Permission(MissingRight),
    /// The kernel offers no devices.
    #[error("{0}")]
    NotFound(MissingDevice),
    /// Another interface has the name.
    #[error("{}", busy(*.system, .name))]
    Busy {
        /// The system.
        system: System,
        /// The name.
        name: String,
    },
    /// The name is one of the other system, or not permitted.
    #[error("{0} is not a name of a TUN device of this system: choose another name")]
    Name(String),
    /// A descriptor that was passed in is not one of a TUN device.
    #[error("the descriptor that was passed in is not a TUN device: {0}")]
    NotTun(io::Error),
    /// Anything else.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// A right that creating a TUN device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingRight {
    /// The right of root.
    Root,
    /// The right to create interfaces, which a jail has only with a network of its own.
    JailNetwork,
}

impl fmt::Display for MissingRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "creating a TUN device takes root: start it as root",
            Self::JailNetwork => {
                "creating a TUN device in a jail takes a network of its own: add vnet to its \
                 jail.conf"
            }
        })
    }
}

/// A part of the system that creating a TUN device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingDevice {
    /// `/dev/tun` of FreeBSD.
    Driver,
    /// `/dev/tun` in a jail of FreeBSD.
    JailDevice,
    /// The kernel control of macOS.
    Utun,
}

impl fmt::Display for MissingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Driver => {
                "there is no /dev/tun: load the driver (kldload if_tuntap), and permit it to create \
                 devices (sysctl net.link.tun.devfs_cloning=1)"
            }
            Self::JailDevice => {
                "there is no /dev/tun in this jail: load the driver on the host (kldload if_tuntap), \
                 and give the jail devfs rules that unhide tun"
            }
            Self::Utun => "this kernel has no utun devices: use macOS 13 or newer",
        })
    }
}

fn busy(system: System, name: &str) -> String {
    match system {
        System::FreeBsd => format!(
            "there is an interface {name} already: choose another name, or remove it (ifconfig \
             {name} destroy)"
        ),
        System::MacOs => format!(
            "there is an interface {name} already: choose another number, or utun for a free one"
        ),
    }
}

/// A step of creating a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenStep {
    /// Opening `/dev/tun` (FreeBSD).
    OpenFile,
    /// Renaming the interface (FreeBSD).
    Rename,
    /// Asking for the number of the kernel control (macOS).
    FindControl,
    /// Connecting to the kernel control (macOS).
    Connect,
}

impl OpenStep {
    const fn text(self) -> &'static str {
        match self {
            Self::OpenFile => "opening /dev/tun",
            Self::Rename => "renaming the interface (SIOCSIFNAME)",
            Self::FindControl => "looking for utun (CTLIOCGINFO)",
            Self::Connect => "connecting to utun",
        }
    }
}

/// The jail of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jail {
    /// The process is in none.
    None,
    /// The jail uses the network of the host.
    SharedNetwork,
    /// The jail has a network of its own (`vnet`).
    OwnNetwork,
}

/// Properties of the process, which error numbers do not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circumstances {
    /// The process's user is root.
    pub is_root: bool,
    /// The process's jail.
    pub jail: Jail,
}

impl Circumstances {
    /// Returns the right that the process lacks with these properties, if it is one of root.
    const fn missing_right(self) -> Option<MissingRight> {
        match (self.jail, self.is_root) {
            (Jail::SharedNetwork, _) => Some(MissingRight::JailNetwork),
            (_, false) => Some(MissingRight::Root),
            (_, true) => None,
        }
    }
}

impl OpenError {
    /// Returns the meaning of the kernel's error in a step. `name` is that of the interface.
    #[must_use]
    pub fn new(
        system: System,
        step: OpenStep,
        source: io::Error,
        circumstances: Circumstances,
        name: &str,
    ) -> Self {
        let number = source.raw_os_error().map(i32::cast_unsigned);
        let missing_right = circumstances.missing_right();
        match (step, number) {
            (_, Some(EPERM | EACCES)) => {
                Self::Permission(missing_right.unwrap_or(MissingRight::Root))
            }
            // Without the right to create interfaces, there is no file of that name, either
            // (`tunclone` in FreeBSD's `sys/net/if_tuntap.c`).
            (OpenStep::OpenFile, Some(ENOENT)) => match (missing_right, circumstances.jail) {
                (Some(right), _) => Self::Permission(right),
                (None, Jail::None) => Self::NotFound(MissingDevice::Driver),
                (None, _) => Self::NotFound(MissingDevice::JailDevice),
            },
            (OpenStep::FindControl, Some(ENOENT)) => Self::NotFound(MissingDevice::Utun),
            // FreeBSD: `ifhwioctl` in `sys/net/if.c`. macOS: `ctl_setup_kctl` in
            // `bsd/kern/kern_control.c` and `utun_ctl_setup` in `bsd/net/if_utun.c`.
            (OpenStep::Rename | OpenStep::Connect, Some(EEXIST | EBUSY)) => Self::Busy {
                system,
                name: name.to_owned(),
            },
            _ => Self::Io {
                what: step.text(),
                source,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Circumstances = Circumstances {
        is_root: true,
        jail: Jail::None,
    };
    const USER: Circumstances = Circumstances {
        is_root: false,
        jail: Jail::None,
    };

    fn text(system: System, step: OpenStep, number: i32, circumstances: Circumstances) -> String {
        let source = io::Error::from_raw_os_error(number);
        let name = match system {
            System::FreeBsd => "wg0",
            System::MacOs => "utun4",
        };
        OpenError::new(system, step, source, circumstances, name).to_string()
    }

    #[test]
    fn a_user_gets_the_advice_to_be_root() {
        for (system, step, number) in [
            (System::FreeBsd, OpenStep::OpenFile, 1),
            (System::FreeBsd, OpenStep::OpenFile, 13),
            (System::FreeBsd, OpenStep::OpenFile, 2),
            (System::FreeBsd, OpenStep::Rename, 1),
            (System::MacOs, OpenStep::Connect, 1),
            (System::MacOs, OpenStep::Connect, 13),
        ] {
            assert_eq!(
                text(system, step, number, USER),
                "creating a TUN device takes root: start it as root",
                "{step:?}, {number}"
            );
        }
    }

    #[test]
    fn a_jail_needs_a_network_and_then_a_file() {
        for is_root in [false, true] {
            let jail = Jail::SharedNetwork;
            let circumstances = Circumstances { is_root, jail };
            for (step, number) in [
                (OpenStep::OpenFile, 2),
                (OpenStep::OpenFile, 1),
                (OpenStep::Rename, 1),
            ] {
                assert_eq!(
                    text(System::FreeBsd, step, number, circumstances),
                    "creating a TUN device in a jail takes a network of its own: add vnet to its \
                     jail.conf"
                );
            }
        }
        let circumstances = Circumstances {
            is_root: true,
            jail: Jail::OwnNetwork,
        };
        let text = text(System::FreeBsd, OpenStep::OpenFile, 2, circumstances);
        assert_eq!(
            text,
            "there is no /dev/tun in this jail: load the driver on the host (kldload if_tuntap), \
             and give the jail devfs rules that unhide tun"
        );
    }

    #[test]
    fn missing_devices_are_not_missing_rights() {
        assert_eq!(
            text(System::FreeBsd, OpenStep::OpenFile, 2, ROOT),
            "there is no /dev/tun: load the driver (kldload if_tuntap), and permit it to create \
             devices (sysctl net.link.tun.devfs_cloning=1)"
        );
        assert_eq!(
            text(System::MacOs, OpenStep::FindControl, 2, USER),
            "this kernel has no utun devices: use macOS 13 or newer"
        );
    }

    #[test]
    fn a_name_that_is_taken_is_busy() {
        assert_eq!(
            text(System::FreeBsd, OpenStep::Rename, 17, ROOT),
            "there is an interface wg0 already: choose another name, or remove it (ifconfig wg0 \
             destroy)"
        );
        for number in [16, 17] {
            assert_eq!(
                text(System::MacOs, OpenStep::Connect, number, ROOT),
                "there is an interface utun4 already: choose another number, or utun for a free one"
            );
        }
    }

    #[test]
    fn other_errors_name_the_step() {
        let text = text(System::FreeBsd, OpenStep::OpenFile, 24, ROOT);
        assert!(text.starts_with("opening /dev/tun: "), "{text}");
    }
}
