//! Name servers of a tunnel.
//!
//! FreeBSD has `resolvconf`, which merges the name servers of interfaces. macOS has name servers for
//! each network service, and networksetup(8) replaces those of the user. The tunnel sets its own for
//! every service, and restores the previous ones.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use taupe_config::file::File;

use crate::snapshot::NetworkService;

/// A command of the system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SystemCommand {
    /// The program.
    pub program: &'static str,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its standard input.
    pub input: String,
}

impl fmt::Display for SystemCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program)?;
        for argument in &self.arguments {
            match argument.contains(' ') {
                true => write!(f, " '{argument}'")?,
                false => write!(f, " {argument}")?,
            }
        }
        Ok(())
    }
}

fn command(program: &'static str, arguments: &[&str]) -> SystemCommand {
    SystemCommand {
        program,
        arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
        input: String::new(),
    }
}

/// The name servers of a tunnel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DnsSettings {
    /// The addresses, in order of preference.
    pub servers: Vec<IpAddr>,
    /// The search domains.
    pub search: Vec<String>,
}

/// The program on macOS.
const NETWORKSETUP: &str = "networksetup";

/// The program on FreeBSD.
const RESOLVCONF: &str = "resolvconf";

/// Stands for no entries in arguments of networksetup(8).
const EMPTY: &str = "Empty";

impl DnsSettings {
    /// Returns the settings of a file, or `None` if it has no name servers.
    #[must_use]
    pub fn of(file: &File) -> Option<Self> {
        let interface = &file.interface;
        (!interface.dns.is_empty()).then(|| Self {
            servers: interface.dns.clone(),
            search: interface.dns_search.clone(),
        })
    }

    /// Returns FreeBSD's command that sets them for a device. `-x` gives them precedence over those
    /// of all other interfaces.
    #[must_use]
    pub fn add(&self, device: &str) -> SystemCommand {
        let mut input = String::new();
        for server in &self.servers {
            input.push_str(&format!("nameserver {server}\n"));
        }
        if !self.search.is_empty() {
            input.push_str(&format!("search {}\n", self.search.join(" ")));
        }
        SystemCommand {
            input,
            ..command(RESOLVCONF, &["-a", device, "-x"])
        }
    }

    /// Returns the settings of a network service with these name servers.
    #[must_use]
    pub fn of_service(&self, name: &str) -> NetworkService {
        NetworkService {
            name: name.to_owned(),
            servers: self.servers.iter().map(IpAddr::to_string).collect(),
            search: self.search.clone(),
        }
    }
}

/// Returns FreeBSD's command that removes the name servers of a device. `-f` has it succeed without
/// them.
#[must_use]
pub fn remove(device: &str) -> SystemCommand {
    command(RESOLVCONF, &["-d", device, "-f"])
}

/// Returns the commands that give a network service its settings.
#[must_use]
pub fn set_service(service: &NetworkService) -> [SystemCommand; 2] {
    let set = |verb, values: &[String]| {
        let mut command = command(NETWORKSETUP, &[verb, &service.name]);
        match values {
            [] => command.arguments.push(EMPTY.to_owned()),
            values => command.arguments.extend_from_slice(values),
        }
        command
    };
    [
        set("-setdnsservers", &service.servers),
        set("-setsearchdomains", &service.search),
    ]
}

/// Returns the command that lists the network services.
#[must_use]
pub fn list_services() -> SystemCommand {
    command(NETWORKSETUP, &["-listallnetworkservices"])
}

/// Returns the names in a list of network services. The first line is an explanation, and an
/// asterisk precedes a disabled service.
pub fn service_names(list: &str) -> impl Iterator<Item = &str> {
    let names = list.lines().skip(1);
    names
        .map(|line| line.strip_prefix('*').unwrap_or(line))
        .filter(|name| !name.is_empty())
}

/// Returns the commands that print the name servers and the search domains of a service.
#[must_use]
pub fn get_service(name: &str) -> [SystemCommand; 2] {
    ["-getdnsservers", "-getsearchdomains"].map(|verb| command(NETWORKSETUP, &[verb, name]))
}

/// Returns the entries that a command of [`get_service`] printed, one in each line. It prints a
/// sentence if there are none.
#[must_use]
pub fn service_entries(printed: &str) -> Vec<String> {
    let lines = printed
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    match lines.iter().any(|line| line.contains(' ')) {
        true => Vec::new(),
        false => lines,
    }
}

/// Returns the error in the output of networksetup(8), which succeeds nevertheless.
#[must_use]
pub fn service_error(printed: &str) -> Option<&str> {
    printed.lines().find(|line| line.contains("Error"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> DnsSettings {
        DnsSettings {
            servers: vec!["10.0.0.53".parse().unwrap(), "fd09::53".parse().unwrap()],
            search: vec!["example.org".to_owned(), "lan".to_owned()],
        }
    }

    #[test]
    fn resolvconf_reads_a_resolv_conf() {
        let command = settings().add("wg0");
        assert_eq!(command.to_string(), "resolvconf -a wg0 -x");
        assert_eq!(
            command.input,
            "nameserver 10.0.0.53\nnameserver fd09::53\nsearch example.org lan\n"
        );
        assert_eq!(remove("wg0").to_string(), "resolvconf -d wg0 -f");
    }

    #[test]
    fn a_service_is_set_and_restored() {
        let [servers, search] = set_service(&settings().of_service("Thunderbolt Bridge"));
        assert_eq!(
            servers.to_string(),
            "networksetup -setdnsservers 'Thunderbolt Bridge' 10.0.0.53 fd09::53"
        );
        assert_eq!(
            search.to_string(),
            "networksetup -setsearchdomains 'Thunderbolt Bridge' example.org lan"
        );
        let before = NetworkService {
            name: "Wi-Fi".to_owned(),
            servers: Vec::new(),
            search: Vec::new(),
        };
        let [servers, _] = set_service(&before);
        assert_eq!(
            servers.to_string(),
            "networksetup -setdnsservers Wi-Fi Empty"
        );
    }

    #[test]
    fn sentences_are_no_entries() {
        let list = "An asterisk (*) denotes that a network service is disabled.\nWi-Fi\n*Thunderbolt Bridge\n";
        let names: Vec<_> = service_names(list).collect();
        assert_eq!(names, ["Wi-Fi", "Thunderbolt Bridge"]);
        let none = "There aren't any DNS Servers set on Wi-Fi.\n";
        assert!(service_entries(none).is_empty());
        assert_eq!(
            service_entries("192.0.2.1\n2001:db8::1\n"),
            ["192.0.2.1", "2001:db8::1"]
        );
        let error = "** Error: The parameters were not valid.";
        assert_eq!(service_error(error), Some(error));
        assert_eq!(service_error(""), None);
    }
}
