//! Compiles rules for applications into map entries that the eBPF programs compare with tasks
//! (`bpf/identity.h`).
//!
//! There are two maps. Names go into a trie, where the longest match has the rules of all shorter
//! matches too. Paths (by a keyed hash over the parent directories and the last component), users
//! and the numbers of rules go into a hash table.
//!
//! A rule's number is a keyed hash of its list and its text. A rule therefore has the same number
//! in every set, and `bpf/processes.h` can check if the rule of a process still exists.

use std::collections::BTreeMap;
use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;
use taupe_config::application::{AppRules, Application, Children, User};

use crate::error::TransparentError;
use crate::state::{
    ALLOW, ANY_USER, DIRECT, DISALLOW, ExactKey, Kind, NAME_SIZE, NameKey, PATH_DEPTH,
    RULE_NUMBER_SHIFT, TUNNEL, space,
};

/// Length of the longest name that can be recognised. The eBPF programs cut names to one byte more,
/// and end them with NUL.
const NAME_MAX: usize = NAME_SIZE - 2;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Compiled {
    /// Entries of the trie: the prefix length in bits, and the key.
    pub(crate) names: BTreeMap<(u32, NameKey), u64>,
    pub(crate) exact: BTreeMap<ExactKey, u64>,
    pub(crate) kinds: u32,
    pub(crate) all_tasks: u32,
    pub(crate) default_verdict: u32,
    pub(crate) path_depths: u32,
    pub(crate) cgroup_depths: u32,
    /// `enum children`.
    pub(crate) children: u32,
    /// A user ID, or [`ANY_USER`].
    pub(crate) user: u32,
}

/// A name or a prefix of names.
struct Name {
    kind: Kind,
    text: Vec<u8>,
    is_prefix: bool,
    rule: u64,
}

impl Name {
    fn covers(&self, other: &Self) -> bool {
        self.kind == other.kind
            && other.text.starts_with(&self.text)
            && (self.is_prefix || !other.is_prefix && self.text == other.text)
    }
}

/// Compiles rules for this generation. `key` is the key of the hash.
pub(crate) fn compile(
    rules: &AppRules,
    generation: u32,
    key: (u64, u64),
) -> Result<Compiled, TransparentError> {
    let mut compiler = Compiler {
        compiled: Compiled {
            default_verdict: match rules.allowed.is_empty() {
                true => TUNNEL,
                false => DIRECT,
            },
            children: children_number(rules.children),
            user: match &rules.of_user {
                None => ANY_USER,
                Some(only) => id_of(&only.user)?,
            },
            ..Compiled::default()
        },
        generation,
        key,
        names: Vec::new(),
    };
    for (rules, bits) in [(&rules.allowed, ALLOW), (&rules.disallowed, DISALLOW)] {
        for rule in rules {
            let number = rule_number(&rule.application, bits, key);
            let value = u64::from(number) << RULE_NUMBER_SHIFT | u64::from(bits);
            compiler.exact(Kind::Rule, number.into(), value);
            for application in std::iter::once(&rule.application).chain(&rule.target) {
                compiler.add(application, value)?;
            }
        }
    }
    Ok(compiler.finish())
}

fn id_of(user: &User) -> Result<u32, TransparentError> {
    match user {
        User::Id(id) => Ok(*id),
        User::Name(name) => Err(TransparentError::UnknownUser(name.clone())),
    }
}

/// Returns the value in `enum children`.
pub(crate) const fn children_number(children: Children) -> u32 {
    match children {
        Children::Own => 0,
        Children::Inherit => 1,
    }
}

/// Returns the number of a rule in the list given by `bits`.
pub(crate) fn rule_number(application: &Application, bits: u32, key: (u64, u64)) -> u32 {
    let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
    hasher.write_u32(bits);
    hasher.write(application.to_string().as_bytes());
    hasher.finish() as u32
}

/// Combines two rules for one task, as `both_rules` in `bpf/identity.h`.
fn combine(one: u64, other: u64) -> u64 {
    const BITS: u64 = (ALLOW | DISALLOW) as u64;
    let allows = |rule: u64| rule & u64::from(ALLOW) != 0;
    let number = match one & BITS == 0 || (allows(other) && !allows(one)) {
        true => other,
        false => one,
    };
    number >> RULE_NUMBER_SHIFT << RULE_NUMBER_SHIFT | (one | other) & BITS
}

struct Compiler {
    compiled: Compiled,
    generation: u32,
    key: (u64, u64),
    names: Vec<Name>,
}

impl Compiler {
    /// Enters an application. `rule` is the value of the map entries.
    fn add(&mut self, application: &Application, rule: u64) -> Result<(), TransparentError> {
        match application {
            Application::Name(pattern) => {
                self.name(Kind::Name, pattern.text(), pattern.is_prefix(), rule)?;
                if !pattern.is_prefix() {
                    self.name(Kind::Name, &format!("{}.exe", pattern.text()), false, rule)?;
                }
            }
            Application::CgroupName(_) | Application::Flatpak(_) | Application::Snap(_) => {
                if let Some(pattern) = application.cgroup_name() {
                    self.name(Kind::CgroupName, pattern.text(), pattern.is_prefix(), rule)?;
                }
            }
            // A Windows path matches no process on Linux.
            Application::Windows(_) => {}
            Application::Executable(path) => self.path(Kind::Path, path, rule),
            Application::Directory(path) => self.path(Kind::Directory, path, rule),
            Application::Cgroup(path) => self.path(Kind::CgroupPath, path, rule),
            Application::User(user) => {
                let id = id_of(user)?;
                self.compiled.kinds |= Kind::User as u32;
                self.exact(Kind::User, id.into(), rule);
            }
        }
        Ok(())
    }

    fn name(
        &mut self,
        kind: Kind,
        text: &str,
        is_prefix: bool,
        rule: u64,
    ) -> Result<(), TransparentError> {
        if text.len() > NAME_MAX {
            return Err(TransparentError::NameTooLong(text.to_owned()));
        }
        self.compiled.kinds |= kind as u32;
        self.names.push(Name {
            kind,
            text: text.as_bytes().to_vec(),
            is_prefix,
            rule,
        });
        Ok(())
    }

    fn exact(&mut self, kind: Kind, id: u64, rule: u64) {
        let key = ExactKey {
            space: space(kind, self.generation),
            zero: 0,
            id,
        };
        let entry = self.compiled.exact.entry(key).or_default();
        *entry = combine(*entry, rule);
    }

    fn path(&mut self, kind: Kind, path: &str, rule: u64) {
        let mut parts = 0;
        let mut hash = 0;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            hash = component_hash(hash, part.as_bytes(), self.key);
            parts += 1;
        }
        let compiled = &mut self.compiled;
        let (depths, kinds) = match kind {
            Kind::CgroupPath => (&mut compiled.cgroup_depths, Kind::CgroupPath),
            _ => (&mut compiled.path_depths, Kind::Path),
        };
        match parts {
            // The root directory: everything is below it. The lower half of a rule is its bits.
            0 => compiled.all_tasks |= rule as u32,
            1..=PATH_DEPTH => {
                *depths |= 1 << (parts - 1);
                compiled.kinds |= kinds as u32;
                self.exact(kind, hash, rule);
            }
            // Deeper paths are not compared; the parser of the file refuses them (`MAX_DEPTH`).
            _ => {}
        }
    }

    /// Gives each name the rules of all names that cover it, since a look-up finds only one entry.
    fn finish(self) -> Compiled {
        let Self {
            mut compiled,
            names,
            generation,
            ..
        } = self;
        for name in &names {
            let covering = names.iter().filter(|other| other.covers(name));
            let rule = covering.fold(0, |rule, other| combine(rule, other.rule));
            let mut key = NameKey {
                space: space(name.kind, generation),
                name: [0; NAME_SIZE],
            };
            for (to, from) in key.name.iter_mut().zip(&name.text) {
                *to = *from;
            }
            let length = name.text.len() + usize::from(!name.is_prefix);
            compiled.names.insert((32 + 8 * length as u32, key), rule);
        }
        compiled
    }
}

/// Returns the hash of the entry `part` in the directory with the hash `above`.
fn component_hash(above: u64, part: &[u8], key: (u64, u64)) -> u64 {
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
    use super::{ALLOW, ANY_USER, Compiled, DISALLOW, Kind, NAME_SIZE, compile};
    use taupe_config::application::{AppRules, AppsOfUser, Rule, User};

    fn rules(allowed: &str, disallowed: &str) -> AppRules {
        let list = |text: &str| {
            let entries = text.split(',').filter(|entry| !entry.is_empty());
            entries
                .map(|entry| Rule::new(entry.parse().expect(entry), 0))
                .collect()
        };
        AppRules {
            allowed: list(allowed),
            disallowed: list(disallowed),
            ..AppRules::default()
        }
    }

    /// Returns the bits of the longest matching name, as the trie finds it.
    fn found(compiled: &Compiled, kind: Kind, name: &str) -> Option<u32> {
        let mut bytes = name.as_bytes().to_vec();
        bytes.push(0);
        let fits = compiled.names.iter().filter(|((bits, key), _)| {
            let length = (*bits as usize - 32) / 8;
            key.space >> 1 == kind as u32 && bytes.get(..length) == key.name.get(..length)
        });
        fits.max_by_key(|((bits, _), _)| *bits)
            .map(|(_, rule)| *rule as u32)
    }

    #[test]
    fn names_combine_all_covering_rules() {
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
    fn names_ignore_narrower_rules_and_other_kinds() {
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
    fn a_rule_for_the_root_applies_to_all_tasks() {
        let compiled = compile(&rules("/", "cgroup:/"), 0, (1, 2)).expect("compiled");
        assert_eq!(compiled.all_tasks, ALLOW | DISALLOW);
        assert_eq!(compiled.kinds, 0);
    }

    #[test]
    fn depths_and_bits_of_paths() {
        let compiled =
            compile(&rules("/usr/bin/curl,/opt/", "cgroup:/a/b"), 1, (1, 2)).expect("compiled");
        assert_eq!(compiled.path_depths, 0b101);
        assert_eq!(compiled.cgroup_depths, 0b10);
        let entries = |kind: Kind| {
            let all = compiled.exact.iter();
            let own = all.filter(move |(key, _)| key.space == (kind as u32) << 1 | 1);
            own.map(|(_, rule)| *rule as u32).collect::<Vec<_>>()
        };
        assert_eq!(entries(Kind::Path), [ALLOW]);
        assert_eq!(entries(Kind::Directory), [ALLOW]);
        assert_eq!(entries(Kind::CgroupPath), [DISALLOW]);
        assert_eq!(entries(Kind::Rule).len(), 3);
        assert_eq!(compiled.exact.len(), 6);
    }

    #[test]
    fn rule_numbers_are_the_same_in_every_set() {
        let numbers = |allowed, disallowed, generation| {
            let rules = rules(allowed, disallowed);
            let compiled = compile(&rules, generation, (1, 2)).expect("compiled");
            let is_rule = |space: u32| space >> 1 == Kind::Rule as u32;
            let all = compiled.exact.keys();
            all.filter(|key| is_rule(key.space))
                .map(|key| key.id)
                .collect::<Vec<_>>()
        };
        let mole = numbers("mole", "", 0);
        assert_eq!(mole, numbers("mole", "", 1));
        assert!(numbers("cat, mole", "dog", 1).contains(&mole[0]));
        // In the other list it has another number.
        assert_ne!(mole, numbers("", "mole", 0));
    }

    #[test]
    fn an_allowed_rule_determines_the_number() {
        for (allowed, disallowed) in [("curl", "c*"), ("c*", "curl")] {
            let compiled = compile(&rules(allowed, disallowed), 0, (1, 2)).expect("compiled");
            let own = super::rule_number(&allowed.parse().expect(allowed), ALLOW, (1, 2));
            let exact = compiled
                .names
                .iter()
                .filter(|((bits, _), _)| *bits == 32 + 8 * 5);
            let found: Vec<_> = exact.map(|(_, rule)| (*rule >> 32) as u32).collect();
            assert_eq!(found, [own]);
        }
    }

    #[test]
    fn rules_are_about_one_user_or_all() {
        let user = |user: Option<User>| {
            let of_user = user.map(|user| AppsOfUser { user, line: 1 });
            let rules = AppRules {
                of_user,
                ..rules("curl", "")
            };
            compile(&rules, 0, (1, 2)).map(|compiled| compiled.user)
        };
        assert_eq!(user(None).expect("compiled"), ANY_USER);
        assert_eq!(user(Some(User::Id(7))).expect("compiled"), 7);
        // The daemon gets users that are looked up.
        assert!(user(Some(User::Name("alice".to_owned()))).is_err());
    }

    #[test]
    fn names_too_long_to_compare_are_refused() {
        let long = "x".repeat(NAME_SIZE - 1);
        assert!(compile(&rules(&format!("cgroup:{long}"), ""), 0, (1, 2)).is_err());
        assert!(compile(&rules(&format!("cgroup:{}", &long[1..]), ""), 0, (1, 2)).is_ok());
    }
}
