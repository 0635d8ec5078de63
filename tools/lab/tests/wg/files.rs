//! `setconf`, `addconf` and `syncconf`.

use crate::compare::{Comparison, with_keys};
use crate::set::Pair;
use taupe_lab::Result;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::scratch_file;

const VERBS: [&str; 3] = ["setconf", "addconf", "syncconf"];

/// Invalid files. `{K1}` and the like are keys.
const WRONG: &[&str] = &[
    "frobnicate\n",
    "frobnicate",
    "frobnicate = 5\n",
    "[frobnicate]\n",
    "[Interface\n",
    "Interface]\n",
    "[Interface] [Peer]\n",
    "PrivateKey={K1}\n",
    "[Interface]\nPublicKey={P1}\n",
    "[Interface]\nEndpoint=192.0.2.1:5\n",
    "[Interface]\nAddress=192.0.2.1/24\n",
    "[Interface]\nDNS=192.0.2.1\n",
    "[Interface]\nMTU=1420\n",
    "[Interface]\nTable=off\n",
    "[Interface]\nPostUp=true\n",
    "[Interface]\nSaveConfig=true\n",
    "[Peer]\nListenPort=5\n",
    "[Peer]\nPublicKey={P1}\nDisallowedIPs=192.0.2.1\n",
    "[Interface]\nListenPort\n",
    "[Interface]\nListenPort=\n",
    "[Interface]\nListenPort = # 5\n",
    "[Interface]\nListenPort=x\n",
    "[Interface]\nListenPort=-1\n",
    "[Interface]\nListenPort=5 6x\n",
    "[Interface]\nFwMark=\n",
    "[Interface]\nFwMark=x\n",
    "[Interface]\nFwMark=0x\n",
    "[Interface]\nFwMark=4294967296\n",
    "[Interface]\nFwMark=-1\n",
    "[Interface]\n=\n",
    "[Interface]\n=5\n",
    "[Interface]\n; comment\n",
    "[Interface]\n// comment\n",
    "[Peer]\n",
    "[Peer]\n[Peer]\nPublicKey={P1}\n",
    "[Peer]\nAllowedIPs=192.0.2.1\n[Peer]\nPublicKey={P1}\n",
    "[Peer]\nAllowedIPs=192.0.2.1\n[Peer]\nPublicKey=x\n",
    "[Peer]\nPublicKey=\n",
    "[Peer]\nPublicKey=x\n",
    "[Peer]\nPublicKey={P1}x\n",
    "[Peer]\nPublicKey=ERERERERERERERERERERERERERERERERERERERERERE\n",
    "[Interface]\nPublicKey=ERERERERERERERERERERERERERERERERERERERERERE\n",
    "[Peer]\nPublicKey={P1}{P1}\n",
    "[Peer]\nPublicKey=\"{P1}\"\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=192.0.2.1\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=192.0.2.1:\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=[::1\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=[::1]\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=[::1]5\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=:5\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=nosuch.invalid:5\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=192.0.2.1:nosuch\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=nosuch\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=192.0.2.1/33\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=192.0.2.1/\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=192.0.2.1,\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=,\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=192.0.2.1/24,198.51.100.1/24,x\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=192.0.2.0/255.255.255.0\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=fe80::1%lo\n",
    "[Peer]\nPublicKey={P1}\nPersistentKeepalive=\n",
    "[Peer]\nPublicKey={P1}\nPersistentKeepalive=x\n",
    "[Peer]\nPublicKey={P1}\nPersistentKeepalive=65536\n",
    "[Peer]\nPublicKey={P1}\nPersistentKeepalive=0x5\n",
    "[Peer]\nPublicKey={P1}\nPersistentKeepalive=on\n",
    "[Peer]\nPublicKey={P1}\nfrobnicate=5\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=192.0.2.1/24\nfrobnicate\nAllowedIPs=192.0.2.1/8\n",
    "frobnicate=\u{1}\u{2}\n",
    "[Interface]\nPrivateKey=\n",
    "[Interface]\nPrivateKey\n",
    "[Interface]\nPrivateKey=x\n",
    "[Interface]\nPrivateKey={K1} {K2}\n",
    "[Peer]\nPrivateKey={K1}\n",
    "[Peer]\nPublicKey={P1}\nPresharedKey=x\n",
    "[Peer]\nPublicKey={P1}\nPresharedKey=/etc/passwd\n",
    "[Interface]\nPresharedKey={P1}\n",
    "{K1}\n",
];

/// Valid files.
const RIGHT: &[&str] = &[
    "",
    "\n",
    "# nothing\n",
    "[Interface]\n",
    "[Interface]",
    "\u{feff}[Interface]\n",
    "[Interface]\nPrivateKey={K1}\n",
    "[Interface]\nPrivateKey=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n",
    "[Interface]\nListenPort=5\nFwMark=0x5\n",
    "[Interface]\nListenPort=0\nFwMark=off\n",
    "[Interface]\nListenPort=65535\nFwMark=0xffffffff\n",
    "[Interface]\nFwMark=4294967295\n",
    "[INTERFACE]\nPRIVATEKEY = {K1}\nlistenport=5\n[peer]\npublickey = {P1}\nALLOWEDIPS=192.0.2.1\n",
    " [ Interface ] \n Private Key = {K1} \n Listen\tPort = 5 0\n",
    "[Interface] # comment\nPrivateKey={K1}# comment\n#[Peer]\n # comment\n",
    "[Interface]\r\nPrivateKey={K1}\r\nListenPort=5\r\n[Peer]\r\nPublicKey={P1}\r\n",
    "[Peer]\nPublicKey={P1}\n",
    "[Peer]\nPublicKey={P2}\n",
    "[Peer]\nPublicKey={P1}\n[Peer]\nPublicKey={P2}\n",
    "[Peer]\nPublicKey={P1}\nPresharedKey={P2}\n",
    "[Peer]\nPublicKey={P1}\nPresharedKey=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=192.0.2.1:5\nPersistentKeepalive=25\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=[2001:db8::1]:5\nPersistentKeepalive=off\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=[fe80::1%lo]:5\nPersistentKeepalive=65535\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=localhost:5\nPersistentKeepalive=0\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=192.0.2.0/24\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=192.0.2.1/24, 2001:db8::1/32,198.51.100.1\nAllowedIPs=::/0\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=0.0.0.0/0,::1.2.3.4\n",
    "[Peer]\nPublicKey={P2}\nAllowedIPs=198.51.100.0/24\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=198.51.100.0/24\n[Peer]\nPublicKey={P2}\nAllowedIPs=198.51.100.0/24\n",
    "[Peer]\nPublicKey={P1}\nPresharedKey={P2}\nEndpoint=192.0.2.1:5\nAllowedIPs=192.0.2.0/24\n\
     PersistentKeepalive=25\n[Peer]\nPublicKey={P2}\nAllowedIPs=198.51.100.0/24\n[Interface]\n\
     PrivateKey={K1}\nListenPort=5\nFwMark=5\n",
    "[Peer]\nPublicKey={P1}\n[Interface]\nListenPort=5\n[Peer]\nPublicKey={P2}\n",
    "[Interface]\nListenPort=5\n[Interface]\nFwMark=5\n",
    "[Interface]\nListenPort=5\nListenPort=6\n",
    "[Peer]\nPublicKey={P1}\nPublicKey={P2}\n",
    "[Peer]\nPublicKey={P1}\n[Peer]\nPublicKey={P1}\nPersistentKeepalive=5\n",
    "[Interface]\nListenPort=domain\n",
    "[Interface]\nListenPort=65536\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=192.0.2.1:domain\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=192.0.2.1:0\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=::1:5\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=192.0.513:5\n",
    "[Peer]\nPublicKey={P1}\nEndpoint=0.0.0.0:5\n",
    "[Peer]\nPublicKey=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n",
    "[Peer]\nPublicKey={P1}\nPublic Key={P2}\nEnd Point=192.0.2.1:5\n",
    "[Peer]\nPublicKey={P1}\nPersistentKeepalive=010\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=192.0.2.0/024\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=+192.0.2.0/24\n",
    "[Peer]\nPublicKey={P1}\nAllowedIPs=-198.51.100.0/24\n",
];

fn compare(section: &'static str, files: &[&str]) -> Result<()> {
    let mut comparison = Comparison::new(section);
    let pair = Pair::new()?;
    let impatient = [("WG_ENDPOINT_RESOLUTION_RETRIES", "0")];
    for text in files {
        let path = scratch_file("file", &with_keys(text))?;
        for verb in VERBS {
            let words = [verb, "IF", &path];
            let name = format!("{verb} {text}");
            pair.call_with(&mut comparison, Some(&name), &words, &impatient)?;
        }
    }
    comparison.finish()
}

pub(crate) fn same_errors() -> Result<()> {
    compare("files wrong", WRONG)
}

pub(crate) fn same_effect() -> Result<()> {
    compare("files right", RIGHT)
}

/// The output of `showconf` is a file with the same meaning.
pub(crate) fn round_trip() -> Result<()> {
    let host = taupe_lab::host::Host::new("a")?;
    let tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let text = with_keys(
        "[Interface]\nListenPort = 51820\nFwMark = 0xca6c\nPrivateKey = {K1}\n\n\
         [Peer]\nPublicKey = {P1}\nPresharedKey = {P2}\nAllowedIPs = 192.0.2.0/24, ::/0\n\
         Endpoint = [fe80::1%lo]:5\nPersistentKeepalive = 25\n\n\
         [Peer]\nPublicKey = {P2}\n",
    );
    for program in [
        crate::compare::Program::Debian,
        crate::compare::Program::Taupe,
    ] {
        taupe_lab::uapi::set("wg0", "replace_peers=true\nlisten_port=1\n")?;
        let file = scratch_file("wg0.conf", &text)?;
        let call = crate::compare::Call::new(&["setconf", "wg0", &file]);
        let output = call.run(program)?;
        taupe_lab::ensure!(
            output.status == Some(0) && output.err().is_empty(),
            "{output}"
        );
        let shown = crate::compare::Call::new(&["showconf", "wg0"]).run(program)?;
        taupe_lab::ensure!(shown.out() == text, "{shown}");
    }
    drop(tunnel);
    Ok(())
}
