//! Section names and keys: Taupe's own, and those of other programs.

use core::fmt;

/// A section.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Section {
    /// `[Interface]`.
    Interface,
    /// `[Peer]`.
    Peer,
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interface => "[Interface]",
            Self::Peer => "[Peer]",
        })
    }
}

/// A key that Taupe knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "each is called as it is written")]
pub enum Key {
    PrivateKey,
    ListenPort,
    FwMark,
    Address,
    Dns,
    Mtu,
    Table,
    PreUp,
    PostUp,
    PreDown,
    PostDown,
    SaveConfig,
    Lanes,
    PublicKey,
    PresharedKey,
    AllowedIps,
    DisallowedIps,
    Endpoint,
    PersistentKeepalive,
    AllowedApps,
    DisallowedApps,
    BypassLanTraffic,
    KillSwitch,
    Forwarded,
    SystemBus,
    Children,
    AppsOfUser,
    PqPrivateKey,
    PqPublicKey,
    PostQuantum,
    Name,
}

impl Key {
    /// All keys, by their number.
    pub(super) const ALL: [Self; 31] = [
        Self::PrivateKey,
        Self::ListenPort,
        Self::FwMark,
        Self::Address,
        Self::Dns,
        Self::Mtu,
        Self::Table,
        Self::PreUp,
        Self::PostUp,
        Self::PreDown,
        Self::PostDown,
        Self::SaveConfig,
        Self::Lanes,
        Self::PublicKey,
        Self::PresharedKey,
        Self::AllowedIps,
        Self::DisallowedIps,
        Self::Endpoint,
        Self::PersistentKeepalive,
        Self::AllowedApps,
        Self::DisallowedApps,
        Self::BypassLanTraffic,
        Self::KillSwitch,
        Self::Forwarded,
        Self::SystemBus,
        Self::Children,
        Self::AppsOfUser,
        Self::PqPrivateKey,
        Self::PqPublicKey,
        Self::PostQuantum,
        Self::Name,
    ];

    /// Returns the name. Case is ignored in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PrivateKey => "PrivateKey",
            Self::ListenPort => "ListenPort",
            Self::FwMark => "FwMark",
            Self::Address => "Address",
            Self::Dns => "DNS",
            Self::Mtu => "MTU",
            Self::Table => "Table",
            Self::PreUp => "PreUp",
            Self::PostUp => "PostUp",
            Self::PreDown => "PreDown",
            Self::PostDown => "PostDown",
            Self::SaveConfig => "SaveConfig",
            Self::Lanes => "Lanes",
            Self::PublicKey => "PublicKey",
            Self::PresharedKey => "PresharedKey",
            Self::AllowedIps => "AllowedIPs",
            Self::DisallowedIps => "DisallowedIPs",
            Self::Endpoint => "Endpoint",
            Self::PersistentKeepalive => "PersistentKeepalive",
            Self::AllowedApps => "AllowedApps",
            Self::DisallowedApps => "DisallowedApps",
            Self::BypassLanTraffic => "BypassLanTraffic",
            Self::KillSwitch => "KillSwitch",
            Self::Forwarded => "Forwarded",
            Self::SystemBus => "SystemBus",
            Self::Children => "Children",
            Self::AppsOfUser => "AppsOfUser",
            Self::PqPrivateKey => "PqPrivateKey",
            Self::PqPublicKey => "PqPublicKey",
            Self::PostQuantum => "PostQuantum",
            Self::Name => "Name",
        }
    }

    /// Returns the section of the key. A key with [`Self::is_transparent_mode`] may also be in the section
    /// of the only peer.
    #[must_use]
    pub const fn section(self) -> Section {
        match self {
            Self::PublicKey
            | Self::PresharedKey
            | Self::AllowedIps
            | Self::DisallowedIps
            | Self::Endpoint
            | Self::PersistentKeepalive
            | Self::PqPublicKey
            | Self::PostQuantum
            | Self::Name => Section::Peer,
            _ => Section::Interface,
        }
    }

    /// Returns true if a section may contain the key.
    pub(super) fn fits(self, section: Section) -> bool {
        section == self.section() || self.is_transparent_mode()
    }

    /// Returns true if it is a key of transparent mode, which concerns the whole tunnel.
    #[must_use]
    pub const fn is_transparent_mode(self) -> bool {
        matches!(
            self,
            Self::AllowedApps
                | Self::DisallowedApps
                | Self::BypassLanTraffic
                | Self::KillSwitch
                | Self::Forwarded
                | Self::SystemBus
                | Self::Children
                | Self::AppsOfUser
        )
    }

    /// Returns true if it is a post-quantum key.
    #[must_use]
    pub const fn is_post_quantum(self) -> bool {
        matches!(
            self,
            Self::PqPrivateKey | Self::PqPublicKey | Self::PostQuantum
        )
    }

    /// Returns true if only Taupe knows the key, so that it may be in a comment.
    #[must_use]
    pub const fn is_taupe_only(self) -> bool {
        self.is_transparent_mode()
            || self.is_post_quantum()
            || matches!(self, Self::Lanes | Self::Name)
    }

    /// Returns true if `wg` itself accepts it. The others are for programs that bring a tunnel up.
    #[must_use]
    pub const fn is_known_to_wg(self) -> bool {
        matches!(
            self,
            Self::PrivateKey
                | Self::ListenPort
                | Self::FwMark
                | Self::PublicKey
                | Self::PresharedKey
                | Self::AllowedIps
                | Self::Endpoint
                | Self::PersistentKeepalive
        )
    }

    /// Returns true if its value may be `file:` and a path.
    pub(super) const fn may_be_in_file(self) -> bool {
        self.is_cryptographic() && !matches!(self, Self::PublicKey)
    }

    /// Returns true if its value is a cryptographic key.
    pub(super) const fn is_cryptographic(self) -> bool {
        matches!(
            self,
            Self::PrivateKey
                | Self::PublicKey
                | Self::PresharedKey
                | Self::PqPrivateKey
                | Self::PqPublicKey
        )
    }

    /// Returns true if its value is a command.
    pub(super) const fn is_hook(self) -> bool {
        matches!(
            self,
            Self::PreUp | Self::PostUp | Self::PreDown | Self::PostDown
        )
    }

    /// Returns an example line. Cryptographic keys are described instead.
    pub(super) fn example(self) -> String {
        let value = match self {
            Self::PrivateKey => "(the private key)",
            Self::ListenPort => "51820",
            Self::FwMark => "0xca6c",
            Self::Address => "10.0.0.2/24, fd00::2/64",
            Self::Dns => "10.0.0.1, example.org",
            Self::Mtu => "1420",
            Self::Table => "auto",
            Self::PreUp => "echo up %i",
            Self::PostUp => "echo up %i",
            Self::PreDown => "echo down %i",
            Self::PostDown => "echo down %i",
            Self::SaveConfig => "true",
            Self::Lanes => "4",
            Self::PublicKey => "(the peer's public key)",
            Self::PresharedKey => "(the preshared key)",
            Self::AllowedIps => "10.0.0.0/24, fd00::/64",
            Self::DisallowedIps => "192.168.1.0/24",
            Self::Endpoint => "vpn.example.org:51820",
            Self::PersistentKeepalive => "25",
            Self::AllowedApps => "firefox, /opt/games/",
            Self::DisallowedApps => "ssh, cgroup:system.slice",
            Self::BypassLanTraffic => "true",
            Self::KillSwitch => "app",
            Self::Forwarded => "direct",
            Self::SystemBus => "allow",
            Self::Children => "inherit",
            Self::AppsOfUser => "alice",
            Self::PqPrivateKey => "(the private ML-KEM key)",
            Self::PqPublicKey => "(the peer's public ML-KEM key)",
            Self::PostQuantum => "require",
            Self::Name => "alice's laptop",
        };
        format!("{self} = {value}")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Purpose of another program's keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ForeignPurpose {
    /// Selection of applications (WireGuard for Android).
    Applications,
    /// Obfuscation of packets (`AmneziaWG`, `WireSock`).
    Obfuscation,
    /// Proxy to the peer (`WireSock`).
    Proxy,
    /// Settings of the `WireSock` client for Windows.
    Client,
}

/// Name in the position of a key: a key of Taupe, or one of another program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyName {
    Known(Key),
    Foreign(&'static str, ForeignPurpose),
}

/// Keys of other programs.
const FOREIGN: [(&str, ForeignPurpose); 33] = [
    ("IncludedApplications", ForeignPurpose::Applications),
    ("ExcludedApplications", ForeignPurpose::Applications),
    ("Jc", ForeignPurpose::Obfuscation),
    ("Jmin", ForeignPurpose::Obfuscation),
    ("Jmax", ForeignPurpose::Obfuscation),
    ("Jd", ForeignPurpose::Obfuscation),
    ("S1", ForeignPurpose::Obfuscation),
    ("S2", ForeignPurpose::Obfuscation),
    ("S3", ForeignPurpose::Obfuscation),
    ("S4", ForeignPurpose::Obfuscation),
    ("H1", ForeignPurpose::Obfuscation),
    ("H2", ForeignPurpose::Obfuscation),
    ("H3", ForeignPurpose::Obfuscation),
    ("H4", ForeignPurpose::Obfuscation),
    ("I1", ForeignPurpose::Obfuscation),
    ("I2", ForeignPurpose::Obfuscation),
    ("I3", ForeignPurpose::Obfuscation),
    ("I4", ForeignPurpose::Obfuscation),
    ("I5", ForeignPurpose::Obfuscation),
    ("J1", ForeignPurpose::Obfuscation),
    ("J2", ForeignPurpose::Obfuscation),
    ("J3", ForeignPurpose::Obfuscation),
    ("Itime", ForeignPurpose::Obfuscation),
    ("Id", ForeignPurpose::Obfuscation),
    ("Ip", ForeignPurpose::Obfuscation),
    ("Ib", ForeignPurpose::Obfuscation),
    ("Socks5Proxy", ForeignPurpose::Proxy),
    ("Socks5ProxyUsername", ForeignPurpose::Proxy),
    ("Socks5ProxyPassword", ForeignPurpose::Proxy),
    ("Socks5ProxyAllTraffic", ForeignPurpose::Proxy),
    ("ScriptExecTimeout", ForeignPurpose::Client),
    ("VirtualAdapterMode", ForeignPurpose::Client),
    ("EnableDefaultGateway", ForeignPurpose::Client),
];

/// Frequent mistakes for keys that [`nearest`] does not find by distance.
const SYNONYMS: [(&str, Key); 18] = [
    ("IPAddress", Key::Address),
    ("Addresses", Key::Address),
    ("Nameserver", Key::Dns),
    ("Nameservers", Key::Dns),
    ("Server", Key::Endpoint),
    ("Port", Key::ListenPort),
    ("PSK", Key::PresharedKey),
    ("Keepalive", Key::PersistentKeepalive),
    ("Mark", Key::FwMark),
    ("ExcludedIPs", Key::DisallowedIps),
    ("RouteTable", Key::Table),
    ("Applications", Key::AllowedApps),
    ("IncludedApps", Key::AllowedApps),
    ("ExcludedApps", Key::DisallowedApps),
    ("BypassLan", Key::BypassLanTraffic),
    ("NetworkLock", Key::KillSwitch),
    ("MLKEMPrivateKey", Key::PqPrivateKey),
    ("MLKEMPublicKey", Key::PqPublicKey),
];

/// Finds a word, ignoring case.
pub(super) fn find(word: &str) -> Option<KeyName> {
    let known = Key::ALL
        .into_iter()
        .find(|key| key.name().eq_ignore_ascii_case(word));
    if let Some(key) = known {
        return Some(KeyName::Known(key));
    }
    FOREIGN
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(word))
        .map(|(name, what)| KeyName::Foreign(name, *what))
}

/// Returns the key that was probably meant, if one is similar. Of two that are equally similar,
/// returns the one that belongs into `section`.
pub(super) fn nearest(word: &str, section: Option<Section>) -> Option<Key> {
    // `Allowed-IPs`, `private_key` and `Post Up` differ only in separators.
    let bare: String = word
        .chars()
        .filter(|c| !c.is_whitespace() && !matches!(c, '-' | '_' | '.'))
        .map(|c| c.to_ascii_lowercase())
        .take(32)
        .collect();
    let synonym = SYNONYMS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(&bare));
    if let Some((_, key)) = synonym {
        return Some(*key);
    }
    Key::ALL
        .into_iter()
        .map(|key| {
            let elsewhere = section.is_some_and(|section| !key.fits(section));
            (distance(&bare, key.name()), elsewhere, key)
        })
        // A third of the letters may be wrong: `Tabel` is `Table`, `Labels` is not.
        .filter(|(distance, _, key)| *distance <= key.name().len().min(bare.len()).div_ceil(3))
        .min_by_key(|(distance, elsewhere, _)| (*distance, *elsewhere))
        .map(|(_, _, key)| key)
}

/// Returns the section that was probably meant.
pub(super) fn nearest_section(name: &str) -> Option<Section> {
    let bare: String = name
        .chars()
        .filter(char::is_ascii_alphabetic)
        .take(32)
        .collect();
    [(Section::Interface, "Interface"), (Section::Peer, "Peer")]
        .into_iter()
        .map(|(section, name)| (section, distance(&bare, name), name.len()))
        .filter(|(_, distance, length)| *distance <= length.div_ceil(3))
        .min_by_key(|(_, distance, _)| *distance)
        .map(|(section, ..)| section)
}

/// Returns the number of letters to insert, delete, replace or swap with their neighbour, ignoring
/// case.
fn distance(a: &str, b: &str) -> usize {
    strsim::osa_distance(&a.to_ascii_lowercase(), &b.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "ABC", 0),
            ("tabel", "table", 1),
            ("kitten", "sitting", 3),
            ("ab", "ba", 1),
            ("abcd", "badc", 2),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn nearest_keys_and_sections() {
        for (word, expected) in [
            ("AllowedIP", Some(Key::AllowedIps)),
            ("Allowed IPs", Some(Key::AllowedIps)),
            ("Allowed-IPs", Some(Key::AllowedIps)),
            ("AlowedIPs", Some(Key::AllowedIps)),
            ("DisalowedIPs", Some(Key::DisallowedIps)),
            ("private_key", Some(Key::PrivateKey)),
            ("PreSharedkeys", Some(Key::PresharedKey)),
            ("EndPiont", Some(Key::Endpoint)),
            ("Tabel", Some(Key::Table)),
            ("PersistantKeepAlive", Some(Key::PersistentKeepalive)),
            ("MTUs", Some(Key::Mtu)),
            ("PSK", Some(Key::PresharedKey)),
            ("ExcludedIPs", Some(Key::DisallowedIps)),
            ("Description", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, None), expected, "{word}");
        }
        // `PostUp` and `PreUp` are equally near.
        assert_eq!(nearest_section("Peers"), Some(Section::Peer));
        assert_eq!(nearest_section("interfaces"), Some(Section::Interface));
        assert_eq!(nearest_section("WireGuard"), None);
    }

    #[test]
    fn every_key_is_found_and_nearest_to_itself() {
        for key in Key::ALL {
            assert_eq!(find(&key.name().to_uppercase()), Some(KeyName::Known(key)));
            assert_eq!(nearest(key.name(), None), Some(key));
            assert!(key.example().starts_with(key.name()));
        }
        for (name, what) in FOREIGN {
            let found = find(&name.to_lowercase());
            assert_eq!(found, Some(KeyName::Foreign(name, what)), "{name}");
        }
    }
}
