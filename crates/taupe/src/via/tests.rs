use super::{route_through, without_effect};
use std::net::SocketAddr;
use taupe_adapter::Outer;
use taupe_config::file::{Dialect, File, parse};
use taupe_inspect::conf::Conf;

fn file(lines: &str, peer: &str) -> File {
    let text = format!(
        "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n{lines}\n\
         [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n{peer}\n"
    );
    parse(text.as_bytes(), Dialect::Taupe).file.expect("a file")
}

fn outer(mtu: u32, mark: Option<u32>) -> Outer {
    Outer {
        name: "outer".into(),
        config: "/etc/wireguard/outer.conf".into(),
        addresses: vec!["10.0.0.2".parse().expect("address")],
        networks: vec![
            "10.0.0.0/8".parse().expect("network"),
            "fd00::/8".parse().expect("network"),
        ],
        mtu,
        mark,
        endpoints: vec![SocketAddr::from(([192, 0, 2, 1], 51820))],
    }
}

/// Returns the messages and the changed file, or the reason for a refusal.
fn admitted(outer: &Outer, lines: &str, endpoint: &str) -> Result<(Vec<String>, File), String> {
    let conf = Conf {
        interface: "inner".parse().expect("name"),
        path: "/x/inner.conf".into(),
        shown: "inner.conf".into(),
    };
    let mut file = file(lines, endpoint);
    route_through(outer, &conf, &mut file)
        .map(|routed| (routed.notices, file))
        .map_err(|failure| failure.to_string())
}

#[test]
fn the_mtu_is_what_fits_and_said() {
    let endpoint = "Endpoint = 10.1.2.3:51820";
    for (lines, mtu, said) in [
        ("", 1340, "MTU 1340, since it goes through outer (1420)"),
        (
            "MTU = 1300",
            1300,
            "MTU 1300, since it goes through outer (1420)",
        ),
        (
            "MTU = 1341",
            1340,
            "MTU 1340, since it goes through outer (1420): MTU = 1341 of inner.conf would not fit",
        ),
    ] {
        let (sentences, file) = admitted(&outer(1420, None), lines, endpoint).expect("through");
        assert_eq!(
            (file.interface.mtu, sentences),
            (Some(mtu), vec![said.to_owned()])
        );
    }
    let v6 = "Address = fd00::1/128";
    assert!(admitted(&outer(1360, None), v6, endpoint).is_ok());
    let refused = admitted(&outer(1359, None), v6, endpoint)
        .err()
        .expect("too narrow");
    assert!(refused.contains("write MTU = 1360 or more"), "{refused}");
    let v4 = "Address = 10.9.0.1/32";
    assert!(admitted(&outer(148, None), v4, endpoint).is_ok());
    let refused = admitted(&outer(147, None), v4, endpoint)
        .err()
        .expect("too narrow");
    assert!(refused.contains("write MTU = 148 or more"), "{refused}");
}

#[test]
fn endpoints_have_to_be_in_the_outer_tunnel() {
    let outer = outer(1420, None);
    assert!(admitted(&outer, "", "").is_ok());
    // The file does not show the addresses of a name.
    assert!(admitted(&outer, "", "Endpoint = example.org:51820").is_ok());
    for (endpoint, words) in [
        (
            "192.0.2.7:51820",
            "AllowedIPs of /etc/wireguard/outer.conf does not contain it",
        ),
        (
            "[fd00::7]:51820",
            "/etc/wireguard/outer.conf has no IPv6 address to send from",
        ),
    ] {
        let line = format!("Endpoint = {endpoint}");
        let refused = admitted(&outer, "", &line).err().expect(endpoint);
        assert!(
            refused.starts_with(&format!("inner.conf:4: the endpoint {endpoint}")),
            "{refused}"
        );
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn both_have_one_mark() {
    let mark = |theirs, lines| {
        let (said, file) = admitted(&outer(1420, theirs), lines, "").expect("through");
        (file.interface.fwmark, said.len())
    };
    assert_eq!(mark(None, ""), (None, 1));
    assert_eq!(mark(Some(7), ""), (Some(7), 1));
    assert_eq!(mark(Some(7), "FwMark = 7"), (Some(7), 1));
    assert_eq!(mark(None, "FwMark = 8"), (Some(8), 1));
    // One of the two marks is dropped, with a message.
    assert_eq!(mark(Some(7), "FwMark = 8"), (Some(8), 2));
}

#[test]
fn what_means_nothing_is_told_of() {
    assert_eq!(
        without_effect(&file("Address = 10.0.0.2/32\nMTU = 1400\nFwMark = 1", "")),
        None
    );
    let said = without_effect(&file(
        "PostUp = true\nDNS = 10.0.0.1, lan\nTable = off\nAllowedApps = curl",
        "",
    ));
    assert_eq!(
        said.as_deref(),
        Some("PostUp, a search domain under DNS, Table, AllowedApps in line 6 and related keys")
    );
}
