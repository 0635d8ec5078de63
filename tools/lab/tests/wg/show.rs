//! `show` and `showconf`.

use crate::compare::{Call, Comparison, Program, with_keys};
use crate::fake::Fake;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};
use taupe_lab::host::{Host, link};
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Settings, Tunnel};
use taupe_lab::sandbox::scratch_file;
use taupe_lab::traffic::first_answer;
use taupe_lab::uapi::socket;
use taupe_lab::{Error, Result, ensure};

pub(crate) const FIELDS: [&str; 12] = [
    "public-key",
    "private-key",
    "listen-port",
    "fwmark",
    "peers",
    "preshared-keys",
    "endpoints",
    "allowed-ips",
    "latest-handshakes",
    "transfer",
    "persistent-keepalive",
    "dump",
];

/// Shows the device of a name in every form.
fn in_every_form(comparison: &mut Comparison, interface: &str) -> Result<()> {
    for mode in ["always", "never", "sometimes"] {
        for words in [&[][..], &["show"], &["show", "all"], &["show", interface]] {
            comparison.call(&Call::new(words).env("WG_COLOR_MODE", mode))?;
        }
    }
    for hide in ["never", "always", "Never"] {
        comparison.call(&Call::new(&["show"]).env("WG_HIDE_KEYS", hide))?;
    }
    for field in FIELDS {
        comparison.call(&Call::new(&["show", interface, field]))?;
        if field == "endpoints" {
            endpoints_of_all(comparison)?;
        } else {
            comparison.call(&Call::new(&["show", "all", field]))?;
        }
    }
    for words in [
        &["show", "interfaces"][..],
        &["show", interface, "frobnicate"],
        &["show", interface, "Peers"],
        &["show", interface, ""],
        &["show", "all", "frobnicate"],
        &["showconf", interface],
    ] {
        comparison.call(&Call::new(words))?;
    }
    Ok(())
}

/// Debian's prints the device's name only once before all its endpoints, and also if there are
/// none. Later versions begin each line with it, as for all other fields.
fn endpoints_of_all(comparison: &mut Comparison) -> Result<()> {
    let mut expected = Call::new(&["show", "interfaces"]).run(Program::Debian)?;
    let names = expected.out();
    expected.stdout.clear();
    for name in names.split_whitespace() {
        let shown = Call::new(&["show", name, "endpoints"]).run(Program::Debian)?;
        let lines = shown.out();
        let lines = lines.lines().map(|line| format!("{name}\t{line}\n"));
        expected
            .stdout
            .extend(lines.collect::<String>().into_bytes());
    }
    let call = Call::new(&["show", "all", "endpoints"]);
    comparison.compare(&call.name(), &expected, &call.run(Program::Taupe)?);
    Ok(())
}

fn set(tunnel: &Tunnel, words: &[&str]) -> Result<()> {
    let words: Vec<_> = words.iter().map(|word| with_keys(word)).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let command = [&["wg", "set", tunnel.interface()], &words[..]].concat();
    tunnel.place().run(&command).map(drop)
}

/// A Taupe, from no settings to all of them.
pub(crate) fn device() -> Result<()> {
    let mut comparison = Comparison::new("show");
    let host = Host::new("a")?;
    let tunnel = Implementation::Taupe.start(&host, "wg0")?;
    in_every_form(&mut comparison, "wg0")?;
    let private = scratch_file("private", &with_keys("{K1}"))?;
    let preshared = scratch_file("preshared", &with_keys("{P1}"))?;
    let steps: [&[&str]; 8] = [
        &["private-key", &private],
        &["listen-port", "51820", "fwmark", "0xca6c"],
        &["peer", "{P1}"],
        &["peer", "{P1}", "endpoint", "192.0.2.7:1"],
        &["peer", "{P2}", "preshared-key", &preshared],
        &[
            "peer",
            "{P2}",
            "endpoint",
            "[2001:db8::7]:65535",
            "persistent-keepalive",
            "65535",
            "allowed-ips",
            "10.0.0.0/24,fd00::/64,0.0.0.0/0,::/0,192.0.2.1/32",
        ],
        &[
            "peer",
            "{P1}",
            "endpoint",
            "[fe80::1%lo]:1",
            "persistent-keepalive",
            "1",
        ],
        &[
            "peer",
            "{P1}",
            "allowed-ips",
            "::1.2.3.4/128,::ffff:0:0/96,::1/128",
        ],
    ];
    for words in steps {
        set(&tunnel, words)?;
        in_every_form(&mut comparison, "wg0")?;
    }
    comparison.finish()
}

/// Devices with answers that Taupe does not give, and invalid ones.
pub(crate) fn answers() -> Result<()> {
    let mut comparison = Comparison::new("answers");
    let fake = Fake::start("wf")?;
    let key = |byte: u8| format!("{byte:02x}").repeat(32);
    let peer = format!("public_key={}\n", key(0x11));
    let mut cases = vec![
        String::new(),
        "\n".into(),
        "errno=0".into(),
        "errno=0\n".into(),
        "listen_port=5\n\n".into(),
        format!("{peer}errno=0\n{peer}\n"),
        format!("{peer}errno=0\n\n{peer}\n"),
        format!("{peer}errno=0\n{peer}rx_bytes=1"),
    ];
    let lines = [
        "errno=1",
        "errno=22",
        "errno=-22",
        "errno=2147483647",
        "errno=2147483648",
        "errno=",
        "unknown=value",
        "no equals sign",
        "=value",
        "features=endpoint_name",
        "own_public_key=1",
        "private_key=",
        "private_key=1111",
        "listen_port=65535",
        "listen_port=65536",
        "listen_port=01",
        "listen_port= 1",
        "listen_port=+1",
        "listen_port=-1",
        "listen_port=0x10",
        "listen_port=",
        "fwmark=1",
        "fwmark=4294967295",
        "fwmark=4294967296",
        "fwmark=0x10",
        "listen_port=1\r",
    ];
    cases.extend(lines.map(|line| format!("{line}\nerrno=0\n\n")));
    let hex = format!("private_key={}", key(0x48));
    cases.push(format!(
        "{hex}\nlisten_port=51820\nfwmark=51966\nerrno=0\n\n"
    ));
    let upper = format!("48{}", "4A".repeat(31));
    cases.push(format!("private_key={upper}\nerrno=0\n\n"));
    let of_peer = [
        "endpoint=192.0.2.1:5",
        "endpoint=192.0.2.1:65536",
        "endpoint=192.0.2.1",
        "endpoint=192.0.2.1:",
        "endpoint=",
        "endpoint=nosuch",
        "endpoint=[::1]:5",
        "endpoint=[::1]5",
        "endpoint=[::1",
        "endpoint=[::]:0",
        "endpoint=[::1.2.3.4]:5",
        "endpoint=[::ffff:1.2.3.4]:5",
        "endpoint=[::0.1.0.0]:5",
        "endpoint=[2001:db8:0:0:1:0:0:1]:5",
        "endpoint=[2001:DB8::A]:5",
        "endpoint=[fe80::1%1]:5",
        "endpoint=[fe80::1%lo]:5",
        "endpoint=[fe80::1%77]:5",
        "endpoint=[ff02::1%1]:5",
        "endpoint=[ff01::1%1]:5",
        "endpoint=[ff05::1%1]:5",
        "endpoint=[2001:db8::1%1]:5",
        "endpoint_name=vpn.example.org:5",
        "allowed_ip=10.0.0.0/24",
        "allowed_ip=10.0.0.0/24\nallowed_ip=::/0\nallowed_ip=0.0.0.0/0",
        "allowed_ip=::1.2.3.4/128",
        "allowed_ip=10.0.0.0",
        "allowed_ip=10.0.0.0/",
        "allowed_ip=10.0.0.0/33",
        "allowed_ip=::/129",
        "allowed_ip=10.0.0/24",
        "allowed_ip=/24",
        "last_handshake_time_sec=0",
        "last_handshake_time_sec=1",
        "last_handshake_time_sec=-1",
        "last_handshake_time_sec=9223372036854775807",
        "last_handshake_time_sec=9223372036854775808",
        "last_handshake_time_sec=5\nlast_handshake_time_nsec=999999999",
        "last_handshake_time_nsec=5",
        "last_handshake_time_nsec=1000000000",
        "rx_bytes=1",
        "tx_bytes=1",
        "rx_bytes=18446744073709551615",
        "rx_bytes=-1",
        "protocol_version=2",
        "persistent_keepalive_interval=65535",
        "persistent_keepalive_interval=65536",
        "preshared_key=1",
        "private_key=1",
        "listen_port=x",
        "fwmark=x",
        "public_key=1",
    ];
    cases.extend(of_peer.map(|line| format!("{peer}{line}\nerrno=0\n\n")));
    for byte in [0, 0x22] {
        cases.push(format!("{peer}preshared_key={}\nerrno=0\n\n", key(byte)));
    }
    cases.push(format!("{peer}{peer}errno=0\n\n"));
    for text in &cases {
        fake.answer(text);
        // The answer names the case.
        for words in [
            &["show", "wf"][..],
            &["show", "wf", "dump"],
            &["showconf", "wf"],
        ] {
            let (debian, taupe) = Call::new(words).run_both()?;
            let name = text.replace(&key(0x11), "KEY");
            comparison.compare(&format!("{}: {name:?}", words.join(" ")), &debian, &taupe);
        }
    }

    // Units at their boundaries, and the order of peers.
    let amounts = [
        1,
        1023,
        1024,
        1285,
        1290,
        10_239,
        1_048_575,
        1_048_576,
        1_237_000,
        1 << 30,
        (1 << 40) - 1,
        1 << 40,
        1 << 50,
        u64::MAX,
    ];
    let ages = [
        -3600i64, -1, 0, 1, 59, 60, 61, 3599, 3600, 3661, 86_399, 86_400, 90_061, 31_535_999,
        31_536_000, 63_158_461,
    ];
    let mut text = String::new();
    for (index, amount) in (0u8..).zip(amounts) {
        let (rx, tx) = if index % 2 == 0 {
            (amount, 0)
        } else {
            (0, amount)
        };
        text += &format!("public_key={}\nrx_bytes={rx}\ntx_bytes={tx}\n", key(index));
    }
    for (index, seconds) in (30u8..).zip([1, 2, 59, 60, 61, 3600, 3725, 43_261]) {
        let peer = key(index);
        text += &format!("public_key={peer}\npersistent_keepalive_interval={seconds}\n");
    }
    for (index, age) in (60u8..).zip(ages) {
        let time = now()?.saturating_add_signed(-age);
        text += &format!(
            "public_key={}\nlast_handshake_time_sec={time}\nlast_handshake_time_nsec={index}\n",
            key(index)
        );
    }
    text += &format!("public_key={}\nlast_handshake_time_sec=1\n", key(90));
    fake.answer(format!("{text}errno=0\n\n"));
    in_every_form(&mut comparison, "wf")?;
    comparison.finish()
}

/// Several devices, some of them unreadable, and files that are no sockets.
pub(crate) fn several() -> Result<()> {
    let mut comparison = Comparison::new("several");
    let names = ["wb", "wa", "wg10", "wg9"];
    let fakes = names.map(Fake::start);
    let forms: [&[&str]; 5] = [
        &[],
        &["show", "interfaces"],
        &["show", "all", "dump"],
        &["show", "all", "listen-port"],
        &["show", "all", "frobnicate"],
    ];
    for broken in 0..=names.len() {
        for (index, fake) in fakes.iter().enumerate() {
            let fake = fake
                .as_ref()
                .map_err(|error| Error::unmet(error.to_string()))?;
            fake.answer(match index < broken {
                true => "errno=5\n\n",
                false => "listen_port=5\nerrno=0\n\n",
            });
        }
        for words in forms {
            for mode in ["always", "never"] {
                comparison.call(&Call::new::<&str>(words).env("WG_COLOR_MODE", mode))?;
            }
        }
    }
    // Files that look like sockets, and sockets with other names.
    let directory = socket("x").with_file_name("");
    for name in ["file.sock", ".sock", "wg0", "wg0.sock.old"] {
        std::fs::write(directory.join(name), "").map_err(Error::io(name))?;
    }
    std::fs::create_dir(directory.join("directory.sock")).map_err(Error::io("directory"))?;
    for words in forms {
        comparison.call(&Call::new::<&str>(words))?;
    }
    comparison.call(&Call::new(&["show", "file"]))?;
    comparison.call(&Call::new(&["show", "directory", "dump"]))?;
    comparison.finish()?;

    // Both programs remove a socket without a listener.
    for program in [
        crate::compare::Program::Debian,
        crate::compare::Program::Taupe,
    ] {
        for words in [&["show", "interfaces"][..], &["show", "stale"]] {
            let path = socket("stale");
            drop(std::os::unix::net::UnixListener::bind(&path).map_err(Error::io("socket"))?);
            ensure!(path.exists(), "no stale socket");
            let output = Call::new(words).run(program)?;
            ensure!(!output.out().contains("stale"), "{output}");
            ensure!(
                !path.exists(),
                "the stale socket is still there after {words:?}"
            );
        }
    }
    Ok(())
}

/// Real handshakes and traffic, and the order of peers.
pub(crate) fn handshakes() -> Result<()> {
    let mut comparison = Comparison::new("handshakes");
    let (near, far) = (Host::new("near")?, Host::new("far")?);
    link(
        near.port("eth0", &["192.0.2.1/24"]),
        far.port("eth0", &["192.0.2.2/24"]),
        1500,
    )?;
    let here = Implementation::Taupe.start(&near, "wgnear")?;
    let own = Keys::new(&near)?;
    let others = [0u16, 1, 2].map(|_| Keys::new(&far));
    let others: Vec<Keys> = others.into_iter().collect::<Result<_>>()?;
    let mut tunnels = Vec::new();
    let peers: Vec<_> = (1u16..).zip(&others).collect();
    let addresses: Vec<_> = peers
        .iter()
        .map(|(index, _)| format!("10.77.{index}.2/32"))
        .collect();
    let settings: Vec<_> = peers
        .iter()
        .zip(&addresses)
        .map(|((index, keys), address)| PeerSettings {
            public_key: &keys.public,
            preshared_key: None,
            endpoint: Some(SocketAddr::from(([192, 0, 2, 2], 51820 + index))),
            allowed_ips: address,
        })
        .collect();
    here.configure(&Settings {
        private_key: &own.private,
        listen_port: Some(51820),
        addresses: &["10.77.0.1/16"],
        peers: &settings,
    })?;
    // The last peer performs the first handshake.
    for ((index, keys), address) in peers.iter().zip(&addresses).rev() {
        let tunnel = Implementation::Taupe.start(&far, &format!("wgfar{index}"))?;
        tunnel.configure(&Settings {
            private_key: &keys.private,
            listen_port: Some(51820 + index),
            addresses: &[address],
            peers: &[PeerSettings {
                public_key: &own.public,
                preshared_key: None,
                endpoint: None,
                allowed_ips: "10.77.0.1/32",
            }],
        })?;
        far.ip(&[
            "route",
            "replace",
            "10.77.0.1/32",
            "dev",
            &format!("wgfar{index}"),
        ])?;
        let address = address.trim_end_matches("/32");
        let address: IpAddr = address.parse().map_err(|_| Error::unmet("address"))?;
        first_answer(&near, address, Duration::from_secs(5))?;
        in_every_form(&mut comparison, "wgnear")?;
        tunnels.push(tunnel);
    }
    let shown = near.run(&["wg", "show", "wgnear"])?.stdout;
    let order: Vec<_> = shown
        .lines()
        .filter(|line| line.starts_with("peer: "))
        .collect();
    let expected: Vec<_> = others
        .iter()
        .map(|keys| format!("peer: {}", keys.public))
        .collect();
    ensure!(
        order == expected,
        "the peers are not in the order of their handshakes: {shown}"
    );
    comparison.finish()
}

/// More peers and networks than fit into any buffer.
pub(crate) fn thousand() -> Result<()> {
    let mut comparison = Comparison::new("thousand");
    let host = Host::new("a")?;
    let tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let mut file = with_keys("[Interface]\nPrivateKey = {K1}\n");
    for index in 0..1000u16 {
        let [high, low] = index.to_be_bytes();
        let mut key = [0x55; 32];
        (key[0], key[1]) = (high, low);
        let key = <base64ct::Base64 as base64ct::Encoding>::encode_string(&key);
        file += &format!(
            "[Peer]\nPublicKey = {key}\nPresharedKey = {key}\nEndpoint = 192.0.2.{low}:{}\n",
            index + 1
        );
        for network in 0..index % 7 {
            file += &format!("AllowedIPs = 10.{high}.{low}.{network}/32\n");
        }
    }
    tunnel.wg_with_input("setconf", &file)?;
    in_every_form(&mut comparison, "wg0")?;
    comparison.finish()
}

fn now() -> Result<u64> {
    let time = SystemTime::UNIX_EPOCH.elapsed();
    time.map(|time| time.as_secs())
        .map_err(|_| Error::unmet("the clock is before 1970"))
}
