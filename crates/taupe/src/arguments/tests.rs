mod apps;
mod exec;

use super::{
    Action, DeviceOrder, DeviceSettings, Environment, Error, ModeOption, Order, TunnelOrder, Up,
    parse,
};
use crate::logging::{Destination, Logging};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use taupe_config::file::Personality;
use taupe_engine::Offloads;
use tracing_subscriber::filter::LevelFilter;

const ALL: Offloads = Offloads {
    tun_tso: true,
    tun_uso: true,
    udp_gso: true,
    udp_gro: true,
    avx512: true,
    flood_filter: true,
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

fn read(line: &str, environment: Environment<'_>) -> Result<Order, Error> {
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
        Error::CommandLine(error) => error.exit_code(),
        Error::Variable { .. } => 2,
    };
    (error.to_string(), status)
}

fn plain(interface: &str) -> DeviceOrder {
    DeviceOrder {
        interface: interface.parse().expect("name"),
        foreground: false,
        offloads: ALL,
        tun: None,
        uapi: None,
        logging: Logging {
            level: LevelFilter::WARN,
            background: Destination::Nowhere,
        },
        capture: None,
        mark: None,
        beneath: None,
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
fn options_stand_before_or_after_the_name() {
    for line in [
        "taupe device -f wg0",
        "taupe device wg0 -f",
        "taupe device --foreground wg0",
        "taupe device wg0 --foreground",
        "taupe-device -f wg0",
        "wireguard-go -f wg0",
        "wireguard-go --foreground wg0",
    ] {
        assert_eq!(order(line, &[]), in_front(plain("wg0")), "{line}");
    }
    assert_eq!(order("taupe device -- -f", &[]), plain("-f"));
    let without = DeviceOrder {
        offloads: Offloads {
            tun_tso: false,
            udp_gro: false,
            ..ALL
        },
        ..plain("wg0")
    };
    for line in [
        "taupe device --no-offload tso,gro wg0",
        "taupe device wg0 --no-offload tso,gro",
        "taupe device --no-offload tso wg0 --no-offload gro",
        "taupe device --no-offload=TSO,Gro wg0",
        "wireguard-go wg0 --no-offload gro,tso",
    ] {
        assert_eq!(order(line, &[]), without, "{line}");
    }
}

#[test]
fn each_offload_switches_off_what_it_says() {
    let none = Offloads {
        tun_tso: false,
        tun_uso: false,
        udp_gso: false,
        udp_gro: false,
        avx512: false,
        flood_filter: false,
    };
    let table = [
        (
            "tso",
            Offloads {
                tun_tso: false,
                ..ALL
            },
        ),
        (
            "uso",
            Offloads {
                tun_uso: false,
                ..ALL
            },
        ),
        (
            "gso",
            Offloads {
                udp_gso: false,
                ..ALL
            },
        ),
        (
            "gro",
            Offloads {
                udp_gro: false,
                ..ALL
            },
        ),
        (
            "checksum",
            Offloads {
                tun_tso: false,
                tun_uso: false,
                ..ALL
            },
        ),
        (
            "avx512",
            Offloads {
                avx512: false,
                ..ALL
            },
        ),
        (
            "flood-filter",
            Offloads {
                flood_filter: false,
                ..ALL
            },
        ),
        ("all", none),
        ("tso,uso,gso,gro,avx512,flood-filter", none),
    ];
    for (list, offloads) in table {
        let expected = DeviceOrder {
            offloads,
            ..plain("wg0")
        };
        let line = format!("taupe device wg0 --no-offload {list}");
        assert_eq!(order(&line, &[]), expected, "{list}");
        let variable = [("TAUPE_OFFLOAD", list)];
        assert_eq!(order("taupe device wg0", &variable), expected, "{list}");
        assert_eq!(
            order("boringtun-cli wg0", &variable).offloads,
            offloads,
            "{list}"
        );
    }
}

#[test]
fn the_variable_for_offloads_adds_to_the_options_and_is_read_with_patience() {
    let line = "taupe device wg0 --no-offload tso";
    let both = Offloads {
        tun_tso: false,
        udp_gso: false,
        ..ALL
    };
    for list in ["gso", " GSO , ", "gso,gso", ",gso"] {
        assert_eq!(
            order(line, &[("TAUPE_OFFLOAD", list)]).offloads,
            both,
            "{list:?}"
        );
    }
    for list in ["", " ", ","] {
        assert_eq!(
            order("taupe device wg0", &[("TAUPE_OFFLOAD", list)]),
            plain("wg0")
        );
    }
}

#[test]
fn the_environment_speaks_as_to_wireguard_go() {
    for line in ["taupe device wg0", "wireguard-go wg0"] {
        let front = order(line, &[("WG_PROCESS_FOREGROUND", "1")]);
        assert_eq!(front, in_front(plain("wg0")));
        for other in ["", "0", "true"] {
            assert_eq!(
                order(line, &[("WG_PROCESS_FOREGROUND", other)]),
                plain("wg0")
            );
        }
        let passed = order(line, &[("WG_TUN_FD", "3"), ("WG_UAPI_FD", "2147483647")]);
        let expected = DeviceOrder {
            tun: Some(3),
            uapi: Some(i32::MAX),
            ..plain("wg0")
        };
        assert_eq!(passed, expected);
        assert_eq!(
            order(line, &[("WG_TUN_FD", ""), ("WG_UAPI_FD", "-1")]),
            plain("wg0")
        );
        let logging = order(line, &[("LOG_LEVEL", "verbose")]).logging;
        assert_eq!(logging.level, LevelFilter::DEBUG);
        assert_eq!(logging.background, Destination::StandardError);
    }
}

#[test]
fn wrong_variables_are_named() {
    for (variable, value, reason) in [
        ("WG_TUN_FD", "x", "not the number"),
        ("WG_TUN_FD", "2147483648", "not the number"),
        ("WG_UAPI_FD", "-2", "not the number"),
        ("WG_TUN_FD", "0", "standard streams"),
        ("WG_UAPI_FD", "2", "standard streams"),
        ("TAUPE_OFFLOAD", "tso,lro", "\"lro\" is none of"),
    ] {
        for line in ["taupe device wg0", "boringtun-cli wg0"] {
            let (text, status) = refusal(line, &[(variable, value)]);
            assert_eq!(status, 2, "{text}");
            assert!(text.contains(&format!("{variable}={value}")), "{text}");
            assert!(text.contains(reason), "{text}");
        }
    }
    let bytes = |name: &str| (name == "WG_TUN_FD").then(|| OsString::from_vec(vec![0xff]));
    let error = read("taupe device wg0", &bytes).expect_err("not UTF-8");
    assert!(error.to_string().contains("UTF-8"), "{error}");
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
            "[possible values: tso, uso, gso, gro, checksum, avx512, flood-filter, all]",
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
fn help_and_version_are_no_mistakes() {
    let version = concat!("taupe ", env!("CARGO_PKG_VERSION"));
    for line in [
        "taupe --version",
        "taupe -V",
        "wireguard-go --version",
        "boringtun-cli -V",
    ] {
        let (text, status) = refusal(line, &[]);
        assert_eq!((text.trim(), status), (version, 0), "{line}");
    }
    for (line, words) in [
        ("taupe help", &["device", "Exit status", "--version"][..]),
        ("taupe --help", &["device", "Exit status"]),
        (
            "taupe help up",
            &[
                "/etc/resolv.conf.before-taupe",
                "WG_ENDPOINT_RESOLUTION_RETRIES",
                "taupe.conf(5)",
            ],
        ),
        (
            "taupe help reload",
            &["WG_ENDPOINT_RESOLUTION_RETRIES", "not run"],
        ),
        ("taupe help save", &["Comments", "0600"]),
        (
            "taupe help down",
            &["nothing of it is left", "taupe.conf(5)"],
        ),
        ("taupe help check", &["with warnings", "taupe.conf(5)"]),
        (
            "taupe help device",
            &["--no-offload", "TAUPE_OFFLOAD", "WG_TUN_FD", "Exit status"],
        ),
        (
            "taupe device --help",
            &["--no-offload", "LOG_LEVEL", "Usage: taupe device"],
        ),
        (
            "wireguard-go --help",
            &["Usage: wireguard-go", "LOG_LEVEL", "Exit status"],
        ),
        (
            "boringtun-cli --help",
            &["--uapi-fd", "WG_LOG_LEVEL", "Exit status"],
        ),
    ] {
        let (text, status) = refusal(line, &[]);
        assert_eq!(status, 0, "{line}: {text}");
        for word in words {
            assert!(text.contains(word), "{line}: no {word} in {text}");
        }
    }
}

#[test]
fn boringtun_s_options_are_taken_and_what_has_a_meaning_is_used() {
    let line = "boringtun-cli -f -t 4 -v trace --uapi-fd 5 --tun-fd 4 -l /tmp/log --pid-file /p \
                --work-dir / --err /tmp/err --disable-drop-privileges --disable-connected-udp \
                --disable-multi-queue wg0";
    let expected = DeviceOrder {
        foreground: true,
        tun: Some(4),
        uapi: Some(5),
        logging: Logging {
            level: LevelFilter::TRACE,
            background: Destination::File(PathBuf::from("/tmp/log")),
        },
        pid_file: Some(PathBuf::from("/p")),
        ..plain("wg0")
    };
    assert_eq!(order(line, &[]), expected);
    let long = "boringtun-cli wg0 --foreground --threads 4 --verbosity trace --uapi-fd=5 \
                --tun-fd=4 --log /tmp/log --pid-file=/p";
    assert_eq!(order(long, &[]), expected);
    let variables = [
        ("WG_THREADS", "4"),
        ("WG_LOG_LEVEL", "trace"),
        ("WG_UAPI_FD", "5"),
        ("WG_TUN_FD", "4"),
        ("WG_LOG_FILE", "/tmp/log"),
        ("WG_PID_FILE", "/p"),
        ("WG_SUDO", "1"),
        ("WG_PROCESS_FOREGROUND", "1"),
    ];
    assert_eq!(order("boringtun-cli wg0", &variables), expected);
}

#[test]
fn boringtun_s_options_win_over_its_variables() {
    let variables = [
        ("WG_LOG_LEVEL", "trace"),
        ("WG_TUN_FD", "4"),
        ("WG_LOG_FILE", "/a"),
    ];
    let given = order("boringtun-cli wg0 -v info --tun-fd -1 -l /b", &variables);
    assert_eq!(given.logging.level, LevelFilter::INFO);
    assert_eq!(given.logging.background, Destination::File("/b".into()));
    assert_eq!(given.tun, None);
}

#[test]
fn the_two_families_of_log_levels_do_not_mix() {
    let taupe = order(
        "taupe device wg0",
        &[("WG_LOG_LEVEL", "trace"), ("WG_LOG_FILE", "/a")],
    );
    assert_eq!(taupe, plain("wg0"));
    let boringtun = order("boringtun-cli wg0", &[("LOG_LEVEL", "verbose")]);
    assert_eq!(boringtun, plain_boringtun("wg0"));
    let (text, _) = refusal("boringtun-cli wg0", &[("WG_LOG_LEVEL", "loud")]);
    assert!(text.contains("WG_LOG_LEVEL=loud"), "{text}");
}

// --- tunnels ---

fn tunnel(action: Action, file: &str) -> Order {
    Order::Tunnel(TunnelOrder {
        personality: Personality::Taupe,
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
        device: DeviceSettings {
            offloads: ALL,
            logging: Logging {
                level: LevelFilter::WARN,
                background: Destination::Nowhere,
            },
        },
    }
}

#[test]
fn tunnels_are_named_by_one_word() {
    let down = |no_save| Action::Down {
        no_save,
        keep_closed: false,
    };
    for (line, action) in [
        ("taupe up wg0", Action::Up(plain_up())),
        ("taupe down wg0", down(false)),
        ("taupe down --no-save wg0", down(true)),
        ("taupe reload wg0", Action::Reload),
        ("taupe save wg0", Action::Save),
        ("taupe strip wg0", Action::Strip),
    ] {
        assert_eq!(any_order(line, &[]), tunnel(action, "wg0"), "{line}");
    }
    let file = "/etc/wireguard/wg0.conf".to_owned();
    let check = any_order(&format!("taupe check {file}"), &[]);
    assert_eq!(check, Order::Check { file: file.into() });
    // A name can begin with a dash.
    let dashed = tunnel(Action::Up(plain_up()), "-f");
    assert_eq!(any_order("taupe up -- -f", &[]), dashed);
}

#[test]
fn every_step_is_told_of_when_asked_for() {
    for (line, level, expected) in [
        ("taupe up wg0", "", false),
        ("taupe up wg0", "info", false),
        ("taupe up wg0", "verbose", true),
        ("taupe down wg0", "trace", true),
        ("taupe up --verbose wg0", "", true),
        ("taupe down -v wg0", "", true),
        ("taupe reload wg0 -v", "", true),
        ("wg-quick down wg0", "", true),
    ] {
        let Order::Tunnel(TunnelOrder { verbose, .. }) = any_order(line, &[("LOG_LEVEL", level)])
        else {
            panic!("{line}");
        };
        assert_eq!(verbose, expected, "{line} {level}");
    }
}

#[test]
fn every_option_of_up_is_read() {
    for (line, up) in [
        (
            "taupe up --adapter wg0",
            Up {
                mode: Some(ModeOption::Adapter),
                ..plain_up()
            },
        ),
        (
            "taupe up wg0 --transparent",
            Up {
                mode: Some(ModeOption::Transparent),
                ..plain_up()
            },
        ),
        (
            "taupe up -f wg0",
            Up {
                foreground: true,
                ..plain_up()
            },
        ),
        (
            "taupe up wg0 --foreground --override-routes --no-firewall",
            Up {
                foreground: true,
                override_routes: true,
                no_firewall: true,
                ..plain_up()
            },
        ),
    ] {
        assert_eq!(
            any_order(line, &[]),
            tunnel(Action::Up(up), "wg0"),
            "{line}"
        );
    }
}

#[test]
fn the_device_of_a_tunnel_hears_of_offloads_and_logging_only() {
    let variables = [
        ("TAUPE_OFFLOAD", "tso"),
        ("LOG_LEVEL", "info"),
        ("WG_TUN_FD", "9"),
        ("WG_UAPI_FD", "9"),
        ("WG_PROCESS_FOREGROUND", "1"),
    ];
    let device = DeviceSettings {
        offloads: Offloads {
            tun_tso: false,
            ..ALL
        },
        logging: Logging {
            level: LevelFilter::INFO,
            background: Destination::StandardError,
        },
    };
    let up = Up {
        device: device.clone(),
        ..plain_up()
    };
    assert_eq!(
        any_order("taupe up wg0", &variables),
        tunnel(Action::Up(up), "wg0")
    );
    let order = DeviceOrder::new("wg0".parse().expect("name"), &device);
    assert_eq!(
        (order.tun, order.uapi, order.foreground),
        (None, None, false)
    );
    let (text, status) = refusal("taupe up wg0", &[("TAUPE_OFFLOAD", "lro")]);
    assert_eq!(status, 2, "{text}");
}

#[test]
fn mistakes_about_tunnels_are_refused_with_status_2() {
    for (line, words) in [
        ("taupe up", "<CONF>"),
        ("taupe up wg0 wg1", "unexpected argument 'wg1'"),
        (
            "taupe up wg0 --adapter --transparent",
            "cannot be used with",
        ),
        (
            "taupe down wg0 --foreground",
            "unexpected argument '--foreground'",
        ),
        ("taupe check", "<CONF>"),
        ("taupe allowed-ips", "<NETWORKS>"),
        ("taupe allowed-ips 10.0.0.0/33", "from 0 to 32"),
        ("taupe allowed-ips --except 10.1.0.0/16", "<NETWORKS>"),
        // 10.2.3.4 would not be left out.
        (
            "taupe allowed-ips 10.0.0.0/8 --except 10.1.0.0/16, 10.2.3.4",
            "ends in a comma",
        ),
        ("taupe allowed-ips localhost", "not an IPv4 or IPv6 address"),
        (
            "taupe allowed-ips ::/0 --except 1.2.3",
            "not an IPv4 or IPv6 address",
        ),
        ("taupe relod wg0", "'reload'"),
    ] {
        let (text, status) = refusal(line, &[]);
        assert_eq!(status, 2, "{line}: {text}");
        assert!(text.contains(words), "{line}: {text}");
    }
}

#[test]
fn networks_are_lists_with_commas_or_blanks() {
    let prefix = |text| taupe_uapi::prefix::parse(text).expect(text);
    let expected = Order::AllowedIps {
        networks: vec![prefix("10.0.0.0/8"), prefix("fd00::/8")],
        except: vec![prefix("10.1.0.0/16"), prefix("10.2.3.4/32")],
    };
    for line in [
        "taupe allowed-ips 10.0.0.0/8,fd00::/8 --except 10.1.0.0/16,10.2.3.4",
        "taupe allowed-ips 10.0.0.0/8,fd00::/8 --except 10.1.0.0/16 --except 10.2.3.4",
        "taupe allowed-ips 10.0.0.0/8 fd00::/8 --except=10.1.0.0/16,10.2.3.4",
        "taupe allowed-ips --except 10.1.0.0/16,10.2.3.4 10.0.0.0/8 fd00::/8",
        // What stood after `AllowedIPs =`, unquoted.
        "taupe allowed-ips 10.0.0.0/8, fd00::/8 --except 10.1.0.0/16,10.2.3.4",
    ] {
        assert_eq!(any_order(line, &[]), expected, "{line}");
    }
    let quoted: Vec<OsString> = ["taupe", "allowed-ips", "10.0.0.0/8, fd00::/8", "--except"]
        .into_iter()
        .chain(["10.1.0.0/16 , 10.2.3.4"])
        .map(OsString::from)
        .collect();
    assert_eq!(parse(&quoted, &nothing).expect("quoted"), expected);
}

// --- wireguard-tools ---

#[test]
fn what_belongs_to_wg_is_not_read_here() {
    use crate::wg::Personality;
    let words = |line: &str| line.split(' ').map(OsString::from).collect();
    for line in [
        "wg",
        "wg show",
        "/usr/bin/wg --help",
        "wg set wg0 -- -x",
        "wg \u{e9}",
    ] {
        let expected = Order::Wg {
            personality: Personality::Wg,
            arguments: words(line),
        };
        assert_eq!(any_order(line, &[]), expected, "{line}");
    }
    for rest in [
        "show",
        "show all dump",
        "showconf wg0",
        "showconf wg0 --help",
        "set wg0 peer k= preshared-key /dev/stdin --version",
        "set -- wg0",
        "setconf wg0 -f",
        "addconf wg0 /dev/fd/63",
        "syncconf --",
        "genkey",
        "genpsk 1",
        "pubkey -V",
    ] {
        let expected = Order::Wg {
            personality: Personality::Taupe,
            arguments: words(&format!("taupe {rest}")),
        };
        assert_eq!(
            any_order(&format!("/usr/bin/taupe {rest}"), &[]),
            expected,
            "{rest}"
        );
    }
}

#[test]
fn each_command_of_wg_tells_how_it_is_called() {
    for command in "show showconf set setconf addconf syncconf genkey genpsk pubkey".split(' ') {
        let (help, status) = refusal(&format!("taupe help {command}"), &[]);
        assert_eq!(status, 0, "{command}");
        assert!(help.contains(&format!("Usage: taupe {command}")), "{help}");
        for flag in ["--help", "-h"] {
            let asked = refusal(&format!("taupe {command} {flag}"), &[]);
            assert_eq!(asked, (help.clone(), 0), "{command} {flag}");
        }
    }
    let (show, _) = refusal("taupe show --help", &[]);
    for (field, _) in taupe_uapi::show::Field::ALL {
        assert!(show.contains(&format!("\n  {field} ")), "{field}: {show}");
    }
}

#[test]
fn wg_quick_takes_an_action_and_a_file_and_nothing_else() {
    let quick = |action| {
        Order::Tunnel(TunnelOrder {
            personality: Personality::WgQuick,
            action,
            file: "wg0".into(),
            verbose: true,
        })
    };
    for (line, action) in [
        ("wg-quick up wg0", Action::Up(plain_up())),
        (
            "/usr/bin/wg-quick down wg0",
            Action::Down {
                no_save: false,
                keep_closed: false,
            },
        ),
        ("wg-quick save wg0", Action::Save),
        ("wg-quick strip wg0", Action::Strip),
    ] {
        assert_eq!(any_order(line, &[]), quick(action), "{line}");
    }
    for (line, asked) in [
        ("wg-quick --help", true),
        ("wg-quick -h", true),
        ("wg-quick help", true),
        ("wg-quick", false),
        ("wg-quick up", false),
        ("wg-quick --version", false),
        ("wg-quick reload wg0", false),
        ("wg-quick UP wg0", false),
        ("wg-quick up wg0 wg1", false),
        ("wg-quick help up", false),
    ] {
        assert_eq!(any_order(line, &[]), Order::QuickUsage { asked }, "{line}");
    }
}

#[test]
fn the_definition_has_no_contradictions() {
    super::definition().debug_assert();
}
