//! Malformed files, each with the line that is wrong: written by hand, and
//! valid ones in which something was broken.

mod table;

use taupe_protocol::crypto::{Secret, default_provider};
use taupe_protocol::hybrid::Suite;
use taupe_protocol::key::{KEY_LEN, PqPrivateKey};

use crate::file::{Key, Section};
use taupe_uapi::key::Encoding;

/// A file that must be refused.
pub struct Malformed {
    /// What was done to it.
    pub name: String,
    /// The whole text.
    pub text: Vec<u8>,
    /// A line that an error must name.
    pub line: usize,
    /// The kind of that error as its `Debug` begins, if it is always the same.
    pub kind: Option<&'static str>,
}

/// Files that were written by hand.
#[must_use]
pub fn hand_written() -> Vec<Malformed> {
    let in_interface = table::INTERFACE.iter().map(|(kind, line)| {
        let text = format!(
            "[Interface]\nPrivateKey = {{own}}\nAddress = 10.0.0.2/24\n{line}\n\n\
             [Peer]\nPublicKey = {{peer}}\nAllowedIPs = 10.0.0.0/24\n"
        );
        (4, *kind, text)
    });
    let in_peer = table::PEER.iter().map(|(kind, line)| {
        let text = format!(
            "[Interface]\nPrivateKey = {{own}}\nAddress = 10.0.0.2/24\n\n\
             [Peer]\nPublicKey = {{peer}}\n{line}\n"
        );
        (7, *kind, text)
    });
    let whole = table::WHOLE
        .iter()
        .map(|(line, kind, text)| (*line, *kind, (*text).to_owned()));
    let keys = [
        ("{own}", [8; KEY_LEN]),
        ("{peer}", [1; KEY_LEN]),
        ("{other}", [2; KEY_LEN]),
        ("{zero}", [0; KEY_LEN]),
    ];
    let pq_keys = pq_keys();
    let texts = in_interface.chain(in_peer).chain(whole);
    let mut files: Vec<Malformed> = texts
        .map(|(line, kind, text)| Malformed {
            name: format!("{kind} in line {line}"),
            text: {
                let text = keys.iter().fold(text, |text, (name, key)| {
                    text.replace(name, &Encoding::Base64.encode(key))
                });
                let keys = pq_keys.iter();
                let text = keys.fold(text, |text, (name, key)| text.replace(name, key));
                text.into_bytes()
            },
            line,
            kind: Some(kind),
        })
        .collect();
    files.extend(table::BYTES.iter().map(|(line, kind, text)| Malformed {
        name: format!("{kind} in line {line}"),
        text: text.to_vec(),
        line: *line,
        kind: Some(kind),
    }));
    files
}

/// What stands in the table for ML-KEM keys.
fn pq_keys() -> [(&'static str, String); 5] {
    [
        ("{pq-own}", pq_seed(8)),
        ("{pq-own-public}", pq_key(8, Suite::Hybrid768)),
        ("{pq-peer}", pq_key(1, Suite::Hybrid768)),
        ("{pq-512}", pq_key(1, Suite::Hybrid512)),
        ("{pq-zero}", format!("{}==", "A".repeat(86))),
    ]
}

/// The text of the seed that has this byte everywhere.
fn pq_seed(byte: u8) -> String {
    let seed = PqPrivateKey::new(Secret::new([byte; PqPrivateKey::LEN]));
    let text = seed.map(|seed| Encoding::Base64.encode_pq_private_key(&seed).to_string());
    text.unwrap_or_default()
}

/// The text of a public key of that seed.
fn pq_key(byte: u8, parameters: Suite) -> String {
    let seed = PqPrivateKey::new(Secret::new([byte; PqPrivateKey::LEN]));
    let key = seed.map(|seed| seed.public(default_provider(), parameters));
    key.map_or_else(String::new, |key| {
        Encoding::Base64.encode_pq_public_key(&key)
    })
}

/// A valid file, always the same for one seed.
#[must_use]
pub fn valid(seed: u64) -> Vec<u8> {
    Draft::new(&mut Chance(seed)).text().into_bytes()
}

/// A valid file in which one thing was broken, always the same for one seed.
#[must_use]
pub fn generated(seed: u64) -> Malformed {
    let chance = &mut Chance(seed);
    let mut draft = Draft::new(chance);
    let damage: Damage = chance.one_of(&DAMAGES);
    let (mut line, kind) = damage(&mut draft, chance);
    let mut text = draft.text().into_bytes();
    // Sometimes with the marks of other editors, which change no line.
    if chance.below(8) == 0 {
        text.splice(..0, *b"\xef\xbb\xbf");
    }
    if chance.below(4) == 0 {
        let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
        text = lines.join(&b"\r\n"[..]);
    }
    if chance.below(4) == 0 {
        while text.last().is_some_and(u8::is_ascii_whitespace) {
            text.pop();
        }
    }
    line += 1;
    Malformed {
        name: format!("seed {seed}: {kind} in line {line}"),
        text,
        line,
        kind: Some(kind),
    }
}

/// Breaks a file: the index of the line that is wrong, and the kind.
type Damage = fn(&mut Draft, &mut Chance) -> (usize, &'static str);

const DAMAGES: [Damage; 14] = [
    |draft, chance| {
        let (at, line) = draft.any(chance);
        line.name.push_str(chance.one_of(&["x", "_", "1", " y"]));
        (at, "UnknownKey")
    },
    |draft, chance| {
        let (at, line) = draft.any(chance);
        line.equals = chance.one_of(&["", ":", " ", "->"]);
        // What a value has of its own would do for one.
        line.value = line.value.replace('=', "");
        (at, "NotKeyValue")
    },
    |draft, chance| {
        let (at, line) = draft.any_of(chance, |key| key.known_to_wg() || key == Key::SaveConfig);
        line.value.clear();
        (at, "NoValue")
    },
    |draft, chance| {
        let (at, line) = draft.any_of(chance, is_key);
        let place = chance.below(43);
        match chance.below(3) {
            0 => drop(line.value.remove(place)),
            1 => line.value.insert(place, 'A'),
            _ => line.value.replace_range(place..=place, "!"),
        }
        (at, "NotAKey")
    },
    |draft, chance| {
        let (at, line) = draft.any_of(chance, |_| true);
        let mark = chance.one_of(&["\"", "'"]);
        line.value = format!("{mark}{}{mark}", line.value);
        (at, "Quoted")
    },
    |draft, chance| {
        let (at, line) = draft.any_of(chance, |_| true);
        let character = chance.one_of(&["\u{a0}", "\u{200b}", "\u{2019}", "\u{feff}"]);
        match chance.below(3) {
            0 => line.name.push_str(character),
            1 => line.value.push_str(character),
            _ => line.value.insert_str(0, character),
        }
        (at, "LookAlike")
    },
    |draft, chance| {
        let (at, line) = draft.any_of(chance, is_number);
        line.value = (chance.one_of(&["99999999999999999999", "-1", "1.5", "0b1", "1e3"])).into();
        let kind = match line.key {
            Some(Key::ListenPort) => "ListenPort",
            Some(Key::PersistentKeepalive) => "PersistentKeepalive",
            _ => "FwMark",
        };
        (at, kind)
    },
    |draft, chance| {
        let (at, line) = draft.any_of(chance, |key| key == Key::AllowedIps || key == Key::Address);
        line.value
            .push_str(chance.one_of(&[", 10.0.0.0/33", ", ::/129", ", 10.0.0.0/", ", 1::g"]));
        (at, "Address")
    },
    |draft, chance| {
        let (at, line) = draft.any_of(chance, |key| key == Key::Endpoint);
        line.value =
            (chance.one_of(&["192.0.2.1", "[::1]", "[::1", ":1", "a:b", "a:65536"])).into();
        (at, "Endpoint")
    },
    |draft, chance| {
        let (at, line) = draft.any_of(chance, |key| key != Key::SaveConfig && !key.is_of_tunnel());
        let key = line.key.unwrap_or(Key::Address);
        // Below the other section's header.
        let wanted = match key.section() {
            Section::Interface => "[Peer]",
            Section::Peer => "[Interface]",
        };
        let moved = draft.lines.remove(at);
        let header = draft.lines.iter().position(|line| line.name == wanted);
        let to = header.unwrap_or_default() + 1;
        draft.lines.insert(to, moved);
        (to, "Misplaced")
    },
    |draft, chance| {
        let headers: Vec<usize> = draft.lines_with(|line| line.key.is_none());
        let at = chance.one_of(&headers);
        let Some(line) = draft.lines.get_mut(at) else {
            return (0, "");
        };
        line.name = match chance.below(3) {
            0 => line.name.replace(']', ""),
            1 => format!("{} x", line.name),
            _ => format!("[x{}", line.name),
        };
        (at, "UnknownSection")
    },
    |draft, chance| {
        let keys = draft.lines_with(|line| line.key == Some(Key::PublicKey));
        let at = chance.one_of(&keys);
        draft.lines.remove(at);
        let header = draft.lines.get(..at).unwrap_or_default();
        let header = header.iter().rposition(|line| line.key.is_none());
        (header.unwrap_or_default(), "NoPublicKey")
    },
    |draft, chance| {
        let (at, line) = draft.any_of(chance, |key| is_key(key) || is_number(key));
        let mut again = Line {
            value: match line.key {
                Some(key) if is_key(key) => chance.key(),
                _ => "7".into(),
            },
            ..line.clone()
        };
        again.name = again.name.to_uppercase();
        draft.lines.insert(at + 1, again);
        (at + 1, "Repeated")
    },
    |draft, chance| {
        let at = chance.below(draft.lines.len() + 1);
        let name = chance.one_of(&["; comment", "// comment", "Description", "Jc = 4", "\0"]);
        let kind = match name {
            "Description" => "NotKeyValue",
            "Jc = 4" => "Foreign",
            "\0" => "NulByte",
            _ => "ForeignComment",
        };
        draft.lines.insert(at, Line::header(name));
        (at, kind)
    },
];

fn is_key(key: Key) -> bool {
    matches!(key, Key::PrivateKey | Key::PublicKey | Key::PresharedKey)
}

fn is_number(key: Key) -> bool {
    matches!(
        key,
        Key::ListenPort | Key::FwMark | Key::PersistentKeepalive
    )
}

/// A file before it is written.
struct Draft {
    lines: Vec<Line>,
}

#[derive(Clone)]
struct Line {
    /// `None` for a section.
    key: Option<Key>,
    name: String,
    equals: &'static str,
    value: String,
}

impl Line {
    fn header(name: &str) -> Self {
        Self {
            key: None,
            name: name.into(),
            equals: "",
            value: String::new(),
        }
    }

    fn new(key: Key, value: impl Into<String>) -> Self {
        Self {
            key: Some(key),
            name: key.name().into(),
            equals: " = ",
            value: value.into(),
        }
    }
}

impl Draft {
    /// A valid file that has every key that takes one value at least once.
    fn new(chance: &mut Chance) -> Self {
        let mut lines = vec![
            Line::header("[Interface]"),
            Line::new(Key::PrivateKey, chance.key()),
            Line::new(Key::ListenPort, (1024 + chance.below(60_000)).to_string()),
            Line::new(Key::FwMark, format!("{:#x}", 8 + chance.below(60_000))),
            Line::new(Key::Address, format!("10.{}.0.2/24", chance.below(256))),
            Line::new(Key::SaveConfig, chance.one_of(&["true", "false"])),
        ];
        // Seldom: to make and to check such keys takes long.
        let is_hybrid = chance.below(16) == 0;
        if is_hybrid {
            lines.push(Line::new(Key::PqPrivateKey, pq_seed(1)));
        }
        if chance.below(2) == 0 {
            lines.push(Line::new(Key::Address, "fd00::2/64, 192.0.2.77"));
            lines.push(Line::new(Key::Mtu, (1280 + chance.below(220)).to_string()));
        }
        if chance.below(2) == 0 {
            lines.push(Line::new(Key::Dns, "10.0.0.1, fd00::1, example.org"));
            let table = chance.one_of(&["auto", "off", "1000", "main"]);
            lines.push(Line::new(Key::Table, table));
        }
        if chance.below(2) == 0 {
            let apps = chance.one_of(&[
                "firefox, ch*, /opt/games/",
                "uid:1000, cgroup:app-firefox*",
                "flatpak:org.mozilla.firefox,snap:x",
            ]);
            lines.push(Line::new(Key::AllowedApps, apps));
            lines.push(Line::new(Key::AllowedApps, "exe:/usr/bin/curl"));
            let bypass = chance.one_of(&["true", "false"]);
            lines.push(Line::new(Key::BypassLanTraffic, bypass));
            lines.push(Line::new(Key::SystemBus, "allow"));
            lines.push(Line::new(Key::Children, "own"));
        }
        if chance.below(2) == 0 {
            let held = chance.one_of(&["app", "all", "off"]);
            lines.push(Line::new(Key::KillSwitch, held));
            lines.push(Line::new(
                Key::Forwarded,
                chance.one_of(&["tunnel", "direct"]),
            ));
        }
        for peer in 0..=chance.below(4) {
            lines.push(Line::header("[Peer]"));
            lines.push(Line::new(Key::PublicKey, chance.key()));
            let networks = format!("10.{peer}.0.0/16, fd00:{peer}::/32");
            lines.push(Line::new(Key::AllowedIps, networks));
            let endpoint = chance.one_of(&[
                "vpn.example.org:51820",
                "192.0.2.1:51820",
                "[2001:db8::1]:51820",
            ]);
            lines.push(Line::new(Key::Endpoint, endpoint));
            let seconds = 8 + chance.below(60);
            lines.push(Line::new(Key::PersistentKeepalive, seconds.to_string()));
            if chance.below(2) == 0 {
                lines.push(Line::new(Key::PresharedKey, chance.key()));
            }
            if chance.below(2) == 0 {
                let network = format!("10.{peer}.1.0/24");
                lines.push(Line::new(Key::DisallowedIps, network));
            }
        }
        if is_hybrid {
            let parameters = chance.one_of(&[Suite::Hybrid768, Suite::Hybrid512]);
            let byte = 2 + chance.below(200) as u8;
            lines.push(Line::new(Key::PqPublicKey, pq_key(byte, parameters)));
            let said = chance.one_of(&["require", "prefer", "off"]);
            lines.push(Line::new(Key::PostQuantum, said));
        }
        // Hooks are left alone by what breaks a file: anything goes there.
        Self { lines }
    }

    fn text(&self) -> String {
        let lines = self.lines.iter();
        lines
            .map(|line| format!("{}{}{}\n", line.name, line.equals, line.value))
            .collect()
    }

    fn lines_with(&self, wanted: impl Fn(&Line) -> bool) -> Vec<usize> {
        let lines = self.lines.iter().enumerate();
        lines
            .filter(|(_, line)| wanted(line))
            .map(|(index, _)| index)
            .collect()
    }

    fn any(&mut self, chance: &mut Chance) -> (usize, &mut Line) {
        self.any_of(chance, |_| true)
    }

    fn any_of(&mut self, chance: &mut Chance, wanted: fn(Key) -> bool) -> (usize, &mut Line) {
        let found = self.lines_with(|line| line.key.is_some_and(wanted));
        let at = chance.one_of(&found);
        (at, &mut self.lines[at])
    }
}

/// Numbers that look random, always the same for one seed (`SplitMix64`).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn key(&mut self) -> String {
        let words = [self.next(), self.next(), self.next(), self.next()];
        let mut key = [0; KEY_LEN];
        for (bytes, word) in key.chunks_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Encoding::Base64.encode(&key).to_string()
    }
}
