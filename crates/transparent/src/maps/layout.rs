//! Compares `bpf/state.h` with `state.rs` and `maps.rs`.
//!
//! The layouts of structures and maps come from the BTF of the committed objects. Constants come
//! from the header's text, since BTF omits enumerations that no variable uses.

mod btf;
mod header;

use std::mem::offset_of;

use aya::include_bytes_aligned;
use aya_obj::Object;
use aya_obj::generated::bpf_map_type;

use self::btf::{Btf, Field, Structure};
use self::header::Constants;
use super::*;
use crate::state::{
    ALLOW, Application, DIRECT, DISALLOW, FLOWS_MAX, Flow, FlowKey, FlowOwner, Lock, NAME_SIZE,
    Names, OF_STRANGER, PATH_DEPTH, RULE_NUMBER, RuleSet, State, TUNNEL,
};

static OBJECTS: [(&str, &[u8]); 2] = [
    ("taupe.o", include_bytes_aligned!("../bpf/taupe.o")),
    ("marks.o", include_bytes_aligned!("../bpf/marks.o")),
];

/// Bytes of the prefix length at the start of a trie's key. The Rust structures leave it out.
const PREFIX_LENGTH: usize = 4;

/// A Rust structure and its name in C.
struct Shared {
    name: &'static str,
    /// Bytes before the first field that only the C structure has.
    before: usize,
    structure: Structure,
}

fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Describes a Rust structure. `field as "name"` gives the field's name in C. A missing field does
/// not compile.
macro_rules! shared {
    ($rust:ident as $c:literal, $before:expr, { $($field:ident $(as $other:literal)?),* $(,)? }) => {{
        let _ = |value: $rust| {
            let $rust { $($field: _),* } = value;
        };
        Shared {
            name: $c,
            before: $before,
            structure: Structure {
                size: size_of::<$rust>(),
                fields: vec![$(Field {
                    name: [$($other,)? stringify!($field)][0].into(),
                    offset: offset_of!($rust, $field),
                    size: size_of_field(|value: &$rust| &value.$field),
                }),*],
            },
        }
    }};
}

fn shared_structures() -> Vec<Shared> {
    vec![
        shared!(State as "state", 0, {
            schema, up, netns, daemon, tun, stamp, generation, lock, secured, key, rules, flows,
            refused, forwarded, names, unseen, learning, traced, queued,
        }),
        shared!(RuleSet as "rule_set", 0, {
            kinds, everyone, otherwise, path_depths, cgroup_depths, children,
        }),
        // An anonymous union in C.
        shared!(NameKey as "name_key", PREFIX_LENGTH, { space, name as "" }),
        shared!(ExactKey as "exact_key", 0, { space, zero, id }),
        shared!(DestinationKey as "destination_key", PREFIX_LENGTH, { space, address }),
        shared!(FlowKey as "flow_key", 0, {
            remote, local, local_port, remote_port, protocol,
        }),
        shared!(Flow as "flow", 0, { seen, ifindex, is_answered, owner }),
        shared!(FlowOwner as "flow_owner", 0, { opener, interface, application }),
        shared!(Application as "application", 0, { inode, device, user }),
        shared!(NetworkKey as "network_key", PREFIX_LENGTH, { address }),
        shared!(ServiceKey as "service_key", 0, { path }),
        shared!(UplinkValue as "uplink", 0, { mac, has_ethernet, leads_out, link }),
    ]
}

fn differences(rust: &Shared, c: &Structure) -> Vec<String> {
    let Shared {
        name,
        before,
        structure,
    } = rust;
    let mut differences = Vec::new();
    if structure.size + before != c.size {
        let rust = structure.size + before;
        differences.push(format!("struct {name}: {rust} bytes, in C {}", c.size));
    }
    let mut in_c = c.fields.iter().filter(|field| field.offset >= *before);
    let mut in_rust = structure.fields.iter().map(|field| Field {
        offset: field.offset + before,
        ..field.clone()
    });
    loop {
        match (in_rust.next(), in_c.next()) {
            (None, None) => break,
            (Some(rust), Some(c)) if rust == *c => {}
            (rust, c) => differences.push(format!("struct {name}: {rust:?}, in C {c:?}")),
        }
    }
    differences
}

fn btf(object: &[u8]) -> Btf {
    let object = Object::parse(object).expect("an object");
    Btf::parse(&object.btf.expect("BTF").to_bytes())
}

#[test]
fn structures_are_laid_out_as_in_c() {
    for (name, object) in OBJECTS {
        let btf = btf(object);
        let differences: Vec<String> = (shared_structures().iter())
            .flat_map(|shared| differences(shared, &btf.structure(shared.name)))
            .collect();
        assert!(differences.is_empty(), "{name}: {}", differences.join("\n"));
    }
}

#[test]
fn a_structure_with_a_field_moved_renamed_or_resized_differs() {
    let btf = btf(OBJECTS[0].1);
    for shared in shared_structures() {
        let is_different = |change: &dyn Fn(&mut Structure)| {
            let mut structure = btf.structure(shared.name);
            change(&mut structure);
            !differences(&shared, &structure).is_empty()
        };
        assert!(!is_different(&|_| ()));
        assert!(is_different(&|it| it.size += 8), "{}", shared.name);
        let last = |it: &mut Structure, change: fn(&mut Field)| {
            change(it.fields.last_mut().expect("a field"));
        };
        assert!(is_different(&|it| last(it, |field| field.offset += 4)));
        assert!(is_different(&|it| last(it, |field| field.size += 1)));
        assert!(is_different(&|it| last(it, |field| field.name.push('x'))));
        assert!(is_different(&|it| drop(it.fields.pop())));
        if shared.structure.fields.len() > 1 {
            assert!(is_different(&|it| it.fields.reverse()));
        }
    }
}

/// A map as Rust declares it.
struct Declared {
    name: &'static str,
    kind: bpf_map_type,
    key: usize,
    value: usize,
    /// The number of entries that the Rust code assumes.
    entries: Option<usize>,
}

impl Declared {
    fn new<K, V>(name: &'static str, kind: bpf_map_type) -> Self {
        Self {
            name,
            kind,
            key: size_of::<K>(),
            value: size_of::<V>(),
            entries: None,
        }
    }

    fn hash<K, V>(name: &'static str, _: fn(&Maps) -> &HashMap<MapData, K, V>) -> Self {
        Self::new::<K, V>(name, bpf_map_type::BPF_MAP_TYPE_HASH)
    }

    fn trie<K, V>(name: &'static str, _: fn(&Maps) -> &LpmTrie<MapData, K, V>) -> Self {
        Self::new::<Key<K>, V>(name, bpf_map_type::BPF_MAP_TYPE_LPM_TRIE)
    }

    fn of(self, entries: usize) -> Self {
        Self {
            entries: Some(entries),
            ..self
        }
    }
}

fn declared_maps() -> Vec<Declared> {
    vec![
        Declared::new::<u32, State>("state", bpf_map_type::BPF_MAP_TYPE_ARRAY).of(1),
        Declared::trie("names", |maps| &maps.names).of(RULES),
        // Two generations, each with half for the numbers of rules.
        Declared::hash("exact", |maps| &maps.exact).of(2 * EXACT),
        Declared::trie("destinations", |maps| &maps.destinations).of(DESTINATIONS),
        Declared::hash("flows", |maps| &maps.flows.flows).of(FLOWS_MAX),
        Declared::hash("flow_owners", |maps| &maps.flows.owners).of(FLOWS_MAX),
        Declared::hash("uplinks", |maps| &maps.uplinks),
        Declared::hash("locals", |maps| &maps.locals),
        // Each alias has an entry in both directions.
        Declared::hash("stand_ins", |maps| &maps.stand_ins).of(2 * MOST_STAND_INS as usize),
        Declared::hash("services", |maps| &maps.services),
        Declared::trie("networks", |maps| &maps.networks),
        Declared::hash("listeners", |maps| &maps.listeners),
        Declared::new::<u32, u64>("counters", bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY)
            .of(Reason::ALL.len()),
    ]
}

#[test]
fn maps_are_declared_as_in_c() {
    for (name, object) in OBJECTS {
        let object = Object::parse(object).expect("an object");
        for declared in declared_maps() {
            let map = &object.maps[declared.name];
            let id = format!("{name}: map {}", declared.name);
            assert_eq!(map.map_type(), declared.kind as u32, "{id}: type");
            assert_eq!(map.key_size() as usize, declared.key, "{id}: key");
            assert_eq!(map.value_size() as usize, declared.value, "{id}: value");
            if let Some(entries) = declared.entries {
                assert_eq!(map.max_entries() as usize, entries, "{id}: entries");
            }
        }
        let services = object.maps["services"].max_entries() as usize;
        assert!(services >= SERVICES.len() * RUN.len(), "{name}: services");
        for pinned in NAMES {
            assert!(object.maps.contains_key(pinned), "{name}: no map {pinned}");
        }
    }
}

#[test]
fn constants_are_those_of_c() {
    let c = Constants::parse(concat!(
        include_str!("../bpf/identity.h"),
        include_str!("../bpf/state.h")
    ));
    let names = |v4, v6, bus| Names { v4, v6, bus }.bits();
    for (name, rust) in [
        ("SCHEMA", SCHEMA),
        ("PATH_DEPTH", PATH_DEPTH as u32),
        ("NAME_SIZE", NAME_SIZE as u32),
        ("SERVICE_SIZE", SERVICE_SIZE as u32),
        ("FLOWS_MAX", FLOWS_MAX as u32),
        ("RULE_NUMBER", RULE_NUMBER),
        ("RULE_ALLOW", ALLOW),
        ("RULE_DISALLOW", DISALLOW),
        ("KIND_NAME", Kind::Name as u32),
        ("KIND_PATH", Kind::Path as u32),
        ("KIND_CGROUP_NAME", Kind::CgroupName as u32),
        ("KIND_CGROUP_PATH", Kind::CgroupPath as u32),
        ("KIND_UID", Kind::User as u32),
        ("KIND_FOLDER", Kind::Folder as u32),
        ("KIND_RULE", Kind::Rule as u32),
        ("DIRECT", DIRECT),
        ("TUNNEL", TUNNEL),
        ("LOCK_CHOSEN", Lock::Chosen as u32),
        ("LOCK_EVERYBODY", Lock::Everybody as u32),
        ("LOCK_NOBODY", Lock::Nobody as u32),
        ("NAMES_V4", names(true, false, false)),
        ("NAMES_V6", names(false, true, false)),
        ("NAMES_BUS", names(false, false, true)),
        ("OF_STRANGER", OF_STRANGER),
        ("SERVICE_RESOLVER", SERVICE_RESOLVER),
        ("SERVICE_BUS", SERVICE_BUS),
        ("CLASS_TUNNEL", class_number(Class::Tunnel)),
        ("CLASS_DIRECT", class_number(Class::Direct)),
        ("CLASS_REFUSE", class_number(Class::Refuse)),
        ("CLASS_DROP", class_number(Class::Drop)),
        ("REASONS", Reason::ALL.len() as u32),
    ] {
        assert_eq!(c.get(name), u64::from(rust), "{name}");
    }
}

#[test]
fn reasons_are_in_the_order_of_c() {
    let c = Constants::parse(include_str!("../bpf/state.h"));
    for reason in Reason::ALL {
        // R_IN_UNKNOWN for InUnknown.
        let mut name = String::from("R");
        for letter in format!("{reason:?}").chars() {
            if letter.is_uppercase() {
                name.push('_');
            }
            name.extend(letter.to_uppercase());
        }
        if matches!(reason, Reason::Protocol | Reason::Family) {
            name.push_str("_REFUSED");
        }
        assert_eq!(c.get(&name), *reason as u64, "{name}");
    }
}
