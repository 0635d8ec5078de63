//! Without an offload all traffic arrives the same.

use crate::pair::{FAR_OUTER, Pair, neighbours};
use crate::transfer::in_both_directions;
use taupe_lab::Result;

/// The values of `--no-offload`, and `nothing` to keep all of them.
pub(crate) const EACH: [&str; 8] = [
    "nothing", "tso", "uso", "gso", "gro", "checksum", "avx512", "all",
];

/// Disables it at one end; for `all`, then at both.
pub(crate) fn without(offload: &str) -> Result<()> {
    let (near, far) = neighbours()?;
    let option = ["--no-offload", offload];
    let options: [&[&str]; 2] = match offload {
        "nothing" => [&[], &[]],
        "all" => [&option, &option],
        _ => [&option, &[]],
    };
    in_both_directions(&Pair::between(&near, &far, FAR_OUTER, options)?)
}
