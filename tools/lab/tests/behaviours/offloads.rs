//! Each offload is a convenience: without it everything arrives the same.

use crate::pair::{FAR_OUTER, Pair, neighbours};
use crate::transfer::both_ways;
use taupe_lab::Result;

/// What `--no-offload` takes, and `nothing` for all of them in use.
pub(crate) const EACH: [&str; 8] = [
    "nothing", "tso", "uso", "gso", "gro", "checksum", "avx512", "all",
];

/// One end does without; then, for `all`, both.
pub(crate) fn without(offload: &str) -> Result<()> {
    let (near, far) = neighbours()?;
    let option = ["--no-offload", offload];
    let options: [&[&str]; 2] = match offload {
        "nothing" => [&[], &[]],
        "all" => [&option, &option],
        _ => [&option, &[]],
    };
    both_ways(&Pair::between(&near, &far, FAR_OUTER, options)?)
}
