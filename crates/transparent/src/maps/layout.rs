//! Compares `bpf/state.h` and `bpf/records.h` with `state.rs`, `records.rs` and `maps.rs`.
//!
//! The layouts of structures and maps come from the BTF of the committed objects. Constants come
//! from the headers' text, since BTF omits enumerations that no variable uses.

mod btf;
mod header;

use std::mem::offset_of;

use aya::include_bytes_aligned;
use aya_obj::Object;
use aya_obj::generated::bpf_map_type;
use taupe_config::application::Children;

use self::btf::{Btf, Field, Structure};
use self::header::Constants;
use super::*;
use crate::clsact;
use crate::records::{ANY_COOKIE, NamespaceRecord, ProcessRecord, SocketRecord};
use crate::rules::children_number;
use crate::state::{
    ALLOW, ANY_USER, Application, DIRECT, DISALLOW, DnsHandling, EXEMPT, FLOWS_MAX, Flow, FlowKey,
    FlowOwner, INHERITED, Lock, NAME_SIZE, OPENED_BY_REMOTE, OTHER_USER, PASS_SHIFT, PATH_DEPTH,
    Pass, RULE_NUMBER_SHIFT, RuleSet, SELECTED, State, TUNNEL, UNMARKED,
};

static OBJECTS: [(&str, &[u8]); 2] = [
    ("taupe.o", include_bytes_aligned!("../bpf/taupe.o")),
    ("marks.o", include_bytes_aligned!("../bpf/marks.o")),
];

/// Bytes of the prefix length at the start of a trie's key. The Rust structures leave it out.
const PREFIX_LENGTH: usize = 4;

/// A Rust structure and its name in C.
#[derive(Clone)]
struct RustStructure {
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
        RustStructure {
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

fn shared_structures() -> Vec<RustStructure> {
    vec![
        shared!(State as "state", 0, {
            schema, up, netns, daemon, tun, mark, generation, lock, lsm_active, key, rules,
            flow_count, flow_refused_at, forwarded, dns, unlisted_processes, learning_since,
            senders_traced, nfqueue_active, named_packet_processes, packet_processes,
            permitted_pass,
        }),
        shared!(RuleSet as "rule_set", 0, {
            kinds, all_tasks, default_verdict, path_depths, cgroup_depths, children, user,
        }),
        // An anonymous union in C.
        shared!(NameKey as "name_key", PREFIX_LENGTH, { space, name as "" }),
        shared!(ExactKey as "exact_key", 0, { space, zero, id }),
        shared!(DestinationKey as "destination_key", PREFIX_LENGTH, { space, address }),
        shared!(FlowKey as "flow_key", 0, {
            remote, local, local_port, remote_port, protocol,
        }),
        shared!(Flow as "flow", 0, { last_seen, ifindex, is_answered, owner }),
        shared!(FlowOwner as "flow_owner", 0, { opener, interface, application }),
        shared!(Application as "application", 0, { inode, device, user }),
        shared!(NetworkKey as "network_key", PREFIX_LENGTH, { address }),
        shared!(ServiceKey as "service_key", 0, { path }),
        shared!(UplinkValue as "uplink", 0, { mac, has_ethernet, has_default_route, link_id }),
    ]
}

/// Returns the records of the iterators that an object contains.
fn records(object: &str) -> Vec<RustStructure> {
    let process = shared!(ProcessRecord as "process_record", 0, {
        id, bits, verdict, zero, own, inherited, handed_on,
    });
    match object {
        "marks.o" => vec![process],
        _ => vec![
            process,
            shared!(SocketRecord as "socket_record", 0, {
                cookie, local, remote, interface, local_port, remote_port, family, protocol,
                state, is_leaving,
            }),
            shared!(NamespaceRecord as "namespace_record", 0, { is_end, cookie }),
        ],
    }
}

fn differences(rust: &RustStructure, c: &Structure) -> Vec<String> {
    let RustStructure {
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
        let structures = [shared_structures(), records(name)].concat();
        let differences: Vec<String> = (structures.iter())
            .flat_map(|shared| differences(shared, &btf.structure(shared.name)))
            .collect();
        assert!(differences.is_empty(), "{name}: {}", differences.join("\n"));
    }
}

#[test]
fn a_structure_with_a_field_moved_renamed_or_resized_differs() {
    let (name, object) = OBJECTS[0];
    let btf = btf(object);
    for shared in [shared_structures(), records(name)].concat() {
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
        Declared::hash("resolver_aliases", |maps| &maps.resolver_aliases)
            .of(2 * MAX_ALIASES as usize),
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

fn constants() -> Constants {
    Constants::parse(concat!(
        include_str!("../bpf/dns.h"),
        include_str!("../bpf/guards.h"),
        include_str!("../bpf/identity.h"),
        include_str!("../bpf/records.h"),
        include_str!("../bpf/state.h"),
    ))
}

#[test]
fn constants_are_those_of_c() {
    let c = constants();
    let dns = |v4, v6, bus| DnsHandling { v4, v6, bus }.bits();
    for (name, rust) in [
        ("SCHEMA", SCHEMA),
        ("PATH_DEPTH", PATH_DEPTH as u32),
        ("NAME_SIZE", NAME_SIZE as u32),
        ("SERVICE_SIZE", SERVICE_SIZE as u32),
        ("FLOWS_MAX", FLOWS_MAX as u32),
        ("RULE_NUMBER_SHIFT", RULE_NUMBER_SHIFT),
        ("RULE_ALLOW", ALLOW),
        ("RULE_DISALLOW", DISALLOW),
        ("RULE_INHERITED", INHERITED),
        ("RULE_OTHER_USER", OTHER_USER),
        ("REPORT_UNMARKED", UNMARKED.into()),
        ("REPORT_SELECTED", SELECTED.into()),
        ("ANY_USER", ANY_USER),
        ("CHILDREN_OWN", children_number(Children::Own)),
        ("CHILDREN_INHERIT", children_number(Children::Inherit)),
        ("KIND_NAME", Kind::Name as u32),
        ("KIND_PATH", Kind::Path as u32),
        ("KIND_CGROUP_NAME", Kind::CgroupName as u32),
        ("KIND_CGROUP_PATH", Kind::CgroupPath as u32),
        ("KIND_UID", Kind::User as u32),
        ("KIND_DIRECTORY", Kind::Directory as u32),
        ("KIND_RULE", Kind::Rule as u32),
        ("DIRECT", DIRECT),
        ("TUNNEL", TUNNEL),
        ("EXEMPT", EXEMPT),
        ("LOCK_SELECTED", Lock::Selected as u32),
        ("LOCK_ALL", Lock::All as u32),
        ("LOCK_OFF", Lock::Off as u32),
        ("DNS_V4", dns(true, false, false)),
        ("DNS_V6", dns(false, true, false)),
        ("DNS_ALLOW_BUS", dns(false, false, true)),
        ("OPENED_BY_REMOTE", OPENED_BY_REMOTE),
        ("PASS_SHIFT", PASS_SHIFT),
        ("PASS_SELECT", Pass::Select as u32),
        ("PASS_MARK_LEAVING", Pass::MarkLeaving as u32),
        ("PASS_RELEASE", Pass::Release as u32),
        ("PASS_PENDING", Pass::Pending as u32),
        ("SERVICE_RESOLVER", SERVICE_RESOLVER),
        ("SERVICE_BUS", SERVICE_BUS),
        ("CLASS_TUNNEL", class_number(Class::Tunnel)),
        ("CLASS_DIRECT", class_number(Class::Direct)),
        ("CLASS_REFUSE", class_number(Class::Refuse)),
        ("CLASS_DROP", class_number(Class::Drop)),
        ("REASONS", Reason::ALL.len() as u32),
        ("CLSACT_PRIORITY", clsact::PRIORITY.into()),
    ] {
        assert_eq!(c.get(name), u64::from(rust), "{name}");
    }
    assert_eq!(c.get("ANY_COOKIE"), ANY_COOKIE);
    let prefix = clsact::NAME_PREFIX.bytes().rev();
    let prefix = prefix.fold(0, |number, byte| number << 8 | u64::from(byte));
    assert_eq!(c.get("NAME_TAUPE"), prefix);
}

#[test]
fn resolver_aliases_are_those_of_c() {
    let c = constants();
    let [loopback_v4, alias_v4, alias_v6] =
        ["LOOPBACK_4", "ALIAS_4", "ALIAS_6"].map(|name| c.get(name) as u32);
    let alias = IpAddr::from(Ipv4Addr::from_bits(alias_v4 | 53));
    let loopback = IpAddr::from(Ipv4Addr::from_bits(loopback_v4 | 53));
    assert_eq!(loopback_of_alias(alias), Some(loopback));
    let first_word = |address: u128| (address >> 96) as u32;
    assert_eq!(first_word(ALIAS_OF_LOOPBACK_V6.to_bits()), alias_v6);
    // `is_alias` in C recognises an alias by these bits.
    assert_eq!(FIRST_ALIAS_V4 & 0xfe00_0000, alias_v4);
    assert_eq!(first_word(FIRST_ALIAS_V6), alias_v6);
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
