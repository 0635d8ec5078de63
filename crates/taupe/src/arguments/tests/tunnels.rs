use super::{ALL, any_order, nothing, plain_up, refusal, tunnel};
use crate::arguments::{Action, DeviceSettings, ModeOption, Order, TunnelOrder, Up, parse};
use crate::device_log::{Destination, Logging};
use crate::plan::DevicePlan;
use std::ffi::OsString;
use taupe_engine::Offloads;
use taupe_protocol::Lanes;
use tracing_subscriber::filter::LevelFilter;

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
    for (option, json) in [("", false), (" --json", true)] {
        let check = any_order(&format!("taupe check {file}{option}"), &[]);
        let file = file.clone().into();
        assert_eq!(check, Order::Check { file, json });
    }
    // A name can begin with a dash.
    let dashed = tunnel(Action::Up(plain_up()), "-f");
    assert_eq!(any_order("taupe up -- -f", &[]), dashed);
}

#[test]
fn every_step_is_printed_on_request() {
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
fn the_device_of_a_tunnel_gets_only_offloads_lanes_and_logging() {
    let variables = [
        ("TAUPE_OFFLOAD", "tso"),
        ("TAUPE_LANES", "2"),
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
        lanes: Lanes::new(2),
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
    let plan = DevicePlan::new("wg0".parse().expect("name"), &device);
    assert_eq!((plan.tun, plan.uapi), (None, None));
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
        // Copied from behind `AllowedIPs =`, without quotes.
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
