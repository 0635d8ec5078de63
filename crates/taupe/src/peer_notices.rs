//! Messages about peers that do not answer, for tunnels in this process.

use taupe_inspect::span;
use taupe_proxy::Notice;

/// Formats a notice as a line of text. The line names the endpoint instead of the key, because most
/// files have one peer.
pub(crate) fn text(notice: &Notice) -> String {
    match notice {
        Notice::PeerUnreachable { endpoint, time, .. } => format!(
            "the tunnel's peer at {endpoint} has not answered for {}, so no traffic passes; further \
             handshakes follow: check Endpoint, PublicKey, PrivateKey and PresharedKey, that this \
             peer knows this machine's public key, and that the network lets UDP through (a \
             firewall, a captive portal's login page)",
            span(*time)
        ),
        Notice::PeerRecovered { .. } => "the tunnel's peer answers: the tunnel works".to_owned(),
    }
}
