//! Settings of a file that apply to a command.

use crate::endpoints;
use std::net::SocketAddr;
use std::path::Path;
use taupe_config::file::{File, Table};
use taupe_sandbox::SandboxConfig;

/// Returns a sentence for each setting that has no effect on a command, and removes settings that
/// this user may not apply.
pub(super) fn without_effect(file: &mut File, is_root: bool) -> Vec<String> {
    let mut sentences = Vec::new();
    let hooks = &file.interface.hooks;
    let mut all = [
        &hooks.pre_up,
        &hooks.post_up,
        &hooks.pre_down,
        &hooks.post_down,
    ]
    .into_iter();
    if all.any(|hooks| !hooks.is_empty()) {
        sentences.push("PreUp, PostUp, PreDown and PostDown are not run by `exec`".to_owned());
    }
    if let Some((key, line)) = file.transparent.first {
        sentences.push(format!(
            "{key} in line {line} and related keys have no effect on `exec`: all traffic of the command \
             goes through the tunnel"
        ));
    }
    if file.interface.table != Table::Auto {
        sentences.push(
            "Table has no effect on `exec`: the command has a routing table of its own".to_owned(),
        );
    }
    if !is_root && file.interface.fwmark.take().is_some_and(|mark| mark != 0) {
        sentences.push("FwMark is not used, because it takes root".to_owned());
    }
    sentences
}

/// Returns the plan of the command's sandbox.
pub(super) fn sandbox_config(
    name: &str,
    file: &File,
    endpoints: &[Option<SocketAddr>],
    hide_session: bool,
    folder: &Path,
) -> SandboxConfig {
    let interface = &file.interface;
    SandboxConfig {
        interface: name.to_owned(),
        addresses: file.interface.addresses.clone(),
        routes: endpoints::networks(file),
        mtu: endpoints::mtu(file, endpoints),
        name_servers: interface.dns.clone(),
        search: interface.dns_search.clone(),
        hide_session,
        folder: folder.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{sandbox_config, without_effect};
    use std::path::Path;
    use taupe_config::file::{Dialect, File, parse};

    fn file(lines: &str, peer: &str) -> File {
        let text = format!(
            "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n{lines}\n\
             [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n{peer}\n"
        );
        parse(text.as_bytes(), Dialect::Taupe).file.expect("a file")
    }

    #[test]
    fn what_does_nothing_is_told_of_once() {
        let lines = "PostUp = true\nPreUp = true\nTable = off\nFwMark = 5\nAllowedApps = curl";
        let mut all = file(lines, "");
        let said = without_effect(&mut all, false);
        let words = ["PostUp", "AllowedApps in line 7", "Table", "FwMark"];
        assert_eq!(said.len(), words.len(), "{said:?}");
        for (sentence, word) in said.iter().zip(words) {
            assert!(sentence.contains(word), "{sentence}");
        }
        assert_eq!(all.interface.fwmark, None);
        let mut roots = file("FwMark = 5", "");
        assert!(without_effect(&mut roots, true).is_empty());
        assert_eq!(roots.interface.fwmark, Some(5));
        assert!(without_effect(&mut file("FwMark = off", ""), false).is_empty());
    }

    #[test]
    fn routes_are_what_peers_have_and_nothing_else() {
        let file = file(
            "Address = 10.0.0.2/24\nMTU = 1300\nDNS = 10.0.0.1, lan",
            "AllowedIPs = 10.9.0.0/16, ::/0\nDisallowedIPs = 10.9.0.0/17",
        );
        let plan = sandbox_config("home", &file, &[None], true, Path::new("/run/taupe"));
        let routes: Vec<_> = plan.routes.iter().map(ToString::to_string).collect();
        assert_eq!(routes, ["10.9.128.0/17", "::/0"]);
        assert_eq!(plan.addresses, ["10.0.0.2/24".parse().expect("network")]);
        assert_eq!((plan.mtu, plan.hide_session), (1300, true));
        assert_eq!(plan.search, ["lan"]);
    }
}
