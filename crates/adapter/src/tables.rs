//! Names of routing tables.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of iproute2, in order of precedence: the administrator's, then the distribution's
/// (since iproute2 6.5).
const FOLDERS: [&str; 3] = ["etc/iproute2", "usr/share/iproute2", "usr/lib/iproute2"];

/// The names that need no file.
const BUILT_IN: [(&str, u32); 3] = [("default", 253), ("main", 254), ("local", 255)];

/// Returns all names with their numbers, from the files below `root`. Unreadable files are ignored.
pub(crate) fn names(root: &Path) -> BTreeMap<String, u32> {
    let mut names = BTreeMap::new();
    for folder in FOLDERS {
        let folder = root.join(folder);
        let mut files = vec![folder.join("rt_tables")];
        let entries = fs::read_dir(folder.join("rt_tables.d"));
        let mut parts: Vec<PathBuf> = entries
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|end| end == "conf"))
            .collect();
        parts.sort();
        files.extend(parts);
        for text in files
            .iter()
            .filter_map(|path| fs::read_to_string(path).ok())
        {
            for (name, number) in text.lines().filter_map(parse) {
                names.entry(name).or_insert(number);
            }
        }
    }
    for (name, number) in BUILT_IN {
        names.entry(name.to_owned()).or_insert(number);
    }
    names
}

/// Parses `NUMBER NAME`, with a decimal or hexadecimal number and an optional comment.
fn parse(line: &str) -> Option<(String, u32)> {
    let mut words = line.split('#').next()?.split_whitespace();
    let number = words.next()?;
    let name = words.next()?.to_owned();
    let number = match number.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => number.parse(),
    };
    Some((name, number.ok()?))
}

#[cfg(test)]
mod tests {
    use super::{names, parse};
    use std::fs;
    use std::path::Path;

    #[test]
    fn lines() {
        let named = |name: &str, number| Some((name.to_owned(), number));
        assert_eq!(parse("100 vpn"), named("vpn", 100));
        assert_eq!(parse("\t0x1F  vpn # mine"), named("vpn", 31));
        assert_eq!(parse("4294967295\tlast"), named("last", u32::MAX));
        for nothing in ["", "#1 inr.ruhep", "100", "x vpn", "4294967296 big", "-1 a"] {
            assert_eq!(parse(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn files() {
        let root = std::env::temp_dir().join(format!("taupe-tables-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("etc/iproute2/rt_tables.d/b.conf", "7 b\n8 a\n");
        write("etc/iproute2/rt_tables.d/ignored.txt", "9 ignored\n");
        write(
            "usr/share/iproute2/rt_tables",
            "254 main\n1 a\n2 distribution\n",
        );
        let found = names(&root);
        fs::remove_dir_all(&root).unwrap();
        let expected = [
            ("a", 8),
            ("b", 7),
            ("default", 253),
            ("distribution", 2),
            ("local", 255),
            ("main", 254),
        ];
        let expected = expected.map(|(name, number)| (name.to_owned(), number));
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
        assert_eq!(names(Path::new("/nowhere")).len(), 3);
    }
}
