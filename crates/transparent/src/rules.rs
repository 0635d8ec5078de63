//! Rules about applications, as the kernel compares them with tasks.
//!
//! `bpf/identity.h` is the other half. What is written in the file becomes entries
//! of two maps: names in a trie, where the longest match answers for all that are
//! shorter; paths (by a keyed hash of each directory above and the last part) and
//! users in a hash table.

use std::collections::BTreeMap;
use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;
use taupe_config::application::{AppRules, Application, User};

use crate::fault::Fault;
use crate::state::{
    ALLOW, BELOW, DIRECT, DISALLOW, ExactKey, Kind, NAME_SIZE, NameKey, PATH_DEPTH, TUNNEL, space,
};

/// The longest name that is told from its beginning: the kernel's part cuts
/// names to one byte more, and ends them with NUL.
const NAME_MAX: usize = NAME_SIZE - 2;

/// A rule set, ready for the maps.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Compiled {
    /// By the number of bits that count, and the key.
    pub(crate) names: BTreeMap<(u32, NameKey), u32>,
    pub(crate) exact: BTreeMap<ExactKey, u32>,
    pub(crate) kinds: u32,
    pub(crate) everyone: u32,
    pub(crate) otherwise: u32,
    pub(crate) path_depths: u32,
    pub(crate) cgroup_depths: u32,
}

/// A name, or the beginning of one.
struct Name {
    kind: Kind,
    text: Vec<u8>,
    open: bool,
    bits: u32,
}

impl Name {
    fn covers(&self, other: &Self) -> bool {
        self.kind == other.kind
            && other.text.starts_with(&self.text)
            && (self.open || !other.open && self.text == other.text)
    }
}

/// Turns rules into entries of this generation. `key` is that of the hash.
pub(crate) fn compile(
    rules: &AppRules,
    generation: u32,
    key: (u64, u64),
) -> Result<Compiled, Fault> {
    let mut compiled = Compiled {
        otherwise: match rules.allowed.is_empty() {
            true => TUNNEL,
            false => DIRECT,
        },
        ..Compiled::default()
    };
    let mut names = Vec::new();
    for (rules, bits) in [(&rules.allowed, ALLOW), (&rules.disallowed, DISALLOW)] {
        for rule in rules {
            compiled.add(&rule.application, bits, generation, key, &mut names)?;
        }
    }
    compiled.unite(&names, generation);
    Ok(compiled)
}

impl Compiled {
    fn add(
        &mut self,
        application: &Application,
        bits: u32,
        generation: u32,
        key: (u64, u64),
        names: &mut Vec<Name>,
    ) -> Result<(), Fault> {
        let mut name = |kind, text: &str, open| {
            if text.len() > NAME_MAX {
                return Err(Fault::LongName(text.to_owned()));
            }
            names.push(Name {
                kind,
                text: text.as_bytes().to_vec(),
                open,
                bits,
            });
            Ok(())
        };
        match application {
            Application::Name(pattern) => {
                self.kinds |= Kind::Name as u32;
                name(Kind::Name, pattern.text(), pattern.is_open())?;
                if !pattern.is_open() {
                    name(Kind::Name, &format!("{}.exe", pattern.text()), false)?;
                }
            }
            Application::CgroupName(_) | Application::Flatpak(_) | Application::Snap(_) => {
                self.kinds |= Kind::CgroupName as u32;
                if let Some(pattern) = application.cgroup_name() {
                    name(Kind::CgroupName, pattern.text(), pattern.is_open())?;
                }
            }
            // No process here has such a path.
            Application::Windows(_) => {}
            Application::Executable(path) => {
                self.path(Kind::Path, path, bits, generation, key);
            }
            Application::Directory(path) => {
                self.path(Kind::Path, path, bits << BELOW, generation, key);
            }
            Application::Cgroup(path) => {
                let bits = bits | bits << BELOW;
                self.path(Kind::CgroupPath, path, bits, generation, key);
            }
            Application::User(User::Id(id)) => {
                self.kinds |= Kind::User as u32;
                self.exact(Kind::User, u64::from(*id), bits, generation);
            }
            Application::User(User::Name(name)) => return Err(Fault::User(name.clone())),
        }
        Ok(())
    }

    fn exact(&mut self, kind: Kind, id: u64, bits: u32, generation: u32) {
        let key = ExactKey {
            space: space(kind, generation),
            zero: 0,
            id,
        };
        *self.exact.entry(key).or_default() |= bits;
    }

    fn path(&mut self, kind: Kind, path: &str, bits: u32, generation: u32, key: (u64, u64)) {
        let mut parts = 0;
        let mut hash = 0;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            hash = below(hash, part.as_bytes(), key);
            parts += 1;
        }
        match parts {
            // The root: everything is below it.
            0 => self.everyone |= bits >> BELOW,
            1..=PATH_DEPTH => {
                let depths = match kind {
                    Kind::Path => &mut self.path_depths,
                    _ => &mut self.cgroup_depths,
                };
                *depths |= 1 << (parts - 1);
                self.kinds |= kind as u32;
                self.exact(kind, hash, bits, generation);
            }
            // Nothing that deep is compared; a file cannot name it either.
            _ => {}
        }
    }

    /// Gives each name the bits of all that cover it: only one will be found.
    fn unite(&mut self, names: &[Name], generation: u32) {
        for name in names {
            let bits = names
                .iter()
                .filter(|other| other.covers(name))
                .fold(0, |bits, other| bits | other.bits);
            let mut key = NameKey {
                space: space(name.kind, generation),
                name: [0; NAME_SIZE],
            };
            for (to, from) in key.name.iter_mut().zip(&name.text) {
                *to = *from;
            }
            let length = name.text.len() + usize::from(!name.open);
            self.names.insert((32 + 8 * length as u32, key), bits);
        }
    }
}

/// The hash of what is called `part` in the directory with this hash.
fn below(above: u64, part: &[u8], key: (u64, u64)) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
    hasher.write(&above.to_le_bytes());
    hasher.write(
        &SipHasher13::new_with_keys(key.0, key.1)
            .hash(part)
            .to_le_bytes(),
    );
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::{ALLOW, BELOW, Compiled, DISALLOW, Kind, NAME_SIZE, compile};
    use taupe_config::application::{AppRules, Rule};

    fn rules(allowed: &str, disallowed: &str) -> AppRules {
        let list = |text: &str| {
            let entries = text.split(',').filter(|entry| !entry.is_empty());
            entries
                .map(|entry| Rule {
                    application: entry.parse().expect(entry),
                    line: 0,
                })
                .collect()
        };
        AppRules {
            allowed: list(allowed),
            disallowed: list(disallowed),
        }
    }

    /// The bits of the longest name that fits, as the trie finds it.
    fn found(compiled: &Compiled, kind: Kind, name: &str) -> Option<u32> {
        let mut bytes = name.as_bytes().to_vec();
        bytes.push(0);
        let fits = compiled.names.iter().filter(|((bits, key), _)| {
            let length = (*bits as usize - 32) / 8;
            key.space >> 1 == kind as u32 && bytes.get(..length) == key.name.get(..length)
        });
        fits.max_by_key(|((bits, _), _)| *bits)
            .map(|(_, bits)| *bits)
    }

    #[test]
    fn a_name_has_the_bits_of_all_that_cover_it() {
        let compiled = compile(&rules("fire*,curl", "firefox,f*"), 0, (1, 2)).expect("compiled");
        let bits = |name| found(&compiled, Kind::Name, name);
        assert_eq!(bits("firefox"), Some(ALLOW | DISALLOW));
        assert_eq!(bits("firefox-bin"), Some(ALLOW | DISALLOW));
        assert_eq!(bits("fox"), Some(DISALLOW));
        assert_eq!(bits("curl"), Some(ALLOW));
        assert_eq!(bits("curl.exe"), Some(ALLOW));
        assert_eq!(bits("curly"), None);
        assert_eq!(bits("cur"), None);
        assert_eq!(found(&compiled, Kind::CgroupName, "curl"), None);
    }

    #[test]
    fn a_name_has_no_bits_of_a_narrower_one_or_of_another_kind() {
        let compiled = compile(&rules("curl,wg", "curl*,curlew"), 0, (1, 2)).expect("compiled");
        let bits = |kind, name| found(&compiled, kind, name);
        assert_eq!(bits(Kind::Name, "curl"), Some(ALLOW | DISALLOW));
        assert_eq!(bits(Kind::Name, "curly"), Some(DISALLOW));
        assert_eq!(bits(Kind::Name, "curlew"), Some(DISALLOW));
        assert_eq!(bits(Kind::Name, "wg"), Some(ALLOW));
        let compiled = compile(&rules("fire*", "cgroup:firefox"), 0, (1, 2)).expect("compiled");
        let bits = |kind, name| found(&compiled, kind, name);
        assert_eq!(bits(Kind::Name, "firefox"), Some(ALLOW));
        assert_eq!(bits(Kind::CgroupName, "firefox"), Some(DISALLOW));
    }

    #[test]
    fn the_root_is_everyone() {
        let compiled = compile(&rules("/", "cgroup:/"), 0, (1, 2)).expect("compiled");
        assert_eq!(compiled.everyone, ALLOW | DISALLOW);
        assert_eq!(compiled.kinds, 0);
    }

    #[test]
    fn depths_and_bits_of_paths() {
        let compiled =
            compile(&rules("/usr/bin/curl,/opt/", "cgroup:/a/b"), 1, (1, 2)).expect("compiled");
        assert_eq!(compiled.path_depths, 0b101);
        assert_eq!(compiled.cgroup_depths, 0b10);
        let mut bits: Vec<_> = compiled.exact.iter().collect();
        bits.sort_by_key(|(_, bits)| **bits);
        assert_eq!(
            bits.iter().map(|(_, bits)| **bits).collect::<Vec<_>>(),
            [ALLOW, ALLOW << BELOW, DISALLOW | DISALLOW << BELOW]
        );
        assert!(bits.iter().all(|(key, _)| key.space & 1 == 1));
    }

    #[test]
    fn what_is_too_long_to_be_told_is_refused() {
        let long = "x".repeat(NAME_SIZE - 1);
        assert!(compile(&rules(&format!("cgroup:{long}"), ""), 0, (1, 2)).is_err());
        assert!(compile(&rules(&format!("cgroup:{}", &long[1..]), ""), 0, (1, 2)).is_ok());
    }
}
