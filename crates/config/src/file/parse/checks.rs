//! Checks of the whole file, after all lines.

use core::mem;

use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::{PqPublicKey, PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::update::{PostQuantum, Suite};

use super::Parser;
use crate::file::diagnostic::{DiagnosticKind, Severity};

impl Parser<'_> {
    pub(super) fn finish_file(&mut self) {
        let report = &mut self.report;
        mem::take(&mut self.foreign).report(report);
        self.interface.check(self.dialect, report);
        self.transparent.check(self.peer_sections, report);
        let private = self.interface.values.private_key.as_ref();
        let private_line = self.interface.private_key_at.map(|at| at.number);
        if let (Some(private), Some(line)) = (private, private_line) {
            let own = PublicKey(default_provider().dh.public(private.expose()));
            // Many networks use one list of peers for all hosts; the kernel skips the host itself.
            // So this is only a warning if there are other peers.
            let shared = self.public_key_spans.iter().any(|(key, _)| *key != own);
            for (public_key, at) in &self.public_key_spans {
                if PrivateKey::new(public_key.0).as_ref() == Some(private) {
                    report.add(*at, DiagnosticKind::PublicKeyIsPrivate { private: line });
                } else if *public_key == own {
                    let kind = DiagnosticKind::PeerIsSelf { private: line };
                    if shared {
                        report.add_as(Severity::Warning, *at, kind);
                    } else {
                        report.add(*at, kind);
                    }
                }
            }
            for peer in &mut self.peers {
                if peer.public_key == own && !report.dialect().is_device_only() {
                    // Removing the peer would move others, and leave copies of their keys.
                    peer.allowed_ips.clear();
                    peer.disallowed_ips.clear();
                    peer.endpoint = None;
                }
            }
        }
        // At this point, a peer that is the tunnel itself has no networks.
        if !self.dialect.is_device_only() {
            self.interface.check_mtu(&self.peers, report);
        }
        let private = private.map(|key| PresharedKey::new(*key.expose()));
        for (number, at) in &self.preshared_key_spans {
            let peer = self.peers.get(*number);
            let Some(preshared_key) = peer.and_then(|peer| peer.preshared_key.as_ref()) else {
                continue;
            };
            if let (true, Some(line)) = (private.as_ref() == Some(preshared_key), private_line) {
                report.add(*at, DiagnosticKind::PresharedKeyIsPrivate { private: line });
            } else if let Some(&public) = self.public_keys.get(preshared_key.expose()) {
                report.add(*at, DiagnosticKind::PresharedKeyIsPublic { public });
            }
        }
        self.check_pq_keys();
    }

    /// Checks that hybrid handshakes can succeed with these keys.
    fn check_pq_keys(&mut self) {
        let report = &mut self.report;
        let crypto = default_provider();
        let interface = &self.interface;
        let private = interface.values.private_key.as_ref();
        let own = private.map(|private| PublicKey(crypto.dh.public(private.expose())));
        let seed = interface.values.pq_private_key.as_ref();
        let seed = seed.zip(interface.pq_private_key_at.map(|at| at.number));
        let lacks_seed = interface.lacks_pq_private_key(self.dialect);
        // Expanded once, not once per peer.
        let own_pq: Vec<PqPublicKey> = match (&seed, self.pq_key_spans.is_empty()) {
            (Some((seed, _)), false) => [Suite::Hybrid768, Suite::Hybrid512]
                .map(|suite| seed.public(crypto, suite))
                .into(),
            _ => Vec::new(),
        };
        for (number, at) in &self.pq_key_spans {
            let Some(peer) = self.peers.get(*number) else {
                continue;
            };
            let key = peer.pq_public_key.as_ref().map(|key| &key.key);
            // If the peer is the tunnel itself, that is already reported.
            let is_other = own != Some(peer.public_key);
            if lacks_seed && peer.post_quantum != Some(PostQuantum::Off) {
                report.add(*at, DiagnosticKind::NoPqPrivateKey);
            } else if let Some((_, private)) = seed
                && is_other
                && key.is_some_and(|key| own_pq.contains(key))
            {
                report.add(*at, DiagnosticKind::PqPublicKeyIsOwn { private });
            }
        }
    }
}
