//! Removal of secrets from texts that are shown to others.

use crate::check;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use taupe_client::PqPrivateKey;
use taupe_config::file::Dialect;
use taupe_uapi::key::Encoding;
use zeroize::Zeroizing;

/// Keys of configuration files whose values are shown. All other values may be secret.
const SHOWN: [&str; 21] = [
    "Address",
    "AllowedApps",
    "AllowedIPs",
    "AppsOfUser",
    "BypassLanTraffic",
    "Children",
    "DisallowedApps",
    "DisallowedIPs",
    "DNS",
    "Endpoint",
    "Forwarded",
    "FwMark",
    "KillSwitch",
    "ListenPort",
    "MTU",
    "PersistentKeepalive",
    "PostQuantum",
    "PublicKey",
    "SaveConfig",
    "SystemBus",
    "Table",
];

/// Prefixes of lines that are comments for other programs and settings for Taupe.
const PREFIXES: [&str; 2] = ["#@taupe:", "#@ws:"];

/// Returns a file's text with sections and the values of the keys above. Comments and all other
/// values are hidden.
#[must_use]
pub fn file(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.trim();
        let (prefix, rest) = split_prefix(line);
        match rest.split_once('=') {
            _ if line.is_empty() => String::new(),
            _ if rest.starts_with('#') => "# (a comment)".into(),
            Some((key, value)) => match shown(key) {
                Some(known) => {
                    let value = value.split('#').next().unwrap_or_default().trim();
                    format!("{prefix}{known} = {value}")
                }
                None if is_word(key) => format!("{prefix}{} = (hidden)", key.trim()),
                None => "(hidden)".into(),
            },
            None if ["[interface]", "[peer]"].contains(&&*rest.to_ascii_lowercase()) => rest.into(),
            None => "(hidden)".into(),
        }
    });
    lines.map(|line| line + "\n").collect()
}

/// Splits a line into the prefix that makes it a comment for other programs, and the rest.
fn split_prefix(line: &str) -> (&'static str, &str) {
    let prefix = PREFIXES.iter().find(|prefix| {
        let start = line.get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    });
    let prefix = prefix.copied().unwrap_or_default();
    (prefix, &line[prefix.len()..])
}

/// Returns the canonical spelling of a key whose values are shown.
fn shown(key: &str) -> Option<&'static str> {
    let mut known = SHOWN.into_iter();
    known.find(|known| known.eq_ignore_ascii_case(key.trim()))
}

/// Returns the values that [`file()`] hides. Most are commands, which the log contains as they were
/// run.
fn hidden(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| {
        let (_, rest) = split_prefix(line.trim());
        let value = match rest.split_once('=') {
            Some((key, value)) if !rest.starts_with('#') && shown(key).is_none() => value.trim(),
            _ => "",
        };
        // The value may end with a comment, which the log lacks.
        let without_comment = value.split('#').next().unwrap_or_default().trim_end();
        [value, without_comment]
            .into_iter()
            .filter(|value| !value.is_empty())
    })
}

/// Checks whether a text can be the name of a key.
fn is_word(text: &str) -> bool {
    let text = text.trim();
    text.len() <= 30 && text.chars().all(|c| c.is_ascii_alphabetic())
}

/// Removes keys from texts, and endpoints on request.
pub struct Redactor {
    /// Secrets in every encoding.
    secrets: Vec<Zeroizing<String>>,
    endpoints: BTreeSet<String>,
    hides_endpoints: bool,
    /// Values that are hidden in files, longest first.
    hidden: Vec<Zeroizing<String>>,
}

impl Redactor {
    /// Creates a redactor that knows no secrets yet.
    #[must_use]
    pub fn new(hides_endpoints: bool) -> Self {
        Self {
            secrets: Vec::new(),
            endpoints: BTreeSet::new(),
            hides_endpoints,
            hidden: Vec::new(),
        }
    }

    /// Learns the keys of a running device and the endpoints of its peers.
    pub fn learn_device(&mut self, interface: &str) {
        let Ok(device) = taupe_client::read(interface) else {
            return;
        };
        if let Some(key) = &device.status.private_key {
            self.learn(key.expose());
        }
        if let Some(seed) = &device.status.pq_private_key {
            self.learn_seed(seed);
        }
        for peer in &device.status.peers {
            if peer.preshared_key.is_set() {
                self.learn(peer.preshared_key.expose());
            }
            self.endpoints
                .extend(peer.endpoint.map(|endpoint| endpoint.ip().to_string()));
            let name = peer.endpoint_name.as_ref().map(ToString::to_string);
            self.endpoints.extend(name.as_deref().and_then(host));
        }
    }

    /// Learns the keys and endpoints in a file. A file with errors still yields its endpoints; its
    /// keys are recognised by their form.
    pub fn learn_file(&mut self, path: &Path, text: &[u8]) {
        let lines = String::from_utf8_lossy(text);
        let values = lines.lines().filter_map(|line| line.split_once('='));
        let endpoints = values.filter(|(key, _)| key.trim().eq_ignore_ascii_case("endpoint"));
        let hosts = endpoints.filter_map(|(_, value)| host(value.split('#').next()?.trim()));
        for host in hosts.filter(|host| !host.is_empty()) {
            // The canonical form, in which other programs write the address.
            let address: Option<IpAddr> = host.parse().ok();
            self.endpoints
                .extend(address.map(|address| address.to_string()));
            self.endpoints.insert(host);
        }
        let hidden = hidden(&lines).map(|value| Zeroizing::new(value.to_owned()));
        self.hidden.extend(hidden);
        // A value that contains another one is replaced first.
        self.hidden.sort_by_key(|value| Reverse(value.len()));
        let Some(file) = check::parse(path, text, Dialect::Taupe).file else {
            return;
        };
        if let Some(key) = &file.interface.private_key {
            self.learn(key.expose());
        }
        if let Some(seed) = &file.interface.pq_private_key {
            self.learn_seed(seed);
        }
        for peer in &file.peers {
            if let Some(key) = &peer.preshared_key {
                self.learn(key.expose());
            }
        }
    }

    fn learn(&mut self, key: &[u8; 32]) {
        self.secrets.push(Encoding::Base64.encode(key));
        self.secrets.push(Encoding::Hex.encode(key));
    }

    fn learn_seed(&mut self, seed: &PqPrivateKey) {
        for encoding in [Encoding::Base64, Encoding::Hex] {
            self.secrets.push(encoding.encode_pq_private_key(seed));
        }
    }

    /// Redacts the log of a tunnel's service. Removes values that are hidden in the tunnel's file,
    /// and all lines but those of Taupe and the service manager: other lines are the output of
    /// hooks. Hooks of an earlier version of the file are hidden too.
    #[must_use]
    pub fn log(&self, interface: &str, text: &str) -> String {
        let mut text = text.to_owned();
        for value in &self.hidden {
            text = text.replace(value.as_str(), HIDDEN);
            if value.contains("%i") {
                text = text.replace(&value.replace("%i", interface), HIDDEN);
            }
        }
        let lines = text.lines().map(|line| redact_log_line(interface, line));
        lines.map(|line| line + "\n").collect()
    }

    /// Removes the secrets from a text, and everything that looks like a key. Equal keys get equal
    /// numbers.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            text = text.replace(secret.as_str(), "(secret)");
        }
        if self.hides_endpoints {
            // In reverse order an endpoint comes before its own prefixes.
            for endpoint in self.endpoints.iter().rev() {
                text = text.replace(endpoint.as_str(), "(endpoint)");
            }
        }
        without_keys(&text)
    }
}

const HIDDEN: &str = "(hidden)";

/// First words of the commands that Taupe logs (`adapter::change`, `adapter::dns`).
const LOGGED_COMMANDS: [&str; 8] = [
    "ip",
    "wg",
    "nft",
    "sysctl",
    "resolvectl",
    "resolvconf",
    "rm",
    "mv",
];

/// First words of further commands that Taupe recommends.
const ADVISED_COMMANDS: [&str; 3] = ["taupe", "sudo taupe", "systemctl"];

/// Beginnings of the text in brackets after a logged command: the number of routes that are not
/// shown, and nft's table.
const NOTES_AFTER_COMMANDS: [&str; 2] = ["and ", "table "];

/// Log levels, which follow the time in a log line.
const LEVELS: [&str; 5] = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"];

/// Returns a line of the journal in which everything is hidden that may be secret.
fn redact_log_line(interface: &str, line: &str) -> String {
    // Such as `-- Boot 0 --`.
    if line.starts_with("-- ") {
        return line.to_owned();
    }
    let (prefix, message) = match line.split_once("]: ") {
        // Time, host, and program with its process id.
        Some((prefix, message)) if prefix.split(' ').count() == 3 && !prefix.starts_with('[') => {
            (&line[..prefix.len() + "]: ".len()], message)
        }
        _ => ("", line),
    };
    let is_of_manager = prefix
        .split(' ')
        .nth(2)
        .is_some_and(|program| program.starts_with("systemd["));
    let is_log = || {
        let mut words = message.split_whitespace();
        let time = words.next().unwrap_or_default();
        let is_time = time.starts_with(|c: char| c.is_ascii_digit()) && time.ends_with('Z');
        is_time && words.next().is_some_and(|word| LEVELS.contains(&word))
    };
    let is_sentence = || {
        let starts = [
            "[!] ",
            "taupe: ",
            "the applications selected for ",
            // Earlier versions wrote this.
            "the applications that were chosen for ",
        ];
        starts.iter().any(|start| message.starts_with(start))
            || message.starts_with(&format!("{interface} is "))
    };
    if is_of_manager || message == HIDDEN || is_log() || is_sentence() {
        return prefix.to_owned() + &without_commands(message);
    }
    match message.strip_prefix("[#] ") {
        Some(command) if command == HIDDEN || is_plain_command(&LOGGED_COMMANDS, command) => {
            line.to_owned()
        }
        Some(_) => format!("{prefix}[#] {HIDDEN}"),
        None => prefix.to_owned() + HIDDEN,
    }
}

/// Hides the commands that a sentence quotes, unless they are Taupe's own.
fn without_commands(message: &str) -> String {
    let parts = message.split('`').enumerate();
    let parts = parts.map(
        |(at, part)| match at % 2 == 1 && part != HIDDEN && !is_of_taupe(part) {
            true => HIDDEN,
            false => part,
        },
    );
    parts.collect::<Vec<_>>().join("`")
}

fn is_of_taupe(command: &str) -> bool {
    is_plain_command(&LOGGED_COMMANDS, command) || is_plain_command(&ADVISED_COMMANDS, command)
}

/// Checks whether a command begins with one of these words and contains no shell syntax.
fn is_plain_command(begins: &[&str], command: &str) -> bool {
    let (command, note) = match command.split_once(" (") {
        Some((command, note)) => (command, Some(note)),
        None => (command, None),
    };
    let is_known = |note: &str| {
        NOTES_AFTER_COMMANDS
            .iter()
            .any(|start| note.starts_with(start))
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " -_./:,=%+@*".contains(c);
    let first = |begin: &&str| {
        let rest = command.strip_prefix(*begin);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    note.is_none_or(is_known) && command.chars().all(is_plain) && begins.iter().any(first)
}

fn host(endpoint: &str) -> Option<String> {
    let host = endpoint.rsplit_once(':')?.0;
    Some(host.trim_matches(['[', ']']).to_owned())
}

/// Replaces every run of characters that may be a key.
fn without_keys(text: &str) -> String {
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/');
    let mut known: Vec<&str> = Vec::new();
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = rest.find(is_of_key) {
        let (before, run) = rest.split_at(start);
        out += before;
        let end = run.find(|c| !is_of_key(c)).unwrap_or(run.len());
        let (run, after) = run.split_at(end);
        rest = after;
        if !may_be_key(run, after) {
            out += run;
            continue;
        }
        rest = rest.strip_prefix('=').unwrap_or(rest);
        let at = known.iter().position(|key| *key == run);
        let number = at.unwrap_or_else(|| {
            known.push(run);
            known.len() - 1
        });
        out += &format!("(key {})", number + 1);
    }
    out + rest
}

/// Checks whether a run of characters may be a key: base64 of 32 bytes has 43 characters and an
/// `=`, hexadecimal 64 digits. Shorter runs of at least 40 count as mistyped keys. A run with more
/// than four slashes is a path.
fn may_be_key(run: &str, after: &str) -> bool {
    let is_exact = run.len() == 43 && after.starts_with('=');
    is_exact || run.len() >= 40 && run.matches('/').count() <= 4
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [0xa7; 32];

    #[test]
    fn no_key_remains_in_any_encoding() {
        let base64 = Encoding::Base64.encode(&KEY);
        let hex = Encoding::Hex.encode(&KEY);
        let (base64, hex) = (base64.as_str(), hex.as_str());
        let mut redactor = Redactor::new(false);
        redactor.learn(&KEY);
        for text in [
            format!("PrivateKey={base64}"),
            format!("PrivateKey = {base64}\n"),
            format!("\"key\":\"{base64}\","),
            format!("private_key={hex}\n"),
            format!("x{base64}x"),
            format!("x{hex}x"),
        ] {
            for redacted in [redactor.redact(&text), without_keys(&text)] {
                assert!(!redacted.contains(base64), "{redacted}");
                assert!(!redacted.contains(hex), "{redacted}");
                // Nor does a part of it remain.
                assert!(!redacted.contains(&base64[..20]), "{redacted}");
            }
        }
    }

    #[test]
    fn no_seed_remains() {
        let seed = PqPrivateKey::new(taupe_client::Secret::new([0xff; 64])).expect("not zero");
        let base64 = Encoding::Base64.encode_pq_private_key(&seed);
        let hex = Encoding::Hex.encode_pq_private_key(&seed);
        let text = format!(
            "[Interface]\nPrivateKey = {}\n#@taupe:PqPrivateKey = {}\n",
            Encoding::Base64.encode(&KEY).as_str(),
            base64.as_str()
        );
        assert!(file(&text).ends_with("\n#@taupe:PqPrivateKey = (hidden)\n"));
        let mut redactor = Redactor::new(false);
        redactor.learn_file(Path::new("/x.conf"), text.as_bytes());
        // The slashes in this seed make it look like a path.
        for seed in [base64, hex] {
            let redacted = redactor.redact(&format!("seed={}", seed.as_str()));
            assert_eq!(redacted, "seed=(secret)");
        }
    }

    #[test]
    fn other_text_is_not_changed() {
        let text = "firefox-esr (4711) tcp 192.168.1.1:5000 -> [2001:db8::1]:443 /usr/lib/x/y/z\n\
                    /opt/somewhere/far/below/all/that/there/is/program = 7\n";
        assert_eq!(without_keys(text), text);
        let [a, b] = [[1; 32], [2; 32]].map(|key| Encoding::Base64.encode(&key));
        let (a, b) = (a.as_str(), b.as_str());
        let numbered = without_keys(&format!("{a} {b} {a}"));
        assert_eq!(numbered, "(key 1) (key 2) (key 1)");
    }

    #[test]
    fn only_harmless_values_of_a_file_are_shown() {
        let text = "# my password is x\n[Interface]\nPrivateKey = secret\naddress=10.0.0.1/32 # y\n\
                    PostUp = curl -u me:x example.org\n#PrivateKey = z\n[Peer]\n\
                    #@ws:AllowedApps = curl\nnothing\nPassw0rd! = q\n";
        let expected = "# (a comment)\n[Interface]\nPrivateKey = (hidden)\n\
                        Address = 10.0.0.1/32\nPostUp = (hidden)\n# (a comment)\n[Peer]\n\
                        #@ws:AllowedApps = curl\n(hidden)\n(hidden)\n";
        assert_eq!(file(text), expected);
    }

    #[test]
    fn values_hidden_in_a_file_are_hidden_in_its_log() {
        let file = "[Interface]\nMTU = 1420\nPostUp = curl -u me:pass %i # y\n\
                    #@ws:PreDown = logger pw=#1\nPostDown = curl -u me:pass %i && true\n";
        let log = "[#] ip link set mtu 1420 dev home\n[#] curl -u me:pass home\n\
                   [!] `curl -u me:pass %i` has failed\n[#] logger pw=#1\n\
                   [#] curl -u me:pass home && true\n";
        let expected = "[#] ip link set mtu 1420 dev home\n[#] (hidden)\n\
                        [!] `(hidden)` has failed\n[#] (hidden)\n[#] (hidden)\n";
        let mut redactor = Redactor::new(false);
        redactor.learn_file(Path::new("/x.conf"), file.as_bytes());
        assert_eq!(redactor.log("home", log), expected);
    }

    #[test]
    fn only_lines_of_taupe_and_the_service_manager_are_shown() {
        let shown = [
            "-- Boot 5c3 --",
            "2026-11-23T20:00:00+0000 host systemd[1]: Started WireGuard tunnel home, by Taupe.",
            "2026-11-23T20:00:00+0000 host taupe[7]: [#] ip -4 route add 0.0.0.0/0 dev home table 51820 \
             (and 9 more routes; --verbose or LOG_LEVEL=verbose shows each)",
            "2026-11-23T20:00:00+0000 host taupe[7]: home is up; through the tunnel: curl; `taupe \
             status home` says whether its peer answers",
            "2026-11-23T20:00:00+0000 host taupe[7]: 2026-11-23T20:00:00.1Z  WARN uplinks: the TUN",
            "2026-11-23T20:00:00+0000 host taupe[7]: taupe: /etc/wireguard/home.conf has errors",
            "2026-11-23T20:00:00+0000 host taupe[7]: the applications selected for home bypass it",
        ];
        let prefix = "2026-11-23T20:00:00+0000 host taupe[7]: ";
        let hidden = [
            // Hooks of an earlier version of the file.
            ("[#] curl -u me:pass example.org", "[#] (hidden)"),
            ("[#] ip link; curl -u me:pass", "[#] (hidden)"),
            ("[#] ipcalc me:pass", "[#] (hidden)"),
            ("[#] taupe exec x -- curl -u me:pass", "[#] (hidden)"),
            ("[#] ip link (me:pass)", "[#] (hidden)"),
            (
                "[!] `curl -u me:pass x` has failed; `taupe up home`",
                "[!] `(hidden)` has failed; `taupe up home`",
            ),
            // Output of hooks.
            ("token me:pass", "(hidden)"),
            ("x]: [#] ip me:pass", "(hidden)"),
            ("2026 me:pass", "(hidden)"),
        ];
        let redactor = Redactor::new(false);
        for line in shown {
            assert_eq!(redactor.log("home", line), format!("{line}\n"));
        }
        for (line, expected) in hidden {
            let message = redactor.log("home", &format!("{prefix}{line}"));
            assert_eq!(message, format!("{prefix}{expected}\n"));
        }
    }

    #[test]
    fn endpoints_are_removed_on_request() {
        let file = format!(
            "[Interface]\nPrivateKey = {0}\n[Peer]\nPublicKey = {0}\nEndpoint = 192.0.2.1:51820\n",
            Encoding::Base64.encode(&KEY).as_str()
        );
        let text = "peer 192.0.2.1:51820";
        for (hides, shown) in [(true, "peer (endpoint):51820"), (false, text)] {
            let mut redactor = Redactor::new(hides);
            redactor.learn_file(Path::new("/x.conf"), file.as_bytes());
            assert_eq!(redactor.redact(text), shown);
        }
        let mut redactor = Redactor::new(true);
        redactor.learn_file(
            Path::new("/x.conf"),
            b"[Peer]\nEndpoint = [2001:DB8:0::1]:51820\n",
        );
        let text = redactor.redact("peer [2001:db8::1]:51820");
        assert_eq!(text, "peer [(endpoint)]:51820");
    }
}
