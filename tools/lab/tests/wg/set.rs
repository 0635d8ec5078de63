//! `set`.

use crate::compare::{Call, Comparison, Outcome, Program, with_keys};
use crate::fake::Fake;
use std::time::{Duration, Instant};
use taupe_lab::host::Host;
use taupe_lab::peers::{Implementation, Tunnel};
use taupe_lab::sandbox::scratch_file;
use taupe_lab::{Result, ensure, uapi};

/// Two equal Taupes: a call of one program on the first and of the other on the second must give
/// the same state.
pub(crate) struct Pair {
    _tunnels: [Tunnel; 2],
}

/// The state of both before each call, in the configuration protocol.
const BEFORE: &str = "\
set=1\nprivate_key=4848484848484848484848484848484848484848484848484848484848484848\n\
listen_port=4711\nfwmark=7\nreplace_peers=true\n\
public_key=1111111111111111111111111111111111111111111111111111111111111111\n\
preshared_key=3333333333333333333333333333333333333333333333333333333333333333\n\
endpoint=192.0.2.99:99\npersistent_keepalive_interval=99\nallowed_ip=198.51.100.0/24\n\
allowed_ip=2001:db8:99::/48\n\
public_key=4444444444444444444444444444444444444444444444444444444444444444\n\
allowed_ip=203.0.113.0/24\n\n";

impl Pair {
    /// Creates interfaces that are down, so that both can have the same port.
    pub(crate) fn new() -> Result<Self> {
        let host = Host::new("a")?;
        let start = |name| Implementation::Taupe.start(&host, name);
        Ok(Self {
            _tunnels: [start("wgdebian")?, start("wgtaupe")?],
        })
    }

    /// Compares the output of both programs, and the resulting states. `IF` stands for the
    /// interface.
    pub(crate) fn call(&self, comparison: &mut Comparison, words: &[&str]) -> Result<()> {
        self.call_with(comparison, None, words, &[])
    }

    pub(crate) fn call_with(
        &self,
        comparison: &mut Comparison,
        name: Option<&str>,
        words: &[&str],
        environment: &[(&'static str, &str)],
    ) -> Result<()> {
        let make = |interface: &str| {
            let words: Vec<_> = words
                .iter()
                .map(|word| if *word == "IF" { interface } else { word })
                .collect();
            let call = Call::new(&words);
            let variables = environment.iter();
            variables.fold(call, |call, (name, value)| call.env(name, value))
        };
        let one = |interface: &str, program| -> Result<(Outcome, String)> {
            let answer = uapi::exchange(interface, &before(words))?;
            ensure!(answer.starts_with("errno=0\n"), "{answer}");
            let output = make(interface).run(program)?;
            let dump = Call::new(&["show", interface, "dump"]).run(Program::Debian)?;
            let file = Call::new(&["showconf", interface]).run(Program::Debian)?;
            Ok((output, format!("{}{}", dump.out(), file.out())))
        };
        let (debian, taupe) = (
            one("wgdebian", Program::Debian)?,
            one("wgtaupe", Program::Taupe)?,
        );
        let text = |(output, state): &(Outcome, String)| format!("{output}\n{state}");
        let call = make("IF").name();
        comparison.effects(name.unwrap_or(&call), &text(&debian), &text(&taupe));
        Ok(())
    }
}

/// Returns the state before a call. `syncconf` removes settings that the file lacks, which Debian's
/// does not yet do; a test of its own covers this.
fn before(words: &[&str]) -> String {
    if words.first() != Some(&"syncconf") {
        return BEFORE.to_owned();
    }
    let lines = BEFORE.split_inclusive('\n');
    let remaining = lines.filter(|line| !line.starts_with("pre") && !line.starts_with("pers"));
    remaining.collect()
}

/// Invalid arguments of `set` after the interface. Names that could be resolved are not included.
const WRONG: &[&[&str]] = &[
    &["listen-port"],
    &["listen-port", ""],
    &["listen-port", "-1"],
    &["listen-port", "0x10"],
    &["listen-port", "nosuchservice"],
    &["listen-port", "5x"],
    &["fwmark"],
    &["fwmark", "0x100000000"],
    &["fwmark", "4294967296"],
    &["fwmark", "0X10"],
    &["fwmark", "0x"],
    &["fwmark", "0xg"],
    &["fwmark", ""],
    &["fwmark", " 5"],
    &["fwmark", "-1"],
    &["fwmark", "+1"],
    &["fwmark", "5z"],
    &["fwmark", "offf"],
    &["private-key"],
    &["private-key", "/nonexistent"],
    &["private-key", "/tmp"],
    &["private-key", ""],
    &["LISTEN-PORT", "5"],
    &["listen-port", "5", "frobnicate"],
    &["frobnicate"],
    &["frobnicate", "5"],
    &[""],
    &["remove"],
    &["endpoint", "192.0.2.1:5"],
    &["allowed-ips", "192.0.2.1"],
    &["persistent-keepalive", "5"],
    &["preshared-key", "/dev/null"],
    &["fwmark", "5", "peer"],
    &["peer", "x"],
    &["peer", ""],
    &["peer", "ERERERERERERERERERERERERERERERERERERERERERE"],
    &["peer", "ERERERERERERERERERERERERERERERERERERERERERF="],
    &["peer", "ERERERERERERERERERERERERERERERERERERERERERE=="],
    &["peer", "{P1}x"],
    &["peer", " {P1}"],
    &["peer", "11111111111111111111111111111111111111111111"],
    &["peer", "ERERERERERERERERERERERERERERERERERERERERER-_"],
    &["peer", "{P1}", "listen-port", "5"],
    &["peer", "{P1}", "fwmark", "5"],
    &["peer", "{P1}", "private-key", "/dev/null"],
    &["peer", "{P1}", "frobnicate"],
    &["peer", "{P1}", "remove", "frobnicate"],
    &["peer", "{P1}", "endpoint"],
    &["peer", "{P1}", "endpoint", ""],
    &["peer", "{P1}", "endpoint", "192.0.2.1"],
    &["peer", "{P1}", "endpoint", "192.0.2.1:"],
    &["peer", "{P1}", "endpoint", ":5"],
    &["peer", "{P1}", "endpoint", "192.0.2.1:nosuch"],
    &["peer", "{P1}", "endpoint", "192.0.2.1:-5"],
    &["peer", "{P1}", "endpoint", " 192.0.2.1:5 "],
    &["peer", "{P1}", "endpoint", "[::1]"],
    &["peer", "{P1}", "endpoint", "[::1"],
    &["peer", "{P1}", "endpoint", "[::1]:"],
    &["peer", "{P1}", "endpoint", "[::1]5"],
    &["peer", "{P1}", "endpoint", "[fe80::1%nosuch]:5"],
    &["peer", "{P1}", "endpoint", "nosuch.invalid:5"],
    &["peer", "{P1}", "persistent-keepalive"],
    &["peer", "{P1}", "persistent-keepalive", ""],
    &["peer", "{P1}", "persistent-keepalive", "65536"],
    &["peer", "{P1}", "persistent-keepalive", "-1"],
    &["peer", "{P1}", "persistent-keepalive", "0x5"],
    &["peer", "{P1}", "persistent-keepalive", " 5"],
    &["peer", "{P1}", "persistent-keepalive", "on"],
    &["peer", "{P1}", "allowed-ips"],
    &["peer", "{P1}", "allowed-ips", ","],
    &["peer", "{P1}", "allowed-ips", "192.0.2.1,"],
    &["peer", "{P1}", "allowed-ips", "192.0.2.1/"],
    &["peer", "{P1}", "allowed-ips", "192.0.2.1/33"],
    &["peer", "{P1}", "allowed-ips", "192.0.2.1/-1"],
    &["peer", "{P1}", "allowed-ips", "192.0.2.1/+1"],
    &["peer", "{P1}", "allowed-ips", "192.0.2.0/24/5"],
    &["peer", "{P1}", "allowed-ips", "192.0.2.0/24x"],
    &["peer", "{P1}", "allowed-ips", "192.0.2.0/255.255.255.0"],
    &["peer", "{P1}", "allowed-ips", "::/129"],
    &["peer", "{P1}", "allowed-ips", "192.0.2"],
    &["peer", "{P1}", "allowed-ips", "192.0.02.1"],
    &["peer", "{P1}", "allowed-ips", "nosuch"],
    &["peer", "{P1}", "allowed-ips", "/24"],
    &["peer", "{P1}", "allowed-ips", "fe80::1%lo"],
    &["peer", "{P1}", "allowed-ips", "192.0.2.1/24,nosuch"],
    &["peer", "{P1}", "preshared-key"],
    &["peer", "{P1}", "preshared-key", "/nonexistent"],
    &["peer", "{P1}", "preshared-key", "/tmp"],
    &["peer", "{P1}", "preshared-key", "{P2}"],
    &["private-key", "{P2}"],
];

/// Valid arguments of `set` after the interface.
const RIGHT: &[&[&str]] = &[
    &["listen-port", "0"],
    &["listen-port", "65535"],
    &["listen-port", "65536"],
    &["listen-port", " 5"],
    &["listen-port", "domain"],
    &["listen-port", "5", "listen-port", "6"],
    &["fwmark", "off"],
    &["fwmark", "OFF"],
    &["fwmark", "0"],
    &["fwmark", "0xFFFFFFFF"],
    &["fwmark", "4294967295"],
    &["fwmark", "010"],
    &["private-key", "/dev/null"],
    &["peer", "{P1}"],
    &["peer", "{P2}"],
    &["peer", "{P1}", "peer", "{P1}"],
    &["peer", "{P1}", "remove"],
    &["peer", "{P2}", "remove"],
    &["peer", "{P1}", "remove", "remove"],
    &["peer", "{P1}", "remove", "endpoint", "192.0.2.1:5"],
    &[
        "peer",
        "{P1}",
        "endpoint",
        "192.0.2.1:5",
        "remove",
        "peer",
        "{P2}",
    ],
    &["peer", "{P1}", "remove", "peer", "{P1}"],
    &["peer", "{P1}", "endpoint", "192.0.2.1:5"],
    &["peer", "{P1}", "endpoint", "192.0.2.1:domain"],
    &["peer", "{P1}", "endpoint", "192.0.2.1:65536"],
    &["peer", "{P1}", "endpoint", "192.0.2.1:0"],
    &["peer", "{P1}", "endpoint", "192.0.513:5"],
    &["peer", "{P1}", "endpoint", "::1:5"],
    &["peer", "{P1}", "endpoint", "[::1]:5"],
    &["peer", "{P1}", "endpoint", "[192.0.2.1]:5"],
    &["peer", "{P1}", "endpoint", "[fe80::1%lo]:5"],
    &["peer", "{P1}", "endpoint", "[fe80::1%1]:5"],
    &["peer", "{P1}", "endpoint", "localhost:5"],
    &["peer", "{P1}", "persistent-keepalive", "off"],
    &["peer", "{P1}", "persistent-keepalive", "Off"],
    &["peer", "{P1}", "persistent-keepalive", "0"],
    &["peer", "{P1}", "persistent-keepalive", "65535"],
    &["peer", "{P1}", "persistent-keepalive", "010"],
    &["peer", "{P1}", "allowed-ips", ""],
    &["peer", "{P1}", "allowed-ips", " "],
    &["peer", "{P1}", "allowed-ips", "192.0.2.1"],
    &["peer", "{P1}", "allowed-ips", "192.0.2.1/08"],
    &[
        "peer",
        "{P1}",
        "allowed-ips",
        "192.0.2.1/24, 198.51.100.7/8",
    ],
    &["peer", "{P1}", "allowed-ips", "192.0.2.1 / 24"],
    &[
        "peer",
        "{P1}",
        "allowed-ips",
        "2001:db8::1/32,::/0,0.0.0.0/0",
    ],
    &["peer", "{P1}", "allowed-ips", "::1.2.3.4/128"],
    &[
        "peer",
        "{P1}",
        "allowed-ips",
        "192.0.2.1",
        "allowed-ips",
        "192.0.2.2",
    ],
    &["peer", "{P2}", "allowed-ips", "198.51.100.0/24"],
    &["peer", "{P1}", "preshared-key", "/dev/null"],
    &["peer", "{P1}", "allowed-ips", "+192.0.2.1"],
    &["peer", "{P1}", "allowed-ips", "-198.51.100.0/24"],
    &[
        "peer",
        "{P1}",
        "allowed-ips",
        "+192.0.2.1/32,-2001:db8:99::/48",
    ],
    &["peer", "{P1}", "allowed-ips", "192.0.2.1,+192.0.2.2"],
    &[
        "peer",
        "{P1}",
        "allowed-ips",
        "+192.0.2.1",
        "allowed-ips",
        "192.0.2.2",
    ],
    &["peer", "{P1}", "allowed-ips", "+nosuch"],
    &["peer", "{P1}", "allowed-ips", "--192.0.2.1"],
    &["peer", "{P1}", "allowed-ips", "+"],
];

/// Contents of key files.
const KEY_FILES: &[&str] = &[
    "",
    "{K2}",
    "{K2}\n",
    "{K2}\n\n \t\r\n",
    "{K2}\nx",
    "{K2} #",
    "{K2}x",
    "{K2}\u{1}",
    "x",
    "\n",
    " {K2}",
    "YGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGA",
    "YGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGB=",
    "YGBgYGBgYGBgYGBgYGBgYGB YGBgYGBgYGBgYGBgYGA=",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n",
    "\u{feff}{K2}",
    "{K2}\0",
    "{K2}\n\0\n",
];

/// Nothing is changed, and the error is the same.
pub(crate) fn same_errors() -> Result<()> {
    let mut comparison = Comparison::new("set wrong");
    let pair = Pair::new()?;
    let impatient = [("WG_ENDPOINT_RESOLUTION_RETRIES", "0")];
    for words in WRONG {
        let words = [&["set", "IF"], *words].concat();
        pair.call_with(&mut comparison, None, &words, &impatient)?;
    }
    for retries in ["x", "-1", "1x", "2147483648", "Infinity"] {
        for endpoint in ["192.0.2.1:5", "", "nosuch"] {
            let words = ["set", "IF", "peer", "{P1}", "endpoint", endpoint];
            let variables = [("WG_ENDPOINT_RESOLUTION_RETRIES", retries)];
            pair.call_with(&mut comparison, None, &words, &variables)?;
        }
    }
    comparison.finish()
}

/// The effects are the same.
pub(crate) fn same_effect() -> Result<()> {
    let mut comparison = Comparison::new("set right");
    let pair = Pair::new()?;
    for words in RIGHT {
        pair.call(&mut comparison, &[&["set", "IF"], *words].concat())?;
    }
    for (index, content) in KEY_FILES.iter().enumerate() {
        let file = scratch_file(&format!("key{index}"), &with_keys(content))?;
        pair.call(&mut comparison, &["set", "IF", "private-key", &file])?;
        let words = ["set", "IF", "peer", "{P1}", "preshared-key", &file];
        pair.call(&mut comparison, &words)?;
    }
    for retries in ["infinity", "0", "", "2147483647"] {
        let words = ["set", "IF", "peer", "{P1}", "endpoint", "192.0.2.1:5"];
        let variables = [("WG_ENDPOINT_RESOLUTION_RETRIES", retries)];
        pair.call_with(&mut comparison, None, &words, &variables)?;
    }
    let all = [
        "set",
        "IF",
        "private-key",
        "/dev/null",
        "listen-port",
        "5",
        "fwmark",
        "0x5",
        "peer",
        "{P1}",
        "endpoint",
        "192.0.2.1:5",
        "allowed-ips",
        "192.0.2.0/24",
        "peer",
        "{P2}",
        "persistent-keepalive",
        "5",
        "preshared-key",
        "/dev/null",
        "allowed-ips",
        "::/0",
    ];
    pair.call(&mut comparison, &all)?;
    comparison.finish()
}

/// A device that rejects a request, or answers with garbage.
pub(crate) fn refused() -> Result<()> {
    let mut comparison = Comparison::new("set refused");
    let fake = Fake::start("wf")?;
    for answer in [
        "errno=0\n\n",
        "errno=-1\n\n",
        "errno=-22\n\n",
        "errno=22\n\n",
        "errno=-98\nerror=line 5: taken\n\n",
        "error=line 5: taken\nerrno=-98\n\n",
        "errno=999\n\n",
        "errno=-999\n\n",
        "errno=0\n",
        "errno=0",
        "errno=x\n\n",
        "errno=-1x\n\n",
        "\n",
        "",
    ] {
        fake.answer(answer);
        for words in [
            &["set", "wf", "listen-port", "5"][..],
            &["setconf", "wf", "/dev/null"],
        ] {
            let call = Call::new(words);
            let debian = call.run(Program::Debian)?;
            let asked_by_debian = fake.requests();
            let taupe = call.run(Program::Taupe)?;
            let case = format!("{}: {answer:?}", call.name());
            comparison.compare(&case, &debian, &taupe);
            let queries = fake.requests();
            comparison.effects(
                &format!("{case}: request"),
                &asked_by_debian.concat(),
                &queries.concat(),
            );
        }
    }
    comparison.finish()
}

/// Names that cannot be resolved are looked up again, with growing pauses.
pub(crate) fn retries() -> Result<()> {
    let mut comparison = Comparison::new("retries");
    let _pair = Pair::new()?;
    for endpoint in ["nosuch.invalid:5", "192.0.2.1:nosuch", ":5"] {
        let words = ["set", "wgtaupe", "peer", "{P1}", "endpoint", endpoint];
        let call = Call::new(&words).env("WG_ENDPOINT_RESOLUTION_RETRIES", "2");
        let debian = call.run(Program::Debian)?;
        let start = Instant::now();
        let taupe = call.run(Program::Taupe)?;
        let took = start.elapsed();
        comparison.compare(&call.name(), &debian, &taupe);
        let waits = debian.err().matches("Trying again").count();
        let least = Duration::from_millis([0, 1000, 2200].get(waits).copied().unwrap_or(2200));
        ensure!(
            took >= least,
            "{endpoint}: only {took:?} after {waits} waits"
        );
        ensure!(
            waits == 2 || endpoint == ":5",
            "{endpoint}: {}",
            debian.err()
        );
    }
    comparison.finish()
}
