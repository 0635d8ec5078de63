//! `taupe allowed-ips`: computes lists of networks.

use crate::console;
use ipnet::IpNet;
use std::process::ExitCode;
use taupe_uapi::networks::subtract;

/// Prints the shortest list of networks without those in `except`, in the format of `AllowedIPs`.
pub(crate) fn main(networks: &[IpNet], except: &[IpNet]) -> ExitCode {
    let left = subtract(networks, except);
    if left.is_empty() {
        console::say(&"taupe: no network is left, so the list is empty");
    }
    let left: Vec<_> = left.iter().map(ToString::to_string).collect();
    let printed = console::print(format!("{}\n", left.join(", ")).as_bytes());
    crate::exit(printed, ExitCode::SUCCESS)
}
