//! The crates of the workspace and the dependencies between them, from `cargo metadata`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

/// The result of what can fail: this program only prints the error.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The workspace that this program was built in.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) crates: Vec<Crate>,
}

/// A member of the workspace.
pub(crate) struct Crate {
    /// The package's name without `taupe-`.
    pub(crate) name: String,
    /// The folder of its manifest.
    pub(crate) folder: PathBuf,
    /// True for members in `tools/`.
    pub(crate) is_tool: bool,
    /// The library's root file, or the program's.
    pub(crate) root_file: Option<PathBuf>,
    /// Root files of all targets.
    pub(crate) targets: Vec<PathBuf>,
    pub(crate) dependencies: Vec<Dependency>,
}

/// A dependency of one member on another.
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// True for a dependency of tests, examples and benchmarks alone.
    pub(crate) is_dev: bool,
    /// The systems that it is for, in words; `None` is all of them.
    pub(crate) system: Option<String>,
    pub(crate) is_optional: bool,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<PackageDependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct PackageDependency {
    name: String,
    kind: Option<String>,
    target: Option<String>,
    optional: bool,
    path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

impl Workspace {
    /// Reads the manifests. Cargo neither resolves nor downloads anything for it.
    pub(crate) fn read() -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args([
                "metadata",
                "--no-deps",
                "--format-version",
                "1",
                "--manifest-path",
            ])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(format!("cargo metadata failed ({})", output.status).into());
        }
        let metadata: Metadata = serde_json::from_slice(&output.stdout)?;
        let mut crates = Vec::new();
        for package in metadata.packages {
            crates.push(package.into_crate(&metadata.workspace_root)?);
        }
        crates.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self {
            root: metadata.workspace_root,
            crates,
        })
    }
}

impl Package {
    fn into_crate(self, root: &Path) -> Result<Crate> {
        let folder = self
            .manifest_path
            .parent()
            .ok_or("a manifest without a folder")?
            .to_owned();
        let of_kind = |wanted: &[&str]| {
            let found = |target: &&Target| target.kind.iter().any(|kind| wanted.contains(&&**kind));
            self.targets
                .iter()
                .find(found)
                .map(|target| target.src_path.clone())
        };
        let libraries = ["lib", "rlib", "cdylib", "staticlib", "dylib", "proc-macro"];
        Ok(Crate {
            name: short(&self.name),
            is_tool: folder.starts_with(root.join("tools")),
            root_file: of_kind(&libraries).or_else(|| of_kind(&["bin"])),
            targets: self
                .targets
                .iter()
                .map(|target| target.src_path.clone())
                .collect(),
            // A dependency with a path is a member, or vendored, which is no crate of ours.
            dependencies: self
                .dependencies
                .into_iter()
                .filter(|one| {
                    one.path
                        .as_ref()
                        .is_some_and(|path| !path.starts_with(root.join("vendor")))
                })
                .map(|one| Dependency {
                    name: short(&one.name),
                    is_dev: one.kind.as_deref() == Some("dev"),
                    system: one.target.as_deref().map(system),
                    is_optional: one.optional,
                })
                .collect(),
            folder,
        })
    }
}

fn short(package: &str) -> String {
    package.strip_prefix("taupe-").unwrap_or(package).to_owned()
}

/// Returns the words for a target of a manifest: `linux` for `cfg(target_os = "linux")`, the names of
/// several systems, and the condition as it is for the less usual ones.
fn system(target: &str) -> String {
    let inside = |text: &str, start: &str, end: &str| {
        let rest = text.strip_prefix(start)?.strip_suffix(end)?;
        Some(rest.to_owned())
    };
    let condition = inside(target, "cfg(", ")").unwrap_or_else(|| target.to_owned());
    let one_or_more = inside(&condition, "any(", ")").unwrap_or_else(|| condition.clone());
    let names = one_or_more.split(", ");
    let names: Option<Vec<_>> = names
        .map(|one| inside(one, "target_os = \"", "\""))
        .collect();
    names.map_or(condition, |names| names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::system;

    #[test]
    fn systems_have_short_names() {
        assert_eq!(system("cfg(target_os = \"linux\")"), "linux");
        assert_eq!(system("cfg(windows)"), "windows");
        let two = "cfg(any(target_os = \"freebsd\", target_os = \"macos\"))";
        assert_eq!(system(two), "freebsd, macos");
        assert_eq!(system("cfg(not(windows))"), "not(windows)");
        assert_eq!(system("x86_64-pc-windows-gnu"), "x86_64-pc-windows-gnu");
    }
}
