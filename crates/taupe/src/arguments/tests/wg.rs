use super::{any_order, plain_up};
use crate::arguments::{Action, Order, TunnelOrder};
use std::ffi::OsString;
use taupe_config::file::Compatibility;

#[test]
fn arguments_of_wg_are_passed_on_unparsed() {
    use crate::wg::Compatibility;
    let words = |line: &str| line.split(' ').map(OsString::from).collect();
    for line in [
        "wg",
        "wg show",
        "/usr/bin/wg --help",
        "wg set wg0 -- -x",
        "wg \u{e9}",
    ] {
        let expected = Order::Wg {
            compatibility: Compatibility::Wg,
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
            compatibility: Compatibility::Taupe,
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
fn wg_quick_takes_an_action_and_a_file_and_nothing_else() {
    let quick = |action| {
        Order::Tunnel(TunnelOrder {
            compatibility: Compatibility::WgQuick,
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
    for (line, is_requested) in [
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
        assert_eq!(
            any_order(line, &[]),
            Order::QuickUsage { is_requested },
            "{line}"
        );
    }
}
