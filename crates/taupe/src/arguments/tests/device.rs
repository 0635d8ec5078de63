use super::{ALL, in_front, order, plain, plain_boringtun, read, refusal};
use crate::arguments::DeviceOrder;
use crate::device_log::{Destination, Logging};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use taupe_engine::Offloads;
use taupe_protocol::Lanes;
use tracing_subscriber::filter::LevelFilter;

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
        ..ALL
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
        (
            "busy-poll",
            Offloads {
                busy_poll: false,
                ..ALL
            },
        ),
        (
            "fair-queue",
            Offloads {
                fair_queue: false,
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
fn the_variable_for_offloads_adds_to_the_options_and_tolerates_blanks() {
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
fn variables_are_read_like_those_of_wireguard_go() {
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
fn options_of_boringtun_are_accepted_and_used_if_they_apply() {
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

#[test]
fn the_number_of_lanes_is_an_option_a_variable_or_unset() {
    let lanes = |line, variables: &[(&str, &str)]| order(line, variables).lanes;
    let four = Lanes::new(4);
    assert_eq!(lanes("taupe device wg0", &[]), None);
    assert_eq!(lanes("taupe device wg0 --lanes 4", &[]), four);
    let variable = [("TAUPE_LANES", "4")];
    assert_eq!(lanes("taupe device wg0", &variable), four);
    assert_eq!(lanes("wireguard-go wg0", &variable), four);
    let line = "taupe device wg0 --lanes 16";
    assert_eq!(
        lanes(line, &variable),
        Lanes::new(16),
        "the option precedes"
    );
    assert_eq!(lanes("taupe device wg0", &[("TAUPE_LANES", "")]), None);
    for wrong in ["0", "3", "32", "two", "-1"] {
        let (text, status) = refusal("taupe device wg0", &[("TAUPE_LANES", wrong)]);
        assert!(text.contains("1, 2, 4, 8 or 16"), "{text}");
        assert_eq!(status, 2, "{wrong}");
        let (text, _) = refusal(&format!("taupe device wg0 --lanes={wrong}"), &[]);
        assert!(text.contains("1, 2, 4, 8 or 16"), "{text}");
    }
}
