//! These need no namespace but the test's own, and no privilege: a refused
//! `setns` is as good. What needs another namespace is in `tests/namespace.rs`.

use super::within;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

#[test]
fn what_is_no_namespace_is_an_error_and_nothing_runs() {
    let file = File::open("/dev/null").expect("null device");
    let mut ran = false;
    let error = within(file.as_fd(), || ran = true).expect_err("not a namespace");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(!ran);
}

#[test]
fn another_kind_of_namespace_is_an_error() {
    let file = File::open("/proc/self/ns/uts").expect("namespace");
    let error = within(file.as_fd(), || ()).expect_err("not a network namespace");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}
