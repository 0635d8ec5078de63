mod apps;
mod device;
mod exec;
mod help;
mod tunnels;
mod wg;

use super::{
    Action, ArgumentError, DeviceOrder, DeviceSettings, Environment, Order, TunnelOrder, Up, parse,
};
use crate::device_log::{Destination, Logging};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use taupe_config::file::Compatibility;
use taupe_engine::Offloads;
use tracing_subscriber::filter::LevelFilter;

const ALL: Offloads = Offloads {
    tun_tso: true,
    tun_uso: true,
    udp_gso: true,
    udp_gro: true,
    avx512: true,
    flood_filter: true,
    busy_poll: true,
    fair_queue: true,
};

fn nothing(_: &str) -> Option<OsString> {
    None
}

fn given(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
    let variables: Vec<_> = variables
        .iter()
        .map(|&(k, v)| (k.to_owned(), v.into()))
        .collect();
    move |name| {
        let found = variables.iter().find(|(key, _)| key == name);
        found.map(|(_, value): &(String, OsString)| value.clone())
    }
}

fn read(line: &str, environment: Environment<'_>) -> Result<Order, ArgumentError> {
    let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    parse(&words, environment)
}

fn any_order(line: &str, variables: &[(&str, &str)]) -> Order {
    read(line, &given(variables)).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn order(line: &str, variables: &[(&str, &str)]) -> DeviceOrder {
    match any_order(line, variables) {
        Order::Device(order) => order,
        other => panic!("{line}: {other:?}"),
    }
}

/// The error's text, and the status that the process would end with.
fn refusal(line: &str, variables: &[(&str, &str)]) -> (String, i32) {
    let error = read(line, &given(variables)).expect_err(line);
    let status = match &error {
        ArgumentError::CommandLine(error) => error.exit_code(),
        ArgumentError::Variable { .. } => 2,
    };
    (error.to_string(), status)
}

fn plain(interface: &str) -> DeviceOrder {
    DeviceOrder {
        interface: interface.parse().expect("name"),
        foreground: false,
        offloads: ALL,
        lanes: None,
        tun: None,
        uapi: None,
        logging: Logging {
            level: LevelFilter::WARN,
            background: Destination::Nowhere,
        },
        pid_file: None,
    }
}

fn plain_boringtun(interface: &str) -> DeviceOrder {
    let mut order = plain(interface);
    order.logging.level = LevelFilter::ERROR;
    order
}

fn in_front(mut order: DeviceOrder) -> DeviceOrder {
    order.foreground = true;
    order
}

fn tunnel(action: Action, file: &str) -> Order {
    Order::Tunnel(TunnelOrder {
        compatibility: Compatibility::Taupe,
        action,
        file: file.into(),
        verbose: false,
    })
}

fn plain_up() -> Up {
    Up {
        mode: None,
        via: None,
        foreground: false,
        override_routes: false,
        no_firewall: false,
        reset_existing: false,
        keep_closed: false,
        wait: None,
        device: DeviceSettings {
            offloads: ALL,
            lanes: None,
            logging: Logging {
                level: LevelFilter::WARN,
                background: Destination::Nowhere,
            },
        },
    }
}

#[test]
fn the_name_of_the_program_decides_how_the_rest_is_read() {
    for line in [
        "taupe device wg0",
        "/usr/bin/taupe device wg0",
        "any-other-name device wg0",
        "taupe-device wg0",
        "/usr/sbin/taupe-device wg0",
        "wireguard-go wg0",
        "./wireguard-go wg0",
    ] {
        assert_eq!(order(line, &[]), plain("wg0"), "{line}");
    }
    for line in [
        "boringtun-cli wg0",
        "/usr/bin/boringtun-cli wg0",
        "boringtun wg0",
    ] {
        assert_eq!(order(line, &[]), plain_boringtun("wg0"), "{line}");
    }
}

#[test]
fn wrong_command_lines_are_refused_with_status_2() {
    for (line, words) in [
        ("taupe", "Usage: taupe <COMMAND>"),
        ("taupe device", "<IFACE>"),
        ("wireguard-go", "Usage: wireguard-go"),
        ("boringtun-cli", "<INTERFACE_NAME>"),
        ("taupe devise wg0", "a similar subcommand exists: 'device'"),
        ("taupe wg0", "unrecognized subcommand 'wg0'"),
        ("taupe device wg0 wg1", "unexpected argument 'wg1'"),
        ("taupe device wg0 --fast", "unexpected argument '--fast'"),
        ("taupe device wg0 --no-offload", "a value is required"),
        (
            "taupe device wg0 --no-offload lro",
            "[possible values: tso, uso, gso, gro, checksum, avx512, flood-filter, fair-queue, all]",
        ),
        (
            "taupe device wg0123456789abcd",
            "at most 15 bytes, this one has 16",
        ),
        ("taupe device a/b", "cannot contain '/'"),
        ("taupe device all", "no tunnel can be called all: "),
        ("boringtun-cli default", "called default: "),
        ("wireguard-go wg%d", "cannot contain '%'"),
        ("boringtun-cli a:b", "cannot contain ':'"),
        (
            "boringtun-cli wg0 -v loud",
            "[possible values: error, info, debug, trace]",
        ),
        ("boringtun-cli wg0 --tun-fd 1", "standard streams"),
        ("boringtun-cli wg0 -t many", "invalid digit"),
    ] {
        let (text, status) = refusal(line, &[]);
        assert_eq!(status, 2, "{line}: {text}");
        assert!(text.contains(words), "{line}: {text}");
    }
    let empty = parse(&["taupe-device".into(), "".into()], &nothing).expect_err("no name");
    assert!(empty.to_string().contains("at least 1 byte"), "{empty}");
    let bytes = OsString::from_vec(vec![0xff]);
    let error = parse(&["taupe-device".into(), bytes], &nothing).expect_err("not UTF-8");
    assert!(error.to_string().contains("UTF-8"), "{error}");
    assert!(parse(&[], &nothing).is_err(), "no arguments at all");
}

#[test]
fn the_service_has_no_options_and_other_names_have_no_service() {
    let order = |line: &str| read(line, &nothing);
    assert!(matches!(order("taupe service"), Ok(Order::Service)));
    assert!(matches!(
        order("/usr/bin/taupe service"),
        Ok(Order::Service)
    ));
    assert!(order("taupe service home").is_err());
    for line in ["wg service", "wg-quick service", "wireguard-go service"] {
        assert!(!matches!(order(line), Ok(Order::Service)), "{line}");
    }
}
