//! Settings of a tunnel that other programs may change.

/// Settings that a tunnel relies on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Setting {
    Link,
    Mtu,
    Addresses,
    NameServers,
    Routes,
    Rules,
    Firewall,
    Mark,
    Sysctl,
    Bypass,
}

impl Setting {
    /// The tunnel's own settings, in the order in which findings name them.
    pub(crate) const OWN: [Self; 9] = [
        Self::Link,
        Self::Mtu,
        Self::Addresses,
        Self::NameServers,
        Self::Routes,
        Self::Rules,
        Self::Firewall,
        Self::Mark,
        Self::Sysctl,
    ];
}
