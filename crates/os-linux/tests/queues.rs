//! Tests of TUN interfaces with several queues. They need root.

#![cfg(target_os = "linux")]

mod common;

use common::Namespace;
use taupe_os_linux::tun::{Offloads, Tun};

#[test]
fn a_new_interface_gets_its_queues() {
    Namespace::new().run(|| {
        let queues = Tun::create_queues("tun7", Offloads::default(), 8).unwrap();
        assert!(queues.refused.is_none());
        assert_eq!(queues.others.len(), 7);
    });
}
