//! Files that the C library reads to look up a name.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the files, which other programs replace when the network changes.
const FOLDER: &str = "/etc";

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The files (`resolv.conf(5)`, `hosts(5)`, `nsswitch.conf(5)`, `host.conf(5)`, `gai.conf(5)`).
const FILES: [&str; 5] = [
    RESOLV_CONF,
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
];

/// The folder of systemd-resolved, whose files Taupe and `resolv.conf` refer to.
const RESOLVED: &str = "/run/systemd/resolve";

/// Returns the paths that must stay readable so that names can be looked up later.
///
/// Landlock permits a file, not its name, so a file that replaces it is closed. Therefore a user may read
/// the whole folder, in which nothing secret is readable for users. Root could read everybody's secrets
/// there, and may read only the files that exist now.
#[must_use]
pub fn resolver_paths(is_root: bool) -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::from(RESOLVED)];
    if is_root {
        paths.extend(FILES.map(PathBuf::from));
        return paths;
    }
    paths.push(FOLDER.into());
    let target = fs::canonicalize(RESOLV_CONF).ok();
    paths.extend(target.as_deref().and_then(Path::parent).map(Path::to_owned));
    paths
}

#[cfg(test)]
mod tests {
    use super::resolver_paths;
    use std::path::Path;

    #[test]
    fn root_may_not_read_a_folder_with_secrets() {
        let etc = Path::new("/etc");
        assert!(!resolver_paths(true).iter().any(|path| path == etc));
        assert!(resolver_paths(false).iter().any(|path| path == etc));
    }
}
