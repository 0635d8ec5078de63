//! Comparison of the name servers that were set with those in use.

use super::file::{self, Owner};
use super::{Dns, DnsError, Method, Paths, resolved};
use std::fmt;
use std::net::IpAddr;

/// Name servers of a tunnel that another program has replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameServerDeviation {
    place: Place,
    /// The servers in use.
    pub found: Vec<IpAddr>,
    /// The tunnel's servers.
    pub wanted: Vec<IpAddr>,
}

/// The place that no longer has the tunnel's servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    ResolvConf,
    Resolved,
    /// The servers are set, but only for some names.
    ResolvedDefault,
}

impl fmt::Display for NameServerDeviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.place {
            Place::ResolvConf => "another program has rewritten /etc/resolv.conf",
            Place::Resolved | Place::ResolvedDefault => {
                "another program has changed the tunnel's DNS in systemd-resolved"
            }
        })?;
        let wanted = listed(&self.wanted);
        if self.place == Place::ResolvedDefault {
            return write!(
                f,
                ": {wanted} is asked for some names only, other name servers for the rest"
            );
        }
        match self.found.as_slice() {
            [] => write!(f, ": no name server is left of {wanted}"),
            found => write!(
                f,
                ": names are asked of {} instead of {wanted}",
                listed(found)
            ),
        }
    }
}

fn listed(servers: &[IpAddr]) -> String {
    let servers: Vec<_> = servers.iter().map(IpAddr::to_string).collect();
    servers.join(", ")
}

impl Dns {
    /// Compares the servers with those in use. Returns `None` if they are the same, or if
    /// systemd-resolved does not answer.
    ///
    /// # Errors
    ///
    /// [`DnsError::Read`].
    pub fn verify(&self, paths: &Paths) -> Result<Option<NameServerDeviation>, DnsError> {
        let wanted = &self.settings.servers;
        let deviation = |place, found| {
            Ok(Some(NameServerDeviation {
                place,
                found,
                wanted: wanted.clone(),
            }))
        };
        match &self.method {
            Method::File => match file::verify(paths, &self.interface, &self.settings)? {
                Some(found) => deviation(Place::ResolvConf, found),
                None => Ok(None),
            },
            Method::Resolved if file::owner(paths)? != Owner::SystemdResolved => {
                deviation(Place::ResolvConf, file::servers(paths)?)
            }
            Method::Resolved => match resolved::current(paths, &self.interface) {
                Ok(Some(link)) if link.settings.servers == *wanted => match link.is_default {
                    true => Ok(None),
                    false => deviation(Place::ResolvedDefault, link.settings.servers),
                },
                Ok(link) => {
                    let found = link.map(|link| link.settings.servers);
                    deviation(Place::Resolved, found.unwrap_or_default())
                }
                // Without an answer nothing is known; possibly no names are resolved at all.
                Err(_) => Ok(None),
            },
            // The program itself is not run, because a daemon should not run one after each change
            // of a route. A loopback address counts as correct: resolvconf passes the tunnel's
            // servers to the local server, which forwards to them. Debian's resolvconf lists other
            // servers after the tunnel's; resolvers use the first one.
            Method::Resolvconf { .. } => {
                let found = file::servers(paths)?;
                let is_in_force = |server: &IpAddr| wanted.contains(server) || server.is_loopback();
                if found.first().is_some_and(is_in_force) {
                    return Ok(None);
                }
                deviation(Place::ResolvConf, found)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::World;
    use std::fs;
    use std::net::IpAddr;

    fn found(world: &World, dns: &super::Dns) -> Option<Vec<IpAddr>> {
        let deviation = dns.verify(&world.paths).expect("readable");
        deviation.map(|deviation| deviation.found)
    }

    fn servers(text: &str) -> Option<Vec<IpAddr>> {
        Some(
            text.split_whitespace()
                .map(|a| a.parse().unwrap())
                .collect(),
        )
    }

    #[test]
    fn a_file_that_another_program_writes_deviates_until_it_is_set_again() {
        let world = World::new();
        let file = world.paths.resolv_conf();
        fs::write(&file, "nameserver 198.51.100.1\n").unwrap();
        let dns = world.choose();
        dns.apply(&world.paths).unwrap();
        assert_eq!(found(&world, &dns), None);

        let ours = fs::read_to_string(&file).unwrap();
        for (text, expected) in [
            ("nameserver 198.51.100.9\n".to_owned(), "198.51.100.9"),
            // The comment is still there.
            (
                format!("{ours}nameserver 198.51.100.9\n"),
                "192.0.2.1 2001:db8::1 198.51.100.9",
            ),
            (ours.replace("nameserver 192.0.2.1\n", ""), "2001:db8::1"),
            (
                format!("nameserver ::1\n{ours}"),
                "::1 192.0.2.1 2001:db8::1",
            ),
        ] {
            fs::write(&file, &text).unwrap();
            assert_eq!(found(&world, &dns), servers(expected), "{text}");
            dns.apply(&world.paths).unwrap();
            assert_eq!(found(&world, &dns), None, "{text}");
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(found(&world, &dns), Some(Vec::new()));
    }

    #[test]
    fn what_another_program_wrote_comes_back_when_the_tunnel_ends() {
        let world = World::new();
        let file = world.paths.resolv_conf();
        fs::write(&file, "nameserver 198.51.100.1\n").unwrap();
        let dns = world.choose();
        dns.apply(&world.paths).unwrap();
        fs::write(&file, "nameserver 198.51.100.9\n").unwrap();
        dns.apply(&world.paths).unwrap();
        assert_eq!(dns.undo(&world.paths).unwrap(), None);
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(text, "nameserver 198.51.100.9\n");
    }

    #[test]
    fn a_later_tunnels_servers_are_no_deviation() {
        let world = World::new();
        let dns = world.choose();
        dns.apply(&world.paths).unwrap();
        let later: [IpAddr; 1] = ["192.0.2.9".parse().unwrap()];
        let later = super::super::choose(&world.paths, "wg1", &later, &[]);
        later.unwrap().unwrap().apply(&world.paths).unwrap();
        assert_eq!(found(&world, &dns), None);
    }

    #[test]
    fn what_resolvconf_writes_names_the_tunnels_servers_or_a_local_one() {
        let world = World::new();
        world.program("resolvconf", "exit 1");
        let dns = world.choose();
        let file = world.paths.resolv_conf();
        for (text, expected) in [
            ("nameserver 192.0.2.1\nnameserver 2001:db8::1\n", None),
            ("nameserver 127.0.0.1\n", None),
            ("nameserver 198.51.100.1\n", servers("198.51.100.1")),
            ("nameserver 192.0.2.1\nnameserver 198.51.100.1\n", None),
            (
                "nameserver 198.51.100.1\nnameserver 192.0.2.1\n",
                servers("198.51.100.1 192.0.2.1"),
            ),
            ("# none\n", Some(Vec::new())),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(found(&world, &dns), expected, "{text}");
        }
    }
}
